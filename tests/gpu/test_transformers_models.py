"""Language models on the Python package transformers, on a GPU. Only `tests/gpu/run` runs these: they need a GPU, and transformers with a
torch with CUDA in the Python environment.
"""

import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import nereid_server
from http_requests import request

MODELS = Path(__file__).resolve().parents[1] / "end_to_end/support/transformers_models.py"
FLAGS = [f"--backend-config=transformers,python={sys.executable}"]
LIMIT_S = 300


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The models' folder, and what transformers itself writes on the CPU."""
    folder = tmp_path_factory.mktemp("models")
    return folder, json.loads(subprocess.run([sys.executable, MODELS, folder], check=True, capture_output=True).stdout)


@pytest.mark.parametrize("group", ["", "instance_group { kind: KIND_GPU }"], ids=["default", "gpu"])
def test_text_is_that_of_the_cpu(tmp_path, written, group):
    folder, expected = written
    config = 'parameters { key: "dtype" value { string_value: "float32" } } ' + group
    names = ["llama", "qwen2", "mistral", "gpt2"]
    for name in names:
        shutil.copytree(folder / name, tmp_path / name / "1")
        (tmp_path / name / "config.pbtxt").write_text(config)
    free, total = torch.cuda.mem_get_info(0)
    before = total - free
    lengths = random.Random(5)
    with nereid_server.running(tmp_path, *FLAGS, limit_s=LIMIT_S) as server:
        free, total = torch.cuda.mem_get_info(0)
        assert total - free > before + (100 << 20), "each process has a context of the GPU"
        rows = [(name, row, lengths.randint(1, 24)) for name in names for row in expected[name]]

        def ask(row):
            name, (prompt, *_), length = row
            sampling = {"temperature": 0, "max_tokens": length, "logprobs": 0}
            body = {"text_input": prompt, "sampling_parameters": json.dumps(sampling), "return_logprobs": True}
            found = request(server, "POST", f"/v2/models/{name}/generate", json.dumps(body))
            assert found.status == 200, found.body
            return [int(next(iter(token))) for token in json.loads(found.json["logprobs"])]

        with ThreadPoolExecutor(12) as clients:
            found = list(clients.map(ask, rows))
        different = [row[0] for row, tokens in zip(rows, found, strict=True) if tokens != row[1][2][: row[2]]]
        # A sum in another order may turn the choice between two tokens that are equally likely.
        assert len(different) <= len(rows) // 50, different
