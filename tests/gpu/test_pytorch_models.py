"""TorchScript models and packages of AOTInductor on a GPU. Only `tests/gpu/run` runs these: they need a GPU, a torch with CUDA in the
Python environment, and a C++ compiler.
"""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.http
from tritonclient.utils import InferenceServerException

import gpu_memory
import nereid_server
from http_requests import infer, request, tensor
from waiting import eventually

LIBRARY = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
FLAGS = [f"--backend-config=pytorch,library={LIBRARY}"]
# The first server compiles the shim.
LIMIT_S = 300
ON_GPU = "instance_group { kind: KIND_GPU }"
PAIR = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }'
GIB = 1 << 30
FREE_LIMIT = 64 << 20


class Network(torch.nn.Module):
    """Convolutions, a recurrent layer and attention: what real models are made of."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(4, 16, 3, padding=1)
        self.normal = torch.nn.BatchNorm1d(16)
        self.recurrent = torch.nn.LSTM(16, 8, batch_first=True, bidirectional=True)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = torch.nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.normal(self.convolution(x))).transpose(1, 2)
        x, _ = self.recurrent(x)
        x, _ = self.attention(x, x, x)
        return torch.softmax(self.last(x.mean(1)), 1)


class Where(torch.nn.Module):
    """Tells where input and weights are."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.tensor([float(x.is_cuda), float(self.weight.is_cuda)]).to(x.device) + 0 * x


class Mixed(torch.nn.Module):
    """Takes tensors, numbers and strings."""

    def forward(self, x, power: int, words: list[str], offset: torch.Tensor | None = None) -> tuple[torch.Tensor, list[str]]:
        result = x**power
        if offset is not None:
            result = result + offset
        return result, [word.upper() for word in words]


class Swapped(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"first": tensors["b"] * 2, "second": tensors["a"]}


class Refuses(torch.nn.Module):
    def forward(self, x):
        if bool((x < 0).any()):
            raise ValueError("a negative number")
        return x.sqrt()


class WritesToItsInput(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x


class Kinds(torch.nn.Module):
    """Takes tensors of several types, one of which it writes to."""

    def forward(self, x, indices, mask, written):
        written.add_(1)
        return torch.where(mask, x, -x), indices * 2, mask, written


class Large(torch.nn.Module):
    """Takes a GiB or another number of bytes, and as much again while it runs."""

    def __init__(self, size=GIB):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size // 4))

    def forward(self, x):
        return (self.weight * x[0]).mean().reshape(1)


class Parts(torch.nn.Module):
    """Has a part on the GPU, and takes its input there itself."""

    def __init__(self):
        super().__init__()
        self.near = torch.nn.Parameter(torch.full([1], 2.0))
        self.far = torch.nn.Parameter(torch.full([1], 3.0, device="cuda"))

    def forward(self, x):
        return (x * self.near).cuda() * self.far


def write(repository, name, module, text, platform="pytorch_libtorch"):
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    torch.jit.save(torch.jit.script(module.eval()), folder / "model.pt")
    (folder.parent / "config.pbtxt").write_text(f'platform: "{platform}" {text}')


def running(repository, *flags):
    return nereid_server.running(repository, *FLAGS, *flags, limit_s=LIMIT_S)


def answer(server, model, outputs=None, **inputs):
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=LIMIT_S) as client:
        given = []
        for name, values in inputs.items():
            kind = "BYTES" if values.dtype == object else {"float32": "FP32", "int64": "INT64"}[str(values.dtype)]
            given.append(tritonclient.http.InferInput(name, list(values.shape), kind))
            given[-1].set_data_from_numpy(values)
        result = client.infer(model, given)
        return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def in_use():
    """Bytes of the first GPU's memory that are in use."""
    free, total = torch.cuda.mem_get_info(0)
    return total - free


