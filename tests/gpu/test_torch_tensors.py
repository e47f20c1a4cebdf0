"""PyTorch's tensors on a GPU in models in Python, as outputs, and inputs in a client's memory as PyTorch's tensors. Only
`tests/gpu/run` runs these: they need a GPU, and a torch with CUDA, whose folder of packages NEREID_TEST_TORCH_GPU names.
"""

import os

import numpy as np
import pytest
import tritonclient.http
from test_gpu_memory import registered, within
from test_python_gpu import DEVICE_INPUTS, FLAGS, run_on

import gpu_memory
import nereid_server
import python_lab
from http_requests import tensor


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    head = f"import sys\nsys.path.append({os.environ['NEREID_TEST_TORCH_GPU']!r})\nimport torch\n"
    python_lab.write(repository, "lab", head + python_lab.LAB, DEVICE_INPUTS)
    with nereid_server.running(repository, *FLAGS) as server:
        yield server


@pytest.mark.parametrize("count", [1, 1000, 4_000_000])
def test_torch_computes_on_the_gpu_from_input_to_output(server, count):
    driver = gpu_memory.Driver(gpu_memory.named_driver())
    values = np.arange(count, dtype=np.float32)
    code = """
given = get(request, "F")
theirs = torch.from_dlpack(given)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(200):
        theirs = (theirs + 1).sqrt() ** 2
    ours = pb_utils.Tensor.from_dlpack("OF", theirs)
again = torch.from_dlpack(ours)
result = [str(theirs.device), given.is_cpu(), ours.is_cpu(), again.data_ptr() == theirs.data_ptr()]
outputs = [ours]
"""
    with tritonclient.http.InferenceServerClient(server.url) as client:
        io = registered(client, "io", driver.allocate(values.tobytes(), 2 * values.nbytes))
        given = tensor("F", "FP32", [count], **within("io", values.nbytes))
        for _ in range(5):
            wanted = [{"name": "OF", "parameters": within("io", values.nbytes, values.nbytes)}]
            found, _ = run_on(server, "lab", code, [given], wanted)
            assert found == ["cuda:0", False, False, True]
            answered = np.frombuffer(io.read(values.nbytes, values.nbytes), np.float32)
            np.testing.assert_allclose(answered, values + 200, rtol=1e-4)
        client.unregister_cuda_shared_memory()
