"""The published weaknesses of the reference's Python backend: names of models that a shell ran, and memory that clients could find."""

import base64
import json
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import numpy
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as shared_memory

import nereid_server
import python_lab
from http_requests import request
from model_files import write_identity

EXPLICIT = ("--model-control-mode=explicit", "--load-model=lab")
# Each of the first ones makes the file if a shell reads the name: as a command of its own, in a word, or after quotes that it closes.
HOSTILE_NAMES = (
    "$({})",
    "a`{}`",
    "a;{};",
    "a&{}&",
    "a|{}",
    "a\n{}\n",
    "a' ; {} ; '",
    'a" ; {} ; "',
    "a && {} #",
    "${{IFS#a[$({})]}}",
    "--version;{}",
    "-c {}",
)


@pytest.fixture
def repository(tmp_path):
    repository = tmp_path / "models"
    python_lab.write(repository, "lab")
    return repository


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


def hostile(form, marker):
    """A name without a slash, which would make the marker."""
    return form.format(f"touch $(printf '{str(marker).replace('/', chr(92) + '057')}')")


def test_the_names_would_do_harm_in_a_shell(marker):
    for form in HOSTILE_NAMES[:-1]:
        subprocess.run(["sh", "-c", f"echo {hostile(form, marker)}"], capture_output=True, check=False)
        subprocess.run(["sh", "-c", f"echo '{hostile(form, marker)}'"], capture_output=True, check=False)
        subprocess.run(["sh", "-c", f'echo "{hostile(form, marker)}"'], capture_output=True, check=False)
        assert marker.exists(), form
        marker.unlink()


def test_no_name_of_a_model_is_run_cve_2025_23316(repository, marker):
    config = json.dumps({"backend": "python", "input": [], "output": []})
    files = {"config": config, "file:1/model.py": base64.b64encode(python_lab.LAB.encode()).decode()}
    with nereid_server.running(repository, *EXPLICIT, *python_lab.FLAGS) as server:
        loaded = 0
        for form in HOSTILE_NAMES:
            name = hostile(form, marker)
            path = f"/v2/repository/models/{urllib.parse.quote(name, safe='')}"
            for action, parameters in (("load", {}), ("load", files), ("unload", {})):
                answer = request(server, "POST", f"{path}/{action}", json.dumps({"parameters": parameters}))
                assert answer.status in (200, 400, 404, 500), (name, action, answer)
                loaded += action == "load" and answer.status == 200
                assert not marker.exists(), (name, action)
        assert loaded or "failed to load" in server.log
        with tritonclient.http.InferenceServerClient(server.url) as client:
            assert python_lab.run(client, "result = 7") == 7


@pytest.mark.parametrize("form", HOSTILE_NAMES[:6])
def test_no_name_of_a_folder_is_run_with_its_environment_cve_2025_23316(repository, marker, form):
    name = hostile(form, marker)
    environment = "$$TRITON_MODEL_DIRECTORY/env"
    extra = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    python_lab.write(repository, name, extra=extra)
    made = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", repository / name / "env"]
    subprocess.run(made, check=True)
    (repository / name / "env/bin/activate").write_text("export ACTIVATED=yes\n")
    packages = next((repository / name / "env/lib").glob("python3*")) / "site-packages"
    (packages / "numpy.pth").write_text(str(Path(numpy.__file__).parent.parent))
    with nereid_server.running(repository, *python_lab.FLAGS, "--exit-on-error=false", ready=False) as server:
        server.wait_until_loaded()
        assert not marker.exists()
        with tritonclient.http.InferenceServerClient(server.url) as client:
            assert python_lab.run(client, "result = 7") == 7
            if client.is_model_ready(urllib.parse.quote(name, safe="")):
                found = python_lab.run(client, "result = os.environ['ACTIVATED']", model=urllib.parse.quote(name, safe=""))
                assert found == "yes"
    assert not marker.exists()


def memory_names(pid):
    """The names of memory that a process and its children share, as their maps and descriptors have them."""
    names = set()
    for process in (pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[5:]
            if path and (path[0].startswith("/memfd:") or path[0].startswith("/dev/shm/")):
                names.add(path[0].removesuffix(" (deleted)"))
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            target = os.readlink(descriptor)
            if target.startswith(("/memfd:", "/dev/shm/")):
                names |= {target.removesuffix(" (deleted)"), str(descriptor)}
    return names


def test_no_client_reaches_memory_of_models_processes_cve_2025_23329(repository):
    write_identity(repository, "own", ["FP32"])
    before = set(os.listdir("/dev/shm"))
    with nereid_server.running(repository, *python_lab.FLAGS) as server:
        with tritonclient.http.InferenceServerClient(server.url) as client:
            # Large tensors travel in memory that both processes map.
            large = numpy.arange(1 << 18, dtype=numpy.float32)
            code = "outputs = [pb_utils.Tensor('OF', get(request, 'F').as_numpy() + 1)]"
            assert (client.infer("lab", python_lab.inputs(code, F=large)).as_numpy("OF") == large + 1).all()
            names = memory_names(server.pid)
            assert any(name.startswith("/memfd:") for name in names), names
            names |= {f"/{name}" for name in set(os.listdir("/dev/shm")) - before}
            for name in names:
                for key in (name, name[1:], f"../..{name}", Path(name).name, f"/{Path(name).name}"):
                    body = json.dumps({"key": key, "offset": 0, "byte_size": 64})
                    answer = request(server, "POST", "/v2/systemsharedmemory/region/stolen/register", body)
                    assert answer.status in (400, 404, 500), (key, answer)
            assert request(server, "GET", "/v2/systemsharedmemory/status").json == []
            # Memory of the client's own is found, so the refusals are about these names.
            region = shared_memory.create_shared_memory_region("r", "/nereid_weakness_client", 64)
            try:
                client.register_system_shared_memory("r", "/nereid_weakness_client", 64)
                client.unregister_system_shared_memory("r")
            finally:
                shared_memory.destroy_shared_memory_region(region)
            assert (client.infer("lab", python_lab.inputs(code, F=large)).as_numpy("OF") == large + 1).all()
