"""PyPI's PyTorch (540 to 770 MB), with its Python and libtorch, unpacked beside the Python environment of the tests. Fetched once for
each environment; nothing is installed.

It is built for CUDA, and comes without NVIDIA's libraries here, which take several GB. On the CPU, two small ones are enough for
libtorch. PyTorch's Python loads the others, and calls none of their functions: empty ones take their places.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from once import once

# Makes packages: run with PyTorch's Python.
MODELS = Path(__file__).with_name("aoti_models.py")

_REQUIREMENTS = """
    filelock==4.2.11 fsspec==2026.9.0 jinja2==3.1.6 markupsafe==3.0.4 mpmath==1.3.0 networkx==3.6.1 setuptools==84.2.1
    typing-extensions==4.16.0
""".split()
# Versions of symbols are named after their libraries, but for this one; some have none.
_VERSIONS = {"libnvshmem_host.so.3": "NVSHMEM"}
_WITHOUT_VERSION = ("nccl", "cuFile", "cusparseLt", "nvtx")


class Wheel:
    """A release of PyTorch. Its packages are torch, CUDA's two libraries, and sympy; `unused` are the names of libraries to replace."""

    def __init__(self, home, packages, unused):
        self._home = home
        self._packages = packages.split()
        self._unused = unused.split()
        # The folder of the Python packages.
        self.python = home / "packages"
        self.library_folder = self.python / "torch/lib"

    def environment(self):
        """The variables with which PyTorch's Python finds all libraries. libtorch needs none."""
        # Code that is compiled for one package stays for the next run.
        return {"LD_LIBRARY_PATH": str(self._home / "unused"), "XDG_CACHE_HOME": str(self._home / "cache")}

    def fetched(self):
        """Fetches it unless it is there."""
        once(self._home, self._fetch)

    def _fetch(self):
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary=:all:", "--no-cache-dir"]
        command: list[str | Path] = [sys.executable, "-m", "pip", "install", *quiet, "--upgrade", "--target", self.python]
        subprocess.run([*command, *self._packages, *_REQUIREMENTS], check=True)
        (self._home / "unused").mkdir(exist_ok=True)
        names = ("libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch_nvshmem.so", "libtorch_cuda_linalg.so")
        users = (self.library_folder / name for name in names)
        needed = set().union(*(_undefined(user) for user in users if user.exists()))
        for name in self._unused:
            version = _VERSIONS.get(name, name)
            symbols = [symbol for symbol, its in needed if its == version]
            # Any library may have those without a version.
            plain = [symbol for symbol, its in needed if not its and symbol.startswith(_WITHOUT_VERSION)]
            self._write_empty(name, symbols, version, plain if name == self._unused[0] else [])

    def _write_empty(self, name, symbols, version, plain):
        """A library with symbols that are not called."""
        source = self._home / "unused" / f"{name}.s"
        labels = "".join(f".globl {symbol}\n.type {symbol},@function\n{symbol}:\n" for symbol in [*symbols, *plain])
        source.write_text(f'.text\n{labels}ud2\n.section .note.GNU-stack,"",@progbits\n')
        link = ["cc", "-shared", "-nostdlib", source, "-o", source.with_suffix(""), f"-Wl,-soname,{name}"]
        if symbols:
            script = source.with_suffix(".map")
            script.write_text(f"{version} {{ {'; '.join(symbols)}; }};\n")
            link.append(f"-Wl,--version-script={script}")
        subprocess.run(link, check=True)

    def models(self, program, packages=None, name=""):
        """A folder with the models that a program writes, and what it prints last, as JSON. Compiling takes long, so they stay
        for the next run. `packages` has others beside PyTorch, which `name` tells apart."""
        self.fetched()
        folder = self._home / f"models-{hashlib.sha256(program.read_bytes() + name.encode()).hexdigest()[:16]}"
        printed = folder / "printed.json"
        with open(self._home / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not printed.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                answers = self.run(program, folder, packages=packages)
                printed.write_text(answers)
        return folder, json.loads(printed.read_text())

    def run(self, program, *arguments, packages=None):
        """Runs a Python program with PyTorch, from these packages, and returns the last line that it prints."""
        variables = os.environ | self.environment() | {"PYTHONPATH": str(packages or self.python)}
        command = [sys.executable, "-W", "ignore", program, *map(str, arguments)]
        outcome = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout.splitlines()[-1]


def _undefined(library):
    """The symbols that a library needs, with their versions."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        yield symbol, version.lstrip("@")


NEWEST = Wheel(
    Path(sys.prefix) / "torch-2.15",
    "torch==2.15.0 nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86 sympy==1.14.0",
    """
    libcublas.so.13 libcublasLt.so.13 libcudnn.so.9 libcufft.so.12 libcufile.so.0 libcusparse.so.12 libcusparseLt.so.0 libnccl.so.2
    libnvrtc.so.13 libnvshmem_host.so.3
    """,
)
# The first release that writes packages of AOTInductor.
OLDEST_WITH_PACKAGES = Wheel(
    Path(sys.prefix) / "torch-2.6",
    "torch==2.6.0 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-cupti-cu12==12.4.127 sympy==1.13.1",
    """
    libcublas.so.12 libcublasLt.so.12 libcudnn.so.9 libcufft.so.11 libcurand.so.10 libcusolver.so.11 libcusparse.so.12
    libcusparseLt.so.0 libnccl.so.2 libnvJitLink.so.12 libnvToolsExt.so.1 libnvrtc.so.12
    """,
)
