"""Models in Python on the CPythons of Debian's releases: load, infer, reload, unload, and the end of the processes. Not among the
default tests: `cargo xtask test versions`.
"""

import os

import pytest
from test_python_interpreters import CONFIG, MODEL, assert_answers

import nereid_server
import processes
from http_requests import request
from python_interpreters import NUMPY_1, OF_DEBIAN, environment_of_debian, numpy_for
from waiting import eventually


@pytest.mark.parametrize("minor", OF_DEBIAN)
def test_models_are_served_reloaded_and_unloaded_on_a_cpython(repository, minor):
    file = repository / "model/1/model.py"
    file.parent.mkdir(parents=True)
    file.write_text(MODEL)
    (repository / "model/config.pbtxt").write_text(CONFIG % environment_of_debian(minor))
    numpy_begins = b"1." if numpy_for(minor) == NUMPY_1 else b"2."
    with nereid_server.running(repository, "--model-control-mode=explicit", "--load-model=model") as server:

        def answer_to(action):
            return request(server, "POST", f"/v2/repository/models/model/{action}").status

        assert_answers(server, "model", minor, numpy_begins)
        os.utime(file)
        assert answer_to("load") == 200
        assert_answers(server, "model", minor, numpy_begins)
        file.write_text("class TritonPythonModel(:\n")
        assert answer_to("load") == 400
        assert_answers(server, "model", minor, numpy_begins)
        assert answer_to("unload") == 200
        assert eventually(lambda: processes.tree(server.pid) == [server.pid]), processes.tree(server.pid)
        file.write_text(MODEL)
        assert answer_to("load") == 200
        assert_answers(server, "model", minor, numpy_begins)
        processes.stop_all_of(server)
