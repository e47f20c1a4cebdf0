"""Ensembles: what they answer, and how they load and unload with their members."""

import json
import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import scale_model, write_identity, write_model
from tensors import given, wanted

IN = np.array([[1, 5, 3], [9, 2, 4]], np.float32)
SEQUENCE = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


def step(model, read, write, version=-1):
    return (
        f'step {{ model_name: "{model}" model_version: {version} '
        f'input_map {{ key: "X" value: "{read}" }} output_map {{ key: "Y" value: "{write}" }} }}'
    )


def write_ensemble(repository, name, *steps, outputs=("OUT",), max_batch_size=4, extra=""):
    """An ensemble of models that scale: input `IN`, and outputs of the same form."""
    tensors = "".join(f'output {{ name: "{output}" data_type: TYPE_FP32 dims: 3 {extra} }}\n' for output in outputs)
    config = f"""platform: "ensemble" max_batch_size: {max_batch_size}
        input {{ name: "IN" data_type: TYPE_FP32 dims: 3 }}
        {tensors} ensemble_scheduling {{ {" ".join(steps)} }}"""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "config.pbtxt").write_text(config)


def fill(repository):
    """Two models; a chain of them, a diamond, and an ensemble of ensembles."""
    scale_model("double", 2).write(repository)
    scale_model("triple", 3).write(repository)
    labels = 'label_filename: "labels.txt"'
    config = (repository / "triple" / "config.pbtxt").read_text().replace('name: "Y"', f'name: "Y" {labels}')
    (repository / "triple" / "config.pbtxt").write_text(config)
    (repository / "triple" / "labels.txt").write_text("red\ngreen\nblue\n")
    write_ensemble(repository, "chain", step("double", "IN", "between"), step("triple", "between", "OUT"))
    write_ensemble(
        repository,
        "fork",
        step("double", "IN", "A"),
        step("triple", "A", "B"),
        step("double", "A", "C"),
        outputs=("A", "B", "C"),
    )
    inner = (
        'step { model_name: "chain" model_version: 1 input_map { key: "IN" value: "IN" } '
        'output_map { key: "OUT" value: "between" } }'
    )
    write_ensemble(repository, "nested", inner, step("double", "between", "OUT"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("ensembles")
    fill(repository)
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture
def http(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        yield client


@pytest.fixture
def grpc(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.mark.parametrize(("model", "factor"), [("chain", 6), ("nested", 12)])
@pytest.mark.parametrize("binary", [True, False])
def test_an_ensemble_answers_over_http(http, model, factor, binary):
    answer = http.infer(model, [given("IN", IN, binary)], outputs=[wanted("OUT", binary)], request_id="7")
    np.testing.assert_array_equal(answer.as_numpy("OUT"), IN * factor)
    assert answer.get_response()["id"] == "7" and answer.get_response()["model_name"] == model
    assert answer.get_response()["parameters"].items() >= SEQUENCE.items()


def test_an_ensemble_answers_over_grpc(grpc):
    tensor = tritonclient.grpc.InferInput("IN", IN.shape, "FP32")
    tensor.set_data_from_numpy(IN)
    answer = grpc.infer("fork", [tensor], sequence_id=3, sequence_start=True, sequence_end=True)
    for output, factor in {"A": 2, "B": 6, "C": 4}.items():
        np.testing.assert_array_equal(answer.as_numpy(output), IN * factor)
    assert answer.get_response().parameters["sequence_id"].int64_param == 3
    assert answer.get_response().parameters["sequence_start"].bool_param


@pytest.mark.parametrize(("output", "factor"), [("A", 2), ("B", 6), ("C", 4)])
def test_outputs_may_be_requested_one_by_one(http, output, factor):
    answer = http.infer("fork", [given("IN", IN)], outputs=[wanted(output)])
    assert [it["name"] for it in answer.get_response()["outputs"]] == [output]
    np.testing.assert_array_equal(answer.as_numpy(output), IN * factor)


def test_classes_have_the_labels_of_the_member_that_gives_the_output(http):
    answer = http.infer("chain", [given("IN", IN)], outputs=[wanted("OUT", classes=1)])
    assert answer.as_numpy("OUT").tolist() == [[b"30.000000:1:green"], [b"54.000000:0:red"]] or [
        entry.split(b":", 1)[1] for (entry,) in answer.as_numpy("OUT").tolist()
    ] == [b"1:green", b"0:red"]


def test_tensors_in_shared_memory_go_through_an_ensemble(http):
    region = shm.create_shared_memory_region("ensemble", "/nereid_ensemble", 2 * IN.nbytes)
    try:
        shm.set_shared_memory_region(region, [IN])
        http.register_system_shared_memory("ensemble", "/nereid_ensemble", 2 * IN.nbytes)
        tensor = tritonclient.http.InferInput("IN", IN.shape, "FP32")
        tensor.set_shared_memory("ensemble", IN.nbytes)
        output = tritonclient.http.InferRequestedOutput("OUT")
        output.set_shared_memory("ensemble", IN.nbytes, offset=IN.nbytes)
        http.infer("chain", [tensor], outputs=[output])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, IN.shape, offset=IN.nbytes), IN * 6)
    finally:
        http.unregister_system_shared_memory("ensemble")
        shm.destroy_shared_memory_region(region)


def test_metadata_configuration_and_statistics_describe_an_ensemble(repository, serve):
    fill(repository)
    server = serve()
    metadata = request(server, "GET", "/v2/models/chain").json
    assert (metadata["platform"], metadata["inputs"][0]["shape"]) == ("ensemble", [-1, 3])
    config = request(server, "GET", "/v2/models/chain/config").json
    assert [it["model_name"] for it in config["ensemble_scheduling"]["step"]] == ["double", "triple"]
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert (config["instance_group"], config["backend"]) == ([], "")
    for _ in range(2):
        assert infer(server, "nested", {"inputs": [tensor("IN", "FP32", [2, 3], IN.tolist())]}).status == 200
    statistics = {it["name"]: it for it in request(server, "GET", "/v2/models/stats").json["model_stats"]}
    counts = {name: (it["inference_count"], it["execution_count"]) for name, it in statistics.items()}
    assert counts == {"nested": (4, 2), "chain": (4, 2), "double": (8, 4), "triple": (4, 2), "fork": (0, 0)}
    assert [it["batch_size"] for it in statistics["nested"]["batch_stats"]] == [2]
    members = [statistics[name]["inference_stats"]["compute_infer"] for name in ("double", "triple")]
    ensemble = statistics["nested"]["inference_stats"]
    assert ensemble["compute_infer"] == {"count": 2, "ns": sum(it["ns"] for it in members)}
    assert ensemble["success"]["count"] == 2


def test_an_invalid_request_is_refused_in_the_name_of_the_ensemble(server):
    def ask(inputs, **more):
        return infer(server, "chain", {"inputs": inputs, **more})

    assert_refused(ask([]), 400)
    assert_refused(ask([tensor("IN", "INT32", [1, 3], [1, 2, 3])]), 400)
    assert_refused(ask([tensor("IN", "FP32", [5, 3], [0.0] * 15)]), 400)
    assert_refused(ask([tensor("between", "FP32", [1, 3], [1, 2, 3])]), 400)
    good = [tensor("IN", "FP32", [1, 3], [1, 2, 3])]
    assert_refused(ask(good, outputs=[{"name": "between"}]), 400)
    assert_refused(infer(server, "chain", {"inputs": good}, version=2), 404)
    assert ask(good).status == 200


def load(server, name, **parameters):
    return request(server, "POST", f"/v2/repository/models/{name}/load", json.dumps({"parameters": parameters}))


def unload(server, name, **parameters):
    answer = request(server, "POST", f"/v2/repository/models/{name}/unload", json.dumps({"parameters": parameters}))
    assert answer.status == 200, answer


def ready(server):
    """The names of the models that are ready."""
    index = request(server, "POST", "/v2/repository/index", '{"ready": true}').json
    return sorted(entry["name"] for entry in index)


def reason(server, name):
    (entry,) = (it for it in request(server, "POST", "/v2/repository/index").json if it["name"] == name)
    assert entry["state"] == "UNAVAILABLE", entry
    return entry["reason"]


def test_ensembles_load_and_unload_with_their_members(repository, serve):
    fill(repository)
    server = serve("--model-control-mode=explicit", "--load-model=chain")
    assert ready(server) == ["chain", "double", "triple"]
    unload(server, "triple")
    assert ready(server) == ["double"]
    assert "triple" in reason(server, "chain")
    assert request(server, "GET", "/v2/models/chain/ready").status == 400
    assert server.ready_status() == 200
    assert load(server, "triple").status == 200
    assert ready(server) == ["chain", "double", "triple"] and server.ready_status() == 200
    assert load(server, "nested").status == 200
    unload(server, "nested", unload_dependents=True)
    assert ready(server) == ["chain", "double", "triple"]
    # One was requested, the other was not.
    unload(server, "chain", unload_dependents=True)
    assert ready(server) == ["triple"]


def test_loading_an_ensemble_over_grpc_loads_its_members(repository, serve):
    fill(repository)
    server = serve("--model-control-mode=explicit")
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.load_model("nested")
        assert ready(server) == ["chain", "double", "nested", "triple"]
        client.unload_model("nested", unload_dependents=True)
        assert ready(server) == []
        write_ensemble(repository, "wrong", step("double", "IN", "OUT"), max_batch_size=9)
        with pytest.raises(InferenceServerException, match="accepts at most 8") as refused:
            client.load_model("wrong")
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_unloading_over_grpc_may_include_dependents(repository, serve):
    fill(repository)
    server = serve("--model-control-mode=explicit")
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.load_model("nested")
        # One member goes, and with it one of its own; the other one is a member of what remains wanted, too.
        client.unload_model("chain", unload_dependents=True)
        assert ready(server) == ["double"]
        assert "chain" in reason(server, "nested")
        with pytest.raises(InferenceServerException) as refused:
            tensor = tritonclient.grpc.InferInput("IN", IN.shape, "FP32")
            tensor.set_data_from_numpy(IN)
            client.infer("nested", [tensor])
        assert refused.value.status() == "StatusCode.NOT_FOUND"
        client.load_model("chain")
        assert ready(server) == ["chain", "double", "nested", "triple"]
        client.unload_model("double", unload_dependents=True)
        assert ready(server) == ["triple"]


def wrong_ensembles(repository):
    """Ensembles that cannot be served, with a part of the reason for each."""
    fill(repository)
    write_model(repository, "broken", scale_model("broken").config(), b"no model")
    write_identity(repository, "other", ["INT32"])
    other = (
        'step { model_name: "other" model_version: -1 input_map { key: "INPUT0" value: "IN" } '
        'output_map { key: "OUTPUT0" value: "OUT" } }'
    )
    for name, *steps in (
        ("absent", step("nosuch", "IN", "OUT")),
        ("failing", step("broken", "IN", "OUT")),
        ("version", step("double", "IN", "OUT", version=7)),
        ("typed", other),
        ("unwritten", step("double", "IN", "t"), step("double", "u", "OUT")),
        ("here", step("there", "IN", "OUT")),
        ("there", step("here", "IN", "OUT")),
        ("itself", step("itself", "IN", "OUT")),
    ):
        write_ensemble(repository, name, *steps)
    return {
        "absent": "'nosuch'",
        "failing": "'broken', which has no loaded version",
        "version": "version 7",
        "typed": "TYPE_INT32",
        "unwritten": "no step writes tensor 'u'",
        "here": "here",
        "there": "there",
        "itself": "circular dependency between ensembles: itself -> itself",
    }


def test_invalid_ensembles_are_refused_with_the_reason_and_others_are_served(repository, serve):
    expected = wrong_ensembles(repository)
    server = serve("--model-control-mode=explicit")
    for name, told in expected.items():
        answer = load(server, name)
        assert_refused(answer, 500 if name == "unwritten" else 400)
        assert told in answer.json["error"] and told in reason(server, name)
    assert "circular dependency" in load(server, "here").json["error"]
    assert load(server, "chain").status == 200
    assert infer(server, "chain", {"inputs": [tensor("IN", "FP32", [1, 3], [1, 2, 3])]}).status == 200


def test_invalid_ensembles_at_start_do_not_affect_other_models(repository, serve):
    expected = wrong_ensembles(repository)
    server = serve("--exit-on-error=false", ready=False)
    assert set(ready(server)) == {"chain", "double", "fork", "nested", "other", "triple"}
    assert all(told in reason(server, name) for name, told in expected.items())


def test_in_poll_mode_ensembles_follow_changes_of_their_members(repository, serve):
    fill(repository)
    server = serve("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-watch=true")

    def value():
        answer = infer(server, "nested", {"inputs": [tensor("IN", "FP32", [1, 3], [1, 2, 3])]})
        return answer.json["outputs"][0]["data"][0] if answer.status == 200 else answer.status

    def awaits(expected):
        end = time.monotonic() + 30
        while value() != expected:
            assert time.monotonic() < end, (value(), expected)
            time.sleep(0.05)

    awaits(12)
    (repository / "triple").rename(repository.parent / "aside")
    awaits(404)
    (repository.parent / "aside").rename(repository / "triple")
    awaits(12)
    write_ensemble(repository, "chain", step("triple", "IN", "between"), step("triple", "between", "OUT"))
    awaits(18)


def test_with_namespaces_an_ensemble_has_the_models_of_its_own_repository(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for factor, folder in enumerate(folders, start=2):
        folder.mkdir()
        scale_model("scale", factor).write(folder)
        write_ensemble(folder, f"of_{folder.name}", step("scale", "IN", "OUT"))
    # Found where it is the only one of its name; one that stands in both is nobody else's.
    scale_model("lone", 10).write(folders[0])
    write_ensemble(folders[1], "borrower", step("lone", "IN", "OUT"))
    flags = [f"--model-repository={folders[1]}", "--model-namespacing=true"]
    with nereid_server.running(folders[0], *flags) as server:
        for name, factor in {"of_first": 2, "of_second": 3, "borrower": 10}.items():
            answer = infer(server, name, {"inputs": [tensor("IN", "FP32", [1, 3], [1, 2, 3])]})
            assert answer.json["outputs"][0]["data"] == [factor, 2 * factor, 3 * factor]
        config = request(server, "GET", "/v2/models/borrower/config").json
        assert config["ensemble_scheduling"]["step"][0]["model_namespace"] == str(folders[0])