def test_a_network_answers_as_on_the_cpu(tmp_path):
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 5 ] } '
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 } "
    )
    share = 'parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } } '
    groups = {
        "default": "",
        "three": "instance_group { kind: KIND_GPU count: 3 }",
        "shared": share + "instance_group { kind: KIND_GPU count: 3 }",
        "both": "instance_group [ { kind: KIND_GPU }, { kind: KIND_CPU } ]",
        "processor": "instance_group { kind: KIND_CPU }",
    }
    torch.manual_seed(1)
    reference = Network().eval()
    for name, text in groups.items():
        write(tmp_path, name, reference, tensors + text)
    inputs = [np.random.default_rng(seed).random((1, 4, 3 + seed % 5), np.float32) for seed in range(96)]
    with torch.inference_mode():
        expected = [reference(torch.from_numpy(values)).numpy() for values in inputs]
    with running(tmp_path) as server, tritonclient.http.InferenceServerClient(server.url) as client:
        [group] = client.get_model_config("default")["instance_group"]
        assert (group["kind"], group["gpus"], group["count"]) == ("KIND_GPU", [0], 1)
        for name in groups:
            with ThreadPoolExecutor(16) as pool:
                found = list(pool.map(lambda values, name=name: answer(server, name, x=values)["OUTPUT__0"], inputs))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)


def test_instances_are_where_their_group_says(tmp_path):
    for name, text in {"auto": "", "gpu": ON_GPU, "cpu": "instance_group { kind: KIND_CPU }"}.items():
        write(tmp_path, name, Where(), PAIR + text)
    write(tmp_path, "saved", Where().cuda(), PAIR + "instance_group { kind: KIND_CPU }")
    write(tmp_path, "parts", Parts(), PAIR + "instance_group { kind: KIND_MODEL }")
    values = np.zeros(2, np.float32)
    with running(tmp_path) as server:
        for name, expected in {"auto": [1, 1], "gpu": [1, 1], "cpu": [0, 0], "saved": [0, 0]}.items():
            assert answer(server, name, x=values)["OUTPUT__0"].tolist() == expected, name
        assert answer(server, "parts", x=values + 1)["OUTPUT__0"].tolist() == [6, 6]


def test_arguments_of_all_kinds(tmp_path):
    inputs = (
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "power" data_type: TYPE_INT64 dims: [ 1 ] }, '
        '{ name: "words" data_type: TYPE_STRING dims: [ -1 ] }, { name: "offset" data_type: TYPE_FP32 dims: [ 1 ] optional: true } ] '
    )
    outputs = 'output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OUTPUT__1" data_type: TYPE_STRING dims: [ -1 ] } ] '
    write(tmp_path, "mixed", Mixed(), inputs + outputs + ON_GPU)
    names = 'input [ { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "b" data_type: TYPE_FP32 dims: [ -1 ] } ] '
    names += 'output [ { name: "first" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "second" data_type: TYPE_FP32 dims: [ -1 ] } ] '
    write(tmp_path, "swapped", Swapped(), names + ON_GPU)
    write(tmp_path, "refuses", Refuses(), PAIR + ON_GPU)
    write(tmp_path, "writes", WritesToItsInput(), PAIR + ON_GPU)
    x, power = np.array([1, 2, 3], np.float32), np.array([2], np.int64)
    with running(tmp_path) as server:
        found = answer(server, "mixed", x=x, power=power, words=np.array([b"one", b"two"], object))
        assert (found["OUTPUT__0"].tolist(), found["OUTPUT__1"].tolist()) == ([1, 4, 9], [b"ONE", b"TWO"])
        found = answer(server, "mixed", x=x, power=power, words=np.array([b"a"], object), offset=np.ones(1, np.float32))
        assert found["OUTPUT__0"].tolist() == [2, 5, 10]
        found = answer(server, "swapped", a=x, b=x + 1)
        assert (found["first"].tolist(), found["second"].tolist()) == ([4, 6, 8], [1, 2, 3])
        for _ in range(3):
            with pytest.raises(InferenceServerException, match="a negative number"):
                answer(server, "refuses", x=-x)
            assert answer(server, "refuses", x=x * x)["OUTPUT__0"].tolist() == [1, 2, 3]
            assert answer(server, "writes", x=x)["OUTPUT__0"].tolist() == [2, 3, 4]
        # No elements, and a scalar's worth of them.
        assert answer(server, "writes", x=x[:0])["OUTPUT__0"].tolist() == []
        asked = {"inputs": [tensor("x", "FP32", [1], [1])]}
        assert infer(server, "writes", asked).json["outputs"][0]["data"] == [2]


