"""Answers of OpenAI's interface that are stored in a folder: after restarts, kills and damage, on a full disk, and for their principal
alone."""

import json
import random
import resource
import stat
import sys
import threading
import time

import pytest

import language_models
import nereid_server
from access_policies import Policy, bearer
from http_requests import request
from waiting import eventually

PYTHON = f"--backend-config=python,python={sys.executable}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    language_models.write(repository, "chat")
    return repository


class State:
    """A folder for answers."""

    def __init__(self, folder):
        self.folder = folder / "state"
        self.files = self.folder / "nereid-answers"

    def flags(self, *flags, memory=64 << 20):
        return [PYTHON, f"--openai-stored-directory={self.folder}", f"--openai-stored-bytes={memory}", *flags]

    def answers(self):
        """The files with answers."""
        return sorted(self.files.glob("*.answer"))


@pytest.fixture
def state(tmp_path):
    return State(tmp_path)


def respond(server, text, key=None, **fields):
    """Posts a request that succeeds, and returns its answer."""
    body = json.dumps({"model": "chat", "input": text, "max_output_tokens": 1000} | fields)
    answer = request(server, "POST", "/v1/responses", body, bearer(key) if key else {})
    assert answer.status == 200, answer.body
    return answer.json


def find(server, identifier, key=None, method="GET"):
    """The status of a stored answer, and its document."""
    answer = request(server, method, f"/v1/responses/{identifier}", headers=bearer(key) if key else {})
    return answer.status, answer.json


def test_conversation_goes_on_after_a_restart(repository, state):
    with nereid_server.running(repository, *state.flags()) as server:
        first = respond(server, "count 2")
        second = respond(server, "count 3", previous_response_id=first["id"])
    assert len(state.answers()) == 2
    for path in [state.files / "lock", *state.answers()]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(state.files.stat().st_mode) == 0o700
    assert not any(answer["id"].removeprefix("resp_") in path.name for answer in (first, second) for path in state.answers())
    with nereid_server.running(repository, *state.flags(memory=0)) as server:
        assert find(server, first["id"]) == (200, first)
        third = respond(server, "count 1", previous_response_id=second["id"])
        assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        reference = {"type": "item_reference", "id": second["output"][0]["id"]}
        fourth = respond(server, [{"role": "user", "content": "Hi"}, reference, {"role": "user", "content": "count 1"}])
        assert fourth["output"][0]["content"][0]["text"] == "1 "
        # Deleted for good, and what continued it is left.
        assert find(server, second["id"], method="DELETE")[0] == 200
        assert find(server, second["id"])[0] == 404
        assert not server.complaints and "answers are" not in server.log
    with nereid_server.running(repository, *state.flags()) as server:
        assert find(server, second["id"])[0] == 404
        assert find(server, third["id"]) == (200, third)


def test_files_belong_to_their_principal(repository, state, tmp_path):
    policy = Policy(tmp_path / "access", {name: [(["infer"], ["*"])] for name in ("one", "other")})
    one, other = policy.keys["one"], policy.keys["other"]
    with nereid_server.running(repository, *state.flags(policy.option)) as server:
        answer = respond(server, "say secret", key=one)
    with nereid_server.running(repository, *state.flags(policy.option)) as server:
        for _ in range(2):
            assert find(server, answer["id"], key=other)[0] == 404
            assert find(server, answer["id"], key=other, method="DELETE")[0] == 404
            body = {"model": "chat", "input": "count 1", "previous_response_id": answer["id"]}
            assert request(server, "POST", "/v1/responses", json.dumps(body), bearer(other)).status == 400
            reference = [{"type": "item_reference", "id": answer["output"][0]["id"]}]
            body = {"model": "chat", "input": reference}
            assert request(server, "POST", "/v1/responses", json.dumps(body), bearer(other)).status == 400
            assert find(server, answer["id"], key=one) == (200, answer)
    # Without the policy, nobody is this principal.
    with nereid_server.running(repository, *state.flags()) as server:
        assert find(server, answer["id"])[0] == 404


IDENTIFIERS = ["resp_", "..", "%2e%2e%2flock", "resp_..%2f..%2fsecret.answer", "lock", "%00", "x" * 5000]


def test_identifiers_are_no_paths(repository, state):
    with nereid_server.running(repository, *state.flags(memory=0)) as server:
        kept = respond(server, "count 1")
        assert eventually(state.answers)
        (state.folder / "secret.answer").write_bytes(state.answers()[0].read_bytes())
        for identifier in IDENTIFIERS:
            for method in ("GET", "DELETE"):
                answer = request(server, method, f"/v1/responses/{identifier}")
                assert answer.status in (400, 404, 414), (identifier, answer.body)
        body = {"model": "chat", "input": "count 1", "previous_response_id": f"../{state.answers()[0].name}"}
        assert request(server, "POST", "/v1/responses", json.dumps(body)).status == 400
        assert find(server, kept["id"]) == (200, kept)
    assert (state.folder / "secret.answer").exists() and (state.files / "lock").exists()


