"""A repository agent in Rust, built with `triton-repoagent`, in Nereid and in NVIDIA's server: it decrypts models."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from test_repository_agents import Agents, model, nereid, nvidia

import nereid_server
from waiting import eventually

MIB = 1 << 20


def built(name, how):
    """What was built beside the server."""
    folder = Path(os.environ.get("NEREID_BACKENDS") or Path(nereid_server.binary()).parent)
    file = folder / name
    assert file.exists(), f"{file} is missing: cargo build -p sealed-agent {how}"
    return file


@pytest.fixture
def agents(tmp_path):
    """The agent `sealed`, and one that records where models are."""
    agents = Agents(tmp_path, ["one"])
    (agents.folder / "sealed").mkdir()
    shutil.copy(built("libtritonrepoagent_sealed.so", ""), agents.folder / "sealed")
    return agents


def sealed(repository, key, name, files):
    """A model whose files are encrypted."""
    folder = model(repository, name, ("sealed", {"key_file": str(key)}), ("one", {}))
    for path, contents in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(contents)
        subprocess.run([built("examples/seal", "--examples"), key, folder, path], check=True)
        (folder / path).unlink()
    return folder


@pytest.mark.parametrize("server", [nereid, nvidia])
def test_models_are_decrypted_while_they_are_loaded(tmp_path, repository, agents, server):
    numbers = random.Random(7)
    sizes = [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 17]
    files = {f"1/deep/{size}.bin": numbers.randbytes(size) for size in sizes}
    folder = sealed(repository, tmp_path / "key", "secret", files)
    assert not any((folder / path).exists() for path in files)
    with server(repository, agents.flags) as control:
        assert control.load("secret")[0] == 200
        [line] = [line for line in agents.lines() if " LOAD at " in line]
        place = Path(line.split(" LOAD at ")[1])
        assert place != folder
        for path, contents in files.items():
            assert (place / path).read_bytes() == contents, path
        # What is not encrypted comes along.
        assert (place / "1" / "model.txt").read_text() == "secret"
        assert control.unload("secret")[0] == 200
        assert eventually(lambda: not place.exists())


def flip(contents, at):
    return contents[:at] + bytes([contents[at] ^ 1]) + contents[at + 1 :]


DAMAGES = {
    "another byte": lambda a, b: (flip(a, len(a) // 2), b),
    "another beginning": lambda a, b: (flip(a, 0), b),
    "cut": lambda a, b: (a[:-1], b),
    "cut between pieces": lambda a, b: (a[: 7 + MIB + 16], b),
    "pieces exchanged": lambda a, b: (
        a[:7] + a[7 + MIB + 16 : 7 + 2 * (MIB + 16)] + a[7 : 7 + MIB + 16] + a[7 + 2 * (MIB + 16) :],
        b,
    ),
    "files exchanged": lambda a, b: (b, a),
    "empty": lambda a, b: (b"", b),
}


def test_changed_files_are_refused(tmp_path, repository, agents):
    numbers = random.Random(8)
    key = tmp_path / "key"
    for name in [*DAMAGES, "right"]:
        folder = sealed(repository, key, name, {f"1/{file}": numbers.randbytes(2 * MIB + 5) for file in "ab"})
        first, second = (folder / "1" / f"{file}.sealed" for file in "ab")
        if name in DAMAGES:
            for file, contents in zip((first, second), DAMAGES[name](first.read_bytes(), second.read_bytes())):
                file.write_bytes(contents)
    with nereid(repository, agents.flags) as control:
        for name in DAMAGES:
            status, answer = control.load(name.replace(" ", "%20"))
            assert status == 500 and "repository agent 'sealed': cannot decrypt '1/" in answer, (name, answer)
        key_bytes = key.read_bytes()
        for wrong, words in [(b"x" * 32, "cannot decrypt"), (b"short", "the key has 5 bytes"), (b"", "the key has 0 bytes")]:
            key.write_bytes(wrong)
            status, answer = control.load("right")
            assert status == 500 and words in answer
        key.write_bytes(key_bytes)
        assert control.load("right")[0] == 200
