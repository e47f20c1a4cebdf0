"""What a request or a file must not do to the embedded engine: run without end, allocate without limit, read foreign
memory, or get wrong values for an answer."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import nereid_server
from http_requests import assert_refused, infer_binary, request, tensor
from model_files import write_model
from onnx_engines import FLAGS

# Dimensions are the files' own, without a batch.
EMBEDDED = [*FLAGS["tract"], "--backend-config=default-max-batch-size=0"]
F, I64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node
rng = np.random.default_rng(5)


def floats(*shape):
    return rng.standard_normal(shape, np.float32)


def model(nodes, inputs, outputs, opset=17, **constants):
    """A model. Inputs and outputs are `name: (type, dimensions)`."""
    infos = [[helper.make_tensor_value_info(name, *port) for name, port in ports.items()] for ports in (inputs, outputs)]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", *infos, initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return made.SerializeToString()


def recurrent(op, gates):
    weights = {"W": floats(1, gates * 3, 2), "R": floats(1, gates * 3, 3)}
    ports = {"X": (F, ["seq", "batch", None])}, {"H": (F, [1, "batch", 3])}
    return model([node(op, ["X", "W", "R"], ["", "H"], hidden_size=3)], *ports, **weights)


def attention():
    ports = {"Q": (F, [1, "q", 4]), "K": (F, [1, "k", 4]), "V": (F, [1, "v", 4])}, {"Y": (F, [1, "q", 4])}
    nodes = [
        node("Transpose", ["K"], ["T"], perm=[0, 2, 1]),
        node("MatMul", ["Q", "T"], ["S"]),
        node("Softmax", ["S"], ["P"], axis=-1),
        node("MatMul", ["P", "V"], ["Y"]),
    ]
    return model(nodes, *ports)


def grown(op, shape, *inputs, **constants):
    """An operator whose output is as large as the input's dimensions say: X [A, B] -> [A, B, A, B]."""
    nodes = [node("Shape", ["X"], ["S"]), node("Concat", ["S", "S"], ["shape"], axis=0), node(op, [*inputs, "shape"], ["Y"])]
    return model(nodes, {"X": (F, ["A", "B"])}, {"Y": (F, shape)}, **constants)


MODELS = {
    "lstm": recurrent("LSTM", 4),
    "gru": recurrent("GRU", 3),
    "rnn": recurrent("RNN", 1),
    "attention": attention(),
    "expand": grown("Expand", [None] * 4, "one", one=floats(1)),
    "constant": grown("ConstantOfShape", [None] * 4),
    "tile": model([node("Shape", ["X"], ["S"]), node("Tile", ["X", "S"], ["Y"])], {"X": (F, ["A", "B"])}, {"Y": (F, [None, None])}),
    "range": model(
        [
            node("Shape", ["X"], ["S"]),
            node("ReduceProd", ["S"], ["n"], keepdims=0),
            node("Mul", ["n", "n"], ["nn"]),
            node("Range", ["zero", "nn", "one"], ["Y"]),
        ],
        {"X": (F, ["A", "B"])},
        {"Y": (I64, [None])},
        zero=np.int64(0),
        one=np.int64(1),
    ),
    "outer": model([node("MatMul", ["X", "Y"], ["Z"])], {"X": (F, ["A", 1]), "Y": (F, [1, "B"])}, {"Z": (F, ["A", "B"])}),
    "grid": model(
        [node("GridSample", ["X", "grid"], ["Y"])],
        {"X": (F, [1, "C", 1, 1]), "grid": (F, [1, "H", 1, 2])},
        {"Y": (F, [1, "C", "H", 1])},
    ),
    "gather": model([node("Gather", ["X", "I"], ["Y"], axis=1)], {"X": (F, [2, 3]), "I": (I64, ["n"])}, {"Y": (F, [2, "n"])}),
    "gather_nd": model([node("GatherND", ["X", "I"], ["Y"])], {"X": (F, [2, 3]), "I": (I64, ["n", 2])}, {"Y": (F, ["n"])}),
    "one_hot": model(
        [node("OneHot", ["I", "depth", "values"], ["Y"])],
        {"I": (I64, ["n"])},
        {"Y": (F, ["n", 4])},
        depth=np.array([4]),
        values=np.array([0, 1], np.float32),
    ),
    "top": model([node("TopK", ["X", "k"], ["Y", "I"], axis=-1)], {"X": (F, [None])}, {"Y": (F, [3])}, k=np.array([3])),
    "shared": model([node("Add", ["X", "Y"], ["Z"])], {"X": (F, ["n"]), "Y": (F, ["n"])}, {"Z": (F, ["n"])}),
    "largest": model([node("ReduceMax", ["X"], ["Y"], axes=[1])], {"X": (F, ["n", "m"])}, {"Y": (F, ["n", 1])}),
}


