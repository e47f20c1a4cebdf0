"""Traces of single requests as waterfalls, and releases, in a real browser."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
import tritonclient.grpc

import console_pages
import language_models
import nereid_server
from access_policies import Policy
from console_pages import HOSTILE, PHONE, expect, row, texts
from http_requests import infer, request, tensor
from model_files import config, write_identity, write_model
from places import EXAMPLES

CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [pb_utils.Tensor("INPUT0", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
            for _ in range(2):
                inner = pb_utils.InferenceRequest(
                    model_name="inner", requested_output_names=["OUTPUT0"], inputs=inputs, trace=request.trace()
                ).exec()
            output = pb_utils.get_output_tensor_by_name(inner, "OUTPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output)]))
        return responses
"""
HOSTILE_NAME = HOSTILE.replace("/", "\u2215").replace("\u0007", "")
FLAGS = ["--strict-readiness=false", f"--backend-config=python,python={sys.executable}"]
PIXELS = [tensor("pixels", "UINT8", [1, 8, 8], [number % 17 for number in range(64)])]
NUMBER = [tensor("INPUT0", "FP32", [1], [1.0])]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the examples, a model whose requests cause others, one with a hostile name, and one of language."""
    repository = tmp_path_factory.mktemp("console") / "models"
    shutil.copytree(EXAMPLES / "model_repository", repository)
    write_identity(repository, "inner", ["FP32"])
    write_model(repository, "caller", config("caller", "python", [("IN", "FP32", [1])], [("OUT", "FP32", [1])]))
    (repository / "caller" / "1" / "model.py").write_text(CALLER)
    shutil.copytree(repository / "inner", repository / HOSTILE_NAME)
    path = repository / HOSTILE_NAME / "config.pbtxt"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("name:")))
    language_models.write(repository, "talker")
    with nereid_server.running(repository, *FLAGS, ready=False) as server:
        server.wait_until_loaded()
        yield server


def begin(console, model):
    """Waits for the next request to a model on its page."""
    page = console.open(f"models/{console_pages.quote(model)}/trace")
    page.get_by_role("button", name="Trace the next request").click()
    expect(page.get_by_text("is traced, over any protocol")).to_be_visible()
    return page


def requests(page):
    """The requests of a waterfall, and the parts of each."""
    table = page.locator("table.waterfall")
    expect(table).to_be_visible()
    names = texts(table.locator("tbody th"))
    lanes = table.get_by_role("img").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    return list(zip(names, lanes, strict=True))


def words(lane):
    """The names of the parts in the text of a lane."""
    return [part.split()[0] for part in lane.partition(": ")[2].split(", ")]


EXECUTED = ["waiting", "inputs", "model", "outputs"]


@pytest.mark.parametrize("size", [console_pages.DESK, PHONE], ids=["desk", "phone"])
def test_members_of_an_ensemble_are_within_its_request(server, browser, size):
    with browser.console(server, size, "dark" if size is PHONE else "light") as console:
        page = console.open("models/read_digit/trace")
        if size is not PHONE:
            expect(page.get_by_text("Shows where the time of one request goes")).to_be_visible()
        page = begin(console, "read_digit")
        console.assert_accessible()
        assert infer(server, "read_digit", {"inputs": PIXELS}).status == 200
        outer, *members = requests(page)
        assert (outer[0], words(outer[1])) == ("read_digit v1", ["receiving", "sending", "1"])
        assert [name for name, _ in members] == ["└ scale_pixels v1", "└ digits v1"]
        assert all(words(lane) == EXECUTED for _, lane in members), members
        expect(page.get_by_role("button", name="Trace the next request")).to_be_enabled()
        page.get_by_text("All times").click()
        expect(page.get_by_role("region", name="All times")).to_contain_text("COMPUTE_OUTPUT_START")
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        # A second request is not traced, and another click shows that of another request.
        before = texts(page.locator("table.waterfall td.number"))
        assert infer(server, "read_digit", {"inputs": PIXELS}).status == 200
        page.reload()
        expect(page.locator("table.waterfall td.number")).to_have_count(len(before))
        assert texts(page.locator("table.waterfall td.number")) == before
        page.get_by_role("button", name="Trace the next request").click()
        expect(page.get_by_text("is traced, over any protocol")).to_be_visible()
        assert infer(server, "read_digit", {"inputs": PIXELS}).status == 200
        expect(page.get_by_text("is traced, over any protocol")).to_have_count(0)
        expect(page.locator("table.waterfall td.number")).not_to_have_text(before)


def test_inner_requests_of_a_model_in_python_are_within_its_execution(server, browser):
    with browser.console(server) as console:
        page = begin(console, "caller")
        assert infer(server, "caller", {"inputs": [tensor("IN", "FP32", [1], [1.0])]}).status == 200
        outer, *inner = requests(page)
        assert outer[0] == "caller v1" and words(outer[1])[1:5] == EXECUTED
        assert [name for name, _ in inner] == ["└ inner v1"] * 2
        page.locator("table.waterfall").get_by_role("link", name="inner").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("inner")


def test_requests_of_every_protocol_are_traced(server, browser):
    def over_grpc():
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            given = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
            given.set_data_from_numpy(np.ones(1, "float32"))
            client.infer("inner", [given], request_id=HOSTILE)

    def over_openai():
        body = {"model": "talker", "messages": [{"role": "user", "content": "count 3"}], "stream": True}
        assert request(server, "POST", "/v1/chat/completions", json.dumps(body)).status == 200

    for model, send, parts in [("inner", over_grpc, EXECUTED), ("talker", over_openai, [*EXECUTED, "sending"])]:
        with browser.console(server) as console:
            page = begin(console, model)
            send()
            [(name, lane)] = requests(page)
            assert name == f"{model} v1"
            assert words(lane)[0] == "receiving" and set(parts) <= set(words(lane)), lane
            if send is over_grpc:
                expect(page.get_by_text("request <img src=x")).to_be_visible()
            else:
                assert page.locator(".lane i").count() >= 3
            console.assert_accessible()


def test_form_sends_the_request_that_is_traced(server, browser):
    with browser.console(server) as console:
        page = begin(console, HOSTILE_NAME)
        page.get_by_role("link", name="Try it").last.click()
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("status").filter(has_text="answered in")).to_be_visible()
        page.get_by_role("link", name="Trace").click()
        [(name, lane)] = requests(page)
        assert name.startswith("<img src=x") and words(lane)[1:5] == EXECUTED
        assert page.locator("main img, main script").count() == 0
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


def test_trace_and_its_inner_requests_need_rights(repository, browser, tmp_path):
    write_identity(repository, "inner", ["FP32"])
    write_model(repository, "caller", config("caller", "python", [("IN", "FP32", [1])], [("OUT", "FP32", [1])]))
    (repository / "caller" / "1" / "model.py").write_text(CALLER)
    rights = {"reader": [(["read"], ["caller"])], "owner": [(["read", "infer", "admin"], ["caller"])]}
    policy = Policy(tmp_path / "access", rights)
    with nereid_server.running(repository, *FLAGS, policy.option, ready=False) as server:
        for name in ("reader", "owner"):
            with browser.console(server) as console:
                console.tolerates_failures = True
                page = console.open("models/caller/trace")
                page.get_by_label("Key for X-API-Key").fill(policy.keys[name])
                page.get_by_role("button", name="Use this key").click()
                page.get_by_role("button", name="Trace the next request").click()
                if name == "reader":
                    expect(page.get_by_role("alert").filter(has_text="admin")).to_be_visible()
                    console.assert_accessible()
                    continue
                expect(page.get_by_text("is traced, over any protocol")).to_be_visible()
                body = {"inputs": [tensor("IN", "FP32", [1], [1.0])]}
                assert infer(server, "caller", body, headers={"X-API-Key": policy.keys[name]}).status == 200
                assert [shown for shown, _ in requests(page)] == ["caller v1", "└ another model v1", "└ another model v1"]


def test_release_shows_shares_copies_and_the_verdict(repository, browser):
    parameters = {"release_versions": "1=100, 2=0", "release_shadow": "2=100", "release_promote_after": "1000"}
    extra = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items())
    tensors = ([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])])
    write_model(repository, "m", config("m", "python", *tensors, extra=f"version_policy {{ all {{ }} }}\n{extra}"))
    for version, added in ((1, 0), (2, 1)):
        (repository / "m" / str(version)).mkdir(exist_ok=True)
        (repository / "m" / str(version) / "model.py").write_text(ADDER.replace("ADDED", str(added)))
    with nereid_server.running(repository, *FLAGS) as server, browser.console(server) as console:
        page = console.open("models/m/release")
        table = page.get_by_role("region", name="Versions of the release")
        expect(table).to_contain_text("Candidate")
        for _ in range(40):
            assert infer(server, "m", {"id": HOSTILE, "inputs": NUMBER}).status == 200
        expect(table).to_contain_text("Withdrawn")
        expect(page.get_by_text("Version 2 was withdrawn:")).to_be_visible()
        differences = page.get_by_role("region", name="Answers that differed").last
        expect(differences).to_contain_text("element 0")
        expect(differences).to_contain_text("<img src=x")
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        console.open()
        # A version that was withdrawn is served, and nothing is wrong with it.
        version = row(page, "m").filter(has_text="v2")
        expect(version).to_contain_text("Ready")
        expect(version).to_contain_text("withdrawn of a release")
        expect(page.get_by_role("region", name="Failing")).to_have_count(0)
        page = console.open("settings")
        change = page.get_by_role("region", name="Who changed what").last.locator("tbody tr")
        expect(change).to_contain_text("the server")
        expect(change).to_contain_text("version 2 was withdrawn: ")
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


def test_candidates_are_promoted_and_withdrawn_by_hand(repository, browser):
    parameters = {"release_versions": "1=100, 2=0, 3=0"}
    extra = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items())
    tensors = ([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])])
    write_model(repository, "m", config("m", "identity", *tensors, extra=f"version_policy {{ all {{ }} }}\n{extra}"))
    for version in (2, 3):
        (repository / "m" / str(version)).mkdir()
    with nereid_server.running(repository) as server, browser.console(server) as console:
        page = console.open("models/m/release")
        page.get_by_role("button", name="Withdraw version 2").click()
        expect(page.get_by_text("Version 2 was withdrawn: on request")).to_be_visible()
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        page.get_by_role("button", name="Promote version 3").click()
        expect(page.get_by_text("Version 3 was promoted: on request")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("version"))).to_have_count(0)
        answer = infer(server, "m", {"inputs": NUMBER})
        assert answer.json["model_version"] == "3", answer


ADDER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one + ADDED)]) for one in found]
"""
