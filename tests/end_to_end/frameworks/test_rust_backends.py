"""Backends in Rust, written with `triton-backend`: the example `words`, and one that tests what the crate promises.

All of it holds in the reference too: `NEREID_BINARY` may name a tritonserver, with `NEREID_BACKENDS` as the folder of the
libraries.
"""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

import native_backends
import nereid_server
from native_backends import parameter, rust_library, write_model


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    for name in ("words", "trial"):
        native_backends.copy_rust(folder, name)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, backends):
    repository = tmp_path_factory.mktemp("models")
    decoupled = "model_transaction_policy { decoupled: true }\n"
    write_model(repository, "words", "words", decoupled)
    write_model(repository, "slow_words", "words", decoupled + parameter("pause_ms", "50"))
    write_model(repository, "words_at_once", "words")
    write_model(repository, "batched_words", "words", "max_batch_size: 2")
    write_model(repository, "wrong_pause", "words", parameter("pause_ms", "soon"))
    write_model(repository, "trial", "trial")
    write_model(repository, "counted", "trial")
    write_model(repository, "fails", "trial", parameter("load", "fails"))
    write_model(repository, "panics", "trial", parameter("load", "panics"))
    delay = "dynamic_batching { max_queue_delay_microseconds: 1000000 preferred_batch_size: 4 }\n"
    write_model(repository, "batched", "trial", "max_batch_size: 4\n" + delay)
    write_model(repository, "choosy", "trial", "max_batch_size: 4\n" + delay)
    shutil.copy(rust_library("trial"), repository / "choosy" / "batchstrategy.so")
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with nereid_server.running(repository, f"--backend-directory={backends}", *flags) as server:
        yield server


def ask(server, method, path, body=None):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def words(server, text, **parameters):
    inputs = [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": [text]}]
    body = {"inputs": inputs, "parameters": parameters}
    status, answer = ask(server, "POST", "/v2/models/words_at_once/infer", body)
    answer = json.loads(answer)
    return answer["outputs"][0]["data"] if status == 200 else (status, answer["error"])


def streamed(server, model, text, **parameters):
    _, answer = ask(server, "POST", f"/v2/models/{model}/generate_stream", {"TEXT": text, **parameters})
    return [json.loads(line.removeprefix("data: ")).get("WORD") for line in answer.splitlines() if line]


def do(server, what, model="trial", shape=(2,), **parameters):
    """Has the trial backend do something; its lines, or the status and the error."""
    data = list(range(shape[0]))
    inputs = [{"name": "IN", "shape": list(shape), "datatype": "INT32", "data": data}]
    body = {"id": "outer", "inputs": inputs, "parameters": {"do": what, **parameters}, "outputs": [{"name": "OUT"}]}
    status, answer = ask(server, "POST", f"/v2/models/{model}/infer", body)
    answer = json.loads(answer)
    return answer["outputs"][0]["data"] if status == 200 else (status, answer["error"])


def statistics(server, model):
    _, answer = ask(server, "GET", f"/v2/models/{model}/versions/1/stats")
    return json.loads(answer)["model_stats"][0]


def counts(server, model):
    row = statistics(server, model)
    return row["inference_stats"]["success"]["count"], row["inference_stats"]["fail"]["count"]


def reason(server, model):
    _, answer = ask(server, "POST", "/v2/repository/index", {})
    row = next(row for row in json.loads(answer) if row["name"] == model)
    assert row["state"] == "UNAVAILABLE"
    return row["reason"]


def test_outputs_are_computed_in_the_servers_memory(server):
    inputs = [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [7]}]
    body = {"inputs": inputs, "parameters": {"do": "computed"}, "outputs": [{"name": "NUMBERS"}]}
    status, answer = ask(server, "POST", "/v2/models/trial/infer", body)
    assert status == 200, answer
    assert json.loads(answer)["outputs"] == [
        {"name": "NUMBERS", "datatype": "INT32", "shape": [2, 3], "data": [0, 1, 4, 9, 16, 25]}
    ]


def test_the_example_gives_all_words_at_once(server):
    assert words(server, "to be or not") == ["to", "be", "or", "not"]
    assert words(server, "") == []


def test_the_example_reads_a_parameter_and_refuses_wrong_ones(server):
    assert words(server, "to be or not", max_words=2) == ["to", "be"]
    assert words(server, "to be", max_words="2")[0] == 400
    assert words(server, "to be", max_words=-1) == (400, "max_words is -1: must be 0 or more")


def test_the_example_streams_words(server):
    assert streamed(server, "words", "to be or not") == ["to", "be", "or", "not"]
    assert streamed(server, "words", "to be or not", max_words=1) == ["to"]
    assert streamed(server, "words", "") == []


def test_the_example_completes_configurations(server):
    _, answer = ask(server, "GET", "/v2/models/words/config")
    config = json.loads(answer)
    assert [(tensor["name"], tensor["data_type"]) for tensor in config["input"] + config["output"]] == [
        ("TEXT", "TYPE_STRING"),
        ("WORD", "TYPE_STRING"),
    ]


def test_the_example_refuses_configurations_that_it_cannot_serve(server):
    assert "max_batch_size must be 0" in reason(server, "batched_words")
    assert "invalid pause 'soon'" in reason(server, "wrong_pause")


def test_a_client_that_leaves_ends_its_stream(server):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    text = " ".join(["word"] * 400)
    connection.request("POST", "/v2/models/slow_words/generate_stream", body=json.dumps({"TEXT": text}))
    connection.getresponse().read(10)
    connection.close()
    started = time.monotonic()
    # The next stream is served meanwhile, and the server ends in time at the end of this module: the stream that
    # nobody reads would take 20 seconds.
    assert streamed(server, "slow_words", "one two") == ["one", "two"]
    assert time.monotonic() - started < 15


