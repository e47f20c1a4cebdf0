"""The pages for users of other servers."""

import shutil

from guide_pages import Reader
from places import EXAMPLES


def test_a_repository_of_triton_is_served(tmp_path):
    shutil.copytree(EXAMPLES / "model_repository", tmp_path / "models")
    Reader(tmp_path).follow("docs/coming-from-triton.md")


def test_a_handler_of_torchserve_is_moved(tmp_path):
    Reader(tmp_path).follow("docs/coming-from-torchserve.md")


def test_a_service_of_litserve_is_moved(tmp_path):
    Reader(tmp_path).follow("docs/coming-from-bentoml.md")
