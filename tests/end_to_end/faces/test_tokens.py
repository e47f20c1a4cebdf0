"""JSON Web Tokens as a common library issues them, over HTTP and gRPC, with keys in a file and at a URL."""

import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import jwt
import numpy as np
import pytest
import tritonclient.grpc
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

import nereid_server
from http_requests import infer, request, tensor
from model_files import write_identity
from waiting import eventually

ISSUER = "https://login.example.com/"
POLICY = """
[tokens.company]
issuer = "https://login.example.com/"
audience = ["nereid"]
keys = "{keys}"

[tokens.company.scopes]
"models.run" = ["run"]

[roles.run]
rights = ["infer", "read"]
models = ["team-*"]

[roles.watch]
rights = ["read"]
models = ["*"]

[principals.ann]
roles = ["watch"]
subjects = ["company/auth0|ann"]
"""
KEYS = {
    "rsa": (rsa.generate_private_key(65537, 2048), RSAAlgorithm),
    "p256": (ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "p384": (ec.generate_private_key(ec.SECP384R1()), ECAlgorithm),
    "ed": (ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
}
ALGORITHMS = [
    *((name, "rsa") for name in "RS256 RS384 RS512 PS256 PS384 PS512".split()),
    ("ES256", "p256"),
    ("ES384", "p384"),
    ("EdDSA", "ed"),
]
RUN = {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}


def key_set(*names):
    """The public keys of these names."""
    keys = [
        json.loads(algorithm.to_jwk(key.public_key())) | {"kid": name} for name, (key, algorithm) in KEYS.items() if name in names
    ]
    return json.dumps({"keys": keys})


def token(algorithm="ES256", key="p256", **changes):
    """A header with a token; `None` leaves out a claim."""
    claims = {
        "iss": ISSUER,
        "aud": "nereid",
        "sub": "auth0|bob",
        "exp": int(time.time()) + 300,
        "scope": "openid models.run",
    } | changes
    claims = {name: value for name, value in claims.items() if value is not None}
    return {"authorization": f"Bearer {jwt.encode(claims, KEYS[key][0], algorithm, headers={'kid': key})}"}


class Login:
    """What an issuer publishes, and its address."""

    def __init__(self):
        self.keys: str | None = None
        self.address = ""


@pytest.fixture
def login():
    """A server of keys."""
    published = Login()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if published.keys else 503)
            self.end_headers()
            self.wfile.write((published.keys or "").encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        published.address = f"http://127.0.0.1:{server.server_address[1]}/keys"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield published
        server.shutdown()


@pytest.fixture
def served(repository, tmp_path):
    """Starts a server whose issuer has its keys at this place."""
    for name in ["team-a", "other"]:
        write_identity(repository, name, ["FP32"])

    def start(keys, folder=tmp_path):
        (folder / "access.toml").write_text(POLICY.format(keys=keys))
        return nereid_server.running(repository, f"--access={folder / 'access.toml'}", "--log-requests=true")

    return start


def test_tokens_of_every_algorithm_are_taken(served, tmp_path):
    (tmp_path / "keys.json").write_text(key_set(*KEYS))
    with served("keys.json") as server, tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        values = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
        values.set_data_from_numpy(np.ones(1, np.float32))
        for algorithm, key in ALGORITHMS:
            headers = token(algorithm, key)
            assert infer(server, "team-a", RUN, headers).status == 200, algorithm
            assert client.infer("team-a", [values], headers=headers).as_numpy("OUTPUT0") == [1]
        assert "company/auth0|bob" in server.log


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({}, (200, 403, 403)),
        ({"scope": "openid"}, (403, 403, 403)),
        ({"sub": "auth0|ann"}, (200, 403, 200)),
        ({"sub": "ann"}, (200, 403, 403)),
        ({"aud": ["x", "nereid"]}, (200, 403, 403)),
        ({"exp": int(time.time()) - 120}, (401, 401, 401)),
        ({"nbf": int(time.time()) + 3600}, (401, 401, 401)),
        ({"iss": "https://login.example.org/"}, (401, 401, 401)),
        ({"aud": "elsewhere"}, (401, 401, 401)),
        ({"aud": None}, (401, 401, 401)),
        ({"key": "ed", "algorithm": "EdDSA"}, (401, 401, 401)),
    ],
)
def test_claims_decide(served, tmp_path, changes, statuses):
    (tmp_path / "keys.json").write_text(key_set("p256", "rsa"))
    with served("keys.json") as server:
        headers = token(**changes)
        found = [infer(server, model, RUN, headers).status for model in ["team-a", "other"]]
        assert (*found, request(server, "GET", "/v2/models/other", headers=headers).status) == statuses
        # Probes go on whatever they send.
        assert request(server, "GET", "/v2/health/ready", headers=headers).status == 200


def test_keys_in_a_file_are_followed(served, tmp_path):
    file = tmp_path / "keys.json"
    file.write_text(key_set("p256"))
    with served("keys.json") as server:
        assert infer(server, "team-a", RUN, token()).status == 200
        file.write_text(key_set("rsa"))
        assert eventually(lambda: infer(server, "team-a", RUN, token()).status == 401)
        assert infer(server, "team-a", RUN, token("RS256", "rsa")).status == 200
        file.write_text("{broken")
        assert eventually(lambda: "keeping the previous one" in server.log)
        assert infer(server, "team-a", RUN, token("RS256", "rsa")).status == 200


