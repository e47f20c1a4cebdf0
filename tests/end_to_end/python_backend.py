"""NVIDIA's Python backend, as the package nvidia-pytriton ships it: the library, its stub, and what both need.

The package is taken apart and not installed: of it only the backend is wanted, and what it depends on does not go
with the other requirements of these tests. It is fetched once for each environment of the tests.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = "nvidia-pytriton==0.7.0"
# The stub was built for arrays of numpy 1: those of numpy 2 it takes to be empty.
NUMPY = "numpy==1.26.4"
HOME = Path(sys.prefix) / "nvidia-python-backend"
BACKENDS = HOME / "backends"
_LIBRARIES = HOME / "libraries"
# The models' Python: the stub looks for it by PATH.
_PYTHON = HOME / "python"
_TRITON = "pytriton/tritonserver"


def prepare():
    """Fetches the backend, unless it is there."""
    ready = HOME / "ready"
    if ready.exists():
        return
    wheels = HOME / "wheels"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(wheels), PACKAGE], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(_PYTHON)], check=True)
    (packages,) = _PYTHON.glob("lib/python*/site-packages")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(packages), NUMPY], check=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = {
        f"{_TRITON}/backends/python/": BACKENDS / "python",
        f"{_TRITON}/python_backend_stubs/{version}/": BACKENDS / "python",
        "nvidia_pytriton.libs/": _LIBRARIES,
    }
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            for prefix, folder in wanted.items():
                # The server's own library is the one that must not be found: ours is in its place.
                if name.startswith(prefix) and not name.endswith("/") and "libtritonserver" not in name:
                    target = folder / name.removeprefix(prefix)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(files.read(name))
    (BACKENDS / "python" / "triton_python_backend_stub").chmod(0o755)
    wheel.unlink()
    ready.touch()


def environment():
    """The environment of a server that loads the backend: where its libraries and the models' Python are."""
    known = os.environ.get("LD_LIBRARY_PATH")
    path = f"{_LIBRARIES}:{known}" if known else str(_LIBRARIES)
    return os.environ | {
        "LD_LIBRARY_PATH": path,
        "PATH": f"{_PYTHON / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(_PYTHON),
    }


FLAGS = [f"--backend-directory={BACKENDS}"]
