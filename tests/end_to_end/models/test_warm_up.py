"""Warm-up: requests that run before a model is ready."""

import numpy as np
import pytest
import tritonclient.http

import nereid_server
from model_files import scale_model, write_model

WARM_UP = 'model_warmup { name: "w" batch_size: 2 count: 3 inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 3 ] %s } } }'


def write(repository, warm_up, file=None):
    model = scale_model("scale", 2.0)
    write_model(repository, "scale", f"{model.config()}\n{WARM_UP % warm_up}", model.serialized())
    if file is not None:
        (repository / "scale" / "warmup").mkdir()
        (repository / "scale" / "warmup" / "data").write_bytes(file)


@pytest.mark.parametrize(
    ("warm_up", "file"),
    [("zero_data: true", None), ("random_data: true", None), ('input_data_file: "data"', np.ones(3, np.float32).tobytes())],
    ids=["zeros", "random", "file"],
)
def test_a_model_is_served_after_its_warm_up_which_is_counted(repository, serve, warm_up, file):
    write(repository, warm_up, file)
    with tritonclient.http.InferenceServerClient(serve().url) as client:
        assert client.is_model_ready("scale")
        statistics = client.get_inference_statistics("scale")["model_stats"][0]
        assert (statistics["execution_count"], statistics["inference_count"]) == (3, 6)
        assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in statistics["batch_stats"]] == [(2, 3)]


@pytest.mark.parametrize(
    ("warm_up", "file", "reason"),
    [
        ('input_data_file: "data"', b"short", "takes 12 bytes, but file 'data' has 5"),
        ('input_data_file: "other"', b"short", "No such file"),
        ('input_data_file: "../config.pbtxt"', b"short", "must stay within the model's folder"),
    ],
    ids=["too short", "missing", "elsewhere"],
)
def test_an_invalid_warm_up_fails_the_load(repository, warm_up, file, reason):
    write(repository, warm_up, file)
    server = nereid_server.refused_start(repository)
    assert reason in server.log
