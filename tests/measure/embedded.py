"""What a server within a program costs: a call through the C interface beside one in Rust, and Python beside gRPC.

    embedded.py LIBRARY EXAMPLE WHEEL

`cargo xtask bench embedded` builds these and starts this. Prints tables in Markdown.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import tritonclient.grpc

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parents[1] / "crates" / "tritonserver" / "include"
CONFIG = """backend: "identity" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
"""
ROUNDS = 7
# CPU time is what more requests take longer.
FEW, MANY = 2_000, 102_000
SECONDS = 2.0


def cpu_of(*command, env=None):
    """The CPU time of a program, its threads included, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cost(program, repository, env=None):
    """The CPU time of a request, in microseconds."""
    few, many = (cpu_of(program, repository, str(count), env=env) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW) * 1e6


def calls(library, example, repository, folder):
    """Calls through the C interface, and `Server::infer` in Rust."""
    program = folder / "embedded"
    link = [f"-I{HEADERS}", f"-L{library.parent}", "-ltritonserver", "-pthread"]
    subprocess.run(["cc", "-std=gnu11", "-O2", HERE / "embedded.c", "-o", program, *link], check=True)
    env = os.environ | {"LD_LIBRARY_PATH": str(library.parent)}
    pairs = [(cost(example, repository), cost(program, repository, env)) for _ in range(ROUNDS)]
    rust, c = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    extra = statistics.median(c - rust for rust, c in pairs)
    print("\n| CPU per request, 64 bytes | `Server::infer` | C interface | more |\n|---|--:|--:|--:|")
    print(f"| one after the other | {rust:.1f} µs | {c:.1f} µs | {extra:.1f} µs |")


def rate(ask):
    """How often it can be called in a second."""
    for _ in range(200):
        ask()
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + SECONDS:
        for _ in range(50):
            ask()
        count += 50
    return count / (time.perf_counter() - start)


def python(wheel, repository, folder):
    """Requests of a Python program to a server within it, and over gRPC to the same server."""
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-index", "--no-deps", "--target", folder / "package"]
    subprocess.run([*pip, wheel], check=True)
    sys.path.insert(0, str(folder / "package"))
    import nereid

    ports: nereid.Options = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    ports |= {"grpc_address": "127.0.0.1", "http_address": "127.0.0.1"}
    print("\n| requests/s of a Python program | in process | gRPC | ratio |\n|---|--:|--:|--:|")
    with nereid.Server(repository, listen=True, **ports) as server:
        model = server.model("identity")
        url = next(address for protocol, address in server.addresses().items() if protocol.lower() == "grpc")
        with tritonclient.grpc.InferenceServerClient(url) as client:
            for title, elements in [("64 bytes", 16), ("64 KiB", 16 << 10), ("1 MiB", 256 << 10)]:
                values = numpy.zeros((1, elements), numpy.float32)

                def inside():
                    model.infer({"INPUT0": values})["OUTPUT0"].numpy()

                def over_grpc():
                    given = tritonclient.grpc.InferInput("INPUT0", values.shape, "FP32")
                    given.set_data_from_numpy(values)
                    client.infer("identity", [given]).as_numpy("OUTPUT0")

                pairs = [(rate(inside), rate(over_grpc)) for _ in range(3)]
                own, grpc = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
                ratios = [pair[0] / pair[1] for pair in pairs]
                print(f"| {title} | {own:,.0f} | {grpc:,.0f} | {statistics.median(ratios):.1f}× |")


def main():
    """Measures."""
    library, example, wheel = (Path(path).resolve() for path in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "models" / "identity" / "1").mkdir(parents=True)
        (folder / "models" / "identity" / "config.pbtxt").write_text(CONFIG)
        calls(library, example, folder / "models", folder)
        python(wheel, folder / "models", folder)


if __name__ == "__main__":
    main()
