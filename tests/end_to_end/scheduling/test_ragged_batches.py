"""Requests of different shapes that share an execution: ragged inputs, batch inputs, scattered outputs.

Whether the requests are batched or executed one by one is the scheduler's choice; the answers are the same.
"""

import numpy as np
import onnxruntime
import pytest
import tritonclient.http
from onnx import TensorProto, helper

import nereid_server
import onnx_engines
from http_requests import assert_refused, infer, request, tensor
from model_files import OnnxModel, config, write_model
from tensors import given

node = helper.make_node
F, INT = TensorProto.FLOAT, TensorProto.INT32
CONNECTIONS = 8

DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 20000 }"
RAGGED_X = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }'


def batch_input(kind, target, datatype="TYPE_INT32", source="X"):
    return f'batch_input {{ kind: {kind} target_name: "{target}" data_type: {datatype} source_input: "{source}" }}'


def ragged_config(name, *extra, outputs):
    """A batching model with the ragged input X."""
    return config(name, "onnxruntime", [], outputs, 8, "\n".join([RAGGED_X, *extra]))


def segment_sums():
    """`SUM` is the sum of each request's X, cut out of all of X by the bounds between requests."""
    name = "segment_sums"
    model = OnnxModel(
        name,
        [
            node("CumSum", ["X", "axis"], ["sums"]),
            node("Concat", ["start", "sums"], ["prefix"], axis=0),
            node("Slice", ["BOUNDS", "first", "last"], ["begins"]),
            node("Slice", ["BOUNDS", "second", "end"], ["ends"]),
            node("Gather", ["prefix", "begins"], ["before"]),
            node("Gather", ["prefix", "ends"], ["after"]),
            node("Sub", ["after", "before"], ["segments"]),
            node("Unsqueeze", ["segments", "inner"], ["SUM"]),
        ],
        [("X", F, ["elements"]), ("BOUNDS", INT, ["bounds"])],
        [("SUM", F, ["requests", 1])],
        {
            "axis": np.array(0),
            "start": np.zeros(1, np.float32),
            "first": np.array([0]),
            "second": np.array([1]),
            "last": np.array([-1]),
            "end": np.array([2**31]),
            "inner": np.array([1]),
        },
    )
    bounds = batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "BOUNDS")
    return model, ragged_config(name, bounds, DYNAMIC, outputs=[("SUM", "FP32", [1])])


def scattered():
    """`Y` is X doubled: an output in the shape of each request's input."""
    name = "scattered"
    model = OnnxModel(name, [node("Add", ["X", "X"], ["Y"])], [("X", F, ["elements"])], [("Y", F, ["elements"])])
    scatter = 'batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }'
    return model, ragged_config(name, scatter, DYNAMIC, outputs=[("Y", "FP32", [-1])])


def counts():
    """Gives back what is made for the batch, each kind as an output with one row for each request."""
    name = "counts"
    made: dict[str, tuple[str, list, str]] = {
        "COUNT": ("BATCH_ELEMENT_COUNT", ["requests"], "C"),
        "END": ("BATCH_ACCUMULATED_ELEMENT_COUNT", ["requests"], "E"),
        "ITEM": ("BATCH_ITEM_SHAPE", ["requests", 1], "I"),
        "FLAT": ("BATCH_ITEM_SHAPE_FLATTEN", ["requests"], "F"),
    }
    column = [node("Unsqueeze", [source, "inner"], [out]) for source, (_, dims, out) in made.items() if len(dims) == 1]
    model = OnnxModel(
        name,
        [
            *column,
            node("Identity", ["ITEM"], ["I"]),
            # The largest count is a shape; added to X, which comes back in its own shape.
            node("Shape", ["LARGEST"], ["shape"]),
            node("Cast", ["shape"], ["largest"], to=F),
            node("Mul", ["X", "zero"], ["zeros"]),
            node("Add", ["zeros", "largest"], ["L"]),
        ],
        [("X", F, ["elements"]), ("LARGEST", F, ["largest"]), *((source, INT, made[source][1]) for source in made)],
        [("L", F, ["elements"]), *((out, INT, ["requests", 1]) for _, _, out in made.values())],
        {"inner": np.array([1]), "zero": np.zeros(1, np.float32)},
    )
    inputs = [batch_input(kind, source) for source, (kind, _, _) in made.items()]
    text = ragged_config(
        name,
        batch_input("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "LARGEST", "TYPE_FP32"),
        *inputs,
        'batch_output { target_name: "L" source_input: "X" }',
        DYNAMIC,
        outputs=[("L", "FP32", [-1]), *((out, "INT32", [1]) for _, _, out in made.values())],
    )
    return model, text


def optional():
    """`Y` is X times W, which the file has a value for."""
    name = "optional"
    model = OnnxModel(
        name,
        [node("Mul", ["X", "W"], ["Y"])],
        [("X", F, ["N"]), ("W", F, [1])],
        [("Y", F, ["N"])],
        {"W": np.array([3], np.float32)},
    )
    text = config(name, "onnxruntime", [("X", "FP32", [-1])], [("Y", "FP32", [-1])])
    return model, text + 'input { name: "W" data_type: TYPE_FP32 dims: [ 1 ] optional: true }\n'


@pytest.fixture(scope="module", params=onnx_engines.FLAGS)
def server(request, tmp_path_factory):
    repository = tmp_path_factory.mktemp("ragged")
    for model, text in (segment_sums(), scattered(), counts(), optional()):
        write_model(repository, model.name, text, model.serialized())
    with nereid_server.running(repository, *onnx_engines.FLAGS[request.param]) as server:
        yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.url, concurrency=CONNECTIONS) as client:
        yield client


