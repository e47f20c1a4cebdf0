"""Backends as shared libraries: the C ones of `tests/backends` are compiled here, those in Rust were built with the server.

Knows how they are built and laid out for `--backend-directory`. Knows nothing of what they do.
"""

import os
import shutil
import subprocess
from pathlib import Path

import nereid_server

SOURCES = Path(__file__).resolve().parents[2] / "backends"


def compile_c(folder, name, *more):
    """Compiles `tests/backends/<name>.c` into the folder of backends, as warnings-free as it should be; with more flags."""
    library = _place(folder, name)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC", "-pthread", *more]
    subprocess.run(["cc", *flags, SOURCES / f"{name}.c", "-o", library], check=True)
    return library


def compile_cpp(folder, name):
    """The same for `tests/backends/<name>.cc`, in C++."""
    library = _place(folder, name)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["c++", *flags, SOURCES / f"{name}.cc", "-o", library], check=True)
    return library


def rust_library(name):
    """The library of a backend in Rust: beside the server's binary, or where NEREID_BACKENDS says."""
    folder = Path(os.environ.get("NEREID_BACKENDS") or Path(nereid_server.binary()).parent)
    library = folder / f"libtriton_{name}.so"
    assert library.exists(), f"{library} is missing: cargo build -p {name}-backend"
    return library


def copy_rust(folder, name):
    """Copies the library of a backend in Rust into the folder of backends."""
    return shutil.copy(rust_library(name), _place(folder, name))


def write_model(repository, name, backend, body=""):
    """Writes a model of one version that has no file."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "{backend}"\n{body}\n')


def parameter(name, value):
    """A parameter of a configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


def _place(folder, name):
    (folder / name).mkdir(parents=True, exist_ok=True)
    return folder / name / f"libtriton_{name}.so"
