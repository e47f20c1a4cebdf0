"""The wheel, installed by pip in new environments of every CPython of this machine, and on a machine that has nothing but Debian's base
system. Not among the default tests: `cargo xtask test packages`.
"""

import os
import re
import subprocess
import sys

import pytest

import built_packages
import nereid_server
from clean_root import GLIBC, clean_root
from python_interpreters import NEWEST, environment_of_debian, interpreters

PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
IN_PROCESS = """
import sys, numpy, nereid

with nereid.Server(sys.argv[1], model_control_mode="explicit", load_model="digits") as server:
    image = numpy.full((1, 1, 8, 8), 0.5, dtype=numpy.float32)
    print(round(float(server.model("digits").infer({"image": image})["probabilities"].numpy().sum()), 3))
"""


def environment_with(folder, python, requirement):
    """A new environment of an interpreter with the wheel, and its own interpreter."""
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([folder / "bin" / "python", *PIP, requirement], check=True)
    return folder / "bin" / "python"


def environ(**others):
    """This process's environment variables, without those that name an environment of Python."""
    return {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")} | others


@pytest.mark.parametrize("minor", sorted(interpreters()))
def test_wheel_serves_in_every_cpython(minor, tmp_path):
    wheel = built_packages.package("nereid_server-*.whl")
    python = environment_with(tmp_path / "environment", interpreters()[minor], wheel)
    built_packages.write_models(tmp_path / "models", python=True)
    with nereid_server.running(tmp_path / "models", env=environ(), program=python.parent / "nereid") as server:
        built_packages.check_models(server, python=True)
        assert f"'double' runs with the active virtual environment {tmp_path / 'environment'}" in server.log
    versions = [
        subprocess.run([*command, "--version"], env=environ(), capture_output=True, text=True, check=True).stdout
        for command in ([python, "-m", "nereid_server"], [python.parent / "nereid"])
    ]
    assert versions[0] and versions[0] == versions[1]
    within = subprocess.run([python, "-c", IN_PROCESS, tmp_path / "models"], env=environ(), capture_output=True, text=True)
    assert within.stdout == "1.0\n", within.stderr


def test_wheel_serves_in_the_newest_cpython_of_debian(tmp_path):
    # It has no pip: another one unpacks the wheel.
    unpacked = tmp_path / "unpacked"
    subprocess.run(
        [sys.executable, *PIP, "--no-deps", "--target", unpacked, built_packages.package("nereid_server-*.whl")], check=True
    )
    python = environment_of_debian(NEWEST) / "bin" / "python3"
    variables = environ(PYTHONPATH=str(unpacked))
    built_packages.write_models(tmp_path / "models", python=True)
    program = tmp_path / "command"
    program.write_text(f'#!/bin/sh\nexec {python} -m nereid_server "$@"\n')
    program.chmod(0o755)
    with nereid_server.running(tmp_path / "models", env=variables, program=program) as server:
        built_packages.check_models(server, python=True)
    within = subprocess.run([python, "-c", IN_PROCESS, tmp_path / "models"], env=variables, capture_output=True, text=True)
    assert within.stdout == "1.0\n", within.stderr


@pytest.mark.parametrize(
    ("extra", "settings", "found"),
    [("onnxruntime", "onnxruntime,engine=ort", "ONNX Runtime"), ("openvino", "openvino", "OpenVINO")],
)
def test_extras_bring_frameworks_that_the_server_finds(extra, settings, found, tmp_path):
    wheel = built_packages.package("nereid_server-*.whl")
    python = environment_with(tmp_path / "environment", sys.executable, f"nereid-server[{extra}] @ {wheel.as_uri()}")
    built_packages.write_models(tmp_path / "models")
    config = tmp_path / "models" / "digits" / "config.pbtxt"
    if extra == "openvino":
        model = 'backend: "openvino"\ndefault_model_filename: "model.onnx"'
        config.write_text(config.read_text().replace('backend: "onnxruntime"', model))
    flags = [f"--backend-config={settings}"] if "=" in settings else []
    with nereid_server.running(tmp_path / "models", *flags, env=environ(), program=python.parent / "nereid") as server:
        built_packages.check_models(server)
        assert re.search(rf"{found} \d", server.log), server.log
        assert str(tmp_path / "environment") in server.log


def test_minimal_wheel_leaves_onnx_models_to_onnx_runtime(tmp_path):
    wheel = built_packages.package("nereid_server_minimal-*.whl")
    assert wheel.stat().st_size < built_packages.package("nereid_server-*.whl").stat().st_size
    python = environment_with(tmp_path / "environment", sys.executable, wheel)
    built_packages.write_models(tmp_path / "models", python=True)
    command = python.parent / "nereid"
    lenient = "--exit-on-error=false"
    with nereid_server.running(tmp_path / "models", lenient, ready=False, env=environ(), program=command) as server:
        built_packages.check_models(server, python=True, onnx=False)
        assert "this server is built without the embedded engine" in server.log
    subprocess.run([python, *PIP, f"nereid-server-minimal[onnxruntime] @ {wheel.as_uri()}"], check=True)
    found = "--backend-config=onnxruntime,engine=ort"
    with nereid_server.running(tmp_path / "models", found, env=environ(), program=command) as server:
        built_packages.check_models(server, python=True)
    within = subprocess.run([python, "-c", IN_PROCESS, tmp_path / "models"], env=environ(), capture_output=True, text=True)
    assert within.stdout == "1.0\n", within.stderr


def test_tag_is_what_the_symbols_need(tmp_path):
    wheel = built_packages.package("nereid_server-*.whl")
    python = environment_with(tmp_path / "auditwheel", sys.executable, "auditwheel==6.8.2")
    shown = subprocess.run([python, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True).stdout
    needed = re.search(r'consistent with\s+the following platform tag:\s+"(manylinux_2_\d+)_', shown.replace("\n", " "))
    assert needed and needed[1] in wheel.name, shown


@pytest.mark.parametrize("release", ["bullseye", "trixie"])
def test_wheel_serves_where_nothing_but_python_is_installed(release, tmp_path):
    wheel = built_packages.package("nereid_server-*.whl")
    tag = re.search(r"manylinux_2_(\d+)_", wheel.name)
    assert tag, wheel
    with clean_root(tmp_path, release, "python3-venv") as root:
        inside = root.copy(wheel, "srv")
        built_packages.write_models(root.folder / "models", python=True)
        root.run("python3", "-m", "venv", "/opt/environment")
        if int(tag[1]) > GLIBC[release]:
            # Only wheels for an older glibc are installed there (`cargo xtask package wheel --glibc`).
            assert "is not a supported wheel" in root.run("/opt/environment/bin/python", *PIP, inside, check=False)
            return
        root.run("/opt/environment/bin/python", *PIP, inside)
        program = root.program("/opt/environment/bin/nereid", folder=tmp_path)
        with nereid_server.running("/models", program=program) as server:
            built_packages.check_models(server, python=True)