def row(*values):
    return np.array([values], np.float32)


def rows(count):
    """Rows of 0 to 12 small whole numbers, whose sums are exact in FP32."""
    rng = np.random.default_rng(5)
    return [rng.integers(-100, 100, (1, length)).astype(np.float32) for length in rng.integers(0, 13, count)]


@pytest.mark.parametrize("values", [row(1, 2, 3), row(4), row(), row(5, -5, 7, 9, 2)], ids=lambda it: str(it.size))
def test_one_request_gets_what_belongs_to_it(client, values):
    answer = client.infer("segment_sums", [given("X", values)]).as_numpy("SUM")
    np.testing.assert_array_equal(answer, [[values.sum()]])
    answer = client.infer("scattered", [given("X", values)]).as_numpy("Y")
    assert answer.shape == values.shape
    np.testing.assert_array_equal(answer, values * 2)


def test_batch_inputs_of_one_request(client):
    answer = client.infer("counts", [given("X", row(7, 8, 9))])
    assert {name: answer.as_numpy(name).tolist() for name in "CEIFL"} == {
        "C": [[3]],
        "E": [[3]],
        "I": [[3]],
        "F": [[3]],
        "L": [[3.0, 3.0, 3.0]],
    }


def test_a_request_of_several_items_is_one_segment(client):
    items = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    np.testing.assert_array_equal(client.infer("scattered", [given("X", items)]).as_numpy("Y"), items * 2)


def statistics(client, model):
    [entry] = client.get_inference_statistics(model)["model_stats"]
    batches = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in entry["batch_stats"]}
    return entry["inference_count"], entry["execution_count"], batches


@pytest.mark.parametrize("model", ["segment_sums", "scattered", "counts"])
def test_requests_of_different_shapes_at_once_get_their_own_answers(client, model):
    inputs = rows(64)
    before = statistics(client, model)
    pending = [client.async_infer(model, [given("X", values)]) for values in inputs]
    answers = [answer.get_result() for answer in pending]
    for values, answer in zip(inputs, answers, strict=True):
        if model == "segment_sums":
            np.testing.assert_array_equal(answer.as_numpy("SUM"), [[values.sum()]])
        elif model == "scattered":
            assert answer.as_numpy("Y").shape == values.shape
            np.testing.assert_array_equal(answer.as_numpy("Y"), values * 2)
        else:
            check_counts(values.size, answer)

    inferences, executions, batches = statistics(client, model)
    assert inferences - before[0] == len(inputs)
    assert executions - before[1] <= len(inputs)
    assert sum(batches.values()) == executions
    assert sum(size * count for size, count in batches.items()) == inferences


def check_counts(size, answer):
    """Holds for a request in any batch: its own count, and the end and the largest count that others may add to."""
    assert [answer.as_numpy(name).tolist() for name in "CIF"] == [[[size]]] * 3
    assert answer.as_numpy("E").item() >= size
    largest = answer.as_numpy("L")
    assert largest.shape == (1, size)
    assert (largest >= size).all() and len(set(largest.ravel().tolist())) <= 1


def test_an_optional_input_is_what_the_file_says_or_what_the_request_gives(client):
    model, _ = optional()
    session = onnxruntime.InferenceSession(model.serialized())
    for feed in ({"X": row(1, 2)[0]}, {"X": row(1, 2)[0], "W": row(-4)[0]}, {"X": row(6, 7, 8)[0]}):
        answer = client.infer("optional", [given(name, values) for name, values in feed.items()])
        np.testing.assert_array_equal(answer.as_numpy("Y"), session.run(["Y"], feed)[0])


def test_an_input_that_the_batch_gives_cannot_be_given(server):
    inputs = [tensor("X", "FP32", [1, 1], [1.0]), tensor("BOUNDS", "INT32", [1, 2], [0, 1])]
    assert_refused(infer(server, "segment_sums", {"inputs": inputs}), 400)


def test_a_batch_input_that_does_not_fit_is_refused_with_the_reason(repository, serve):
    model, text = segment_sums()
    for name, right, wrong in (
        ("type", "TYPE_INT32", "TYPE_FP32"),
        ("source", 'source_input: "X"', 'source_input: "NOT_THERE"'),
        ("target", '"BOUNDS"', '"NOWHERE"'),
    ):
        assert right in text
        broken = text.replace(right, wrong).replace(f'name: "{model.name}"', f'name: "{name}"', 1)
        write_model(repository, name, broken, model.serialized())
    server = serve("--exit-on-error=false", ready=False)
    for name, word in (("type", "'BOUNDS'"), ("source", "NOT_THERE"), ("target", "'BOUNDS'")):
        lines = [line for line in server.complaints if f"'{name}'" in line]
        assert len(lines) == 1 and word in lines[0], server.log
        assert_refused(request(server, "GET", f"/v2/models/{name}/ready"), 400)
