"""Models in Python run with every CPython from 3.9 on, with numpy 1 and 2, in one server."""

import re
import sys
import textwrap

import numpy
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from python_interpreters import NEWEST, OLDEST, environments

MODEL = textwrap.dedent(
    """
    import sys
    import numpy
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                text, numbers = [pb_utils.get_input_tensor_by_name(request, name) for name in ("TEXT", "NUMBERS")]
                about = [b"%d.%d" % sys.version_info[:2], numpy.__version__.encode()]
                about += [b"%d" % ("asyncio" in sys.modules), *text.as_numpy()[::-1]]
                doubled = pb_utils.Tensor.from_dlpack("DOUBLED", pb_utils.Tensor("X", numbers.as_numpy() * 2).to_dlpack())
                outputs = [pb_utils.Tensor("ABOUT", numpy.array(about, dtype=numpy.object_)), doubled]
                responses.append(pb_utils.InferenceResponse(outputs))
            return responses
    """
)
CONFIG = """
backend: "python" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
input { name: "TEXT" data_type: TYPE_STRING dims: -1 } input { name: "NUMBERS" data_type: TYPE_FP32 dims: -1 }
output { name: "ABOUT" data_type: TYPE_STRING dims: -1 } output { name: "DOUBLED" data_type: TYPE_FP32 dims: -1 }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for name, folder in environments().items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(MODEL)
        (repository / name / "config.pbtxt").write_text(CONFIG % folder)
    with nereid_server.running(repository, "--strict-readiness=false", "--exit-on-error=false") as server:
        yield server


@pytest.mark.parametrize("name", ["own", *(f"python3{minor}" for minor in range(OLDEST, NEWEST + 1))])
def test_a_model_runs_with_the_interpreter_and_the_numpy_of_its_environment(server, name):
    if name not in environments():
        pytest.skip(f"no CPython 3.{name.removeprefix('python3')} on this machine: neither pyenv's nor on the PATH")
    minor = sys.version_info.minor if name == "own" else int(name.removeprefix("python3"))
    assert_answers(server, name, minor, b"1." if name != "own" and minor < 12 else b"2.")


def assert_answers(server, model, minor, numpy_begins):
    """The model computes with its version of CPython, and of numpy."""
    texts = numpy.array([b"", b"h\xc3\xa9", b"\0" * 9], dtype=object)
    for count in (1, 70_000):
        numbers = numpy.arange(count, dtype=numpy.float32)
        inputs = [
            tritonclient.http.InferInput("TEXT", texts.shape, "BYTES").set_data_from_numpy(texts),
            tritonclient.http.InferInput("NUMBERS", numbers.shape, "FP32").set_data_from_numpy(numbers),
        ]
        with tritonclient.http.InferenceServerClient(server.url) as client:
            answer = client.infer(model, inputs)
        version, numpy_version, has_asyncio, *reversed_texts = answer.as_numpy("ABOUT")
        assert version == b"3.%d" % minor
        assert numpy_version.startswith(numpy_begins)
        # It takes more memory than the rest of what a process needs besides numpy.
        assert has_asyncio == b"0"
        assert reversed_texts == list(texts[::-1])
        assert (answer.as_numpy("DOUBLED") == numbers * 2).all()


def test_without_numpy_the_load_fails_and_says_so(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert not client.is_model_ready("bare")
        with pytest.raises(InferenceServerException, match="bare"):
            client.infer("bare", [])
        (entry,) = [entry for entry in client.get_model_repository_index() if entry["name"] == "bare"]
    hint = f"models need numpy, which '{environments()['bare']}/bin/python[0-9.]* -m pip install numpy' installs"
    assert re.search(f"No module named 'numpy'; {hint}$", entry["reason"]), entry