# What a file of keys may become.
DAMAGES = {
    "cut": lambda file: file.write_text(file.read_text()[: len(file.read_text()) // 2]),
    "emptied": lambda file: file.write_text(""),
    "without keys": lambda file: file.write_text('{"keys": []}'),
    "removed": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


def damage_and_repair(server, file, *damages):
    """Damages a file of keys and writes it anew, while two clients send requests; their statuses."""
    good, known = file.read_text(), token()
    stop, statuses = threading.Event(), set()

    def load():
        number = 0
        while not stop.is_set():
            # Tokens that were seen before, and new ones.
            number += 1
            statuses.add(infer(server, "team-a", RUN, known if number % 2 else token(sub=f"auth0|{number}")).status)

    def logs(text):
        """A condition: the server logs a text once more."""
        before = server.log.count(text)
        return lambda: server.log.count(text) > before

    with ThreadPoolExecutor(2) as pool:
        loaders = [pool.submit(load) for _ in range(2)]
        try:
            for damage in damages:
                failed = logs("keeping the previous one")
                damage(file)
                assert eventually(failed)
                if file.is_dir():
                    file.rmdir()
                reloaded = logs("reloaded the access policy")
                file.write_text(good)
                assert eventually(reloaded)
        finally:
            stop.set()
    for loader in loaders:
        loader.result()
    return statuses


def test_no_request_fails_while_the_keys_in_a_file_are_damaged(served, tmp_path):
    """The last keys that could be read remain, whatever becomes of the file."""
    # Changed files are noticed after seconds, so each damage has a server of its own, and all happen at once.
    cases = {what: [damage] for what, damage in DAMAGES.items()} | {"two": [DAMAGES["cut"], DAMAGES["removed"]]}
    outcomes = {}
    with ExitStack() as running, ThreadPoolExecutor(len(cases)) as pool:
        for what, damages in cases.items():
            file = tmp_path / what / "keys.json"
            file.parent.mkdir()
            file.write_text(key_set("p256"))
            server = running.enter_context(served("keys.json", file.parent))
            outcomes[what] = pool.submit(damage_and_repair, server, file, *damages)
        assert {what: outcome.result() for what, outcome in outcomes.items()} == {what: {200} for what in cases}


def test_very_long_tokens_are_refused(served, tmp_path):
    (tmp_path / "keys.json").write_text(key_set("p256"))
    with served("keys.json") as server:
        for size in (10_000, 60_000, 1 << 20):
            signed = token(pad="x" * size)["authorization"]
            for text, refused in ((signed, size > 50_000), ("Bearer " + "x" * size, True), ("Bearer " + "a." * (size // 2), True)):
                try:
                    status = infer(server, "team-a", RUN, {"authorization": text}).status
                    assert status in (401, 431) if refused else status == 200, size
                except ConnectionError:
                    # A head beyond its limit is not read to its end.
                    assert size >= 1 << 20
            with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as caught:
                call = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
                call(b"", metadata=[("authorization", "Bearer " + "x" * size)], timeout=30)
            assert caught.value.code() != grpc.StatusCode.OK
        assert infer(server, "team-a", RUN, token()).status == 200


def test_keys_at_a_url_are_fetched_and_fetched_again_for_new_ones(served, login):
    with served(login.address) as server:
        assert eventually(lambda: "cannot fetch the keys of tokens" in server.log)
        answer = infer(server, "team-a", RUN, token())
        assert (answer.status, "keys of the token's issuer" in answer.json["error"]) == (401, True)
        login.keys = key_set("p256")
        assert eventually(lambda: infer(server, "team-a", RUN, token()).status == 200)
        login.keys = key_set("p256", "rsa")
        assert eventually(lambda: infer(server, "team-a", RUN, token("RS256", "rsa")).status == 200)


def test_rejected_tokens_are_refused_over_grpc(served, tmp_path):
    (tmp_path / "keys.json").write_text(key_set("p256"))
    with served("keys.json") as server, tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        for headers, code in [
            (token(exp=7), grpc.StatusCode.UNAUTHENTICATED),
            (token(scope=""), grpc.StatusCode.PERMISSION_DENIED),
        ]:
            with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
                client.get_model_metadata("team-a", headers=headers)
            assert caught.value.status() == str(code)


def test_policy_is_checked_with_the_keys_in_files(tmp_path):
    (tmp_path / "access.toml").write_text(POLICY.format(keys="keys.json"))

    def check():
        command = [nereid_server.binary(), "access", "check", str(tmp_path / "access.toml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    missing = check()
    assert missing.returncode == 1 and "cannot use the keys of tokens.company" in missing.stderr
    (tmp_path / "keys.json").write_text(key_set("ed"))
    sound = check()
    assert sound.returncode == 0 and "tokens.company of https://login.example.com/\n  models.run: run" in sound.stdout
