"""Every route and call with every right, by tokens, client certificates and the users of Unix sockets. Keys are in test_access_policy.py."""

import json
import os
import ssl
import time
from contextlib import contextmanager
from http.client import HTTPSConnection

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from access_faces import ALL_FACES, EXPLICIT, LIMIT_S, REFUSED, Faces, Http2Connection, faces_environment, is_granted, principals
from access_policies import RIGHTS, Policy, rows
from certificates import Authority
from model_files import write_identity
from unix_sockets import SocketConnection, serving, socket_folder
from waiting import eventually

FORBIDDEN = {403, grpc.StatusCode.PERMISSION_DENIED}
UNKNOWN = {401, grpc.StatusCode.UNAUTHENTICATED}


def check(faces, table, name, headers):
    """Sends every request of the table as this principal, whose name says which right it has, and where."""
    right, where = name.split("-")
    for row in table:
        status, text = faces.ask(row, headers)
        if is_granted(row, right, where == "everywhere"):
            assert status not in REFUSED, (row, name, status, text)
        else:
            assert status in FORBIDDEN, (row, name, status, text)
            assert "own" not in text.replace("unknown", ""), (row, text)


def check_stranger(faces, table, headers):
    """Sends every request of the table as a client whose credentials prove nothing."""
    for row in table:
        status, text = faces.ask(row, headers)
        # In a stream, a refusal is a message.
        expected = REFUSED if row.request.endswith("ModelStreamInfer") else UNKNOWN
        assert (status in expected) == (row.needs != "none"), (row, status, text)


def test_tokens_have_the_rights_of_their_scopes(tmp_path, repository, serve):
    write_identity(repository, "own", ["INT32"])
    key = ed25519.Ed25519PrivateKey.generate()
    published = json.loads(OKPAlgorithm.to_jwk(key.public_key())) | {"kid": "1"}
    policy = Policy(tmp_path / "access", principals())
    (tmp_path / "access" / "keys.json").write_text(json.dumps({"keys": [published]}))
    scopes = "\n".join(f"{name} = ['{name}-0']" for name in principals())
    issuer = "[tokens.x]\nissuer = 'https://login.x/'\naudience = ['nereid']\nkeys = 'keys.json'\n[tokens.x.scopes]\n"
    policy.file.write_text(f"{policy.file.read_text()}{issuer}{scopes}\n")
    server = serve(policy.option, *EXPLICIT, *ALL_FACES, env=faces_environment())

    def token(scope, **changes):
        claims = {"iss": "https://login.x/", "aud": "nereid", "sub": scope, "exp": int(time.time()) + 600, "scope": scope} | changes
        return {"Authorization": f"Bearer {jwt.encode(claims, key, 'EdDSA', headers={'kid': '1'})}"}

    faces, table = Faces(server), rows()
    for name in principals():
        check(faces, table, name, token(name))
    multiplexed = Faces(server, lambda face: Http2Connection(f"http://127.0.0.1:{faces.ports[face]}"))
    for name in principals():
        check(multiplexed, [row for row in table if row.face not in ("gRPC", "metrics")], name, token(name))
    multiplexed.close()
    for headers in (
        token("all-everywhere", exp=1),
        token("all-everywhere", iss="https://login.y/"),
        token("all-everywhere", aud="x"),
    ):
        check_stranger(faces, table, headers)
    faces.close()