def write(repository, name, contents, **parameters):
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    head = f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: 0\ninstance_group {{ kind: KIND_CPU }}\n'
    write_model(repository, name, head + "\n".join(lines), contents)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("soundness")
    for name, contents in MODELS.items():
        write(repository, name, contents)
    with nereid_server.running(repository, *EMBEDDED) as server:
        yield server


def ask(server, name, **inputs):
    ports = [
        tensor(name, {"f": "FP32", "i": "INT64"}[values.dtype.kind], values.shape, binary_data_size=values.nbytes)
        for name, values in inputs.items()
    ]
    return infer_binary(server, name, {"inputs": ports}, *[values.tobytes() for values in inputs.values()])


def outputs(answer):
    assert answer.status == 200, answer.body
    return {output["name"]: np.reshape(output["data"], output["shape"]) for output in answer.json["outputs"]}


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_a_recurrent_operator_refuses_features_of_another_width(server, name):
    assert outputs(ask(server, name, X=floats(4, 1, 2)))["H"].shape == (1, 1, 3)
    for width in [0, 1, 3, *rng.integers(4, 400, 12), 1_000_000]:
        answer = ask(server, name, X=floats(4, 1, width))
        assert_refused(answer, 400)
        assert f"X [4,1,{width}]" in answer.json["error"]
    assert outputs(ask(server, name, X=floats(4, 1, 2)))["H"].shape == (1, 1, 3)


def test_shapes_that_disagree_within_a_graph_are_refused_at_once(server):
    for q, k, v in [(3, 5, 7), *rng.integers(1, 40, (12, 3)), (1, 1, 9), (2, 9, 1)]:
        answer = ask(server, "attention", Q=floats(1, q, 4), K=floats(1, k, 4), V=floats(1, v, 4))
        if k == v:
            assert outputs(answer)["Y"].shape == (1, q, 4)
        else:
            assert_refused(answer, 400)
    for one, other in [(2, 3), (1, 3), (3, 1)]:
        answer = ask(server, "shared", X=floats(one), Y=floats(other))
        assert_refused(answer, 400)
        assert f"input 'Y' has shape [{other}]" in answer.json["error"] and "'n'" in answer.json["error"]


@pytest.mark.parametrize("name", ["expand", "constant", "tile", "range"])
def test_an_output_that_grows_with_the_dimensions_is_limited(server, name):
    assert outputs(ask(server, name, X=floats(2, 3)))
    for shape in [(300_000, 1), (1, 300_000), (3000, 100)]:
        grown = np.prod(shape) ** 2 * 4 if name != "tile" else shape[0] ** 2 * shape[1] ** 2 * 4
        assert grown > 4 << 30
        assert_refused(ask(server, name, X=floats(*shape)), 400)
    assert outputs(ask(server, name, X=floats(3, 2)))


def test_outputs_of_two_large_inputs_are_limited(server):
    assert_refused(ask(server, "outer", X=floats(70_000, 1), Y=floats(1, 70_000)), 400)
    assert_refused(ask(server, "grid", X=floats(1, 70_000, 1, 1), grid=floats(1, 70_000, 1, 2)), 400)
    assert outputs(ask(server, "outer", X=floats(2, 1), Y=floats(1, 2)))["Z"].shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("gather", [[0], [2, -3], [-1]], [[3], [5], [-4], [0, 2**62], [-(2**62)]]),
        ("gather_nd", [[[1, 2]], [[0, 0], [1, 1]]], [[[2, 0]], [[0, 3]], [[0, 0], [2**62, 0]], [[2**32, 0]], [[0, -4]]]),
    ],
)
def test_indices_out_of_range_are_errors(server, name, good, bad):
    for index in good:
        outputs(ask(server, name, X=floats(2, 3), I=np.array(index)))
    for index in bad:
        assert_refused(ask(server, name, X=floats(2, 3), I=np.array(index)), 500)


def test_a_one_hot_index_out_of_range_names_no_place(server):
    places = {0: 0, 3: 3, -4: 0, -1: 3, 4: None, 2**32: None, 2**62: None, -5: None, -(2**63): None}
    hot = outputs(ask(server, "one_hot", I=np.array([*places])))["Y"]
    assert hot.tolist() == [[float(place == at) for at in range(4)] for place in places.values()]


def test_more_of_the_largest_than_there_are_is_an_error(server):
    values = floats(5)
    assert outputs(ask(server, "top", X=values))["Y"] == pytest.approx(np.sort(values)[:1:-1])
    for size in (0, 1, 2):
        answer = ask(server, "top", X=floats(size))
        assert answer.status == 400, (size, answer)


def test_the_largest_of_infinities_is_one(server):
    values = np.array([[-np.inf, -np.inf], [-np.inf, 1], [-3.4028234663852886e38, -np.inf]], np.float32)
    answer = ask(server, "largest", X=values)
    got = outputs(answer)["Y"].astype(np.float32).ravel()
    np.testing.assert_array_equal(got, values.max(axis=1))


