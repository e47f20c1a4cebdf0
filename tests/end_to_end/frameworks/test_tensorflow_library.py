"""TensorFlow's formats on TensorFlow's own library."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
import tensorflow_c
import tensorflow_models as models
import tensorflow_package
from http_requests import assert_refused, engine, request
from openvino_models import parameter, tensors
from tensorflow_models import constant, graph, node, placeholder, type_of, types_of
from tensors import given
from waiting import eventually

GRAPH = 'platform: "tensorflow_graphdef"\n'
SAVED_BY_TENSORFLOW = Path(__file__).parents[2] / "tensorflow"
SAVED = 'platform: "tensorflow_savedmodel"\n'
rng = np.random.default_rng(31)


@pytest.fixture(scope="module", autouse=True)
def library():
    tensorflow_package.fetched()


@pytest.fixture
def serve(serve):
    """Servers that find TensorFlow."""
    return lambda *flags, **how: serve(*tensorflow_package.FLAGS, *flags, **how)


def declared(inputs, outputs):
    return tensors("input", *inputs) + tensors("output", *outputs)


def infer(server, name, *inputs):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        return client.infer(name, [given(*it) for it in inputs])


def reasons(server):
    """Why models are refused, by their names."""
    server.wait_until_loaded()
    lines = [line for line in server.complaints if "model '" in line]
    return {line.split("model '")[1].split("'")[0]: line for line in lines}


def array(datatype, shape):
    if datatype == "BYTES":
        strings = [bytes(rng.integers(0, 256, size, np.uint8)) for size in rng.integers(0, 60, int(np.prod(shape)))]
        return np.array(strings, np.object_).reshape(shape)
    if datatype == "BOOL":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if datatype == "BF16":
        return rng.integers(-100, 100, shape).astype(ml_dtypes.bfloat16)
    kind = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}.get(datatype)
    return rng.uniform(-9, 9, shape).astype(kind) if kind else rng.integers(0, 100, shape).astype(datatype.lower())


def test_a_model_that_tensorflow_saved_computes_what_tensorflow_computes(repository, serve):
    """It has variables, a table, and control flow of its own; `tests/tensorflow/generate.py` made it."""
    expected = np.load(SAVED_BY_TENSORFLOW / "expected.npz")
    for name, extra in [("scores", ""), ("names", parameter("TF_SIGNATURE_DEF", "describe"))]:
        folder = repository / name / "1"
        shutil.copytree(SAVED_BY_TENSORFLOW / "saved_model", folder / "model.savedmodel")
        (folder.parent / "config.pbtxt").write_text(SAVED + extra + "max_batch_size: 8 dynamic_batching { }\n")
    server = serve()
    config = request(server, "GET", "/v2/models/scores/config").json
    described = [(it["name"], it["data_type"], it["dims"]) for it in config["input"] + config["output"]]
    assert described == [("images", "TYPE_FP32", [-1, -1, 1]), ("scores", "TYPE_FP32", [5])]
    for size in ("small", "large"):
        images = expected[f"{size}_images"]
        scores = infer(server, "scores", ("images", images)).as_numpy("scores")
        np.testing.assert_allclose(scores, expected[f"{size}_scores"], rtol=1e-5, atol=1e-5)
        names = infer(server, "names", ("images", images)).as_numpy("names")
        assert names.ravel().tolist() == expected[f"{size}_names"].tolist()


def test_every_type_and_shape_comes_back(repository, serve):
    for datatype in models.TYPES:
        copied = graph(placeholder("x", datatype, [-1, -1]), node("y", "Identity", ["x"], T=type_of(datatype)))
        config = GRAPH + declared([("x", datatype, [-1, -1])], [("y", datatype, [-1, -1])])
        models.write(repository, datatype.lower(), copied, config)
    server = serve()
    with tritonclient.http.InferenceServerClient(server.url) as client:
        for datatype in models.TYPES:
            for shape in [(1, 1), (2, 3), (0, 4), (3, 0), (5, 7)]:
                values = array(datatype, shape)
                tensor = tritonclient.http.InferInput("x", list(shape), datatype)
                tensor.set_data_from_numpy(values)
                output = client.infer(datatype.lower(), [tensor]).as_numpy("y")
                assert output.shape == shape
                np.testing.assert_array_equal(output, values, err_msg=datatype)
    server.wait_for_log(r"TensorFlow 2\.21\.0 given by the setting 'library'")
    assert engine(server, "fp32") == "TensorFlow 2.21.0"


def test_a_graphdef_is_completed_from_the_graph(repository, serve):
    models.write(repository, "graph", models.scaled([-1, 3]))
    models.write(
        repository,
        "named",
        models.scaled([-1, 3]),
        GRAPH + "max_batch_size: 4\n" + declared([("x:0", "FP32", [3])], [("y:0", "FP32", [3])]),
    )
    server = serve("--backend-config=tensorflow,default-max-batch-size=5")
    config = request(server, "GET", "/v2/models/graph/config").json
    assert (config["backend"], config["max_batch_size"]) == ("tensorflow", 5)
    described = [(it["name"], it["data_type"], it["dims"]) for it in config["input"] + config["output"]]
    assert described == [("x", "TYPE_FP32", [3]), ("y", "TYPE_FP32", [3])]
    values = rng.uniform(-9, 9, (4, 3)).astype(np.float32)
    for name, source, target in [("graph", "x", "y"), ("named", "x:0", "y:0")]:
        output = infer(server, name, (source, values)).as_numpy(target)
        np.testing.assert_allclose(output, values * 3, rtol=1e-6)


def test_a_graph_computes_what_the_library_computes_by_itself(repository, serve):
    convolutions = models.convolutions(3, 8)
    models.write(repository, "convolutions", convolutions)
    server = serve("--backend-config=tensorflow,default-max-batch-size=0")
    by_itself = tensorflow_c.runner(convolutions, "x", "y")
    for shape in [(1, 5, 5, 3), (3, 8, 6, 3)]:
        values = rng.uniform(-1, 1, shape).astype(np.float32)
        output = infer(server, "convolutions", ("x", values)).as_numpy("y")
        np.testing.assert_allclose(output, by_itself(values), rtol=1e-5, atol=1e-5)


def test_scalars_strings_and_shapes_that_depend_on_data(repository, serve):
    models.write(repository, "scalar", models.scaled([], 0.5), GRAPH + declared([("x", "FP32", [1])], [("y", "FP32", [1])]))
    joined = graph(
        placeholder("x", "BYTES", [-1]),
        constant("end", "BYTES", b"\x00!"),
        node("y", "StringJoin", ["x", "end"], N=models.number(2), separator=models.text("-")),
    )
    models.write(repository, "joined", joined, GRAPH + declared([("x", "BYTES", [-1])], [("y", "BYTES", [-1])]))
    where = graph(
        placeholder("x", "FP32"),
        constant("zero", "FP32", np.float32(0)),
        node("positive", "Greater", ["x", "zero"], T=type_of("FP32")),
        node("y", "Where", ["positive"], T=type_of("BOOL")),
    )
    models.write(repository, "where", where, GRAPH + declared([("x", "FP32", [-1, -1])], [("y", "INT64", [-1, 2])]))
    server = serve()
    np.testing.assert_array_equal(infer(server, "scalar", ("x", np.array([9], np.float32))).as_numpy("y"), [4.5])
    strings = np.array([b"", b"a", "grüße".encode(), b"\x00\xff" * 40], np.object_)
    output = infer(server, "joined", ("x", strings)).as_numpy("y")
    assert output.tolist() == [it + b"-\x00!" for it in strings]
    for shape in [(3, 4), (1, 1), (0, 5)]:
        values = rng.uniform(-1, 1, shape).astype(np.float32)
        np.testing.assert_array_equal(infer(server, "where", ("x", values)).as_numpy("y"), np.argwhere(values > 0))


def test_an_operation_that_fails_fails_its_request_alone(repository, serve):
    checked = graph(
        placeholder("x", "FP32", [-1]),
        constant("zero", "FP32", np.float32(0)),
        constant("axis", "INT32", np.array([0], np.int32)),
        node("positive", "GreaterEqual", ["x", "zero"], T=type_of("FP32")),
        node("all", "All", ["positive", "axis"], Tidx=type_of("INT32")),
        constant("message", "BYTES", b"x has to be positive"),
        node("check", "Assert", ["all", "message"], T=types_of("BYTES")),
        node("y", "Sqrt", ["x", "^check"], T=type_of("FP32")),
    )
    models.write(repository, "checked", checked, GRAPH + declared([("x", "FP32", [-1])], [("y", "FP32", [-1])]))
    server = serve()
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="x has to be positive"):
            infer(server, "checked", ("x", np.array([4, -1], np.float32)))
        np.testing.assert_allclose(infer(server, "checked", ("x", np.array([4, 9], np.float32))).as_numpy("y"), [2, 3])


def test_signatures_and_tags_are_chosen(repository, serve):
    def meta(tags, **factors):
        """A graph with an output for each signature."""
        outputs = [
            part
            for name, factor in factors.items()
            for part in (
                constant(f"{name}_factor", "FP32", np.float32(factor)),
                node(f"{name}_y", "Mul", ["x", f"{name}_factor"], T=type_of("FP32")),
            )
        ]
        signatures = {name: models.signature([("given", "x:0")], [("made", f"{name}_y:0")]) for name in factors}
        return models.meta_graph(graph(placeholder("x", "FP32", [-1, 3]), *outputs), signatures, tags)

    both = [meta(["serve"], serving_default=2, other=5), meta(["train"], serving_default=7)]
    expected = {"plain": 2, "other": 5, "tagged": 7, "alone": 11}
    models.write_saved(repository, "plain", *both)
    models.write_saved(repository, "other", *both, config=SAVED + parameter("TF_SIGNATURE_DEF", "other"))
    models.write_saved(repository, "tagged", *both, config=SAVED + parameter("TF_GRAPH_TAG", "train"))
    models.write_saved(repository, "alone", meta(["serve", "tpu"], predict=11))
    models.write_saved(repository, "unknown", *both, config=SAVED + parameter("TF_SIGNATURE_DEF", "none"))
    models.write_saved(repository, "untagged", *both, config=SAVED + parameter("TF_GRAPH_TAG", "gpu"))
    server = serve("--exit-on-error=false", ready=False)
    refused = reasons(server)
    assert "the model has no signature 'none', but 'other', 'serving_default'" in refused["unknown"]
    assert "gpu" in refused["untagged"] and set(refused) == {"unknown", "untagged"}
    values = rng.uniform(-9, 9, (2, 3)).astype(np.float32)
    for name, factor in expected.items():
        output = infer(server, name, ("given", values)).as_numpy("made")
        np.testing.assert_allclose(output, values * np.float32(factor), rtol=1e-6)


def counter():
    """A GraphDef in which `y` is `x` and how often the session ran; `init` sets that to 100."""
    return graph(
        placeholder("x", "FP32", [-1]),
        models.variable("count", "FP32", []),
        constant("hundred", "FP32", np.float32(100)),
        constant("one", "FP32", np.float32(1)),
        node("init", "Assign", ["count", "hundred"], T=type_of("FP32")),
        node("next", "AssignAdd", ["count", "one"], T=type_of("FP32"), use_locking=models.truth(True)),
        node("y", "Add", ["x", "next"], T=type_of("FP32")),
    )


def test_operations_run_first_and_instances_share_a_session(repository, serve):
    names = declared([("x", "FP32", [1])], [("y", "FP32", [1])])
    group = "instance_group { count: 3 kind: KIND_CPU }\n"
    for name, file, extra in [
        ("shared", '{"init_ops": ["init"]}', group + parameter("MAX_SESSION_SHARE_COUNT", "3")),
        ("unknown", '{"init_ops": ["none"]}', ""),
        ("wrong", "[]", ""),
    ]:
        config = GRAPH + names + parameter("TF_INIT_OPS_FILE", "init_ops.json") + extra
        models.write(repository, name, counter(), config)
        (repository / name / "1" / "init_ops.json").write_text(file)
    server = serve("--exit-on-error=false", ready=False)
    refused = reasons(server)
    assert "the graph has no operation 'none'" in refused["unknown"] and "'init_ops'" in refused["wrong"]
    with ThreadPoolExecutor(6) as clients:
        zero = np.zeros(1, np.float32)
        answers = clients.map(lambda _: infer(server, "shared", ("x", zero)).as_numpy("y").item(), range(30))
        answers = sorted(answers)
    # Each run counts once, but reads the count some time after it, when others may have counted too.
    assert len(answers) == 30 and answers[-1] == 130 and all(answer > 100 + at for at, answer in enumerate(answers))


def test_threads_and_placement_are_options(repository, serve):
    config = GRAPH + declared([("x", "FP32", [-1, 3])], [("y", "FP32", [-1, 3])])
    threads = parameter("TF_NUM_INTRA_THREADS", "1") + parameter("TF_NUM_INTER_THREADS", "2")
    models.write(repository, "own", models.scaled([-1, 3]), config + threads + parameter("TF_USE_PER_SESSION_THREADS", "yes"))
    models.write(repository, "wrong", models.scaled([-1, 3]), config + parameter("TF_NUM_INTRA_THREADS", "many"))
    server = serve("--exit-on-error=false", "--backend-config=tensorflow,allow-soft-placement=false", ready=False)
    assert "parameter 'TF_NUM_INTRA_THREADS' is 'many'" in reasons(server)["wrong"]
    values = rng.uniform(-9, 9, (2, 3)).astype(np.float32)
    np.testing.assert_allclose(infer(server, "own", ("x", values)).as_numpy("y"), values * 3, rtol=1e-6)


def threads(server, name):
    """How many threads of this name the server's process has."""
    names = [(thread / "comm").read_text().strip() for thread in Path(f"/proc/{server.pid}/task").iterdir()]
    return names.count(name)


