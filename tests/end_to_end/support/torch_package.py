"""A small libtorch with its headers and its Python: Debian's packages (60 MB), unpacked beside the Python environment of the
tests. Fetched once for each environment; nothing is installed. PyPI's package takes 540 MB.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from once import once

# Makes models: run with this environment's Python.
MODELS = Path(__file__).with_name("torch_models.py")

HOME = Path(sys.prefix) / "torch-1.13"
_ROOT = HOME / "root"
_MACHINE = _ROOT / "usr/lib/x86_64-linux-gnu"
# Its Python package, for CPython 3.11.
PYTHON = _ROOT / "usr/lib/python3/dist-packages"
_PACKAGES = """
    libblas3 libcpuinfo0 libdnnl2 libfmt9 libgflags-dev libgflags2.2 libgfortran5 libgloo0 libgomp1 libgoogle-glog-dev
    libgoogle-glog0v6 libhiredis0.14 libibverbs1 liblapack3 libleveldb1d liblmdb0 libnl-3-200 libnl-route-3-200 libnorm1
    libnuma1 libonnx1 libpgm-5.3-0 libprotobuf32 libpthreadpool0 libquadmath0 libsleef3 libsnappy1v5 libsodium23
    libtensorpipe0 libtorch-dev libtorch1.13 libunwind8 libuv1 libxnnpack0 libzmq5 ocl-icd-libopencl1
    python3-torch python3-typing-extensions
""".split()
# What Debian's libtorch names as needed, and calls no function of.
_UNUSED = """
    avcodec.so.59 avformat.so.59 avutil.so.57 opencv_calib3d.so.406 opencv_core.so.406 opencv_dnn.so.406
    opencv_features2d.so.406 opencv_flann.so.406 opencv_highgui.so.406 opencv_imgcodecs.so.406 opencv_imgproc.so.406
    opencv_optflow.so.406 opencv_video.so.406 opencv_videoio.so.406 opencv_ximgproc.so.406 swresample.so.4 swscale.so.6
""".split()
# Its library, with the headers beside it as in PyPI's package.
LIBRARY_FOLDER = HOME / "torch/lib"


def environment():
    """The variables with which libtorch is loaded."""
    folders = [HOME / "unused", _MACHINE, _MACHINE / "blas", _MACHINE / "lapack", _ROOT / "usr/lib"]
    folders.append(_ROOT / "lib/x86_64-linux-gnu")
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders)),
        # The compiled shim stays for the next run.
        "XDG_CACHE_HOME": str(HOME / "cache"),
    }


def fetched():
    """Fetches it unless it is there."""
    once(HOME, _fetch)


def _fetch():
    debs = HOME / "debs"
    debs.mkdir(exist_ok=True)
    try:
        download = ["apt-get", "download", *_PACKAGES]
        if subprocess.run(download, cwd=debs, capture_output=True).returncode != 0:
            # The lists of packages may be missing or old; only the superuser may fetch new ones.
            subprocess.run(["apt-get", "update"], check=True, capture_output=True)
            subprocess.run(download, cwd=debs, check=True, capture_output=True)
        for deb in debs.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", deb, _ROOT], check=True)
        (HOME / "unused").mkdir(exist_ok=True)
        for name in _UNUSED:
            stub = HOME / "unused" / f"lib{name}"
            link: list[str | Path] = ["cc", "-shared", "-x", "c", "/dev/null", "-o", stub, f"-Wl,-soname,lib{name}"]
            subprocess.run(link, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"libtorch is needed, and Debian 12's packages of it cannot be fetched ({error})") from error
    shutil.rmtree(debs)
    LIBRARY_FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("libtorch_cpu.so", "libc10.so"):
        (LIBRARY_FOLDER / name).symlink_to(next(_MACHINE.glob(f"{name}.1.13.*")))
    (HOME / "torch/include").symlink_to(_ROOT / "usr/include")


def run(program, *arguments):
    """Runs a Python program with torch. What it prints last is JSON, and returned."""
    fetched()
    candidates = [sys.executable, shutil.which("python3.11"), "/usr/bin/python3"]
    version = ["-c", "import sys; sys.exit(sys.version_info[:2] != (3, 11))"]
    fits = (it for it in candidates if it and subprocess.run([it, *version]).returncode == 0)
    python = next(fits, None)
    assert python, "CPython 3.11 is needed, for which Debian 12 builds torch"
    variables = os.environ | environment() | {"PYTHONPATH": str(PYTHON)}
    command = [python, "-W", "ignore", program, *map(str, arguments)]
    outcome = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout.splitlines()[-1])


# What other releases have too (`torch_wheel.Wheel`).
RELEASE = SimpleNamespace(library_folder=LIBRARY_FOLDER, environment=environment, fetched=fetched)