KINDS = [("x", "FP32", np.float32), ("indices", "INT64", np.int64), ("mask", "BOOL", np.bool_), ("written", "FP32", np.float32)]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("offset", [0, 8, 3])
def test_inputs_in_memory_of_the_gpu(tmp_path, batched, offset):
    dims = "[ 1000 ]" if batched else "[ -1 ]"
    declared = "".join(f'input {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }} ' for name, kind, _ in KINDS)
    outputs = enumerate(KINDS)
    declared += "".join(f'output {{ name: "OUTPUT__{at}" data_type: TYPE_{kind} dims: {dims} }} ' for at, (_, kind, _) in outputs)
    batching = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 } " if batched else ""
    write(tmp_path, "kinds", Kinds(), declared + batching + ON_GPU)
    driver = gpu_memory.Driver(gpu_memory.named_driver())

    def ask(seed):
        random = np.random.default_rng(seed)
        x, written = random.random(1000, np.float32), random.random(1000, np.float32)
        given: list[np.ndarray] = [x, random.integers(0, 1 << 60, 1000), random.random(1000) < 0.5, written]
        shape = [1, 1000] if batched else [1000]
        inputs = []
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=LIMIT_S) as client:
            regions = []
            for at, ((name, kind, _), values) in enumerate(zip(KINDS, given, strict=True)):
                inputs.append(tritonclient.http.InferInput(name, shape, kind))
                # The others come with the request.
                if (at + seed) % 4 == 0:
                    inputs[-1].set_data_from_numpy(values.reshape(shape))
                    continue
                region = f"r{seed}-{at}"
                memory = driver.allocate(bytes(offset) + values.tobytes())
                client.register_cuda_shared_memory(region, memory.raw_handle, 0, memory.size)
                inputs[-1].set_shared_memory(region, values.nbytes, offset=offset)
                regions.append((region, memory))
            for _ in range(3):
                result = client.infer("kinds", inputs)
                found = [result.as_numpy(f"OUTPUT__{at}").reshape(-1) for at in range(4)]
                x, indices, mask, written = given
                for one, other in zip(found, [np.where(mask, x, -x), indices * 2, mask, written + 1], strict=True):
                    np.testing.assert_array_equal(one, other)
            for region, memory in regions:
                # What the model writes to is a copy.
                at = int(region.partition("-")[2])
                assert memory.read(given[at].nbytes, offset) == given[at].tobytes()
                client.unregister_cuda_shared_memory(region)
                memory.free()

    with running(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(16)))


def test_memory_of_the_gpu_is_given_back(tmp_path):
    write(tmp_path, "small", Where(), PAIR + ON_GPU)
    cleaning = 'parameters { key: "ENABLE_CACHE_CLEANING" value { string_value: "true" } }'
    pair = PAIR.replace("-1", "1")
    write(tmp_path, "large", Large(), pair + ON_GPU)
    write(tmp_path, "clean", Large(), pair + ON_GPU + cleaning)
    x = np.ones(1, np.float32)
    flags = ["--model-control-mode=explicit", "--load-model=small"]
    with (
        running(tmp_path, *flags) as server,
        tritonclient.http.InferenceServerClient(server.url, network_timeout=LIMIT_S) as client,
    ):
        answer(server, "small", x=np.ones(2, np.float32))
        before = in_use()
        for name, kept in {"clean": 1, "large": 2}.items():
            client.load_model(name)
            assert answer(server, name, x=x)["OUTPUT__0"].tolist() == [1]
            assert eventually(lambda kept=kept: abs(in_use() - before - kept * GIB) < FREE_LIMIT), in_use() - before
            client.unload_model(name)
            assert eventually(lambda: in_use() - before < FREE_LIMIT), in_use() - before


def test_a_budget_of_the_gpu_is_kept(tmp_path):
    names = ["one", "two", "three", "four"]
    size = GIB // 4
    for name in names:
        write(tmp_path, name, Large(size), PAIR.replace("-1", "1"))
    write(tmp_path, "small", Where(), PAIR)
    flags = ["--model-control-mode=on-demand", f"--model-gpu-memory-budget=0:{int(2.5 * size)}"]
    with running(tmp_path, *flags) as server, tritonclient.http.InferenceServerClient(server.url) as client:
        answer(server, "small", x=np.ones(2, np.float32))
        before = in_use()
        for name in names * 3:
            assert answer(server, name, x=np.ones(1, np.float32))["OUTPUT__0"].tolist() == [1]
            states = {model["name"]: model.get("state") for model in client.get_model_repository_index()}
            loaded = [name for name in names if states[name] == "READY"]
            assert name in loaded and len(loaded) <= 2, states
            # Measured when it was loaded, in this run or before.
            index = request(server, "POST", "/v2/repository/index", '{"memory": true}').json
            (gpu,) = next(model["memory"]["gpus"] for model in index if model["name"] == name)
            assert gpu["gpu"] == 0 and size <= gpu["measured"] < size + FREE_LIMIT, gpu
            # Each of them has as much again, which it took while it ran.
            assert eventually(lambda: in_use() - before < 4 * size + FREE_LIMIT), in_use() - before


