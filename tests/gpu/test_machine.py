"""What the server reports of a machine's GPUs, and how it chooses them. Only `tests/gpu/run` runs these: they need a GPU, and `nvidia-smi`."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

import gpu_memory
import nereid_server
import python_lab
from model_files import write_identity
from scrapes import Scrape
from waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/model_repository"
MIB = 1 << 20


def asked(*fields):
    """What `nvidia-smi` says of the first GPU."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().split(", ")


def test_metrics_are_those_of_the_management_library(tmp_path):
    write_identity(tmp_path, "identity", ["FP32"])
    driver = gpu_memory.Driver(gpu_memory.named_driver())
    uuid, total = asked("uuid", "memory.total")
    with nereid_server.running(tmp_path, "--metrics-interval-ms=100") as server:

        def reading(name):
            found = Scrape(server).value(name, gpu_uuid=uuid)
            assert found is not None, name
            return found

        assert abs(reading("nv_gpu_memory_total_bytes") - int(total) * MIB) < 2 * MIB
        assert 0 <= reading("nv_gpu_utilization") <= 1
        assert 0 < reading("nv_gpu_power_usage") <= reading("nv_gpu_power_limit")
        before = reading("nv_gpu_memory_used_bytes")
        energy = reading("nv_energy_consumption")
        memory = driver.allocate(b"x", 1024 * MIB)
        assert eventually(lambda: reading("nv_gpu_memory_used_bytes") - before >= 1000 * MIB)
        assert eventually(lambda: reading("nv_energy_consumption") > energy)
        memory.free()
        assert eventually(lambda: reading("nv_gpu_memory_used_bytes") - before < 100 * MIB)


def test_the_examples_are_served_on_a_machine_with_a_gpu():
    with nereid_server.running(EXAMPLES) as server, tritonclient.http.InferenceServerClient(server.url) as client:
        index = client.get_model_repository_index()
        assert index and all(model["state"] == "READY" for model in index), index
        image = tritonclient.http.InferInput("image", [1, 1, 8, 8], "FP32")
        image.set_data_from_numpy(np.zeros([1, 1, 8, 8], np.float32))
        assert client.infer("digits", [image]).as_numpy("probabilities").shape == (1, 10)


@pytest.mark.parametrize("visible", ["", "0", "-1"])
def test_only_visible_gpus_are_used(tmp_path, monkeypatch, visible):
    python_lab.write(tmp_path, "lab", python_lab.LAB, "instance_group { kind: KIND_GPU }")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    flags = [*python_lab.FLAGS, "--exit-on-error=false", "--strict-readiness=false"]
    with nereid_server.running(tmp_path, *flags) as server, tritonclient.http.InferenceServerClient(server.url) as client:
        if visible == "0":
            assert client.is_model_ready("lab")
            [group] = client.get_model_config("lab")["instance_group"]
            assert (group["kind"], group["gpus"]) == ("KIND_GPU", [0])
        else:
            [model] = client.get_model_repository_index()
            assert "no GPU is available" in model["reason"]
