"""Backends that are written in Python: a folder with a `model.py` among the backends, which runs for every model that names
it: in the server's own Python backend, and in NVIDIA's. The reference behaves the same.
"""

import json
import textwrap
from http.client import HTTPConnection

import pytest

import nereid_server
import python_backend

# Says its greeting, which is a file of each model's version, to whom it may concern.
GREETER = """
import json, os
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "WHO", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "GREETING", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(4)
        return config

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "greeting.txt")) as file:
            self.greeting = file.read().strip()
        if not self.greeting:
            raise pb_utils.TritonModelException("the greeting is empty")

    def execute(self, requests):
        responses = []
        for request in requests:
            who = pb_utils.get_input_tensor_by_name(request, "WHO").as_numpy()
            said = [f"{self.greeting}, {name.decode()}" for name in who.flatten()]
            greetings = numpy.array(said, dtype=object).reshape(who.shape)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("GREETING", greetings)]))
        return responses
"""


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    python_backend.prepare()
    folder = tmp_path_factory.mktemp("backends")
    (folder / "python").symlink_to(python_backend.BACKENDS / "python")
    (folder / "greeter").mkdir()
    (folder / "greeter" / "model.py").write_text(textwrap.dedent(GREETER))
    return folder


def write(repository, name, greeting, body=""):
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "greeter"\n{body}')
    (repository / name / "1" / "greeting.txt").write_text(greeting)


@pytest.fixture(scope="module", params=["builtin", "library"])
def server(tmp_path_factory, backends, request):
    repository = tmp_path_factory.mktemp("models")
    write(repository, "english", "hello")
    write(repository, "german", "hallo", "max_batch_size: 2 instance_group { count: 2 kind: KIND_CPU }")
    write(repository, "empty", "")
    flags = ("--exit-on-error=false", "--strict-readiness=false", f"--backend-directory={backends}")
    flags += (f"--backend-config=python,engine={request.param}",)
    with nereid_server.running(repository, *flags, env=python_backend.environment()) as server:
        yield server


def ask(server, method, path, body=None):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "null")
    finally:
        connection.close()


def greet(server, model, names):
    inputs = [{"name": "WHO", "shape": [len(names), 1], "datatype": "BYTES", "data": names}]
    return ask(server, "POST", f"/v2/models/{model}/infer", {"inputs": inputs})


def test_each_model_of_the_backend_has_its_own_files(server):
    for model, greeting in (("english", "hello"), ("german", "hallo")):
        status, answer = greet(server, model, ["Thetis", "Galatea"])
        assert status == 200, answer
        assert answer["outputs"][0]["shape"] == [2, 1]
        assert answer["outputs"][0]["data"] == [f"{greeting}, Thetis", f"{greeting}, Galatea"]


def test_the_backend_completes_configurations(server):
    status, config = ask(server, "GET", "/v2/models/english/config")
    assert status == 200
    assert (config["backend"], config["runtime"], config["max_batch_size"]) == ("greeter", "model.py", 4)
    tensors = [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in config["input"] + config["output"]]
    assert tensors == [("WHO", "TYPE_STRING", [1]), ("GREETING", "TYPE_STRING", [1])]


def test_more_than_the_configuration_allows_is_refused(server):
    # What a model says itself is not completed away, but 2 is less than the backend would take.
    status, answer = greet(server, "german", ["a"] * 5)
    assert status == 400 and "batch" in answer["error"]


def test_a_model_that_the_backend_refuses_is_reported_with_the_reason(server):
    _, index = ask(server, "POST", "/v2/repository/index", {})
    row = next(row for row in index if row["name"] == "empty")
    assert row["state"] == "UNAVAILABLE" and "the greeting is empty" in row["reason"]
    assert greet(server, "empty", ["Thetis"])[0] == 404


def test_without_the_backend_that_runs_it_its_models_are_refused(tmp_path, backends):
    folder = tmp_path / "backends"
    folder.mkdir()
    (folder / "greeter").symlink_to(backends / "greeter")
    write(tmp_path / "models", "english", "hello")
    flags = ("--exit-on-error=false", "--strict-readiness=false", f"--backend-directory={folder}", python_backend.LIBRARY)
    with nereid_server.running(tmp_path / "models", *flags) as server:
        _, index = ask(server, "POST", "/v2/repository/index", {})
        assert index[0]["state"] == "UNAVAILABLE" and "python" in index[0]["reason"]
