"""`nereid infer`: requests from a terminal, to this server and to others."""

import json
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

import language_models
import nereid_server
from access_policies import Policy
from certificates import Authority
from model_files import write_identity
from places import EXAMPLES
from plain_server import plain_server

LIMIT_S = 60
# Whatever the values of a test are, JSON has them.
ALL_TYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16"]


def command(*arguments):
    return [nereid_server.binary(), "infer", *map(str, arguments)]


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEREID_")} | variables
    return subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def infer(*arguments, **variables):
    """What a request that succeeds prints."""
    done = run(*arguments, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def outputs(*arguments, **variables):
    """The outputs of a request that succeeds, by name."""
    answer = json.loads(infer(*arguments, "--json", **variables))
    return {output["name"]: output for output in answer["outputs"]}


def refusal(*arguments, **variables):
    """The only line that a request prints that fails."""
    done = run(*arguments, **variables)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    return done.stderr.rstrip("\n").removeprefix("nereid infer: ")


def write_png(path, pixels):
    """Writes a gray image."""
    height, width = pixels.shape

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@pytest.fixture(scope="module")
def digits():
    """Images of digits with levels from 0 to 16, and which they are."""
    rows = np.loadtxt(EXAMPLES / "images" / "held_out.csv", delimiter=",")
    return rows


@pytest.fixture(scope="module")
def plain():
    with plain_server() as server:
        yield server


def test_an_image_is_classified(examples, tmp_path):
    pgm = (EXAMPLES / "images" / "digit_7.pgm").read_text().split()
    pixels = np.array(pgm[4:], dtype=float).reshape(8, 8) * (255 / float(pgm[3]))
    write_png(tmp_path / "seven.png", pixels)
    # Larger images are resized.
    write_png(tmp_path / "large.png", np.kron(pixels, np.ones((9, 9))))
    for file in ("seven.png", "large.png"):
        printed = infer(examples.url, "digits", f"image=@{tmp_path}/{file}", "--scale=unit")
        first, best, *_ = printed.splitlines()
        assert first == "probabilities  FP32 [1, 10]"
        assert best.split()[0] == "7" and best.rstrip().endswith("█"), printed
    top = infer(examples.url, "digits", f"image=@{tmp_path}/seven.png", "--classes=3").splitlines()
    assert len(top) == 4 and top[1].split()[:2] == ["7", "seven"], top


def test_values_of_each_type_come_back(repository, serve, tmp_path):
    write_identity(repository, "all", ALL_TYPES)
    server = serve()
    names = [f"INPUT{index}" for index in range(len(ALL_TYPES))]
    arguments = [f"{name}={'[true,false]' if datatype == 'BOOL' else '[1,2]'}" for name, datatype in zip(names, ALL_TYPES)]
    found = outputs(server.url, "all", *arguments)
    for index, datatype in enumerate(ALL_TYPES):
        output = found[f"OUTPUT{index}"]
        assert (output["datatype"], output["shape"]) == (datatype, [2])
        assert output["data"] == ([True, False] if datatype == "BOOL" else [1, 2]), output


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u4", "i8"])
def test_arrays_of_numpy_become_the_type_of_the_input(repository, serve, tmp_path, dtype):
    write_identity(repository, "halves", ["FP32"], dims=(2, 3))
    server = serve()
    values = np.arange(6).reshape(2, 3).astype(dtype)
    for name, array in {"c": values, "fortran": np.asfortranarray(values), "flat": values.reshape(-1)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        found = outputs(server.url, "halves", f"INPUT0=@{tmp_path}/{name}.npy")["OUTPUT0"]
        assert found["data"] == [0, 1, 2, 3, 4, 5] and found["shape"] == [2, 3], name


def test_texts_and_files_are_byte_strings(repository, serve, tmp_path):
    write_identity(repository, "texts", ["BYTES"])
    server = serve()
    (tmp_path / "raw.bin").write_bytes(b"\xff\x00")
    (tmp_path / "some.txt").write_text("zwölf\nlines\n")
    np.save(tmp_path / "texts.npy", np.array(["a", "bü"]))
    for value, expected in [
        ("hello world", ["hello world"]),
        ('["a","b"]', ["a", "b"]),
        (f"@{tmp_path}/some.txt", ["zwölf\nlines\n"]),
        (f"@{tmp_path}/raw.bin", [[255, 0]]),
        (f"@{tmp_path}/texts.npy", ["a", "bü"]),
    ]:
        assert outputs(server.url, "texts", f"INPUT0={value}")["OUTPUT0"]["data"] == expected, value
    # What a terminal would obey is shown as numbers.
    assert infer(server.url, "texts", "INPUT0=\x1b[2Ja\nb") == "OUTPUT0  BYTES [1]\n<U+001B>[2Ja\nb\n"


def test_a_server_without_extensions_answers(plain):
    printed = infer(plain.url, "echo", "x=[[1,2],[3,4.5]]")
    assert printed == "y  FP32 [2, 2]\n0  1    2\n1  3  4.5\n"
    assert plain.requests[-1] == {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 4.5]}]}
    infer(f"http://{plain.url}/", "echo", "x=1,2", "--output=y", "--parameter=priority=3")
    assert plain.requests[-1]["parameters"] == {"priority": 3} and plain.requests[-1]["outputs"] == [{"name": "y"}]
    assert refusal(plain.url, "echo", "x=nan,1").startswith("input 'x': has values that JSON cannot hold")
    assert refusal(plain.url, "echo", "x=1,2", "--stream") == f"http://{plain.url}: not found (status 404)"


