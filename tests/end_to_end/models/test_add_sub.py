"""The add_sub example through every door of Triton's HTTP client."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.http.aio

from http_requests import infer, infer_binary, tensor
from places import EXAMPLES
from tensors import given, wanted

OUTPUTS = ("INT_SUM", "INT_DIFF", "FLOAT_SUM", "FLOAT_DIFF")


def operands(seed=0, batch=1):
    """Random values for the four inputs."""
    rng = np.random.default_rng(seed)
    shape = (batch, 16)
    return {
        "INT0": rng.integers(-1000, 1000, shape, np.int32),
        "INT1": rng.integers(-1000, 1000, shape, np.int32),
        "FLOAT0": rng.standard_normal(shape, np.float32),
        "FLOAT1": rng.standard_normal(shape, np.float32),
    }


def results(values):
    """What the model must answer."""
    return {
        "INT_SUM": values["INT0"] + values["INT1"],
        "INT_DIFF": values["INT0"] - values["INT1"],
        "FLOAT_SUM": values["FLOAT0"] + values["FLOAT1"],
        "FLOAT_DIFF": values["FLOAT0"] - values["FLOAT1"],
    }


def datatype(name):
    """The datatype of a tensor of the model."""
    return "INT32" if name.startswith("INT") else "FP32"


def inputs(values, binary=True):
    return [given(name, value, binary) for name, value in values.items()]


def assert_right(answer, values):
    for name, expected in results(values).items():
        got = answer.as_numpy(name)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("binary_out", [True, False], ids=["binary out", "JSON out"])
@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("batch", [1, 8])
def test_sums_and_differences_in_every_form(client, batch, binary_in, binary_out):
    values = operands(batch=batch)
    answer = client.infer("add_sub", inputs(values, binary_in), outputs=[wanted(name, binary_out) for name in OUTPUTS])
    assert_right(answer, values)


def test_binary_and_json_tensors_may_be_mixed_in_one_request_and_one_answer(client):
    values = operands()
    mixed = [given(name, value, binary=name.startswith("INT")) for name, value in values.items()]
    answer = client.infer("add_sub", mixed, outputs=[wanted(name, binary=name.endswith("SUM")) for name in OUTPUTS])
    assert_right(answer, values)
    for name in OUTPUTS:
        assert ("data" in answer.get_output(name)) != name.endswith("SUM")


def test_all_outputs_are_returned_if_none_is_requested(client):
    values = operands()
    assert_right(client.infer("add_sub", inputs(values)), values)


def test_inputs_may_come_in_any_order(client):
    values = operands()
    assert_right(client.infer("add_sub", inputs(values)[::-1]), values)


@pytest.mark.parametrize("subset", [("INT_DIFF",), ("FLOAT_SUM", "INT_SUM"), ("INT_SUM", "FLOAT_SUM"), OUTPUTS[::-1]])
def test_only_requested_outputs_are_returned(client, subset):
    values = operands()
    answer = client.infer("add_sub", inputs(values), outputs=[wanted(name) for name in subset])
    assert sorted(output["name"] for output in answer.get_response()["outputs"]) == sorted(subset)
    for name in subset:
        np.testing.assert_array_equal(answer.as_numpy(name), results(values)[name])


def test_the_binary_data_output_parameter_chooses_the_form_of_all_outputs(examples):
    values = operands()
    header = {
        "inputs": [tensor(name, datatype(name), [1, 16], value.ravel().tolist()) for name, value in values.items()],
        "parameters": {"binary_data_output": True},
    }
    answer = infer(examples, "add_sub", header)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert len(answer.body) == length + len(OUTPUTS) * 64


def test_binary_tensors_follow_in_the_order_of_the_json(examples):
    values = dict(reversed(operands().items()))
    header = {
        "inputs": [tensor(name, datatype(name), [1, 16], binary_data_size=64) for name in values],
        "outputs": [{"name": "INT_DIFF"}],
    }
    answer = infer_binary(examples, "add_sub", header, *(value.tobytes() for value in values.values()))
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json["outputs"][0]["data"] == results(values)["INT_DIFF"].ravel().tolist()


def test_the_answer_names_the_request_the_model_and_the_version(client):
    answer = client.infer("add_sub", inputs(operands()), request_id="request 7 – é").get_response()
    assert answer["id"] == "request 7 – é"
    assert (answer["model_name"], answer["model_version"]) == ("add_sub", "1")
    assert "id" not in client.infer("add_sub", inputs(operands())).get_response()


def test_a_request_may_name_a_version(client):
    values = operands()
    assert_right(client.infer("add_sub", inputs(values), model_version="1"), values)


def test_parameters_the_model_does_not_know_are_accepted(client):
    values = operands()
    parameters = {"text": "value", "number": 3, "flag": True}
    assert_right(client.infer("add_sub", inputs(values), parameters=parameters), values)


def test_overflowing_integers_wrap(client):
    values = operands()
    values["INT0"][:] = np.iinfo(np.int32).max
    values["INT1"][:] = 1
    answer = client.infer("add_sub", inputs(values))
    assert (answer.as_numpy("INT_SUM") == np.iinfo(np.int32).min).all()


def test_asynchronous_requests_get_their_own_answers(examples):
    with tritonclient.http.InferenceServerClient(examples.url, concurrency=8) as client:
        pending = [(operands(seed, batch=seed % 8 + 1), str(seed)) for seed in range(40)]
        handles = [client.async_infer("add_sub", inputs(values), request_id=name) for values, name in pending]
        for handle, (values, name) in zip(handles, pending):
            answer = handle.get_result()
            assert answer.get_response()["id"] == name
            assert_right(answer, values)


def test_the_asyncio_client_gets_its_answers(examples):
    async def ask():
        async with tritonclient.http.aio.InferenceServerClient(examples.url) as client:
            assert await client.is_server_ready()
            several = [operands(seed) for seed in range(20)]
            answers = await asyncio.gather(*(client.infer("add_sub", inputs(values)) for values in several))
            for answer, values in zip(answers, several):
                assert_right(answer, values)

    asyncio.run(ask())


def test_many_requests_share_one_connection(client):
    for seed in range(200):
        values = operands(seed)
        assert_right(client.infer("add_sub", inputs(values)), values)


def test_the_example_client_prints_the_sums(examples):
    command = [sys.executable, EXAMPLES / "clients" / "add_sub.py", "--url", examples.url]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 32
    assert "15 + 3 = 18, 15 - 3 = 12" in lines
    assert "7.5 + 0.25 = 7.75, 7.5 - 0.25 = 7.25" in lines