@pytest.mark.parametrize("flags", [["isolation=process"], ["isolation=none"], ["engine=python"]], ids=lambda flags: flags[0])
def test_ways_of_running_models(tmp_path, flags):
    write(tmp_path, "where", Where(), PAIR + ON_GPU)
    write(tmp_path, "refuses", Refuses(), PAIR + ON_GPU)
    more = [f"--backend-config=pytorch,{flag}" for flag in flags] + [f"--backend-config=python,python={sys.executable}"]
    with running(tmp_path, *more) as server:
        x = np.array([4, 9], np.float32)
        assert answer(server, "where", x=x)["OUTPUT__0"].tolist() == [1, 1]
        with pytest.raises(InferenceServerException, match="a negative number"):
            answer(server, "refuses", x=-x)
        assert answer(server, "refuses", x=x)["OUTPUT__0"].tolist() == [2, 3]


COMPILE = """
import sys, torch
from pathlib import Path
class Affine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(8, 4)
    def forward(self, x):
        return torch.relu(self.last(x)) * 3 + 1
for device in ("cuda", "cpu"):
    torch.manual_seed(3)
    model = Affine().eval().to(device)
    rows = torch.export.Dim("rows", min=1, max=64)
    exported = torch.export.export(model, (torch.zeros(4, 8, device=device),), dynamic_shapes={"x": {0: rows}})
    folder = Path(sys.argv[1]) / device / "1"
    folder.mkdir(parents=True)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "model.pt2"))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    subprocess.run([sys.executable, "-c", COMPILE, folder], check=True)
    return folder


def test_packages_of_aotinductor(tmp_path, packages):
    tensors = (
        'platform: "torch_aoti" max_batch_size: 16 dynamic_batching { } input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 8 ] } '
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4 ] } '
    )
    for name, device, text in [
        ("gpu", "cuda", ""),
        ("many", "cuda", "instance_group { kind: KIND_GPU count: 3 }"),
        ("model", "cuda", "instance_group { kind: KIND_MODEL }"),
        ("misplaced", "cpu", ""),
        ("cpu", "cpu", "instance_group { kind: KIND_CPU }"),
    ]:
        shutil.copytree(packages / device / "1", tmp_path / name / "1")
        (tmp_path / name / "config.pbtxt").write_text(tensors + text)
    torch.manual_seed(3)
    last = torch.nn.Linear(8, 4)
    inputs = [np.random.default_rng(seed).random((1 + seed % 3, 8), np.float32) for seed in range(48)]
    with torch.inference_mode():
        expected = [(torch.relu(last(torch.from_numpy(values))) * 3 + 1).numpy() for values in inputs]
    with running(tmp_path) as server:
        server.wait_for_log("model 'misplaced' was compiled for the CPU, and runs there instead of on GPU 0")
        for name in ("gpu", "many", "model", "misplaced", "cpu"):
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda values, name=name: answer(server, name, INPUT__0=values)["OUTPUT__0"], inputs))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-3, err_msg=name)


def test_a_package_for_gpus_is_refused_on_the_cpu(tmp_path, packages):
    shutil.copytree(packages / "cuda/1", tmp_path / "m/1")
    text = 'platform: "torch_aoti" input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4, 8 ] } '
    text += 'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4, 4 ] } instance_group { kind: KIND_CPU }'
    (tmp_path / "m/config.pbtxt").write_text(text)
    with nereid_server.running(tmp_path, *FLAGS, "--exit-on-error=false", ready=False, limit_s=LIMIT_S) as server:
        with tritonclient.http.InferenceServerClient(server.url) as client:
            [model] = client.get_model_repository_index()
            assert model["state"] == "UNAVAILABLE", model
            # By the server, or by the loader of libraries if libtorch's for GPUs are not in memory.
            assert "cuda" in model["reason"].lower() and "signal" not in model["reason"], model