def test_kills_leave_no_damage(repository, state):
    """A server is killed again and again while it writes answers of 100 kB."""
    chance = random.Random(7)
    known: dict[str, dict] = {}
    for _ in range(4):
        with nereid_server.running(repository, *state.flags(memory=0)) as server:
            assert "damaged" not in server.log
            for identifier, document in list(known.items())[-20:]:
                status, found = find(server, identifier)
                assert (status, found) in ((200, document), (404, found)), found
            stop = threading.Event()

            def write():
                while not stop.is_set():
                    try:
                        answer = respond(server, "say " + "x" * 100_000)
                    except OSError:
                        return
                    known[answer["id"]] = answer

            writers = [threading.Thread(target=write) for _ in range(3)]
            before = len(known)
            for writer in writers:
                writer.start()
            assert eventually(lambda: len(known) > before + 3)
            time.sleep(chance.random() / 10)
            server.kill()
            stop.set()
            for writer in writers:
                writer.join()
            left = {path.suffix for path in state.files.iterdir()}
            assert left <= {"", ".answer", ".new"}
    with nereid_server.running(repository, *state.flags(memory=0)) as server:
        statuses = [find(server, identifier)[0] for identifier in known]
        # The last ones may have files without having reached their client.
        assert len(known) // 2 < statuses.count(200) <= len(state.answers())
        assert not list(state.files.glob("*.new"))
        assert "damaged" not in server.log and not server.complaints


def test_damaged_and_foreign_files_are_warnings(repository, state):
    with nereid_server.running(repository, *state.flags()) as server:
        cut, changed, foreign = (respond(server, f"count {number}") for number in (1, 2, 3))
        assert eventually(lambda: len(state.answers()) == 3)
        # The order of their times is that of the answers.
        by_age = sorted(state.answers(), key=lambda path: path.stat().st_mtime_ns)
    contents = by_age[0].read_bytes()
    by_age[0].write_bytes(contents[: len(contents) // 2])
    contents = by_age[1].read_bytes()
    by_age[1].write_bytes(contents[:-1] + b"x")
    by_age[2].write_text("a letter")
    (state.files / "letter.txt").write_text("another letter")
    with nereid_server.running(repository, *state.flags()) as server:
        for answer in (cut, changed, foreign):
            assert find(server, answer["id"])[0] == 404
        assert server.log.count("the stored answer is damaged, and removed") == 2
        assert server.log.count("not a stored answer of this release; it is left as it is") == 1
        assert server.log.count("has 1 entries that are not stored answers, such as letter.txt") == 1
        assert not server.complaints
        again = respond(server, "count 1")
        assert find(server, again["id"]) == (200, again)
    assert by_age[2].read_text() == "a letter" and (state.files / "letter.txt").exists()
    assert not by_age[0].exists() and not by_age[1].exists()


def test_full_disk_leaves_answers_in_memory(repository, state):
    with nereid_server.running(repository, *state.flags()) as server:
        before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (8192, before[1]))
        # The model does not get these, so only the answer is large.
        large = respond(server, "count 1", metadata={"note": "x" * 20_000})
        server.wait_for_log("answers are in memory alone: .*: File too large")
        assert find(server, large["id"]) == (200, large)
        small = respond(server, "count 1")
        assert eventually(lambda: len(state.answers()) == 1)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)
        assert large["store"] and small["store"] and not server.complaints
    assert not list(state.files.glob("*.new"))
    with nereid_server.running(repository, *state.flags()) as server:
        assert find(server, large["id"])[0] == 404
        assert find(server, small["id"]) == (200, small)


def test_files_keep_to_their_room(repository, state):
    room = 200_000
    flags = state.flags(f"--openai-stored-directory-byte-size={room}", memory=0)
    with nereid_server.running(repository, *flags) as server:
        answers = [respond(server, "say " + "x" * 9_000) for _ in range(30)]
        refused = respond(server, "say " + "x" * 60_000)
        assert not refused["store"] and find(server, refused["id"])[0] == 404
        assert eventually(lambda: find(server, answers[-1]["id"])[0] == 200)
        found = [find(server, answer["id"])[0] for answer in answers]
        assert found == sorted(found, reverse=True) or found == sorted(found), found
        assert found[0] == 404 and found[-1] == 200
        assert sum(path.stat().st_size for path in state.files.iterdir()) <= room


def test_folder_that_cannot_be_used_is_a_warning(repository, state):
    with nereid_server.running(repository, *state.flags()) as first:
        kept = respond(first, "count 1")
        with nereid_server.running(repository, *state.flags()) as second:
            second.wait_for_log("answers are in memory alone: cannot use the folder .*: another server uses it")
            assert find(second, kept["id"])[0] == 404
            other = respond(second, "count 1")
            assert find(second, other["id"]) == (200, other)
            assert not second.complaints
    refused = nereid_server.refused_start(repository, PYTHON, "--openai-stored-directory-byte-size=1")
    assert "--openai-stored-directory-byte-size needs --openai-stored-directory" in refused.log
