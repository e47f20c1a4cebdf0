"""The interface `triton_python_backend_utils`, cell by cell: a place of the interface, and a kind of argument. The outcomes are
those of NVIDIA's server (`python_api_table.json`), but for the differences that docs/differences.md lists.
"""

import json
from pathlib import Path

import pytest
import tritonclient.http

import nereid_server
import python_api_cells
import python_lab

TABLE = json.loads(Path(__file__).with_name("python_api_table.json").read_text())

DIFFERENT = {
    "Tensor(array): masked array": "Tensor X int64 [2]",
    "Tensor(array): big-endian array": "Tensor X int32 [1]",
    "unload_model(name): empty str": "raises TritonModelException",
    "unload_model(name): empty bytes": "raises TritonModelException",
    "unload_model(name): str with a zero": "raises TritonModelException",
    "MetricFamily(name): str with a zero": "raises TritonModelException",
}
# Without an entry here, a cell that ends NVIDIA's process or server is not compared.
CELLS = [cell for cell in python_api_cells.CELLS if cell in DIFFERENT or TABLE[cell] != python_api_cells.ENDS]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    python_api_cells.write(repository)
    flags = [*python_lab.FLAGS, "--model-control-mode=explicit", "--load-model=*"]
    with nereid_server.running(repository, *flags) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            yield client


@pytest.mark.parametrize("cell", CELLS)
def test_cell_has_the_outcome_of_the_table(client, cell):
    assert python_api_cells.outcome(client, cell) == DIFFERENT.get(cell, TABLE[cell])
