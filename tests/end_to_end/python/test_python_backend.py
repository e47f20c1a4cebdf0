"""Models written in Python, in the server's own Python backend and in NVIDIA's, a library built for Triton."""

import json
import os
import signal
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import numpy
import pytest
import tritonclient.http
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

import nereid_server
import python_backend
from scrapes import Scrape
from waiting import eventually

ADD_SUB = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            outputs = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
ADD_SUB_CONFIG = """
backend: "python" max_batch_size: %d %s
input { name: "A" data_type: TYPE_FP32 dims: 4 } input { name: "B" data_type: TYPE_FP32 dims: 4 }
output { name: "SUM" data_type: TYPE_FP32 dims: 4 } output { name: "DIFFERENCE" data_type: TYPE_FP32 dims: 4 }
"""

# What the client asks for in its text is what the model does.
OBEDIENT = """
import os, time
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            order = pb_utils.get_input_tensor_by_name(request, "ORDER").as_numpy().item().decode()
            if order == "raise":
                raise RuntimeError("raised on purpose")
            if order.startswith("hang "):
                open(order[5:], "w").close()
                while os.path.exists(order[5:]):
                    time.sleep(0.01)
            if order.startswith("exit"):
                os._exit(int(order[4:]))
            if order == "error":
                error = pb_utils.TritonError("failed on purpose", pb_utils.TritonError.NOT_FOUND)
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                about = [order, request.request_id(), str(os.getpid()), request.parameters()]
                answer = numpy.array([text.encode() for text in about], dtype=numpy.object_)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", answer)]))
        return responses
"""
# As long as an instance is busy, requests wait for it; they do not wait for longer than this.
IMPATIENT = """
max_batch_size: 1 dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000000 } }
"""
OBEDIENT_CONFIG = """
backend: "python"
input { name: "ORDER" data_type: TYPE_STRING dims: 1 } output { name: "ANSWER" data_type: TYPE_STRING dims: -1 }
"""

# Answers as often as its input says, from its own thread, after execute has returned.
REPEAT = """
import threading
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            threading.Thread(target=self.answer, args=(request.get_response_sender(), count)).start()

    def answer(self, sender, count):
        for number in range(count):
            tensor = pb_utils.Tensor("NUMBER", numpy.array([number], dtype=numpy.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
REPEAT_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "COUNT" data_type: TYPE_INT32 dims: 1 } output { name: "NUMBER" data_type: TYPE_INT32 dims: 1 }
"""

# Asks other models of the same server, once or several times at once.
CALLER = """
import asyncio
import numpy
import triton_python_backend_utils as pb_utils

def call(model, name, value, output, asynchronous=False):
    tensor = pb_utils.Tensor(name, value)
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=[output])

class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
            one = call("identity", "INPUT0", value, "OUTPUT0").exec()
            if one.has_error():
                raise pb_utils.TritonModelException(one.error().message())
            total = pb_utils.get_output_tensor_by_name(one, "OUTPUT0").as_numpy()
            several = [call("identity", "INPUT0", value, "OUTPUT0").async_exec() for _ in range(3)]
            for answer in await asyncio.gather(*several):
                total = total + pb_utils.get_output_tensor_by_name(answer, "OUTPUT0").as_numpy()
            count = numpy.array([4], dtype=numpy.int32)
            numbers = 0
            for answer in call("repeat", "COUNT", count, "NUMBER").exec(decoupled=True):
                number = pb_utils.get_output_tensor_by_name(answer, "NUMBER")
                numbers += 0 if number is None else int(number.as_numpy()[0])
            missing = call("nothing", "IN", value, "OUT").exec()
            outputs = [
                pb_utils.Tensor("TOTAL", total),
                pb_utils.Tensor("NUMBERS", numpy.array([numbers], dtype=numpy.int32)),
                pb_utils.Tensor("MISSING", numpy.array([missing.error().message().encode()], dtype=numpy.object_)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
CALLER_CONFIG = """
backend: "python"
input { name: "VALUE" data_type: TYPE_FP32 dims: 2 }
output { name: "TOTAL" data_type: TYPE_FP32 dims: 2 } output { name: "NUMBERS" data_type: TYPE_INT32 dims: 1 }
output { name: "MISSING" data_type: TYPE_STRING dims: 1 }
"""
IDENTITY_CONFIG = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
"""