def test_a_model_and_an_instance_know_their_context(server):
    assert do(server, "facts") == [
        'model trial version 1 in ["1", "trial"]',
        'instance Cpu 0 passive false profiles [] devices [] policy {"cpu":{}}',
    ]


def test_memory_that_the_server_gives_and_takes_back(server):
    assert do(server, "memory") == [f"[0, 0, 0, 0, 0] bytes 0 {1000 << 20}"]


def test_memory_of_a_model_and_its_instances_is_in_the_statistics(server):
    usage = statistics(server, "trial")["memory_usage"]
    usage = {(part["type"], int(part["id"])): int(part["byte_size"]) for part in usage}
    # The last report of the model counts, plus the memory of its one instance.
    assert usage == {("CPU", 0): 1020, ("CPU", 2): 5}


def test_a_request_to_another_model_can_be_stopped(server):
    start = time.monotonic()
    assert do(server, "cancel") == ["first true stopped Ok(()) early true again Ok(())"]
    # The whole would take 20 seconds.
    assert time.monotonic() - start < 15


def test_properties_of_a_request(server):
    assert do(server, "request", sequence=5) == [
        "id outer",
        "sequence number 0 false false",
        "timeout None cancelled false",
        'parameters [("do", String("request")), ("sequence", Int(5))]',
        'outputs ["OUT"] wants OUT true',
        "inputs 1 IN [2]",
        "values [0, 1], as texts Err(InvalidArgument)",
        "no such input: Some(InvalidArgument)",
        "host memory true",
    ]


def test_a_backend_asks_other_models(server):
    assert do(server, "infer") == [
        "words_at_once is ready: true",
        'words_at_once 1 answered ["one", "two", "three"]',
        "words sent 3 responses",
        "unknown model: Some(NotFound)",
        "no input: Some(InvalidArgument)",
        "wrong type: Some(InvalidArgument)",
        "wrong parameter: Some(InvalidArgument)",
        "outer id: outer",
    ]


def test_a_backend_has_metrics_of_its_own(server):
    assert do(server, "metrics") == [
        "counter 2",
        "gauge 2.5",
        "counter set: Err(Unsupported)",
        "histogram read: Err(Unsupported)",
    ]


def test_states_need_a_model_that_has_them(server):
    (line,) = do(server, "state")
    assert line.startswith("InvalidArgument: ") and "'STATE'" in line


def test_events_without_a_trace_are_nothing(server):
    assert do(server, "trace") == ["traced"]


@pytest.mark.parametrize(
    "what, status, message",
    [
        ("fail", 400, "trial: fails on purpose"),
        ("panic", 500, "the backend panicked while executing: trial: panics on purpose"),
        ("nothing", 500, "the backend returned the request without an answer"),
        ("drop_response", 500, "the backend returned the request without an answer"),
        ("wrong_shape", 400, "output 'OUT' of shape [1, 7] cannot hold 1 values"),
        ("reschedule", 501, "only models with iterative sequences can reschedule a request"),
        ("unheard of", 501, "trial: cannot unheard of"),
    ],
)
def test_a_request_that_goes_wrong_is_answered_and_counted(server, what, status, message):
    success, fail = counts(server, "counted")
    assert do(server, what, "counted") == (status, message)
    assert do(server, "trace", "counted") == ["traced"]
    # A backend reports a request when it has answered it, so its client may be faster.
    deadline = time.monotonic() + 10
    while counts(server, "counted") != (success + 1, fail + 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts(server, "counted") == (success + 1, fail + 1)


def test_a_request_is_answered_once(server):
    assert do(server, "twice") == ["once"]
    server.wait_for_log("the second answer: Err.*has its last answer already")


def test_a_last_answer_waits_until_no_other_response_is_open(server):
    assert do(server, "fail_beside") == ["alone"]
    server.wait_for_log("beside another response: Err.*while another one is being built")


def test_a_request_may_be_kept_and_answered_later(server):
    assert do(server, "keep") == ["kept"]


def test_a_model_that_cannot_be_loaded_says_why(server):
    assert "trial: fails to load on purpose" in reason(server, "fails")
    assert "the backend panicked while loading the model: trial: panics on purpose" in reason(server, "panics")


@pytest.mark.parametrize(
    "how, message", [("fails", "trial: fails to start on purpose"), ("panics", "the backend panicked while starting the backend")]
)
def test_a_backend_that_cannot_start_says_why(tmp_path, backends, how, message):
    repository = tmp_path / "models"
    write_model(repository, "trial", "trial")
    flags = (f"--backend-config=trial,start={how}", "--exit-on-error=false", "--strict-readiness=false")
    with nereid_server.running(repository, f"--backend-directory={backends}", *flags) as server:
        assert message in reason(server, "trial")


def together(server, model, alone):
    """Four requests at once, each of one row; the rows of the batches that they were in."""
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(do, server, "rows", model, (1, 1), alone=alone) for _ in range(4)]
        return [answer.result() for answer in asked]


def test_requests_are_batched(server):
    assert together(server, "batched", alone=False) == [["4 rows"]] * 4


def test_a_batch_strategy_decides_who_joins(server):
    assert together(server, "choosy", alone=False) == [["4 rows"]] * 4
    assert together(server, "choosy", alone=True) == [["1 rows"]] * 4
