"""Libraries that need another which is missing: whatever opens one names the other, with the system's reason."""

import os
import shutil
import subprocess

import pytest

import nereid_server
from http_requests import request
from model_files import write_identity

LOST = "libnereid-lost.so.13"
REASON = f"{LOST}: cannot open shared object file: No such file or directory"


@pytest.fixture
def needy(tmp_path):
    """Compiles a library that needs another, which is gone then; the path is that of the library."""

    def compile(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc", path=os.defpath + os.pathsep + os.environ.get("PATH", ""))
        assert compiler, "cc, a compiler for C, is needed"
        lost = tmp_path / LOST
        empty = ["-x", "c", "/dev/null", "-shared", "-fPIC", "-o"]
        subprocess.run([compiler, *empty, lost, f"-Wl,-soname,{LOST}"], check=True)
        subprocess.run([compiler, *empty, path, "-Wl,--no-as-needed", "-x", "none", lost], check=True)
        lost.unlink()
        return path

    return compile


@pytest.mark.parametrize("place", ["installed", "model", "version"])
def test_a_backend_names_the_library_that_it_misses(repository, serve, tmp_path, needy, place):
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text('backend: "needy"')
    folder = {"installed": tmp_path / "backends" / "needy", "model": repository / "m", "version": repository / "m" / "1"}
    library = needy(folder[place] / "libtriton_needy.so")
    flags = f"--backend-directory={tmp_path / 'backends'}", "--exit-on-error=false"
    server = serve(*flags, ready=False)
    (model,) = request(server, "POST", "/v2/repository/index").json
    assert f"cannot load {library}: {REASON}" in model["reason"]


def test_a_driver_names_the_library_that_it_misses(repository, tmp_path, needy):
    library = needy(tmp_path / "libcuda.so.1")
    server = nereid_server.refused_start(repository, f"--cuda-driver-library={library}")
    assert REASON in server.log


def test_onnx_runtime_names_the_library_that_it_misses(repository, serve, tmp_path, needy):
    library = needy(tmp_path / "libonnxruntime.so")
    write_identity(repository, "same", ["INT32"])
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.onnx").write_bytes(b"")
    (repository / "m" / "config.pbtxt").write_text('backend: "onnxruntime"')
    engine = f"--backend-config=onnxruntime,library={library}", "--backend-config=onnxruntime,engine=ort"
    server = serve(*engine, "--exit-on-error=false", ready=False)
    index = {model["name"]: model for model in request(server, "POST", "/v2/repository/index").json}
    assert REASON in index["m"]["reason"]
