"""Applications with a server inside: programs in C on `libtritonserver.so`, ours and NVIDIA's.

`life_cycle.c` calls all functions for applications; what it records of each is the same with both libraries. The
functions that backends call, too, are in `test_backend_interface.py`.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

import debian_packages
import native_backends
import nereid_server
import python_backend

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "applications"
HEADERS = ROOT / "crates" / "programs" / "libtritonserver" / "include"
LIBRARY = Path(nereid_server.binary()).parent / "libtritonserver.so"
_TENSORS = """max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }"""
_DELAYED = f"""{_TENSORS}
dynamic_batching {{
  preferred_batch_size: 4 max_queue_delay_microseconds: 500000 priority_levels: 10 default_priority_level: 4
}}"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    assert LIBRARY.exists(), f"{LIBRARY} is missing: cargo build -p nereid-libtritonserver"
    program = tmp_path_factory.mktemp("program") / "life_cycle"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread", f"-I{HEADERS}"]
    link = [f"-L{LIBRARY.parent}", "-ltritonserver"]
    subprocess.run(["cc", *flags, SOURCES / "life_cycle.c", "-o", program, *link], check=True)
    return program


@pytest.fixture
def folders(tmp_path):
    """A repository, with others beside it, and the folder of backends."""
    models, backends = tmp_path / "models", tmp_path / "backends"
    native_backends.compile_c(backends, "echo")
    native_backends.write_model(models, "echo", "echo", _TENSORS)
    native_backends.write_model(models, "slow", "echo", _DELAYED)
    native_backends.write_model(tmp_path / "other", "kept", "echo", _TENSORS)
    native_backends.write_model(tmp_path / "broken", "wrong", "none")
    return models, backends


def run(program, folders, *arguments, libraries=(LIBRARY.parent,), under=(), env=None):
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, libraries))} | (env or {})
    command = [*under, program, *folders, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def records(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.splitlines()


def nvidia_libraries(folder):
    """NVIDIA's library, under the name that programs depend on, and what it needs."""
    python_backend.prepare()
    (library,) = (python_backend.HOME / "server" / "lib").glob("libtritonserver-*.so")
    folder.mkdir()
    (folder / "libtritonserver.so").symlink_to(library)
    return [folder, library.parent, python_backend.HOME / "libraries"]


def test_every_function_answers_as_nvidias_library_does(program, folders, tmp_path):
    ours = records(run(program, folders))
    theirs = records(run(program, folders, libraries=nvidia_libraries(tmp_path / "nvidia")))
    assert ours == theirs
    assert len(ours) > 190 and sum(line.endswith("as sent") for line in ours) == 11


def test_misuse_is_an_error_and_the_log_can_be_heard(program, folders):
    assert records(run(program, folders, "own")) == (SOURCES / "life_cycle.own.txt").read_text().splitlines()


def test_no_memory_is_misused_or_lost(program, folders):
    memcheck, environment = debian_packages.valgrind()
    options = ["--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite"]
    under = [memcheck, *options, "--errors-for-leak-kinds=definite"]
    done = run(program, folders, "own", under=under, env=environment)
    assert records(done) == (SOURCES / "life_cycle.own.txt").read_text().splitlines()


def test_nothing_grows_with_the_servers_that_come_and_go(program, folders):
    (line,) = (line for line in records(run(program, folders, "400")) if line.startswith("growth"))
    kib, descriptors, threads = map(int, re.findall(r"-?\d+", line))
    # Of 300 servers. Threads of the last ones may still be ending, and the heap has some slack.
    assert kib < 1500 and descriptors < 20 and threads < 10, line


def test_the_library_exports_the_interface_under_its_name():
    names = subprocess.run(["readelf", "--dynamic", LIBRARY], check=True, capture_output=True, text=True).stdout
    assert "Library soname: [libtritonserver.so]" in names
    symbols = subprocess.run(["nm", "--dynamic", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
    exported = set(re.findall(r" [A-Z] (\S+)$", symbols, re.MULTILINE))
    own = set(re.findall(r" (NEREID_\w+)\(", (HEADERS / "nereid.h").read_text()))
    assert own and exported == table() | own


def table():
    """The functions that the document says there are."""
    return set(re.findall(r"^\| `(TRITON\w+)` \|", (ROOT / "docs" / "c-abi.md").read_text(), re.MULTILINE))


def test_programs_in_c_call_every_function(program, tmp_path):
    tests = SOURCES.parent
    sources = [*(tests / "backends").glob("*.c"), *(tests / "agents").glob("*.c"), ROOT / "crates/triton/triton-host/tests/cache.c"]
    called = set()
    for source in sources:
        object_file = tmp_path / f"{source.stem}.o"
        subprocess.run(["cc", "-std=gnu11", "-fPIC", "-c", source, "-o", object_file], check=True)
        called |= undefined(object_file)
    assert table() - called - undefined(program) == set()


def undefined(path):
    """The functions of the interface that a file calls."""
    symbols = subprocess.run(["nm", "--undefined-only", path], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r" U (TRITON\w+)", symbols))
