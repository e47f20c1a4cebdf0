"""Releases: versions that share requests, over every protocol; copies that are compared; promotion and withdrawal; changes while
requests run.
"""

import json
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import python_lab
from http_requests import LIMIT_S, assert_refused, infer, request, tensor
from model_files import config, scale_model, write_model
from scrapes import Scrape
from waiting import eventually

EXPLICIT = "--model-control-mode=explicit"
VALUES = np.array([[1, 2, 3]], np.float32)
BODY = {"id": "a", "inputs": [tensor("X", "FP32", [1, 3], [1, 2, 3])]}

PYTHON = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            {action}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", value * 2)]))
        return responses
"""


def parameters(**release):
    """The parameters of a release."""
    lines = (f'parameters {{ key: "release_{key}" value {{ string_value: "{value}" }} }}' for key, value in release.items())
    return "\n".join(["version_policy { all { } }", *lines])


def write_scales(repository, name, factors, **release):
    """An ONNX model whose versions multiply by these factors."""
    for version, factor in enumerate(factors, 1):
        model = scale_model(name, factor)
        text = model.config() + parameters(**release) if version == 1 else None
        write_model(repository, name, text, model.serialized(), version)


def write_python(repository, name, actions, **release):
    """A model in Python whose versions double their input after an action each."""
    tensors = [("X", "FP32", [3])], [("Y", "FP32", [3])]
    for version, action in enumerate(actions, 1):
        text = config(name, "python", *tensors, 8, parameters(**release)) if version == 1 else None
        write_model(repository, name, text, version=version)
        (repository / name / str(version) / "model.py").write_text(PYTHON.format(action=action))


def http_answer(server, name, headers=None, version=None):
    """The version that answers, and its first value."""
    answer = infer(server, name, BODY, headers, version)
    assert answer.status == 200, answer.body
    return answer.json["model_version"], answer.json["outputs"][0]["data"][0]


def grpc_input():
    value = tritonclient.grpc.InferInput("X", [1, 3], "FP32")
    value.set_data_from_numpy(VALUES)
    return [value]


def grpc_answer(client, name, **how):
    result = client.infer(name, grpc_input(), **how)
    return result.get_response().model_version, float(result.as_numpy("Y")[0, 0])


def state(server, name):
    """The release of a model, by version."""
    document = request(server, "GET", f"/v2/models/{name}/release").json
    return {version["version"]: version for version in document["versions"]}, document["differences"]


def reasons(server, name):
    index = request(server, "POST", "/v2/repository/index").json
    return {line["version"]: line.get("reason", "") for line in index if line["name"] == name}


def send_until(server, name, part, version="2", threads=4):
    """Sends requests until a version has this part. Returns the answers, as version and value, or status."""
    answers = []

    def send(_):
        answer = infer(server, name, BODY)
        body = answer.json
        answers.append((body["model_version"], body["outputs"][0]["data"][0]) if answer.status == 200 else answer.status)

    def is_reached():
        list(pool.map(send, range(4 * threads)))
        return state(server, name)[0][version]["part"] == part

    with ThreadPoolExecutor(threads) as pool:
        assert eventually(is_reached), state(server, name)
    return answers


def test_every_protocol_splits_requests(repository, serve):
    write_scales(repository, "m", [2, 4, 8], versions="1=75, 2=25", sticky_header="x-user")
    server = serve()
    right = {"1": 2.0, "2": 4.0, "3": 8.0}
    answers = [http_answer(server, "m") for _ in range(100)]
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        answers += [grpc_answer(client, "m") for _ in range(100)]
        for version, value in right.items():
            assert grpc_answer(client, "m", model_version=version) == http_answer(server, "m", version=version) == (version, value)
        streamed, news = [], threading.Semaphore(0)

        def take(result, error):
            assert error is None
            streamed.append((result.get_response().model_version, float(result.as_numpy("Y")[0, 0])))
            news.release()

        client.start_stream(take)
        for _ in range(100):
            client.async_stream_infer("m", grpc_input())
        assert all(news.acquire(timeout=LIMIT_S) for _ in range(100))
        client.stop_stream()
        answers += streamed
        users = [f"user-{number}" for number in range(40)]
        versions = {user: http_answer(server, "m", {"X-User": user})[0] for user in users}
        for user in users:
            assert grpc_answer(client, "m", headers={"x-user": user})[0] == versions[user]
            assert http_answer(server, "m", {"x-user": user})[0] == versions[user]
    assert set(versions.values()) == {"1", "2"}
    assert all(right[version] == value for version, value in answers)
    counts = Counter(version for version, _ in answers)
    assert set(counts) == {"1", "2"} and 70 <= counts["2"] <= 80, counts
    metrics = Scrape(server)
    assert metrics.value("nereid_release_share", model="m", version="2") == 0.25
    assert metrics.value("nereid_release_requests_total", model="m", version="2") >= counts["2"]
    # Without a version, metadata describe the established one, and readiness is its own.
    assert request(server, "GET", "/v2/models/m/ready").status == 200
    assert_refused(request(server, "GET", "/v2/models/unknown/release"), 404)


def test_requests_of_a_correlation_id_stay_with_a_version(repository, serve):
    """Also of models that know no sequences."""
    write_scales(repository, "m", [2, 4], versions="1=50, 2=50")
    server = serve()
    ids = [*range(1, 21), *(f"user-{number}" for number in range(20))]

    def over_http(own):
        answer = infer(server, "m", BODY | {"parameters": {"sequence_id": own}})
        assert answer.status == 200, answer.body
        return answer.json["model_version"]

    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        versions = {own: over_http(own) for own in ids}
        for own in ids:
            assert grpc_answer(client, "m", sequence_id=own)[0] == over_http(own) == versions[own]
    assert set(versions.values()) == {"1", "2"}


def test_an_ensemble_splits_the_requests_of_its_steps(repository, serve):
    write_scales(repository, "m", [2, 4], versions="1=50,2=50")
    step = 'step [ { model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } ]'
    text = config("outer", "", [("X", "FP32", [3])], [("Y", "FP32", [3])], 8)
    text = text.replace('backend: ""', 'platform: "ensemble"').replace("instance_group { count: 1 kind: KIND_CPU }", "")
    write_model(repository, "outer", f"{text} ensemble_scheduling {{ {step} }}")
    server = serve()
    counts = Counter(http_answer(server, "outer")[1] for _ in range(60))
    assert set(counts) == {2.0, 4.0} and 25 <= counts[4.0] <= 35, counts


def test_copies_are_compared_and_never_sent(repository, serve):
    release = {"versions": "1=100,2=0", "shadow": "2=100", "compare": "tolerance=0.001"}
    write_scales(repository, "wrong", [2, 4], **release, difference_limit="0.05")
    write_scales(repository, "equal", [2, 2], **release, promote_after="60", latency_ratio="1000")
    server = serve()
    answers = send_until(server, "wrong", "withdrawn")
    assert set(answers) == {("1", 2.0)}
    # Copies that were in progress are compared, too.
    assert eventually(lambda: (of := state(server, "wrong")[0]["2"])["answers_different"] == of["copies"])
    versions, differences = state(server, "wrong")
    reason = re.fullmatch(r"(\d+) of \1 compared answers differ", versions["2"]["reason"])
    assert reason and 20 <= int(reason[1]) <= versions["2"]["answers_different"] == versions["2"]["copies"], versions
    assert differences[0] | {"time_ms": 0} == {
        "time_ms": 0,
        "request_id": "a",
        "established": "1",
        "candidate": "2",
        "output": "Y",
        "difference": "element 0: 4 instead of 2, and 2 others",
    }
    assert reasons(server, "wrong")["2"].endswith(versions["2"]["reason"])
    server.wait_for_log(f"'wrong' version 2 was withdrawn: {versions['2']['reason']}")
    assert Scrape(server).value("nereid_release_part", model="wrong", version="2", part="withdrawn") == 1
    answers = send_until(server, "equal", "promoted")
    assert {value for _, value in answers} == {2.0}
    assert http_answer(server, "equal") == ("2", 2.0)
    assert state(server, "equal")[0]["2"]["answers_different"] == 0


@pytest.mark.parametrize(
    "action, reason",
    [
        ("time.sleep(0.03)", "of latencies is"),
        ("raise ValueError('on purpose')", "requests failed, 0 of"),
    ],
    ids=["slow", "fails"],
)
def test_a_worse_version_in_python_is_withdrawn(repository, serve, action, reason):
    write_python(repository, "m", ["pass", action], versions="1=50,2=50", promote_after="2000")
    server = serve(*python_lab.FLAGS)
    answers = send_until(server, "m", "withdrawn")
    assert {answer for answer in answers if answer != 500} <= {("1", 2.0), ("2", 2.0)}
    assert reason in state(server, "m")[0]["2"]["reason"]
    assert {http_answer(server, "m") for _ in range(20)} == {("1", 2.0)}
    assert Scrape(server).value("nereid_release_share", model="m", version="2") == 0


def decide(server, name, **body):
    return request(server, "POST", f"/v2/models/{name}/release", json.dumps(body))


def audited(log):
    """What the audit log says of releases, without times and addresses."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("time", "address")} for line in lines]