def refused(*nodes, opset=17, shape=(2, 3), **constants):
    return model(list(nodes), {"X": (F, shape)}, {"Y": (F, None)}, opset=opset, **constants)


REFUSED = {
    **{
        f"layer_normalization_{axis}": refused(node("LayerNormalization", ["X", "one"], ["Y"], axis=axis), one=floats(3))
        for axis in (2, 7, -3, -9, 2**40, -(2**40))
    },
    "gather_nd_scalar": refused(node("GatherND", ["X", "I"], ["Y"]), I=np.int64(1)),
    "gather_nd_deep": refused(node("GatherND", ["X", "I"], ["Y"]), I=np.array([[0, 0, 0]])),
    **{
        f"permutation_{number}": refused(node("Transpose", ["X"], ["Y"], perm=perm))
        for number, perm in enumerate([[0, 0], [1], [0, 2], [0, 1, 2], [-1, 0]])
    },
    "huge_pad_of_nothing": refused(node("Pad", ["X", "S"], ["Y"]), S=np.array([2**40, 0, 0, 0]), shape=(0, 3)),
    "huge_constant": refused(node("ConstantOfShape", ["S"], ["C"]), node("Add", ["X", "C"], ["Y"]), S=np.array([2**20] * 3)),
    "huge_range": refused(
        node("Range", ["a", "b", "c"], ["R"]), node("Add", ["X", "R"], ["Y"]), a=np.float32(0), b=np.float32(1e18), c=np.float32(1)
    ),
    "huge_tile": refused(node("Tile", ["X", "S"], ["Y"]), S=np.array([2**31, 2**31])),
    "huge_pad": refused(node("Pad", ["X", "S"], ["Y"]), S=np.array([2**31, 2**31, 0, 0])),
    "reverse": refused(
        node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=1, direction="reverse"),
        W=floats(1, 4, 3),
        R=floats(1, 4, 1),
        shape=(2, 1, 3),
    ),
    "swish": refused(node("Swish", ["X"], ["Y"], alpha=0.5), opset=24),
    "shift": model(
        [node("BitShift", ["X", "Z"], ["Y"], direction="LEFT")],
        {"X": (TensorProto.UINT8, [1]), "Z": (TensorProto.UINT8, [1])},
        {"Y": (TensorProto.UINT8, [1])},
    ),
    "crd": refused(node("SpaceToDepth", ["X"], ["Y"], blocksize=2, mode="CRD"), shape=(1, 1, 2, 2)),
    "celu": refused(node("Celu", ["X"], ["Y"], alpha=2.0)),
}


def test_files_that_would_not_end_or_be_wrong_are_refused(tmp_path):
    for name, contents in REFUSED.items():
        write(tmp_path, name, contents)
    write(tmp_path, "fine", MODELS["lstm"])
    with nereid_server.running(tmp_path, *EMBEDDED, "--exit-on-error=false", ready=False) as server:
        answer = index(server)
        assert {name for name, state in answer.items() if state["state"] == "READY"} == {"fine"}
        assert all(state["reason"] for name, state in answer.items() if name != "fine")


def test_refusals_say_what_helps(tmp_path):
    text = {"X": (TensorProto.STRING, [2])}, {"Y": (TensorProto.STRING, [2])}
    write(tmp_path, "strings", model([node("Add", ["X", "X"], ["Y"])], *text))
    maps = helper.make_tensor_sequence_value_info("Y", F, [2])
    graph = helper.make_graph([node("SequenceConstruct", ["X"], ["Y"])], "g", [helper.make_tensor_value_info("X", F, [2])], [maps])
    contents = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    write(tmp_path, "maps", contents)
    write(tmp_path, "shift", REFUSED["shift"])
    with nereid_server.running(tmp_path, *EMBEDDED, "--exit-on-error=false", ready=False) as server:
        reasons = {name: state["reason"] for name, state in index(server).items()}
    assert "no Add of strings" in reasons["strings"]
    assert 'options={"zipmap": False}' in reasons["maps"]
    assert "BitShift" in reasons["shift"] and "pip install onnxruntime" in reasons["shift"]


def index(server):
    return {model["name"]: model for model in request(server, "POST", "/v2/repository/index").json}


def test_the_limits_are_parameters(tmp_path):
    write(tmp_path, "small", MODELS["outer"], tensor_memory_bytes=5000)
    write(tmp_path, "bad", MODELS["outer"], execution_timeout_seconds="soon")
    with nereid_server.running(tmp_path, *EMBEDDED, "--exit-on-error=false", ready=False) as server:
        assert "execution_timeout_seconds" in index(server)["bad"]["reason"]
        assert outputs(ask(server, "small", X=floats(3, 1), Y=floats(1, 4)))
        answer = ask(server, "small", X=floats(50, 1), Y=floats(1, 50))
        assert_refused(answer, 400)
        assert "more than 5000 bytes" in answer.json["error"]
