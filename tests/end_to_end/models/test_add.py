"""`nereid add`: models of every format into a repository, which a server then serves; nothing is left of those that are refused."""

import os
import resource
import shlex
import signal
import subprocess
import sys
import zipfile

import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as ops

import nereid_server
import openvino_models
import tensorflow_models
from http_requests import infer, request, tensor
from hubs import Delivery, HuggingFace, Web
from model_files import OnnxModel, scale_model, write_identity
from waiting import eventually

LIMIT_S = 120
# Root may write anywhere, unless it gives up what makes it root.
AS_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
EMBEDDED = "--backend-config=onnxruntime,engine=tract"


def add(*arguments, folder, before=(), preexec_fn=None, **variables):
    """Runs the command in a folder to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEREID_")} | variables
    command = [*before, nereid_server.binary(), "add", EMBEDDED, *map(str, arguments)]
    how = {"restore_signals": False, "preexec_fn": preexec_fn} if preexec_fn else {}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, **how)


def added(*arguments, folder, **how):
    """Adds a model, which must succeed; returns the command that asks it, and the warnings."""
    done = add(*arguments, folder=folder, **how)
    assert done.returncode == 0, done
    first, *others = done.stdout.splitlines()
    assert first.startswith("added ") and others[-1].startswith("serve it: nereid"), done
    assert visible(folder / "models")
    return (others[0].removeprefix("ask it: ") if len(others) > 1 else None), done.stderr


def refused(*arguments, folder, **how):
    """Adds a model, which must fail; returns the reason."""
    before = state(folder / "models")
    done = add(*arguments, folder=folder, **how)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("nereid add: "), done
    assert state(folder / "models") == before
    return done.stderr


def visible(repository):
    """Whether nothing of the repository is hidden."""
    return not [path for path in repository.rglob("*") if path.name.startswith(".")]


def state(repository):
    """All files of a repository, the hidden ones too, with their contents; None if there is none."""
    if not repository.exists():
        return None
    return {path: path.read_bytes() if path.is_file() else None for path in repository.rglob("*")}


def answer(server, ask):
    """What the printed command gets from a server."""
    script = ask.replace("localhost:8000", server.url).replace("--output answer.bin", "--output -")
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, timeout=LIMIT_S, check=True)
    assert b'"outputs":' in done.stdout, done
    return done.stdout


def wide_model(name, kind, shape):
    """A model that returns its input."""
    return OnnxModel(name, [helper.make_node("Identity", ["X"], ["Y"])], [("X", kind, shape)], [("Y", kind, shape)])


@pytest.mark.parametrize("name", ["scale", "two words", "größe", "100% x'y"])
def test_an_onnx_file_is_served_as_the_command_prints(tmp_path, name):
    (tmp_path / f"{name}.onnx").write_bytes(scale_model("scale", 3.0).serialized())
    ask, warnings = added(f"{name}.onnx", folder=tmp_path)
    assert warnings == ""
    config = (tmp_path / "models" / name / "config.pbtxt").read_text()
    assert 'name: "X"' in config and "max_batch_size: 4" in config and config.count("#") > 5
    with nereid_server.running(tmp_path / "models") as server:
        assert b'"data":[0.0,0.0,0.0]' in answer(server, ask)
        # The written configuration is what the server would have completed.
        assert "completed the configuration" not in server.log


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (TensorProto.FLOAT, ["N", 3, 64, 64]),
        (TensorProto.FLOAT16, ["N", 2]),
        (TensorProto.BOOL, [2, "M"]),
        (TensorProto.INT64, [1]),
        (TensorProto.STRING, ["N", 40]),
        (TensorProto.UINT8, [2, 3, 4]),
    ],
)
def test_the_printed_request_fits_inputs_of_every_kind(tmp_path, kind, shape):
    (tmp_path / "same.onnx").write_bytes(wide_model("same", kind, shape).serialized())
    ask, _ = added("same.onnx", folder=tmp_path)
    with nereid_server.running(tmp_path / "models") as server:
        answer(server, ask)


def test_a_server_that_completes_nothing_serves_what_was_added(tmp_path):
    strict = "--disable-auto-complete-config"
    (tmp_path / "scale.onnx").write_bytes(scale_model("scale").serialized())
    ask, _ = added("scale.onnx", strict, folder=tmp_path)
    with nereid_server.running(tmp_path / "models", strict) as server:
        answer(server, ask)
    # A version of a model without the configuration that such a server needs.
    (tmp_path / "models" / "scale" / "config.pbtxt").unlink()
    assert "has no config.pbtxt" in refused("scale.onnx", strict, folder=tmp_path)
    added("scale.onnx", folder=tmp_path)


def test_external_data_come_with_an_onnx_file(tmp_path):
    weights = np.arange(3000, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "W"], ["Y"])],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [3000])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [3000])],
        [numpy_helper.from_array(weights, "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(model, source / "net.onnx", save_as_external_data=True, location="weights of net", size_threshold=0)
    (source / "unrelated.data").write_text("x")
    ask, _ = added(source / "net.onnx", "--name=other", folder=tmp_path)
    assert sorted(os.listdir(tmp_path / "models" / "other" / "1")) == ["model.onnx", "weights of net"]
    with nereid_server.running(tmp_path / "models") as server:
        answer(server, ask)
        inputs = {"inputs": [tensor("X", "FP32", [3000], [1.0] * 3000)]}
        assert infer(server, "other", inputs).json["outputs"][0]["data"][:3] == [1.0, 2.0, 3.0]
    (source / "weights of net").unlink()
    assert "weights of net" in refused(source / "net.onnx", "--name=third", folder=tmp_path)


def test_a_model_that_exists_gets_a_further_version(tmp_path):
    for factor in (2.0, 3.0, 4.0):
        (tmp_path / "scale.onnx").write_bytes(scale_model("scale", factor).serialized())
        done = add("scale.onnx", folder=tmp_path)
        assert done.returncode == 0, done
        if factor == 2.0:
            config = tmp_path / "models" / "scale" / "config.pbtxt"
            config.write_text(config.read_text() + "# mine\n")
    assert done.stdout.startswith("added version 3 of model 'scale'")
    assert config.read_text().endswith("# mine\n")
    with nereid_server.running(tmp_path / "models") as server:
        reply = infer(server, "scale", {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}).json
        assert (reply["model_version"], reply["outputs"][0]["data"]) == ("3", [4.0, 8.0, 12.0])
    # A version that does not fit the configuration, and a file of another format.
    (tmp_path / "scale.onnx").write_bytes(wide_model("scale", TensorProto.INT8, [7]).serialized())
    refused("scale.onnx", folder=tmp_path)
    (tmp_path / "scale.py").write_text("class TritonPythonModel: pass\n")
    assert "models/scale/4: has no 'model.onnx'" in refused("scale.py", folder=tmp_path)
    assert "exists and keeps its configuration" in refused("scale.onnx", "--config=scale.py", folder=tmp_path)


def test_what_would_not_load_is_refused_unless_it_is_forced(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert "broken" in refused("broken.onnx", folder=tmp_path)
    (tmp_path / "empty.onnx").write_bytes(b"")
    reason = refused("empty.onnx", folder=tmp_path)
    # An ONNX file declares its tensors, so options would not help.
    assert "holds no graph" in reason and "--force" in reason and "--input" not in reason
    (tmp_path / "net.plan").write_bytes(b"plan")
    assert "TensorRT" in refused("net.plan", folder=tmp_path)
    ask, warnings = added("net.plan", "--force", folder=tmp_path)
    assert ask is None and "warning: models/net" in warnings and "TensorRT" in warnings
    assert os.listdir(tmp_path / "models" / "net") == ["1"]
    for source, reason in [
        ("missing.onnx", "cannot read 'missing.onnx'"),
        ("weights.safetensors", "optimum-cli export onnx"),
    ]:
        (tmp_path / "weights.safetensors").write_text("x")
        assert reason in refused(source, folder=tmp_path)
    assert "must be a folder" in refused("net.plan", "--repository=s3://bucket/models", folder=tmp_path)


def test_tensors_of_torchscript_are_declared_by_options(tmp_path):
    # What TorchScript has in its archive; only the library would read the rest.
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr("net/constants.pkl", b"")
        archive.writestr("net/code/__torch__.py", b"")
    assert "--input=NAME:TYPE:DIMS" in refused("net.pt", folder=tmp_path)
    declared = ["--input=INPUT__0:FP32:3,-1", "--output=OUTPUT__0:INT64:1", "--max-batch-size=8", "--force"]
    added("net.pt", *declared, folder=tmp_path)
    config = (tmp_path / "models" / "net" / "config.pbtxt").read_text()
    for line in ('backend: "pytorch"', "max_batch_size: 8", 'name: "INPUT__0"', "dims: [ 3, -1 ]", "data_type: TYPE_INT64"):
        assert line in config, config


def test_openvino_and_saved_models_come_whole(tmp_path):
    library, *_ = openvino_models.LIBRARY_FOLDER.glob("libopenvino_c.so*")
    on_openvino = f"--backend-config=openvino,library={library}"
    network = openvino_models.network("twice", [("x", "FP32", [-1, 3])], lambda x: {"y": ops.add(x, x)})
    openvino.save_model(network, tmp_path / "twice.xml", compress_to_fp16=False)
    ask, _ = added("twice.xml", on_openvino, folder=tmp_path)
    saved = tmp_path / "scaled.savedmodel"
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(tensorflow_models.saved_model(tensorflow_models.scaled([-1, 3]), [-1, 3]))
    (saved / "variables").mkdir()
    flags = [on_openvino, "--backend-config=tensorflow,engine=openvino"]
    asked, _ = added("scaled.savedmodel", *flags, folder=tmp_path)
    assert sorted(os.listdir(tmp_path / "models" / "twice" / "1")) == ["model.bin", "model.xml"]
    with nereid_server.running(tmp_path / "models", *flags) as server:
        answer(server, ask)
        answer(server, asked)
    (tmp_path / "twice.bin").unlink()
    assert "needs its weights beside it: 'twice.bin'" in refused("twice.xml", on_openvino, "--name=x", folder=tmp_path)


PYTHON = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())]) for r in requests]
"""


