"""NVIDIA's Python backend, as the package nvidia-pytriton ships it: the library, its stub, and what both need. And
NVIDIA's server, which comes with it: libraries that load in both servers are tested in both.

The package is unpacked and not installed: only these parts are needed, and its dependencies conflict with the other
requirements of these tests. It is fetched once for each test environment.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from once import once
from ports import free_ports

PACKAGE = "nvidia-pytriton==0.7.0"
# The stub was built for arrays of numpy 1: those of numpy 2 it takes to be empty.
NUMPY = "numpy==1.26.4"
_START_LIMIT_S = 60
HOME = Path(sys.prefix) / "nvidia-python-backend"
BACKENDS = HOME / "backends"
CACHES = HOME / "caches"
_LIBRARIES = HOME / "libraries"
_SERVER = HOME / "server"
# The models' Python: the stub looks for it by PATH.
_PYTHON = HOME / "python"
_TRITON = "pytriton/tritonserver"


def prepare():
    """Fetches the backend and the server, unless they are there."""
    once(HOME, _fetch, "ready-with-server")


def prepare_caches():
    """Fetches NVIDIA's response caches, unless they are there."""
    once(HOME, _fetch_caches, "ready-caches")


def _fetch_caches():
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "download", "--no-deps", "--dest", wheels, PACKAGE], check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            for name in files.namelist():
                if name.startswith(f"{_TRITON}/caches/") and name.endswith(".so"):
                    target = CACHES / Path(name).relative_to(f"{_TRITON}/caches")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(files.read(name))


def _fetch():
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
        # The server's own library is beside the server alone: for backends in ours it must not be found.
        "nvidia_pytriton.libs/libtritonserver": _SERVER / "lib",
        f"{_TRITON}/bin/": _SERVER / "bin",
    }
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            prefix = max(filter(name.startswith, wanted), key=len, default=None)
            if prefix and not name.endswith("/"):
                target = wanted[prefix] / Path(name).relative_to(Path(prefix + "_").parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files.read(name))
    (BACKENDS / "python" / "triton_python_backend_stub").chmod(0o755)
    (_SERVER / "bin" / "tritonserver").chmod(0o755)
    wheel.unlink()


def library(folder):
    """A folder in this one with the server's library under the name that NVIDIA's bindings load."""
    prepare()
    (found,) = (_SERVER / "lib").glob("libtritonserver*.so")
    place = folder / "nvidia"
    place.mkdir()
    (place / "libtritonserver.so").symlink_to(found)
    return place


def environment():
    """The environment of a server that loads the backend: where its libraries and the models' Python are."""
    known = os.environ.get("LD_LIBRARY_PATH")
    path = f"{_LIBRARIES}:{known}" if known else str(_LIBRARIES)
    return os.environ | {
        "LD_LIBRARY_PATH": path,
        "PATH": f"{_PYTHON / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(_PYTHON),
    }


# The server has a Python backend of its own, which would go first.
LIBRARY = "--backend-config=python,engine=library"
FLAGS = [f"--backend-directory={BACKENDS}", LIBRARY]
# Both backends run models with the same interpreter and the same packages.
ENGINES = {"library": FLAGS, "builtin": ["--backend-config=python,engine=builtin"]}


@contextmanager
def nvidia_server(repository, *flags):
    """Runs NVIDIA's server, and gives `host:port` of its HTTP once it is ready."""
    with nvidia_addresses(repository, *flags) as (http, _):
        yield http


@contextmanager
def nvidia_addresses(repository, *flags):
    """Runs NVIDIA's server, and gives `host:port` of its HTTP and of its gRPC once it is ready."""
    prepare()
    http, grpc, metrics = free_ports(3)
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    command = [_SERVER / "bin" / "tritonserver", f"--model-repository={repository}", *ports, *flags]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log: list[str] = []
    reader = threading.Thread(target=log.extend, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + _START_LIMIT_S
        while not _is_ready(http):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"NVIDIA's server did not become ready; its log:\n{''.join(log)}")
            time.sleep(0.05)
        yield f"127.0.0.1:{http}", f"127.0.0.1:{grpc}"
    finally:
        process.terminate()
        try:
            process.wait(_START_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()


def _is_ready(port):
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
