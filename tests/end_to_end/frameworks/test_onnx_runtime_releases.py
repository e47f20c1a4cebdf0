"""ONNX Runtime's releases: load, infer, reload, unload, and the end of the process.

By default one old release; NEREID_ONNXRUNTIME_RELEASES=all tries them all.
"""

import os

import numpy as np
import pytest

import nereid_server
import onnxruntime_releases
from http_requests import infer, request, tensor
from model_files import scale_model

RELEASES = onnxruntime_releases.ALL if os.environ.get("NEREID_ONNXRUNTIME_RELEASES") == "all" else [onnxruntime_releases.OLD]


def flags(release):
    library = f"--backend-config=onnxruntime,library={onnxruntime_releases.folder(release)}"
    return ["--backend-config=onnxruntime,engine=ort", library]


def answer(server):
    return infer(server, "double", {"inputs": [tensor("X", "FP32", [1, 3], [1, 2, 3])]}).json["outputs"][0]["data"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("ending", ["serving", "unloaded", "failed"])
def test_server_on_a_release_answers_and_ends_with_status_0(repository, release, ending):
    scale_model("double").write(repository)
    with nereid_server.running(repository, *flags(release), "--model-control-mode=explicit", "--load-model=double") as server:
        assert f'ONNX Runtime {release}' in server.log
        np.testing.assert_array_equal(answer(server), [2, 4, 6])
        model = repository / "double/1/model.onnx"
        if ending == "failed":
            model.write_bytes(b"not a model")
            assert request(server, "POST", "/v2/repository/models/double/load").status == 400
        else:
            os.utime(model)
            assert request(server, "POST", "/v2/repository/models/double/load").status == 200
        np.testing.assert_array_equal(answer(server), [2, 4, 6])
        if ending == "unloaded":
            assert request(server, "POST", "/v2/repository/models/double/unload").status == 200
        server.stop()
        assert server.exit_code == 0
