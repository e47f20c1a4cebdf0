"""The examples of docs/export-to-request.md whose frameworks export the model, and the backend in Rust of docs/backends.md. Not among
the default tests: `cargo xtask test guides`, which installs the packages of `requirements-guides.txt`."""

import pytest

import torch_wheel
from guide_pages import Reader
from places import ROOT

PAGE = "docs/export-to-request.md"


@pytest.mark.parametrize("section", ["scikit-learn", "XGBoost", "TensorFlow", "Keras"])
def test_an_example_works_as_printed(tmp_path, section):
    Reader(tmp_path).follow(PAGE, section)


def test_a_model_of_tensorflow_serving_is_moved(tmp_path):
    Reader(tmp_path).follow("docs/coming-from-tensorflow-serving.md")


@pytest.mark.parametrize("section", ["PyTorch", "TorchScript", "AOTInductor", "Hugging Face"])
def test_an_example_with_pytorch_works_as_printed(tmp_path, section):
    torch_wheel.NEWEST.fetched()
    variables = torch_wheel.NEWEST.environment() | {"PYTHONPATH": str(torch_wheel.NEWEST.python)}
    Reader(tmp_path, **variables).follow(PAGE, section)


def test_the_backend_in_rust_works_as_printed(tmp_path):
    (tmp_path / "nereid").symlink_to(ROOT)
    Reader(tmp_path).follow("docs/backends.md", "Your own backend", "In Rust")