def test_models_in_python_are_files_or_folders(tmp_path):
    (tmp_path / "echo.py").write_text(PYTHON)
    # The interpreter of the tests has numpy, which models need.
    active = {"VIRTUAL_ENV": sys.prefix}
    ask, _ = added("echo.py", folder=tmp_path, **active)
    folder = tmp_path / "repeat"
    (folder / "words").mkdir(parents=True)
    (folder / "model.py").write_text(PYTHON)
    (folder / "words" / "en.txt").write_text("one")
    asked, _ = added("repeat", folder=tmp_path, **active)
    assert (tmp_path / "models" / "repeat" / "1" / "words" / "en.txt").exists()
    with nereid_server.running(tmp_path / "models", env=os.environ | active) as server:
        answer(server, ask)
        answer(server, asked)


def test_a_model_with_the_layout_of_a_repository_stays_as_it_is(tmp_path):
    write_identity(tmp_path / "elsewhere", "same", ["FP32"], max_batch_size=4)
    config = (tmp_path / "elsewhere" / "same" / "config.pbtxt").read_text()
    ask, warnings = added("elsewhere/same", folder=tmp_path)
    assert (tmp_path / "models" / "same" / "config.pbtxt").read_text() == config and warnings == ""
    with nereid_server.running(tmp_path / "models") as server:
        answer(server, ask)
    # Under another name, the configuration's would be wrong.
    assert "models/other" in refused("elsewhere/same", "--name=other", folder=tmp_path)


