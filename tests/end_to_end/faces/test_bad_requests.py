"""Invalid requests over HTTP: each is refused with the right status, and the next good request is answered.

Statuses are those of Triton, which calls JSON it cannot read an internal error (500) and JSON that says something
impossible an invalid argument (400).
"""

import json

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from http_requests import assert_refused, infer, infer_binary, tensor
from model_files import scale_model, write_identity
from tensors import given, wanted

ROW = [1.0, 2.0, 3.0]
GOOD = {"inputs": [tensor("X", "FP32", [1, 3], ROW)]}
BINARY = {"inputs": [tensor("X", "FP32", [1, 3], binary_data_size=12)]}
PAYLOAD = np.array(ROW, np.float32).tobytes()
NESTING = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    scale_model("scale").write(repository)
    write_identity(repository, "text", ["BYTES"], max_batch_size=8)
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture(autouse=True)
def the_server_still_answers_well(server):
    """After every test, whatever it sent."""
    yield
    answer = infer(server, "scale", GOOD)
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0])
    assert server.exit_code is None


def with_input(**changes):
    """The good request with its input changed; None removes a field."""
    changed = {**GOOD["inputs"][0], **changes}
    return {"inputs": [{name: value for name, value in changed.items() if value is not None}]}


@pytest.mark.parametrize(("model", "version"), [("nosuch", None), ("scale", "2"), ("nosuch", "1")])
def test_an_unknown_model_or_version_is_answered_with_404(server, model, version):
    assert_refused(infer(server, model, GOOD, version=version), 404)


@pytest.mark.parametrize("version", ["new", "-1", "1.0", "99999999999999999999"])
def test_a_version_that_is_not_a_number_is_refused(server, version):
    assert_refused(infer(server, "scale", GOOD, version=version), 400, 404)


REFUSED_INPUTS = {
    "no inputs": {"inputs": []},
    "unknown input": with_input(name="Z"),
    "input given twice": {"inputs": GOOD["inputs"] * 2},
    "one input too many": {"inputs": [*GOOD["inputs"], tensor("Z", "FP32", [1, 3], ROW)]},
    "unknown output": {**GOOD, "outputs": [{"name": "Z"}]},
    "wrong datatype": with_input(datatype="INT32", data=[1, 2, 3]),
    "unknown datatype": with_input(datatype="FP33"),
    "datatype in the configuration's spelling": with_input(datatype="TYPE_FP32"),
    "wrong dimension": with_input(shape=[1, 2], data=ROW[:2]),
    "wrong rank": with_input(shape=[3]),
    "no shape at all": with_input(shape=[]),
    "batch too large": with_input(shape=[9, 3], data=ROW * 9),
    "empty batch": with_input(shape=[0, 3], data=[]),
    "no data": with_input(data=None),
}


@pytest.mark.parametrize("case", REFUSED_INPUTS)
def test_a_request_that_does_not_fit_the_model_is_answered_with_400(server, case):
    assert_refused(infer(server, "scale", REFUSED_INPUTS[case]), 400)