COMPLETES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [3]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [3]})
        config.set_max_batch_size(5)
        return config

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value * 2)]) for value in inputs]
"""

# Loads and unloads another model, as its input says.
KEEPER = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            order = pb_utils.get_input_tensor_by_name(request, "ORDER").as_numpy().item().decode()
            if order == "load":
                pb_utils.load_model(model_name="obedient")
            if order == "unload":
                pb_utils.unload_model(model_name="obedient")
            ready = pb_utils.is_model_ready(model_name="obedient", model_version="1")
            answer = numpy.array([str(ready).encode()], dtype=numpy.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", answer)]))
        return responses
"""

# A counter, a gauge and a histogram of its own.
COUNTS = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.families = [
            pb_utils.MetricFamily(name="counts_" + name, description="of a test", kind=kind)
            for name, kind in [("up", pb_utils.MetricFamily.COUNTER), ("both", pb_utils.MetricFamily.GAUGE)]
        ]
        self.counter, self.gauge = [family.Metric(labels={"model": "counts"}) for family in self.families]
        histogram = pb_utils.MetricFamily("counts_sizes", "of sizes", pb_utils.MetricFamily.HISTOGRAM)
        self.families.append(histogram)
        self.histogram = histogram.Metric(labels={}, buckets=[1.0, 10.0])

    def execute(self, requests):
        responses = []
        for request in requests:
            self.counter.increment(2)
            self.gauge.set(-1.5)
            self.histogram.observe(4)
            answer = numpy.array([f"{self.counter.value()} {self.gauge.value()}".encode()], dtype=numpy.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", answer)]))
        return responses
"""

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("broken on purpose")

    def execute(self, requests):
        return []
"""


def put(repository, name, source, config=None):
    """Puts a model into the repository."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(source))
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def put_identity(repository):
    (repository / "identity" / "1").mkdir(parents=True)
    (repository / "identity" / "config.pbtxt").write_text(IDENTITY_CONFIG)


@pytest.fixture(scope="module", autouse=True)
def backend():
    python_backend.prepare()


@pytest.fixture(scope="module", params=python_backend.ENGINES)
def models(request, tmp_path_factory):
    """A server of Python models, shared by the tests that break nothing."""
    repository = tmp_path_factory.mktemp("python")
    batching = "dynamic_batching { max_queue_delay_microseconds: 20000000 preferred_batch_size: 4 }"
    put(repository, "add_sub", ADD_SUB, ADD_SUB_CONFIG % (0, ""))
    put(repository, "batched", ADD_SUB, ADD_SUB_CONFIG % (4, batching))
    put(repository, "obedient", OBEDIENT, OBEDIENT_CONFIG)
    put(repository, "repeat", REPEAT, REPEAT_CONFIG)
    put(repository, "caller", CALLER, CALLER_CONFIG)
    put(repository, "completes", COMPLETES)
    put(repository, "counts", COUNTS, OBEDIENT_CONFIG)
    put_identity(repository)
    flags, environment = python_backend.ENGINES[request.param], python_backend.environment()
    with nereid_server.running(repository, *flags, env=environment) as server:
        yield server


@pytest.fixture(params=python_backend.ENGINES)
def engine(request):
    return request.param


@pytest.fixture
def client(models):
    with tritonclient.http.InferenceServerClient(models.url, network_timeout=60, connection_timeout=60) as client:
        yield client


def tensor(name, value, datatype):
    filled = InferInput(name, list(value.shape), datatype)
    filled.set_data_from_numpy(value)
    return filled


def text(order):
    return [tensor("ORDER", numpy.array([order.encode()], dtype=numpy.object_), "BYTES")]


def floats(*shape):
    return numpy.random.default_rng(7).random(shape, dtype=numpy.float32)


def add_sub(client, model, a, b, **how):
    return client.infer(model, [tensor("A", a, "FP32"), tensor("B", b, "FP32")], **how)


def test_a_model_adds_and_subtracts(client):
    a, b = floats(4), floats(4) + 1
    result = add_sub(client, "add_sub", a, b)
    numpy.testing.assert_array_equal(result.as_numpy("SUM"), a + b)
    numpy.testing.assert_array_equal(result.as_numpy("DIFFERENCE"), a - b)


def test_a_client_asks_for_one_output(client):
    a, b = floats(4), floats(4)
    result = add_sub(client, "add_sub", a, b, outputs=[InferRequestedOutput("SUM")])
    assert [output["name"] for output in result.get_response()["outputs"]] == ["SUM"]


def test_requests_share_a_batch_and_are_counted(models, client):
    values = [floats(1, 4) + number for number in range(4)]
    before = client.get_inference_statistics("batched")["model_stats"][0]
    results = {}

    def ask(number):
        with tritonclient.http.InferenceServerClient(models.url) as own:
            results[number] = add_sub(own, "batched", values[number], values[number]).as_numpy("SUM")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, value in enumerate(values):
        numpy.testing.assert_array_equal(results[number], value * 2)
    after = client.get_inference_statistics("batched")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 4
    # The backend reports its executions after it has answered.
    deadline = time.monotonic() + 10
    while after["execution_count"] == before["execution_count"] and time.monotonic() < deadline:
        after = client.get_inference_statistics("batched")["model_stats"][0]
    assert after["execution_count"] - before["execution_count"] == 1
    assert [batch["batch_size"] for batch in after["batch_stats"]] == [4]


def test_texts_ids_and_parameters_reach_the_model(client):
    parameters = {"whole": 3, "truth": True, "text": "said"}
    answer = client.infer("obedient", text("hello"), request_id="my id", parameters=parameters).as_numpy("ANSWER")
    assert [answer[0], answer[1]] == [b"hello", b"my id"]
    assert json.loads(answer[3]) == parameters


def test_an_error_of_the_model_is_the_answer(client):
    with pytest.raises(InferenceServerException, match="failed on purpose") as failure:
        client.infer("obedient", text("error"))
    assert failure.value.status() == "404"


def test_an_exception_of_the_model_is_an_error_and_the_model_goes_on(client):
    with pytest.raises(InferenceServerException, match="raised on purpose"):
        client.infer("obedient", text("raise"))
    assert client.infer("obedient", text("on")).as_numpy("ANSWER")[0] == b"on"


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_decoupled_model_answers_as_often_as_it_likes(models, count):
    connection = HTTPConnection("127.0.0.1", models.port, timeout=60)
    connection.request("POST", "/v2/models/repeat/generate_stream", json.dumps({"COUNT": count}))
    response = connection.getresponse()
    assert response.status == 200
    events = [line.removeprefix(b"data: ") for line in response.read().splitlines() if line.startswith(b"data: ")]
    assert [json.loads(event)["NUMBER"] for event in events] == list(range(count))
    connection.close()


def test_a_model_asks_other_models_of_the_server(client):
    value = floats(2)
    result = client.infer("caller", [tensor("VALUE", value, "FP32")])
    numpy.testing.assert_allclose(result.as_numpy("TOTAL"), value * 4, rtol=1e-6)
    assert result.as_numpy("NUMBERS")[0] == 0 + 1 + 2 + 3
    assert b"nothing" in result.as_numpy("MISSING")[0]


def test_a_model_completes_its_configuration(client):
    config = client.get_model_config("completes")
    assert config["backend"] == "python"
    assert config["max_batch_size"] == 5
    assert [entry["name"] for entry in config["input"] + config["output"]] == ["IN", "OUT"]
    value = numpy.array([[1, 2, 3]], dtype=numpy.int32)
    result = client.infer("completes", [tensor("IN", value, "INT32")])
    numpy.testing.assert_array_equal(result.as_numpy("OUT"), value * 2)


def test_a_model_keeps_metrics(client):
    answers = [client.infer("counts", text("count")).as_numpy("ANSWER")[0] for _ in range(2)]
    assert answers == [b"2.0 -1.5", b"4.0 -1.5"]


def test_metrics_of_a_model_are_exposed_with_the_servers_own(repository, serve, engine):
    put(repository, "counts", COUNTS, OBEDIENT_CONFIG)
    server = start(serve, engine)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        for _ in range(2):
            client.infer("counts", text("count"))
        scrape = Scrape(server)
        kinds = {name: kind for name, kind in scrape.kinds.items() if name.startswith("counts_")}
        assert kinds == {"counts_up": "counter", "counts_both": "gauge", "counts_sizes": "histogram"}
        assert scrape.value("counts_up", model="counts") == 4
        assert scrape.value("counts_both", model="counts") == -1.5
        buckets = [scrape.value("counts_sizes_bucket", le=le) for le in ("1", "10", "+Inf")]
        assert buckets == [0, 2, 2]
        assert (scrape.value("counts_sizes_count"), scrape.value("counts_sizes_sum")) == (2, 8)
        assert scrape.value("nv_inference_request_success", model="counts", version="1") == 2


def test_messages_of_a_library_are_logged_with_file_and_line(repository, serve):
    put(repository, "obedient", OBEDIENT, OBEDIENT_CONFIG)
    server = start(serve, "library")
    assert any("python_be.cc:" in line for line in server.log.splitlines())


def start(serve, engine, *flags, **how):
    return serve(*python_backend.ENGINES[engine], *flags, env=python_backend.environment(), **how)


def test_a_model_that_does_not_initialise_says_why(repository, serve, engine):
    put(repository, "broken", BROKEN, OBEDIENT_CONFIG)
    put(repository, "good", OBEDIENT, OBEDIENT_CONFIG)
    server = start(serve, engine, "--exit-on-error=false", ready=False)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        reasons = {model["name"]: model.get("reason") for model in client.get_model_repository_index()}
        assert "broken on purpose" in reasons["broken"]
        assert client.infer("good", text("on")).as_numpy("ANSWER")[0] == b"on"


def test_a_stub_that_dies_fails_its_requests_and_nothing_else(repository, serve, engine):
    put(repository, "obedient", OBEDIENT, OBEDIENT_CONFIG)
    put(repository, "other", OBEDIENT, OBEDIENT_CONFIG)
    server = start(serve, engine)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        stub = int(client.infer("obedient", text("on")).as_numpy("ANSWER")[2])
        os.kill(stub, signal.SIGKILL)
        try:
            client.infer("obedient", text("after"))
        except InferenceServerException:
            pass
        else:
            # It starts the process again, perhaps before the request is executed.
            assert engine == "builtin"
        assert client.is_server_live()
        assert client.infer("other", text("on")).as_numpy("ANSWER")[0] == b"on"


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("end", ["exit0", "exit7", "kill"])
def test_a_model_whose_process_has_ended_is_not_ready_and_a_load_makes_it_anew(repository, serve, instances, end):
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
    put(repository, "obedient", OBEDIENT, OBEDIENT_CONFIG + group)
    put(repository, "other", OBEDIENT, OBEDIENT_CONFIG)
    # The built-in backend starts a process again by itself: see test_python_processes.py.
    server = start(serve, "library", "--model-control-mode=explicit", "--load-model=*")
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:

        def stub(model):
            return int(client.infer(model, text("on")).as_numpy("ANSWER")[2])

        unharmed = stub("other")
        for _ in range(2):
            assert client.is_model_ready("obedient") and client.is_server_ready()
            # An error of the model's own says nothing about its process.
            with pytest.raises(InferenceServerException):
                client.infer("obedient", text("raise"))
            before = stub("obedient")
            assert client.is_model_ready("obedient")
            if end == "kill":
                os.kill(before, signal.SIGKILL)
            ends = 0
            while client.is_model_ready("obedient"):
                # With several instances, the one that ended may not be asked at once.
                try:
                    client.infer("obedient", text("on" if end == "kill" or ends else end))
                except InferenceServerException:
                    ends += 1
                assert ends < 20
            assert not client.is_server_ready() and client.is_server_live()
            client.load_model("obedient")
            assert client.is_model_ready("obedient") and client.is_server_ready()
            for _ in range(2 * instances):
                assert stub("obedient") != before
        assert stub("other") == unharmed


def test_a_model_that_does_not_answer_delays_no_request_beyond_its_timeout(repository, serve, engine, tmp_path):
    put(repository, "obedient", OBEDIENT, OBEDIENT_CONFIG + IMPATIENT)
    server = start(serve, engine)
    hangs = tmp_path / "hangs"

    def ask(order):
        text = numpy.array([[order.encode()]], dtype=numpy.object_)
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            return client.infer("obedient", [tensor("ORDER", text, "BYTES")])

    with ThreadPoolExecutor(1) as others:
        hanging = others.submit(ask, f"hang {hangs}")
        assert eventually(hangs.exists)
        try:
            with pytest.raises(InferenceServerException) as failure:
                ask("on")
            assert failure.value.status() == "503" and not hanging.done()
        finally:
            hangs.unlink()
        assert hanging.result(60) is not None


def test_models_come_and_go_and_leave_no_process_behind(repository, serve, engine):
    put(repository, "obedient", OBEDIENT, OBEDIENT_CONFIG)
    server = start(serve, engine, "--model-control-mode=explicit")
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        for _ in range(2):
            client.load_model("obedient")
            stub = int(client.infer("obedient", text("on")).as_numpy("ANSWER")[2])
            client.unload_model("obedient")
            deadline = time.monotonic() + 30
            while Path(f"/proc/{stub}").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not Path(f"/proc/{stub}").exists()


def test_a_model_loads_and_unloads_another(repository, serve, engine):
    put(repository, "obedient", OBEDIENT, OBEDIENT_CONFIG)
    put(repository, "keeper", KEEPER, OBEDIENT_CONFIG)
    server = start(serve, engine, "--model-control-mode=explicit", "--load-model=keeper")
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        for order, ready in [("look", b"False"), ("load", b"True"), ("look", b"True"), ("unload", b"False")]:
            assert client.infer("keeper", text(order)).as_numpy("ANSWER")[0] == ready, order


def test_a_missing_backend_is_reported_with_all_searched_locations(repository, serve):
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(OBEDIENT_CONFIG.replace("python", "nowhere"))
    server = serve("--exit-on-error=false", ready=False)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        (model,) = client.get_model_repository_index()
        assert "backend 'nowhere' is not installed (available: " in model["reason"]
        assert f"{repository}/m/1" in model["reason"]


SLOW_TO_END = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(request, "ORDER")]) for request in requests]

    def initialize(self, arguments):
        self.name = arguments["model_name"]

    def finalize(self):
        pb_utils.Logger.log_info(f"the end of '{self.name}' begins")
        time.sleep(0.5)
        pb_utils.Logger.log_info(f"the end of '{self.name}' is over")
"""


@pytest.mark.parametrize("end", ["unload", "stop"])
def test_a_model_is_reported_as_unloaded_when_its_finalize_has_ended(repository, serve, engine, end):
    for name in ("one", "two"):
        put(repository, name, SLOW_TO_END, OBEDIENT_CONFIG)
    server = start(serve, engine, "--model-control-mode=explicit", "--load-model=*")
    if end == "unload":
        with tritonclient.http.InferenceServerClient(server.url) as client:
            for name in ("one", "two"):
                client.unload_model(name)
                server.wait_for_log(f"successfully unloaded '{name}' version 1")
    else:
        server.terminate()
        server.wait_for_exit()
    for name in ("one", "two"):
        steps = [f"the end of '{name}' begins", f"the end of '{name}' is over", f"successfully unloaded '{name}' version 1"]
        places = [server.log.find(step) for step in steps]
        assert places == sorted(places) and places[0] >= 0
