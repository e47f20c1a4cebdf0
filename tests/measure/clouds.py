"""A large model from S3: how long it takes to arrive beside a bare parallel download of the same ranges and beside NVIDIA's server,
how much memory that takes, and what a start costs whose cache has it. `clouds.py NEREID [MEGABYTES] [ROUNDS]`
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end" / "support"))

from cloud_repositories import EXPLICIT, environment, load
from cloud_servers import AWS
from model_files import write_identity
from nereid_server import running
from python_backend import BACKENDS, nvidia_server

RANGE = 8 << 20
CONNECTIONS = 16
SERVER = Path(__file__).with_name("fast_s3.py")

PYTHON_MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return [None for _ in requests]
"""
PYTHON_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""


@contextmanager
def store(folder):
    """A fast server of the buckets in a folder. Gives its address."""
    process = subprocess.Popen([sys.executable, SERVER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def get(address, path):
    connection = HTTPConnection(address)
    connection.request("GET", path)
    return connection.getresponse().read()


def bare(address, path, size, target):
    """The time that a download takes which does nothing else, and that of the processors."""
    starts = iter(range(0, size, RANGE))
    lock = threading.Lock()
    with open(target, "wb") as file:

        def work():
            connection = HTTPConnection(address)
            buffer = memoryview(bytearray(1 << 20))
            while True:
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                connection.request("GET", path, headers={"range": f"bytes={start}-{min(start + RANGE, size) - 1}"})
                answer = connection.getresponse()
                while count := answer.readinto(buffer):
                    os.pwrite(file.fileno(), buffer[:count], start)
                    start += count

        began, busy = time.monotonic(), time.process_time()
        threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, busy = time.monotonic() - began, time.process_time() - busy
    assert target.stat().st_size == size
    target.unlink()
    return took, busy


def memory(pid, field):
    """In MB: VmRSS now, VmHWM at its highest."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1000


def processors(pid):
    """The time of the processors that a process has had, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cold(url, model, folder):
    """The time that Nereid takes to fetch and load a model, that of the processors, and the memory beyond what it has when idle."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        flags = (EXPLICIT, f"--repository-cache-directory={cache}")
        with running(url, *flags, env=environment(**AWS)) as server:
            idle, busy = memory(server.pid, "VmRSS"), processors(server.pid)
            began = time.monotonic()
            answer = load(server, model)
            took, busy = time.monotonic() - began, processors(server.pid) - busy
            assert answer.status == 200, answer.json
            return took, busy, memory(server.pid, "VmHWM") - idle


def reference(url):
    """The time that NVIDIA's server takes to fetch and load a model, less that of the same model without the large file."""
    took = {}
    with nvidia_server(url, EXPLICIT, f"--backend-directory={BACKENDS}") as address:
        for model in ("small", "large"):
            connection = HTTPConnection(address, timeout=600)
            began = time.monotonic()
            connection.request("POST", f"/v2/repository/models/{model}/load")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            took[model] = time.monotonic() - began
    return took["large"] - took["small"]


def warm(address, url, folder):
    """How many requests a start makes whose cache has the model, and how long it takes until the model is served."""
    flags = (EXPLICIT, "--load-model=a", f"--repository-cache-directory={folder}/warm")
    for _ in range(2):
        before, began = int(get(address, "/count")), time.monotonic()
        with running(url, *flags, env=environment(**AWS)):
            took = time.monotonic() - began
    return int(get(address, "/count")) - before, took


def write(folder, size):
    """The same weights in a model of ours and in one that NVIDIA's server runs, too."""
    ours, theirs = folder / "bucket/ours", folder / "bucket/theirs"
    write_identity(ours, "a", ["INT32"])
    for model in ("small", "large"):
        (theirs / model / "1").mkdir(parents=True)
        (theirs / model / "config.pbtxt").write_text(PYTHON_CONFIG)
        (theirs / model / "1/model.py").write_text(PYTHON_MODEL)
    block = os.urandom(1 << 20)
    with open(ours / "a/1/weights", "wb") as file:
        for _ in range(size >> 20):
            file.write(block)
    os.link(ours / "a/1/weights", theirs / "large/1/weights")


def main():
    os.environ["NEREID_BINARY"] = sys.argv[1]
    size = int(sys.argv[2] if len(sys.argv) > 2 else 1024) << 20
    rounds = int(sys.argv[3] if len(sys.argv) > 3 else 3)
    os.environ.update(AWS)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write(folder, size)
        with store(folder) as address:
            url = f"s3://http://{address}/bucket"
            ratios, bares, colds, references = [], [], [], []
            for _ in range(rounds):
                bares.append(bare(address, "/bucket/ours/a/1/weights", size, folder / "bare"))
                colds.append(cold(f"{url}/ours", "a", folder))
                ratios.append(colds[-1][0] / bares[-1][0])
                references.append(reference(f"{url}/theirs"))
            (took, busy), (plain, plainly) = ([median(column) for column in list(zip(*rows))[:2]] for rows in (colds, bares))
            requests, seconds = warm(address, f"{url}/ours", folder)
            print("| | |\n|---|---|")
            print(f"| bare download of {size >> 20} MiB in ranges | {plain:.2f} s, {plainly:.2f} s of processors |")
            print(f"| fetched, checked and loaded by Nereid | {took:.2f} s, {median(ratios):.2f} x; {busy:.2f} s of processors |")
            print(f"| fetched by NVIDIA's server | {median(references):.2f} s, {median(references) / took:.1f} x of Nereid's |")
            print(f"| memory over idle, at most | {max(extra for *_, extra in colds):.0f} MB |")
            print(f"| a start with a warm cache | {requests} requests, {seconds:.2f} s |")


main()
