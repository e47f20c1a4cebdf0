"""One old release of ONNX Runtime in every run, and the documents' lists of tested releases. `cargo xtask test versions` runs all
releases.
"""

import re

import pytest
from library_versions import ENDINGS, check_release

import python_interpreters
import redis_releases
from library_releases import OLD_ONNX_RUNTIME, RELEASES
from places import ROOT


@pytest.mark.parametrize("ending", ENDINGS)
def test_server_on_an_old_onnx_runtime_answers_and_exits_cleanly(repository, ending):
    check_release(repository, "onnxruntime", OLD_ONNX_RUNTIME, ending)


LISTED = {f"`{framework}`": list(releases) for framework, releases in RELEASES.items()}
LISTED["CPython"] = [f"3.{minor}" for minor in python_interpreters.OF_DEBIAN]
LISTED["Redis"] = list(redis_releases.RELEASES)


@pytest.mark.parametrize("name", LISTED)
def test_documents_list_the_releases_that_the_step_runs(name):
    text = (ROOT / "docs/frameworks.md").read_text()
    (listed,) = re.findall(rf"^\| {name} \| ([A-Za-z0-9., ]+) \|$", text, re.MULTILINE)
    assert listed.split(", ") == LISTED[name]


def test_old_onnx_runtime_is_among_the_promised_releases():
    assert OLD_ONNX_RUNTIME in RELEASES["onnxruntime"]
