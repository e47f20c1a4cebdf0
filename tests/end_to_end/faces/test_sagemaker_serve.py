"""The script that SageMaker runs in a container: which options it makes of the variables, and that the server takes them."""

import json
import os
import re
import subprocess
from http.client import HTTPConnection
from pathlib import Path

import pytest

import nereid_server
from http_requests import tensor
from model_files import write_identity
from waiting import eventually

SERVE = Path(__file__).resolve().parents[3] / "deploy" / "sagemaker" / "serve"


def environment(models, variables):
    """The variables of a container with these models."""
    return {**os.environ, "SAGEMAKER_TRITON_MODEL_FOLDER": str(models), **variables}


def options(models, **variables):
    """The options that the script starts the server with."""
    env = environment(models, {"NEREID": "echo", "TMPDIR": str(models.parent), **variables})
    result = subprocess.run([SERVE], env=env, capture_output=True, text=True, timeout=60, check=True)
    return result.stdout.split()


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, ["--load-model=one", "--allow-http=false", "--allow-grpc=false", "--model-namespacing=true"]),
        ({"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "one"}, ["--load-model=one", "--model-control-mode=explicit"]),
        ({"SAGEMAKER_BIND_TO_PORT": "9"}, ["--sagemaker-port=9"]),
        ({"SAGEMAKER_SAFE_PORT_RANGE": "1-9"}, ["--sagemaker-safe-port-range=1-9"]),
        ({"SAGEMAKER_TRITON_ALLOW_GRPC": "true"}, ["--allow-grpc=true"]),
        ({"SAGEMAKER_TRITON_GRPC_PORT": "7"}, ["--allow-grpc=false", "--grpc-port=7"]),
        ({"SAGEMAKER_TRITON_ALLOW_METRICS": "1", "SAGEMAKER_TRITON_METRICS_PORT": "6"}, ["--metrics-port=6"]),
        ({"SAGEMAKER_TRITON_LOG_VERBOSE": "0"}, ["--log-verbose=0"]),
        ({"SAGEMAKER_TRITON_LOG_INFO": "false"}, ["--log-info=false", "--log-verbose=true"]),
        ({"SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE": "5"}, ["--backend-config=python,shm-growth-byte-size=5"]),
        ({"SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING": "false"}, ["--model-namespacing=false"]),
        ({"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--id=a  --exit-on-error=0"}, ["--id=a", "--exit-on-error=0"]),
    ],
)
def test_variables_become_options(repository, variables, expected):
    write_identity(repository, "one", ["INT32"])
    given = options(repository, **variables)
    assert set(expected) <= set(given), given


def test_an_endpoint_of_many_models_starts_without_any(repository):
    given = options(repository, SAGEMAKER_MULTI_MODEL="true")
    assert f"--model-repository={repository.parent}/sagemaker" in given
    assert not [option for option in given if option.startswith("--load-model")]


@pytest.mark.parametrize(
    "names, variables, words",
    [
        ([], {}, "has 0 models"),
        (["a", "b"], {}, "has 2 models"),
        (["a"], {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "c"}, "has no model 'c'"),
    ],
)
def test_unusable_settings_are_refused(repository, names, variables, words):
    for name in names:
        write_identity(repository, name, ["INT32"])
    env = environment(repository, {"NEREID": "echo", **variables})
    result = subprocess.run([SERVE], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1 and words in result.stderr, result


def test_the_server_takes_the_options(repository):
    write_identity(repository, "one", ["INT32"])
    variables = {"NEREID": nereid_server.binary(), "SAGEMAKER_BIND_TO_PORT": "0"}
    process = subprocess.Popen(
        [SERVE],
        env=environment(repository, variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    try:
        started = (re.search(r"Started Sagemaker HTTPService at 0\.0\.0\.0:(\d+)", line) for line in process.stdout)
        port = next(filter(None, started)).group(1)
        body = json.dumps({"inputs": [tensor("INPUT0", "INT32", [2], [1, 2])]})

        def answer(method, path, body=None):
            connection = HTTPConnection("127.0.0.1", int(port), timeout=30)
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()

        assert eventually(lambda: answer("GET", "/ping")[0] == 200)
        status, content = answer("POST", "/invocations", body)
        assert (status, json.loads(content)["outputs"][0]["data"]) == (200, [1, 2])
    finally:
        process.terminate()
        process.communicate(timeout=nereid_server.STOP_LIMIT_S)
    assert process.returncode == 0