def test_decisions_reach_the_audit_log_and_the_console(repository, serve, tmp_path):
    release = {"versions": "1=100,2=0", "shadow": "2=100", "promote_after": "60"}
    write_scales(repository, "m", [2, 4], **release)
    write_scales(repository, "n", [2, 4, 8], versions="1=50,2=25,3=25")
    log = tmp_path / "audit"
    server = serve(f"--audit-log={log}")
    send_until(server, "m", "withdrawn")
    reason = state(server, "m")[0]["2"]["reason"]
    automatic = {"action": "change-release", "outcome": "done", "subject": "m", "automatic": True}
    automatic["reason"] = f"version 2 was withdrawn: {reason}"
    assert eventually(lambda: audited(log) == [automatic]), log.read_text()
    (change,) = request(server, "GET", "/console/api/changes").json
    expected = {"automatic": True, "principal": None, "subject": "m", "request": None, "reason": automatic["reason"]}
    assert {key: change[key] for key in expected} == expected

    def states():
        document = request(server, "GET", "/console/api/states?model=m").json
        return [entry["reason"] for entry in document if entry["version"] == "2" and entry["state"] == "READY"]

    note = f"withdrawn of a release, 0.0 % of the requests: {reason}"
    assert eventually(lambda: states()[-1:] == [note]), states()
    assert decide(server, "n", withdraw="2", reason="too slow").status == 200
    assert decide(server, "n", promote="3").status == 200
    assert {http_answer(server, "n") for _ in range(20)} == {("3", 8.0)}
    versions, _ = state(server, "n")
    assert [versions[version]["part"] for version in "123"] == ["replaced", "withdrawn", "promoted"]
    assert reasons(server, "n")["2"] == "withdrawn of a release, 0.0 % of the requests: on request: too slow"
    assert Scrape(server).value("nereid_release_part", model="n", version="3", part="promoted") == 1
    # The same again changes nothing, and the first decision holds.
    assert decide(server, "n", promote="3").status == 200
    refused = decide(server, "n", promote="2")
    assert_refused(refused, 400)
    assert "version 2 is withdrawn (on request: too slow), and only a candidate" in refused.json["error"]
    path = "HTTP POST /v2/models/n/release"
    by_hand = [line for line in audited(log) if line.get("request") == path]
    told = [(line["outcome"], line["reason"]) for line in by_hand]
    assert told == [
        ("done", "withdraw version 2: on request: too slow"),
        ("done", "promote version 3: on request"),
        ("done", "promote version 3: on request"),
        ("failed", "promote version 2: on request"),
    ]
    assert not any(line.get("automatic") for line in by_hand)


