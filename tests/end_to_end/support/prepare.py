"""Fetches and makes what the tests need beside their Python environment: `python prepare.py`, in that environment.

The tests do so themselves when they first need it. `cargo xtask test` runs this while it compiles.
"""

import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import azurite
import charts
import chromium
import debian_packages
import kserve_package
import library_releases
import llamacpp_package
import nvidia_bindings
import prometheus
import python_backend
import python_interpreters
import pytriton_package
import redis_server
import seaweedfs
import sentence_package
import silero_package
import tensorflow_package
import torch_package
import torch_wheel
import transformers_package


def nvidias_bindings():
    """NVIDIA's packages for a Python that not every machine has."""
    if nvidia_bindings.interpreter():
        for version in nvidia_bindings.VERSIONS:
            nvidia_bindings.prepare(version)
        nvidia_bindings.newer_libraries()


def bytecode():
    """The tests, compiled as pytest has them. Each of the processes that run them would do so."""
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", tests]
    # Any program will do: none is started.
    environment = os.environ | {"NEREID_BINARY": sys.executable}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def aoti_models():
    """The models that PyTorch compiles."""
    torch_wheel.NEWEST.models(torch_wheel.MODELS)


# Side by side, those of a list one after the other: apt locks its lists, and the packages for Python share pip's cache.
STEPS = [
    [
        redis_server.program,
        prometheus.program,
        chromium.program,
        debian_packages.valgrind,
        torch_package.fetched,
        nvidias_bindings,
        python_interpreters.environments,
        azurite.program,
        chromium.axe,
    ],
    [
        python_backend.prepare,
        python_backend.prepare_caches,
        pytriton_package.prepare,
        tensorflow_package.fetched,
        torch_wheel.NEWEST.fetched,
        aoti_models,
        transformers_package.models,
        sentence_package.models,
        seaweedfs.program,
        silero_package.torchscript,
        library_releases.old_onnx_runtime,
        kserve_package.prepare,
        charts.prepare,
        llamacpp_package.prepare,
    ],
    [bytecode],
]


def run(steps):
    """Runs steps, and returns the number of those that failed."""
    failed = 0
    for step in steps:
        name, start = f"{step.__module__}.{step.__name__}".removeprefix("__main__."), time.monotonic()
        try:
            step()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"{name} failed", flush=True)
        else:
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    return failed


def main():
    with ThreadPoolExecutor(len(STEPS)) as threads:
        return 1 if sum(threads.map(run, STEPS)) else 0


if __name__ == "__main__":
    sys.exit(main())
