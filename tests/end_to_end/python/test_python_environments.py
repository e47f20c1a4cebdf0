"""Models in Python with environments of their own: archives, folders, and lists of requirements."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import conda_pack
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils
{imports}

class TritonPythonModel:
    def execute(self, requests):
        word = np.array([{word}.encode()], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WORD", word)]) for _ in requests]
"""

CONFIG = """
backend: "python"
max_batch_size: 0
output [ {{ name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }} ]
{parameters}
"""


def write_model(repository, name, word="greeting.WORD", imports="import greeting", environment=None):
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    parameters = ""
    if environment is not None:
        parameters = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }' % environment
    (folder / "config.pbtxt").write_text(CONFIG.format(parameters=parameters))
    (folder / "1/model.py").write_text(MODEL.format(word=word, imports=imports))
    return folder


@pytest.fixture(scope="module")
def numpy_folder():
    """Where the interpreter of these tests has numpy: environments see it by a `.pth` file, so nothing is installed."""
    import numpy

    return str(numpy.__path__[0]).rsplit("/", 1)[0]


def wheel(folder, word, numpy_folder):
    """A package with one module. It brings numpy's place, too, so that nothing is fetched."""
    folder.mkdir(exist_ok=True)
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(folder / "greeting-1.0-py3-none-any.whl", "w") as file:
        file.writestr("greeting.py", f"WORD = {word!r}\n")
        file.writestr("numpy.pth", f"{numpy_folder}\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def venv(folder, word, numpy_folder):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "greeting.py").write_text(f"WORD = {word!r}\n")
    (packages / "numpy.pth").write_text(f"{numpy_folder}\n")


def search_path(installer):
    """A search path on which uv is or is not."""
    folders = [folder for folder in os.environ["PATH"].split(":") if not Path(folder, "uv").exists()]
    if installer == "uv":
        assert Path(sys.prefix, "bin/uv").exists()
        folders.insert(0, f"{sys.prefix}/bin")
    return os.environ | {"PATH": ":".join(folders)}


def serve(repository, cache, *flags, **options):
    flags = [f"--backend-config=python,python={sys.executable}", f"--backend-config=python,environment-cache={cache}", *flags]
    return nereid_server.running(repository, *flags, **options)


def word_of(server, model):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        return client.infer(model, []).as_numpy("WORD")[0].decode()


def test_models_run_in_the_environments_they_name_and_share_what_is_the_same(tmp_path, numpy_folder):
    repository, cache = tmp_path / "models", tmp_path / "cache"
    venv(tmp_path / "one", "packed", numpy_folder)
    venv(tmp_path / "two", "in a folder", numpy_folder)
    for name in ("first", "second"):
        folder = write_model(repository, name, environment="$$TRITON_MODEL_DIRECTORY/env.tar.gz")
        with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "one", ".")
    # Archives made at different times differ; a copy does not.
    (repository / "second/env.tar.gz").write_bytes((repository / "first/env.tar.gz").read_bytes())
    write_model(repository, "folder", environment=tmp_path / "two")
    write_model(repository, "plain", "'server'", "")
    with serve(repository, cache) as server:
        words = {name: word_of(server, name) for name in ("first", "second", "folder", "plain")}
    assert words == {"first": "packed", "second": "packed", "folder": "in a folder", "plain": "server"}
    assert len([entry for entry in cache.iterdir() if entry.is_dir()]) == 1
    # A second start unpacks nothing.
    with serve(repository, cache) as server:
        assert word_of(server, "first") == "packed"
        assert "unpacking" not in server.log


def test_an_archive_of_conda_pack_is_an_environment(tmp_path, numpy_folder):
    repository, environment = tmp_path / "models", tmp_path / "environment"
    venv(environment, "of conda-pack", numpy_folder)
    # What makes a folder an environment of conda. Conda runs what is in `activate.d` of environments that it activates.
    (environment / "conda-meta").mkdir()
    (environment / "conda-meta/history").touch()
    scripts = environment / "etc/conda/activate.d"
    scripts.mkdir(parents=True)
    (scripts / "greeting.sh").write_text('export GREETING="from $(basename "$CONDA_PREFIX")"\n')
    word, imports = "(greeting.WORD + ', ' + os.environ['GREETING'])", "import greeting, os"
    for name, kind in [("packed", "tar.gz"), ("plain", "tar")]:
        folder = write_model(repository, name, word, imports, f"$$TRITON_MODEL_DIRECTORY/env.{kind}")
        conda_pack.pack(prefix=str(environment), output=str(folder / f"env.{kind}"), compress_level=1, n_threads=1)
    with serve(repository, tmp_path / "cache") as server:
        assert {word_of(server, name) for name in ("packed", "plain")} == {"of conda-pack, from env"}


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_requirements_beside_the_configuration_are_installed(tmp_path, numpy_folder, installer):
    repository, cache = tmp_path / "models", tmp_path / "cache"
    folder = write_model(repository, "listed")
    wheel(folder / "wheels", "installed", numpy_folder)
    (folder / "requirements.txt").write_text("--no-index\n--find-links wheels\ngreeting\n")
    broken = write_model(repository, "broken")
    (broken / "requirements.txt").write_text("--no-index\nno-such-package==1.2.3\n")
    environment = search_path(installer)
    with serve(repository, cache, "--exit-on-error=false", ready=False, env=environment) as server:
        assert word_of(server, "listed") == "installed"
        assert f"with {installer}" in server.log
        with tritonclient.http.InferenceServerClient(server.url) as client:
            (reason,) = [it["reason"] for it in client.get_model_repository_index() if it["name"] == "broken"]
        assert "no-such-package==1.2.3" in reason and "install-requirements=false" in reason, reason
    with serve(
        repository, cache, "--backend-config=python,install-requirements=false", "--exit-on-error=false", ready=False
    ) as server:
        with pytest.raises(InferenceServerException, match="has no available versions"):
            word_of(server, "listed")


def test_environments_that_cannot_be_are_refused_with_the_reason(tmp_path):
    repository = tmp_path / "models"
    (tmp_path / "outside/bin").mkdir(parents=True)
    cases = {
        "missing": ("$$TRITON_MODEL_DIRECTORY/none.tar.gz", "No such file or directory"),
        "outside": ("$$TRITON_MODEL_DIRECTORY/../../outside", "must stay within the model's folder"),
        "inactive": ("$$TRITON_MODEL_DIRECTORY/env", "needs a script 'bin/activate'"),
        "failing": ("$$TRITON_MODEL_DIRECTORY/env", "bin/activate failed: no licence"),
        "hostile": ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "leads out of the folder"),
        "text": ("$$TRITON_MODEL_DIRECTORY/config.pbtxt", "environments must be tar files"),
    }
    for name, (environment, _) in cases.items():
        folder = write_model(repository, name, "'x'", "", environment)
        (folder / "env/bin").mkdir(parents=True)
    (repository / "failing/env/bin/activate").write_text("echo no licence >&2\nfalse\n")
    with tarfile.open(repository / "hostile/env.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../../../planted"))
    with serve(repository, tmp_path / "cache", "--exit-on-error=false", ready=False) as server:
        with tritonclient.http.InferenceServerClient(server.url) as client:
            index = client.get_model_repository_index()
    reasons = {it["name"]: it["reason"] for it in index}
    for name, (_, part) in cases.items():
        assert part in reasons[name], reasons[name]
    assert not (tmp_path / "planted").exists() and not list(tmp_path.glob("cache/archive-*/"))