def test_models_of_hubs_and_of_the_web_are_fetched(tmp_path):
    onnx_file = scale_model("scale").serialized()
    with Delivery().running() as delivery, HuggingFace(delivery).running() as hub, Web().running() as web:
        hub.put_files("owner/scale", {"model.onnx": onnx_file, "README.md": b"#", "config.json": b"{}"})
        variables = {"HF_ENDPOINT": f"http://{hub.address}"}
        ask, _ = added("hf://owner/scale", folder=tmp_path, **variables)
        added("hf://owner/scale", "--name=renamed", folder=tmp_path, **variables)
        added("hf://owner/scale", folder=tmp_path, **variables)
        assert sorted(os.listdir(tmp_path / "models" / "scale")) == ["1", "2", "config.pbtxt"]
        reason = refused("hf://owner/nothing", folder=tmp_path, **variables)
        assert "owner/nothing" in reason
        added(web.put("net.onnx", onnx_file), folder=tmp_path)
        assert "none.onnx" in refused(f"{web.origin}/none.onnx", folder=tmp_path)
    with nereid_server.running(tmp_path / "models") as server:
        answer(server, ask)
        assert sorted(os.listdir(tmp_path / "models")) == ["net", "renamed", "scale"]


def test_links_to_files_and_repositories_are_followed(tmp_path):
    (tmp_path / "blob").write_bytes(scale_model("scale").serialized())
    (tmp_path / "scale.onnx").symlink_to("blob")
    (tmp_path / "real").mkdir()
    (tmp_path / "models").symlink_to("real")
    added("scale.onnx", folder=tmp_path)
    assert not (tmp_path / "real" / "scale" / "1" / "model.onnx").is_symlink()