UNREADABLE = {
    "blanks": "  ",
    "no JSON": "hello",
    "bytes that are no text": b"\xff\xfe\x00\x80",
    "truncated": json.dumps(GOOD)[:-2],
    "text after the JSON": json.dumps(GOOD) + "x",
    "trailing comma": json.dumps(GOOD).replace("3.0]", "3.0,]"),
    "an array": "[]",
    "null": "null",
    "no inputs": "{}",
    "inputs that are no list": {"inputs": 3},
    "outputs that are no list": {**GOOD, "outputs": {}},
    "output without a name": {**GOOD, "outputs": [{}]},
    "no name": with_input(name=None),
    "a name that is no string": with_input(name=3),
    "no datatype": with_input(datatype=None),
    "no shape": with_input(shape=None),
    "a negative dimension": with_input(shape=[1, -3]),
    "a dimension that is no whole number": with_input(shape=[1, 3.0]),
    "a dimension past 64 bits": with_input(shape=[1, 2**64]),
    "too few values": with_input(data=ROW[:2]),
    "too many values": with_input(data=ROW * 2),
    "a string for a number": with_input(data=[1, 2, "3"]),
    "null for a number": with_input(data=[1, 2, None]),
    "an id that is no string": {**GOOD, "id": 7},
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_json_that_cannot_be_read_is_answered_with_500(server, case):
    assert_refused(infer(server, "scale", UNREADABLE[case]), 500)


def test_an_empty_body_is_refused(server):
    assert_refused(infer(server, "scale", ""), 400, 500)


def test_every_truncation_of_a_good_request_is_refused(server):
    text = json.dumps(GOOD)
    for length in range(1, len(text)):
        assert_refused(infer(server, "scale", text[:length]), 500)


@pytest.mark.parametrize("shape", [[1, 2**62], [2**32, 2**32], [1, 2**31], [4, 2**61]])
def test_shapes_too_large_to_exist_are_refused(server, shape):
    assert_refused(infer(server, "scale", with_input(shape=shape)), 400, 500)
    header = {"inputs": [tensor("X", "FP32", shape, binary_data_size=12)]}
    assert_refused(infer_binary(server, "scale", header, PAYLOAD), 400)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"inputs":[', '{"parameters":{"a":'])
def test_deeply_nested_json_is_refused(server, opening):
    assert_refused(infer(server, "scale", opening * NESTING), 400, 500)


def test_deeply_nested_data_is_refused(server):
    data = "[" * NESTING + "]" * NESTING
    body = json.dumps(with_input(data="DATA")).replace('"DATA"', data)
    assert_refused(infer(server, "scale", body), 400, 500)


# The size the JSON gives, and what follows it. The shape takes 12 bytes.
REFUSED_PAYLOADS = {
    "payload missing": (12, b""),
    "payload too short": (12, PAYLOAD[:-1]),
    "payload too long": (12, PAYLOAD + b"\0"),
    "size smaller than the shape": (8, PAYLOAD[:8]),
    "size larger than the shape": (16, PAYLOAD + PAYLOAD[:4]),
    "size of zero": (0, b""),
    "size past the end of the body": (2**40, PAYLOAD),
}


@pytest.mark.parametrize("case", REFUSED_PAYLOADS)
def test_a_payload_of_the_wrong_size_is_answered_with_400(server, case):
    size, payload = REFUSED_PAYLOADS[case]
    header = {"inputs": [tensor("X", "FP32", [1, 3], binary_data_size=size)]}
    assert_refused(infer_binary(server, "scale", header, payload), 400)


def test_a_payload_size_that_is_not_an_integer_is_refused(server):
    for size in (-12, 12.5, "12", None, 2**64):
        header = {"inputs": [tensor("X", "FP32", [1, 3], binary_data_size=size)]}
        assert_refused(infer_binary(server, "scale", header, PAYLOAD), 400, 500)


@pytest.mark.parametrize("length", [100_000, 2**63, 10**30, -5, "abc", "0x10", "1e2", "12;13"])
def test_a_header_length_that_cannot_be_right_is_refused(server, length):
    assert_refused(infer_binary(server, "scale", BINARY, PAYLOAD, header_length=length), 400, 500)


def test_a_header_length_beyond_the_body_is_answered_with_400(server):
    assert_refused(infer_binary(server, "scale", BINARY, PAYLOAD, header_length=100_000), 400)


def test_a_header_length_inside_the_json_is_refused(server):
    for length in (1, 20, len(json.dumps(BINARY)) - 1):
        assert_refused(infer_binary(server, "scale", BINARY, PAYLOAD, header_length=length), 500)


def strings(*lengths_and_bytes):
    """A payload for a BYTES tensor, element by element, with lengths that may be lies."""
    return b"".join(length.to_bytes(4, "little") + content for length, content in lengths_and_bytes)


REFUSED_STRINGS = {
    "one element too few": strings((1, b"a")),
    "one element too many": strings((1, b"a"), (1, b"b"), (1, b"c")),
    "a length past the end": strings((1, b"a"), (50, b"b")),
    "the largest length": strings((2**32 - 1, b"a"), (1, b"b")),
    "half a length": strings((1, b"a")) + b"\x01\x00",
    "bytes after the last element": strings((1, b"a"), (1, b"b")) + b"\x00",
}


@pytest.mark.parametrize("case", REFUSED_STRINGS)
def test_strings_that_do_not_fill_their_tensor_are_answered_with_400(server, case):
    payload = REFUSED_STRINGS[case]
    header = {"inputs": [tensor("INPUT0", "BYTES", [1, 2], binary_data_size=len(payload))]}
    assert_refused(infer_binary(server, "text", header, payload), 400)


def test_classification_of_strings_is_refused(server):
    body = {
        "inputs": [tensor("INPUT0", "BYTES", [1, 1], ["a"])],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
    }
    assert_refused(infer(server, "text", body), 501)


@pytest.mark.parametrize("classes", [-1, 0, "two", 2**63])
def test_an_odd_class_count_does_not_harm_the_server(server, classes):
    body = {**GOOD, "outputs": [{"name": "Y", "parameters": {"classification": classes}}]}
    assert infer(server, "scale", body).status in (200, 400, 500)


def test_tritons_client_shows_status_and_reason(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        good = given("X", np.array([ROW], np.float32))
        for model, outputs, status, reason in (
            ("nosuch", None, "404", "nosuch"),
            ("scale", [wanted("Z")], "400", "Z"),
        ):
            with pytest.raises(InferenceServerException) as error:
                client.infer(model, [good], outputs=outputs)
            assert error.value.status() == status
            assert reason in error.value.message()
        assert client.infer("scale", [good]).as_numpy("Y").tolist() == [[2.0, 4.0, 6.0]]
