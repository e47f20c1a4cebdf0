"""Where the library of ONNX Runtime is looked for, and what happens without one."""

import os
import shutil
import subprocess

import pytest

import nereid_server
import onnx_engines
from http_requests import infer, tensor
from model_files import scale_model

AUTO = "--backend-config=onnxruntime,engine=auto"
ORT = "--backend-config=onnxruntime,engine=ort"
ONES = {"inputs": [tensor("X", "FP32", [1, 3], [1.0] * 3)]}


@pytest.fixture
def environment(tmp_path):
    """An environment that names no library: no variable does, and neither the path nor the user has Python packages."""
    named = {"ORT_DYLIB_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"}
    kept = {name: value for name, value in os.environ.items() if name not in named}
    return kept | {"PATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}


@pytest.fixture
def start(repository, environment):
    """Runs a server of one model in that environment and gives it, listening."""
    scale_model("twice").write(repository)
    running = []

    def start(*flags, expect_ready=True, **variables):
        context = nereid_server.running(repository, *flags, ready=expect_ready, env=environment | variables)
        running.append(context)
        return context.__enter__()

    yield start
    for context in running:
        context.__exit__(None, None, None)


def assert_found(server, place, path):
    found = server.wait_for_log(r"ONNX Runtime \S+ (.*?): (\S+); execution providers: .*CPUExecutionProvider")
    assert found.groups() == (place, str(path))
    assert infer(server, "twice", ONES).json["outputs"][0]["data"] == [2.0] * 3


def assert_embedded(server, why):
    server.wait_for_log("model 'twice' version 1 is served by the embedded engine.*" + why)
    assert infer(server, "twice", ONES).json["outputs"][0]["data"] == [2.0] * 3


@pytest.mark.parametrize("given", [onnx_engines.LIBRARY, onnx_engines.LIBRARY_FOLDER], ids=["file", "folder"])
def test_the_setting_goes_before_the_variable(start, given):
    server = start(AUTO, f"--backend-config=onnxruntime,library={given}", ORT_DYLIB_PATH="/no/such.so")
    assert_found(server, "given by the setting 'library'", onnx_engines.LIBRARY)


def test_the_variable_goes_before_the_backend_directory(start, tmp_path):
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "libonnxruntime.so").write_bytes(b"")
    server = start(AUTO, f"--backend-directory={tmp_path}", ORT_DYLIB_PATH=str(onnx_engines.LIBRARY))
    assert_found(server, "given by ORT_DYLIB_PATH", onnx_engines.LIBRARY)


def test_the_backend_directory_goes_before_python(start, tmp_path):
    (tmp_path / "onnxruntime").mkdir()
    library = tmp_path / "onnxruntime" / onnx_engines.LIBRARY.name
    library.symlink_to(onnx_engines.LIBRARY)
    server = start(AUTO, f"--backend-directory={tmp_path}", VIRTUAL_ENV="/no/such/environment")
    assert_found(server, "in the backend directory", library)


def test_the_package_of_the_active_python_environment_is_found(start, tmp_path):
    # site-packages, python3.x, lib, and then the environment.
    prefix = onnx_engines.LIBRARY_FOLDER.parents[4]
    server = start(AUTO, f"--backend-directory={tmp_path}", VIRTUAL_ENV=str(prefix))
    assert_found(server, "of the active Python environment", onnx_engines.LIBRARY)


def test_the_embedded_engine_serves_if_configured(start):
    server = start("--backend-config=onnxruntime,engine=tract", ORT_DYLIB_PATH=str(onnx_engines.LIBRARY))
    assert_embedded(server, "engine=tract selects it")
    assert "execution providers" not in server.log


def test_an_invalid_library_file_falls_back_to_the_embedded_engine(start, tmp_path):
    (tmp_path / "wrong.so").write_text("no library")
    server = start(AUTO, ORT_DYLIB_PATH=str(tmp_path / "wrong.so"))
    server.wait_for_log("the ONNX Runtime library given by ORT_DYLIB_PATH cannot be used: cannot load .*wrong.so: ")
    assert_embedded(server, "cannot be used")


def stand_in(folder, source):
    """Compiles a library that is not what it should be."""
    (folder / "stand_in.c").write_text(source)
    library = folder / "libonnxruntime.so"
    compiler = shutil.which("cc", path=os.defpath + os.pathsep + os.environ.get("PATH", ""))
    assert compiler, "a C compiler is needed, as to build the server"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "stand_in.c"], check=True)
    return library


OLD = """
static const void *api(unsigned version) { (void)version; return 0; }
static const char *version(void) { return "1.9.0"; }
static const struct { const void *(*api)(unsigned); const char *(*version)(void); } base = { api, version };
const void *OrtGetApiBase(void) { return &base; }
"""


def test_a_library_that_is_too_old_is_reported_with_its_version(start, tmp_path):
    library = stand_in(tmp_path, OLD)
    server = start(AUTO, f"--backend-config=onnxruntime,library={library}")
    server.wait_for_log("cannot be used: .*libonnxruntime.so is ONNX Runtime 1.9.0, but 1.17 or newer is needed")
    assert_embedded(server, "cannot be used")


def test_a_library_of_something_else_is_reported(start, tmp_path):
    library = stand_in(tmp_path, "int something_else;")
    server = start(AUTO, f"--backend-config=onnxruntime,library={library}")
    server.wait_for_log("is not ONNX Runtime: it does not export OrtGetApiBase")
    assert_embedded(server, "cannot be used")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([ORT, "--backend-config=onnxruntime,library=/no/such.so"], "engine=ort selects ONNX Runtime, but the library"),
        (["--backend-config=onnxruntime,engine=fast"], "'engine' is 'fast', but must be auto, ort or tract"),
    ],
)
def test_without_a_usable_engine_the_load_fails_with_the_reason(start, flags, told):
    server = start(*flags, "--exit-on-error=false", expect_ready=False)
    server.wait_for_log(f"failed to load 'twice' version 1: model 'twice': .*{told}")


def test_an_invalid_pool_setting_is_reported(start):
    flags = [ORT, f"--backend-config=onnxruntime,library={onnx_engines.LIBRARY}"]
    server = start(*flags, "--backend-config=onnxruntime,enable-global-threadpool=2", "--exit-on-error=false", expect_ready=False)
    server.wait_for_log("the backend setting 'enable-global-threadpool' is '2', but takes 0 or 1")