def test_hostile_names_stay_text(plain):
    plain.output_name = "\x1b]0;owned\x07\u202ey"
    try:
        printed = infer(plain.url, "echo", "x=1,2")
    finally:
        plain.output_name = "y"
    assert printed.startswith("<U+001B>]0;owned<U+0007><U+202E>y  FP32 [1, 2]\n"), printed


def test_tokens_are_printed_as_they_come(repository, serve):
    folder = repository / "talker" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(language_models.CONFIG)
    (folder / "model.py").write_text(language_models.MODEL)
    server = serve(f"--backend-config=python,python={sys.executable}")
    whole = infer(server.url, "talker", "text_input=count 3", "stream=true", 'sampling_parameters={"max_tokens":9}')
    assert whole == "1 2 3 \n"
    endless = command(server.url, "talker", "text_input=endless", 'sampling_parameters={"max_tokens":9}')
    with subprocess.Popen(endless, stdout=subprocess.PIPE) as process:
        # They can only be read now if they are printed before the end, which never comes.
        assert process.stdout and process.stdout.read(15) == b"tick tick tick "
        process.kill()
    assert "the model is broken" in refusal(server.url, "talker", "text_input=fail", 'sampling_parameters={"max_tokens":9}')


def test_what_is_wrong_is_said(examples, plain, tmp_path):
    for arguments, expected in [
        (["digits"], "input 'image' is missing: give image=value or image=@file; model 'digits' takes image (FP32 [?, 1, 8, 8])"),
        (["digits", "picture=1"], "model 'digits' has no input 'picture' (available: image (FP32 [?, 1, 8, 8]))"),
        (["digits", "image=[1,2]"], "input 'image': values of shape [2] do not fit FP32 [?, 1, 8, 8]"),
        (["digits", f"image=@{tmp_path}/none.png"], f"cannot read '{tmp_path}/none.png': No such file or directory"),
        (["digit", "image=1"], f"http://{examples.url}: Request for unknown model: 'digit' is not found (status 404)"),
        (["digits", "image=1", "--model-version=9"], f"http://{examples.url}: "),
    ]:
        assert refusal(examples.url, *arguments).startswith(expected), arguments
    assert refusal("127.0.0.1:1", "digits").startswith("http://127.0.0.1:1: no answer: ")
    assert run("ftp://h", "digits").stderr.startswith("nereid infer: the address is 'ftp://h', but must begin with")


def test_keys_and_certificates_are_sent(repository, tmp_path, serve):
    write_identity(repository, "vision-1", ["FP32"])
    authority, clients = Authority(tmp_path, "servers"), Authority(tmp_path, "clients")
    identity, client = authority.sign("server"), clients.sign("client")
    policy = Policy(tmp_path / "access", {"vision": [(["read", "infer"], ["vision-*"])], "none": [(["read"], ["x"])]})
    files = [f"--http-server-cert={identity.certificate}", f"--http-server-key={identity.key}"]
    mutual = ["--http-use-ssl-mutual=true", f"--http-root-cert={clients.certificate}"]
    server = serve(policy.option, *mutual, *files, ready=False)
    request = [f"https://127.0.0.1:{server.port}", "vision-1", "INPUT0=[3]"]
    trusted = [f"--ca={authority.certificate}"]
    presented = [*trusted, f"--client-cert={client.certificate}", f"--client-key={client.key}"]
    assert outputs(*request, *presented, NEREID_API_KEY=policy.keys["vision"])["OUTPUT0"]["data"] == [3]
    for arguments, key in [([], "vision"), (trusted, "vision"), (presented, "none")]:
        line = refusal(*request, *arguments, NEREID_API_KEY=policy.keys[key])
        assert policy.keys[key] not in line, line