def test_certificates_have_the_rights_of_their_principals(tmp_path, repository, serve):
    write_identity(repository, "own", ["INT32"])
    policy = Policy(tmp_path / "access", principals())
    text = policy.file.read_text()
    for name in principals():
        text = text.replace(f"[principals.{name}]\n", f"[principals.{name}]\ncertificates = ['client-{name}']\n")
    policy.file.write_text(text)
    authority = Authority(tmp_path, "all")
    own = authority.sign("server")
    flags = []
    for protocol in ("http", "grpc"):
        flags += [f"--{protocol}-use-ssl-mutual=true", f"--{protocol}-root-cert={authority.certificate}"]
        flags += [f"--{protocol}-server-cert={own.certificate}", f"--{protocol}-server-key={own.key}"]
    server = serve(policy.option, *EXPLICIT, *ALL_FACES, *flags, ready=False, env=faces_environment())
    ports = Faces(server).ports
    # Metrics have no TLS.
    table = [row for row in rows() if row.face != "metrics"]

    def faces_of(certificate, is_multiplexed=False):
        client = authority.sign(certificate, is_here=False)
        context = ssl.create_default_context(cafile=authority.certificate)
        context.load_cert_chain(client.certificate, client.key)
        credentials = grpc.ssl_channel_credentials(
            authority.certificate.read_bytes(), client.key.read_bytes(), client.certificate.read_bytes()
        )
        channel = grpc.secure_channel(f"localhost:{server.grpc_port}", credentials)
        if is_multiplexed:
            context.set_alpn_protocols(["h2"])
            return Faces(server, lambda face: Http2Connection(f"https://localhost:{ports[face]}", context), channel)
        return Faces(server, lambda face: HTTPSConnection("localhost", ports[face], timeout=LIMIT_S, context=context), channel)

    for name in principals():
        faces = faces_of(f"client-{name}")
        check(faces, table, name, {})
        faces.close()
    for name in principals():
        faces = faces_of(f"client-{name}", is_multiplexed=True)
        check(faces, [row for row in table if row.face != "gRPC"], name, {})
        faces.close()
    # Another name, and that of a principal, prove nothing.
    for certificate in ("stranger", "all-everywhere"):
        faces = faces_of(certificate)
        check_stranger(faces, table, {})
        faces.close()


def test_users_at_unix_sockets_have_the_rights_of_their_principals(tmp_path, repository):
    write_identity(repository, "own", ["INT32"])
    policy = Policy(tmp_path / "access", principals())
    text = policy.file.read_text()
    table = [row for row in rows() if row.face in ("HTTP", "OpenAI", "gRPC", "metrics")]

    def become(name, user):
        new = policy.file.with_suffix(".new")
        new.write_text(text.replace(f"[principals.{name}]\n", f"[principals.{name}]\nuids = [{user}]\n"))
        new.replace(policy.file)

    @contextmanager
    def served():
        """A server with the faces of its sockets, over HTTP/1.1 and HTTP/2."""
        with socket_folder() as folder:
            flags = [f"--{name}-address=unix:{folder / name}" for name in ("http", "grpc", "metrics")]
            with serving(repository, policy.option, *EXPLICIT, *flags) as server:
                channel = grpc.insecure_channel(f"unix:{folder / 'grpc'}")
                faces = Faces(server, lambda face: SocketConnection(folder / ("metrics" if face == "metrics" else "http")), channel)
                multiplexed = Faces(server, lambda face: Http2Connection("http://x", socket=folder / "http"), channel)
                yield server, faces, multiplexed
                multiplexed.close()
                faces.close()

    def check_both(faces, multiplexed, name):
        check(faces, table, name, {})
        check(multiplexed, [row for row in table if row.face in ("HTTP", "OpenAI")], name, {})

    first, *others = principals()
    become("all-everywhere", os.geteuid() + 1)
    with served() as (server, faces, multiplexed):
        check_stranger(faces, table, {})
        become(first, os.geteuid())
        assert eventually(lambda: "reloaded the access policy" in server.log)
        check_both(faces, multiplexed, first)
    # A changed policy is noticed after seconds, so the others start with theirs.
    for name in others:
        become(name, os.geteuid())
        with served() as (_, faces, multiplexed):
            check_both(faces, multiplexed, name)


def test_every_face_has_rows_in_the_table():
    assert {row.face for row in rows()} == {"HTTP", "OpenAI", "gRPC", "metrics", "SageMaker", "Vertex AI"}
    assert {row.right for row in rows()} == {*RIGHTS, None} - {"files"}
