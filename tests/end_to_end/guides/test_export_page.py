"""The examples of docs/export-to-request.md that need no framework but those of the other tests."""

import pytest

from guide_pages import Reader
from places import ROOT

PAGE = "docs/export-to-request.md"


@pytest.mark.parametrize("section", ["OpenVINO", "Python", "C"])
def test_an_example_works_as_printed(tmp_path, section):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    Reader(tmp_path).follow(PAGE, section)
