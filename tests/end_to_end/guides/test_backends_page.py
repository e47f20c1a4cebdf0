"""The backend in C++ of docs/backends.md. The step `guides` builds the one in Rust."""

import requests

import python_backend
from guide_pages import Reader
from http_requests import tensor
from places import ROOT


def test_the_backend_in_cpp_works_as_printed_and_in_nvidias_server(tmp_path):
    (tmp_path / "nereid").symlink_to(ROOT)
    Reader(tmp_path).follow("docs/backends.md", "Your own backend", "In C++")
    with python_backend.nvidia_server(tmp_path / "models", f"--backend-directory={tmp_path / 'backends'}") as address:

        def infer(*rows):
            body = {"inputs": [tensor("INPUT", "FP32", [len(rows), len(rows[0])], rows)]}
            return requests.post(f"http://{address}/v2/models/tenfold/infer", json=body, timeout=60).json()

        assert infer([1, 2.5], [3, 4])["outputs"][0]["data"] == [10, 25, 30, 40]
        assert infer([3e38]) == {"error": "INPUT has an element that is too large"}