def test_sessions_have_as_many_threads_as_parameters_say(repository, serve):
    config = GRAPH + declared([("x", "FP32", [-1, 3])], [("y", "FP32", [-1, 3])]) + "instance_group { count: 2 }\n"
    sizes = {"few": (3, 2), "more": (4, 5), "many": (11, 9)}
    for name, (inter, intra) in sizes.items():
        counts = parameter("TF_NUM_INTER_THREADS", inter) + parameter("TF_NUM_INTRA_THREADS", intra)
        own = parameter("TF_USE_PER_SESSION_THREADS", "yes")
        models.write(repository, name, models.scaled([-1, 3]), config + counts + own)
    for order in (["few", "many"], ["many", "more", "few"]):
        server = serve("--model-control-mode=explicit")
        expected = 0
        for name in order:
            assert request(server, "POST", f"/v2/repository/models/{name}/load").status == 200
            infer(server, name, ("x", np.ones((2, 3), np.float32)))
            # Each instance has a session.
            expected += 2 * sizes[name][0]
            assert threads(server, "tf_Compute") == expected
        # Threads within operations belong to the process. The first session has chosen how many; they are named after the
        # thread that loaded its model, which has ended or soon will.
        assert eventually(lambda: threads(server, "nereid-load") == sizes[order[0]][1])


