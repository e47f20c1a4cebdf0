"""A large model from S3: how long it takes to arrive beside a bare parallel download of the same ranges, how much memory that
takes, and what a start costs whose cache has it. `clouds.py NEREID [MEGABYTES]`
"""

import os
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))

from cloud_repositories import EXPLICIT, Cloud, load  # noqa: E402
from clouds import Proxy, s3  # noqa: E402
from model_files import write_identity  # noqa: E402
from nereid_server import running  # noqa: E402

RANGE = 8 << 20
CONNECTIONS = 16
ROUNDS = 3


def bare(store, path, size, folder):
    """The time that a download takes which does nothing else."""
    starts = iter(range(0, size, RANGE))
    lock = threading.Lock()
    headers = {"authorization": store.http.headers["authorization"]}
    with open(folder / "bare", "wb") as target:

        def work():
            connection = HTTPConnection(store.address)
            while True:
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                connection.request("GET", path, headers={**headers, "range": f"bytes={start}-{min(start + RANGE, size) - 1}"})
                os.pwrite(target.fileno(), connection.getresponse().read(), start)

        began = time.monotonic()
        threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
    assert (folder / "bare").stat().st_size == size
    return took


def memory(pid, field):
    """In MB: VmRSS now, VmHWM at its highest."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1000


def cold(cloud, folder, number):
    """The time that Nereid takes to fetch and load the model, and the memory that takes beyond what it has when idle."""
    cache = f"--repository-cache-directory={folder}/cache{number}"
    with running(cloud.url("large"), EXPLICIT, cache, env=cloud.environment()) as server:
        idle = memory(server.pid, "VmRSS")
        began = time.monotonic()
        assert load(server, "a").status == 200
        return time.monotonic() - began, memory(server.pid, "VmHWM") - idle


def warm(cloud, folder):
    """How many requests a start makes whose cache has the model."""
    cache = f"--repository-cache-directory={folder}/warm"
    with Proxy(cloud.store.address) as proxy:
        url, env = cloud.url("large", proxy.address), cloud.environment(proxy.address)
        for _ in range(2):
            proxy.requests.clear()
            with running(url, EXPLICIT, "--load-model=a", cache, env=env):
                pass
        return len(proxy.requests)


def main():
    os.environ["NEREID_BINARY"] = sys.argv[1]
    size = int(sys.argv[2] if len(sys.argv) > 2 else 1024) << 20
    with s3() as store, tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        cloud = Cloud(store)
        write_identity(folder / "models", "a", ["INT32"])
        cloud.put("large", folder / "models")
        block = os.urandom(1 << 20)
        store.http.put("/models/large/a/1/weights", content=(block for _ in range(size >> 20)), timeout=600).raise_for_status()
        bares, colds = [], []
        for number in range(ROUNDS):
            bares.append(bare(store, "/models/large/a/1/weights", size, folder))
            colds.append(cold(cloud, folder, number))
            for path in (folder / f"cache{number}" / "files").iterdir():
                path.unlink()
        took = median(seconds for seconds, _ in colds)
        print("| | |\n|---|---|")
        print(f"| bare download of {size >> 20} MiB in ranges | {median(bares):.2f} s |")
        print(f"| fetched and loaded by Nereid | {took:.2f} s, {took / median(bares):.2f} x |")
        print(f"| memory over idle, at most | {max(extra for _, extra in colds):.0f} MB |")
        print(f"| requests of a start with a warm cache | {warm(cloud, folder)} |")


main()