def test_a_folder_without_permission_and_a_read_only_one_are_refused(tmp_path):
    (tmp_path / "scale.onnx").write_bytes(scale_model("scale").serialized())
    (tmp_path / "models").mkdir()
    (tmp_path / "models").chmod(0o555)
    assert "Permission denied" in refused("scale.onnx", folder=tmp_path, before=AS_USER)
    (tmp_path / "models").chmod(0o755)
    (tmp_path / "scale.onnx").chmod(0)
    assert "Permission denied" in refused("scale.onnx", folder=tmp_path, before=AS_USER)


def test_nothing_is_left_of_a_model_that_does_not_fit(tmp_path):
    (tmp_path / "scale.onnx").write_bytes(scale_model("scale").serialized())
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "model.py").write_text(PYTHON)
    (tmp_path / "large" / "weights").write_bytes(bytes(3 << 20))

    def limit():
        """Limits the size of files. Past it, writing fails as on a full disk, and not by a signal."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    assert "File too large" in refused("large", folder=tmp_path, preexec_fn=limit)
    added("scale.onnx", folder=tmp_path, preexec_fn=limit)


def test_models_are_moved_unless_they_are_refused(tmp_path):
    (tmp_path / "scale.onnx").write_bytes(scale_model("scale").serialized())
    (tmp_path / "torch.pt").write_bytes(b"not TorchScript")
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "notes.txt").write_text("kept beside the versions")
    (tmp_path / "net" / "1" / "model.onnx").write_bytes(scale_model("net").serialized())
    inode = (tmp_path / "scale.onnx").stat().st_ino
    refused("torch.pt", "--move", folder=tmp_path)
    assert (tmp_path / "torch.pt").exists()
    for source in ["scale.onnx", "net"]:
        added(source, "--move", folder=tmp_path)
        assert not (tmp_path / source).exists()
    # Not a copy.
    assert (tmp_path / "models" / "scale" / "1" / "model.onnx").stat().st_ino == inode
    assert (tmp_path / "models" / "net" / "notes.txt").exists()
    assert "on this machine" in refused("hf://owner/name", "--move", folder=tmp_path)
    with nereid_server.running(tmp_path / "models") as server:
        body = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
        assert [infer(server, model, body).status for model in ["scale", "net"]] == [200, 200]


def test_a_polling_server_takes_additions_without_a_complaint(tmp_path):
    (tmp_path / "scale.onnx").write_bytes(scale_model("scale").serialized())
    added("scale.onnx", "--name=first", folder=tmp_path)
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1", "--repository-watch=true"]
    with nereid_server.running(tmp_path / "models", *flags) as server:
        for arguments, model, version in [
            ([], "scale", "1"),
            ([], "scale", "2"),
            (["--name=first"], "first", "2"),
            (["--name=two words"], "two words", "1"),
        ]:
            added("scale.onnx", *arguments, folder=tmp_path)
            body = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
            path = model.replace(" ", "%20")
            assert eventually(lambda: infer(server, path, body).json.get("model_version") == version), (model, version)
        index = request(server, "POST", "/v2/repository/index").json
        assert {entry["name"] for entry in index} == {"first", "scale", "two words"}
        assert server.complaints == []


def test_concurrent_additions_all_arrive(tmp_path):
    (tmp_path / "scale.onnx").write_bytes(scale_model("scale").serialized())
    command = [nereid_server.binary(), "add", EMBEDDED, "scale.onnx"]
    running = [subprocess.Popen([*command, f"--name=m{number}"], cwd=tmp_path) for number in range(4)]
    assert [process.wait(LIMIT_S) for process in running] == [0] * 4
    assert sorted(os.listdir(tmp_path / "models")) == ["m0", "m1", "m2", "m3"]


def test_the_repository_is_named_in_the_command_that_serves_it(tmp_path):
    (tmp_path / "scale.onnx").write_bytes(scale_model("scale").serialized())
    done = add("scale.onnx", "--repository=my models", folder=tmp_path)
    assert done.returncode == 0 and (tmp_path / "my models" / "scale").is_dir()
    serve = done.stdout.splitlines()[-1].removeprefix("serve it: ")
    assert shlex.split(serve) == ["nereid", "--model-repository=my models"]