def test_requests_are_joined_to_batches(repository, serve):
    config = GRAPH + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
    config += declared([("x", "FP32", [3])], [("y", "FP32", [3])])
    models.write(repository, "batched", models.scaled([-1, 3]), config)
    server = serve()

    def send(number):
        values = np.random.default_rng(number).uniform(-9, 9, (1 + number % 3, 3)).astype(np.float32)
        output = infer(server, "batched", ("x", values)).as_numpy("y")
        np.testing.assert_allclose(output, values * 3, rtol=1e-6)

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(send, range(64)))
    statistics = request(server, "GET", "/v2/models/batched/stats").json["model_stats"][0]
    assert statistics["execution_count"] < statistics["inference_count"]


def test_damaged_models_are_refused(repository, serve):
    sound = models.scaled([-1, 3])
    models.write(repository, "sound", sound, GRAPH)
    saved = models.saved_model(sound, [-1, 3])
    for index in range(60):
        damaged = bytearray(saved if index % 2 else sound)
        for _ in range(1 + index % 4):
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        if index % 2:
            folder = repository / f"damaged{index}" / "1" / "model.savedmodel"
            folder.mkdir(parents=True)
            (folder / "saved_model.pb").write_bytes(bytes(damaged))
        else:
            models.write(repository, f"damaged{index}", bytes(damaged), GRAPH)
    server = serve("--exit-on-error=false", ready=False)
    refused = reasons(server)
    assert len(refused) > 10 and any("TensorFlow cannot load" in line for line in refused.values())
    values = np.array([[1, 2, 3]], np.float32)
    np.testing.assert_allclose(infer(server, "sound", ("x", values)).as_numpy("y"), values * 3)


def test_the_settings_choose_the_library(repository, serve):
    models.write(repository, "graph", models.scaled([-1, 3]))
    server = serve("--exit-on-error=false", "--backend-config=tensorflow,engine=both", ready=False)
    assert "'engine' is 'both', but must be auto, tensorflow or openvino" in reasons(server)["graph"]
    server = serve("--exit-on-error=false", "--backend-config=tensorflow,library=/no/such.so", ready=False)
    assert "cannot load /no/such.so" in reasons(server)["graph"]
    assert_refused(request(server, "GET", "/v2/models/graph/ready"), 400)


def test_the_backend_conforms(tmp_path):
    program = Path(nereid_server.binary()).parent / "examples" / "tensorflow_conformance"
    assert program.exists(), "build it: cargo build -p nereid-tensorflow --examples"
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.graphdef").write_bytes(models.scaled([-1, 3], 2.0))
    command = [program, tensorflow_package.LIBRARY, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "TensorFlow conforms" in done.stdout, done.stderr