def test_decisions_that_cannot_be_made_change_nothing(repository, serve):
    write_scales(repository, "m", [2, 4, 8], versions="1=50, 2=25, 4=25")
    write_scales(repository, "plain", [2])
    server = serve()
    cases: list[tuple[dict, int, str]] = [
        ({}, 400, "must name a version to 'promote' or to 'withdraw'"),
        ({"promote": "2", "withdraw": "2"}, 400, "must name a version"),
        ({"promote": 2}, 400, "'promote' is not a string"),
        ({"promote": "x"}, 400, "'x' is not a version"),
        ({"promote": "2", "reason": "two\nlines"}, 400, "'reason' must be one line"),
        ({"promote": "3"}, 400, "version 3 has no part in the release (versions: 1, 2, 4)"),
        ({"withdraw": "1"}, 400, "version 1 is established"),
        # It is not there, so it could not take all requests.
        ({"promote": "4"}, 404, "4"),
    ]
    for body, status, words in cases:
        refused = decide(server, "m", **body)
        assert_refused(refused, status)
        assert words in refused.json["error"], (body, refused.json)
    assert_refused(request(server, "POST", "/v2/models/m/release", "{"), 400)
    assert_refused(decide(server, "plain", promote="1"), 404, "has no release")
    assert_refused(decide(server, "unknown", promote="1"), 404)
    assert {http_answer(server, "m")[0] for _ in range(40)} == {"1", "2"}
    assert decide(server, "m", withdraw="4").status == 200


def test_releases_change_while_requests_run(repository, serve):
    write_scales(repository, "m", [2, 4], versions="1=100,2=0")
    server = serve(EXPLICIT, "--load-model=m")
    loads = server.log.count("loading 'm' version")
    right, wrong, stopped = {"1": 2.0, "2": 4.0}, [], threading.Event()

    def send():
        while not stopped.is_set():
            version, value = http_answer(server, "m")
            if right[version] != value:
                wrong.append((version, value))

    with tritonclient.http.InferenceServerClient(server.url) as client, ThreadPoolExecutor(3) as pool:
        sending = [pool.submit(send) for _ in range(3)]
        served = json.loads(json.dumps(client.get_model_config("m")))
        for weights, expected in [("1=0,2=1", {"2"}), ("1=1,2=1", {"1", "2"}), ("1=1,2=0", {"1"})] * 2:
            served["parameters"]["release_versions"] = {"string_value": weights}
            client.load_model("m", config=json.dumps(served))
            assert {http_answer(server, "m")[0] for _ in range(20)} == expected, weights
        served["parameters"]["release_versions"] = {"string_value": "0"}
        with pytest.raises(tritonclient.http.InferenceServerException, match="release_versions"):
            client.load_model("m", config=json.dumps(served))
        assert http_answer(server, "m")[0] == "1"
        assert server.log.count("loading 'm' version") == loads
        stopped.set()
        for sender in sending:
            sender.result(LIMIT_S)
        assert wrong == []
        # An unload and a load with the configuration in the folder restores its release.
        client.unload_model("m")
        assert eventually(lambda: not client.is_model_ready("m"))
        client.load_model("m")
        assert http_answer(server, "m")[0] == "1"
