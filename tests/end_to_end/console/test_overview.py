"""The console's overview in a real browser: models, states, activity, and what is wrong with them."""

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import console_pages
import nereid_server
from access_policies import Policy
from cloud_repositories import EXPLICIT, LIMIT_S, environment, load
from cloud_servers import Proxy, Stall
from console_pages import HOSTILE, PHONE, expect, row, texts
from http_requests import infer, request, tensor
from hubs import Web, archive
from model_files import config, write_identity, write_model
from ports import free_port

BAD_CONFIG = 'backend: "identity" max_batch_size: -7'


def served(repository, *flags):
    """Serves models by request, whatever becomes of them."""
    flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--strict-readiness=false", *flags]
    return nereid_server.running(repository, *flags, ready=False)


def test_page_is_for_browsers_and_can_be_closed(repository):
    write_identity(repository, "one", ["FP32"])
    page = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    with served(repository) as server:
        answer = request(server, "GET", "/", headers=page)
        assert answer.status == 200 and b"<!doctype html>" in answer.body
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
        others = [
            request(server, "GET", "/", headers=headers) for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"})
        ]
    with served(repository, "--console=false") as server:
        closed = [request(server, "GET", path, headers=page) for path in ("/", "/console/api/models")]
    # Without a console, this path never was different.
    assert {(answer.status, answer.body) for answer in others} == {(404, closed[0].body)}
    assert [answer.status for answer in closed] == [404, 404]


def test_console_can_have_a_port_of_its_own_with_the_same_rights(repository, browser, tmp_path):
    for name in ("one", "other"):
        write_identity(repository, name, ["FP32"])
    policy = Policy(tmp_path / "access", {"reader": [(["read", "infer"], ["one"])]})
    port = free_port()
    page = {"Accept": "text/html"}
    with served(repository, f"--console-port={port}", policy.option) as server:
        assert [request(server, "GET", path, headers=page).status for path in ("/", "/console/api/server")] == [404, 404]
        own = Port(port)
        assert request(own, "GET", "/", headers=page).status == 200
        assert request(own, "GET", "/console/api/models").status == 401
        key = {"X-API-Key": policy.keys["reader"]}
        body = {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}
        assert [infer(own, model, body, headers=key).status for model in ("one", "other")] == [200, 403]
        assert infer(server, "one", body, headers=key).status == 200
        with browser.console(own) as console:
            console.tolerates_failures = True
            shown = console.open()
            shown.get_by_label("Key for X-API-Key").fill(policy.keys["reader"])
            shown.get_by_role("button", name="Use this key").click()
            expect(row(shown, "one")).to_contain_text("Ready")
            console.open("models/one")
            shown.get_by_role("button", name="Send").click()
            expect(shown.get_by_role("status").filter(has_text="answered in")).to_be_visible()
    for flag, reason in [
        (f"--console-port={port}", "--http-port and --console-port are the same"),
        ("--console-address=127.0.0.1", "--console-address needs --console-port"),
    ]:
        refused = nereid_server.refused_start(repository, flag, port=port)
        assert refused.exit_code != 0 and reason in refused.log


class Port:
    """A port of a server, as a server to requests and to a browser."""

    def __init__(self, port):
        self.port = port
        self.url = f"127.0.0.1:{port}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [console_pages.DESK, PHONE], ids=["desk", "phone"])
def test_models_are_listed_with_their_state_and_activity(repository, browser, theme, size):
    write_identity(repository, "good", ["FP32"])
    write_model(repository, "bad", BAD_CONFIG)
    with served(repository) as server, browser.console(server, size, theme) as console:
        page = console.open()
        expect(row(page, "good")).to_contain_text("Ready")
        expect(row(page, "bad")).to_contain_text("Failed")
        expect(page.get_by_role("region", name="Failing")).to_contain_text("max_batch_size")
        expect(page.locator(".pulse")).to_have_text("Ready")
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        if theme == "light" and size is not PHONE:
            expect(row(page, "good")).to_contain_text("identity · 1 × CPU")
            # The first sample of a model is taken at the second tick that sees it.
            body = {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}
            rate = row(page, "good").locator(".flow span").last
            for _ in range(100):
                assert infer(server, "good", body).status == 200
                page.wait_for_timeout(100)
                if rate.inner_text() != "0":
                    break
            expect(rate).not_to_have_text("0")


def test_what_would_mend_a_model_is_shown_with_file_and_line(repository, browser):
    write_identity(repository, "good", ["FP32"])
    tensors = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: 1 }\noutput { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 1 }"
    write_model(repository, "typo", f'backend: "identty"\n{tensors}')
    step = "step { model_name: 'goood' model_version: -1 input_map { key: 'INPUT0' value: 'x' } output_map { key: 'OUTPUT0' value: 'y' } }"
    outer = tensors.replace("INPUT0", "x").replace("OUTPUT0", "y")
    write_model(repository, "outer", f"platform: 'ensemble'\n{outer}\nensemble_scheduling {{ {step} }}")
    # Names and values of others are text, here, too.
    name = HOSTILE.replace("/", "\u2215").replace("\u0007", "")
    write_model(repository, name, 'backend: "<b>identity</b>"')
    ports = ([("IN", "FP32", [1])], [("OUT", "FP32", [1])])
    write_model(repository, "raises", config("raises", "python", *ports))
    code = "class TritonPythonModel:\n    def initialize(self, args):\n        self.table = {}['missing']\n"
    (repository / "raises" / "1" / "model.py").write_text(code)
    with served(repository, f"--backend-config=python,python={sys.executable}") as server, browser.console(server) as console:
        page = console.open()
        failing = page.get_by_role("region", name="Failing")
        expect(failing.locator(".advice")).to_have_count(3)
        for model, place, hint in [("typo", "typo/config.pbtxt:1", "identity"), ("outer", "outer/config.pbtxt:4", "good")]:
            advice = failing.get_by_role("listitem").filter(has=page.get_by_role("link", name=model, exact=True)).locator(".advice")
            expect(advice).to_contain_text(place)
            expect(advice).to_contain_text(hint)
        # The check does not run a model's code, so its message has the place.
        raised = failing.get_by_role("listitem").filter(has=page.get_by_role("link", name="raises", exact=True)).locator("pre")
        expect(raised).to_have_text(re.compile(r"^KeyError: 'missing' \(raises/1/model\.py:3\)$"))
        # What the message says is not said again.
        advice = failing.get_by_role("listitem").filter(has=page.get_by_role("link", name="typo", exact=True)).locator(".advice")
        expect(advice.locator("li > div")).to_have_text("did you mean 'identity'?")
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        failing.get_by_role("link", name="typo").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("typo")
        expect(page.locator(".advice")).to_contain_text("typo/config.pbtxt:1")
        console.assert_accessible()
        console.open(f"models/{console_pages.quote(name)}")
        expect(page.locator(".advice")).to_contain_text("<b>identity</b>")
        assert page.locator("main img, main script, main .advice b").count() == 0
        # A mended model needs no advice.
        (repository / "typo" / "config.pbtxt").write_text(f'backend: "identity"\n{tensors}')
        console.open("models/typo")
        page.get_by_role("button", name="Load", exact=True).click()
        expect(page.get_by_text("Loaded in")).to_be_visible()
        expect(page.locator(".advice")).to_have_count(0)


def test_changes_are_shown_without_a_reload_of_the_page(repository, browser):
    write_identity(repository, "one", ["FP32"])
    with served(repository) as server, browser.console(server) as console:
        page = console.open()
        expect(row(page, "one")).to_contain_text("Ready")
        assert request(server, "POST", "/v2/repository/models/one/unload").status == 200
        expect(row(page, "one")).to_contain_text("Unloaded")
        write_identity(repository, "two", ["FP32"])
        assert request(server, "POST", "/v2/repository/models/two/load").status == 200
        expect(row(page, "two")).to_contain_text("Ready")


def test_loads_in_progress_are_shown(repository, browser, gate):
    write_identity(repository, "quick", ["FP32"])
    write_identity(repository, "slow", ["FP32"], creation_gate=gate.path)
    server = nereid_server.Server(repository)
    try:
        server.wait_until_listening()
        with browser.console(server) as console:
            page = console.open()
            expect(page.get_by_role("progressbar", name="Loading slow")).to_be_visible()
            expect(row(page, "slow")).to_contain_text("Loading")
            expect(page.locator(".pulse")).to_have_text("Not ready")
            console.assert_accessible()
            gate.open()
            expect(row(page, "slow")).to_contain_text("Ready")
            expect(page.get_by_role("progressbar")).to_have_count(0)
            expect(page.locator(".pulse")).to_have_text("Ready")
        server.stop()
    finally:
        server.kill()


def test_fetches_in_progress_are_shown(tmp_path, browser):
    model = tmp_path / "models" / "a"
    write_identity(model.parent, "a", ["INT32"])
    with Web().running() as web, Proxy(web.address) as proxy, ThreadPoolExecutor() as pool:
        web.put("long.tar", archive("tar", model, "a/"))
        address = f"http://{proxy.address}/long.tar"
        with nereid_server.running(address, EXPLICIT, env=environment()) as server, browser.console(server) as console:
            (model / "1" / "more").write_bytes(bytes(6 << 20))
            web.put("long.tar", archive("tar", model, "a/"))
            proxy.breaks(lambda line: Stall(3 << 20) if line.startswith("GET") else None)
            loading = pool.submit(load, server, "a")
            try:
                assert proxy.stalled.wait(LIMIT_S)
                page = console.open()
                progress = page.get_by_role("region", name="In progress")
                expect(progress).to_contain_text(re.compile(r"Fetching a\s*2\.\d+ MiB of 6\.\d+ MiB, .*/s, .* left"))
                done = int(progress.get_by_role("progressbar").get_attribute("aria-valuenow"))
                assert 30 <= done <= 50, done
                console.assert_accessible()
            finally:
                proxy.resume.set()
            assert loading.result().status == 200
            expect(row(page, "a")).to_contain_text("Ready")
            expect(page.get_by_role("progressbar")).to_have_count(0)


def test_thousand_models_are_searched_filtered_and_sorted(repository, browser):
    for number in range(1000):
        # Half of them cannot be read, which takes the least time.
        if number % 2:
            write_identity(repository, f"model_{number}", ["FP32"])
        else:
            write_model(repository, f"model_{number}", BAD_CONFIG)
    with served(repository) as server, browser.console(server) as console:
        page = console.open()
        rows = page.locator("table.models tbody tr")
        expect(rows).to_have_count(1000)
        page.keyboard.press("/")
        page.keyboard.type("model_99")
        expect(rows).to_have_count(11)
        assert texts(rows.locator("a")) == [f"model_{number}" for number in (99, *range(990, 1000))]
        page.get_by_role("button", name="Failing", exact=True).click()
        expect(rows).to_have_count(5)
        page.get_by_role("button", name="Ready", exact=True).click()
        page.get_by_role("button", name="Model", exact=True).click()
        expect(rows.locator("a").first).to_have_text("model_999")
        page.get_by_label("Search models").fill("nothing like this")
        expect(page.get_by_text("No model matches.")).to_be_visible()
        page.get_by_label("Search models").fill("")
        expect(rows).to_have_count(500)
        # A poll that brings nothing new draws nothing, and one that brings something draws that alone.
        assert request(server, "POST", "/v2/repository/models/model_1/unload").status == 200
        expect(rows).to_have_count(499)
        page.evaluate(
            "() => { window.drawn = 0; new MutationObserver(changes => { window.drawn += changes.length; }).observe("
            "document.querySelector('table.models tbody'), "
            "{subtree: true, childList: true, attributes: true, characterData: true}); }"
        )
        for poll in ("history", "models", "models"):
            with page.expect_response(re.compile(f"/console/api/{poll}")):
                pass
        assert page.evaluate("window.drawn") == 0
        assert request(server, "POST", "/v2/repository/models/model_3/unload").status == 200
        expect(rows).to_have_count(498)
        assert 1 <= page.evaluate("window.drawn") <= 20


def test_server_that_goes_away_and_comes_back_is_noticed(repository, browser):
    write_identity(repository, "one", ["FP32"])
    server = nereid_server.Server(repository)
    again = None
    try:
        server.wait_until_ready()
        with browser.console(server) as console:
            console.tolerates_failures = True
            page = console.open()
            expect(row(page, "one")).to_contain_text("Ready")
            server.stop()
            expect(page.get_by_text("The server does not answer.")).to_be_visible()
            expect(page.locator(".pulse")).to_have_text("No answer")
            expect(row(page, "one")).to_be_visible()
            write_identity(repository, "two", ["FP32"])
            again = nereid_server.Server(repository, port=server.port).wait_until_ready()
            expect(row(page, "two")).to_contain_text("Ready")
            expect(page.get_by_text("The server does not answer.")).to_have_count(0)
        again.stop()
    finally:
        server.kill()
        if again:
            again.kill()


def test_restricted_parts_ask_for_their_key(repository, browser):
    write_identity(repository, "one", ["FP32"])
    flags = ["--http-restricted-api=model-repository:admin-key=open sesame"]
    with served(repository, *flags) as server, browser.console(server) as console:
        console.tolerates_failures = True
        page = console.open()
        key = page.get_by_label("Key for admin-key")
        expect(key).to_be_visible()
        console.assert_accessible()
        expect(page.locator("table.models")).to_have_count(0)
        key.fill("wrong")
        page.get_by_role("button", name="Use this key").click()
        expect(key).to_be_visible()
        key.fill("open sesame")
        page.get_by_role("button", name="Use this key").click()
        expect(row(page, "one")).to_contain_text("Ready")
        page.reload()
        expect(row(page, "one")).to_contain_text("Ready")


def test_hostile_names_and_messages_are_text(repository, browser):
    name = HOSTILE.replace("/", "\u2215")
    write_identity(repository, "harmless", ["FP32"])
    shutil.copytree(repository / "harmless", repository / name)
    (repository / name / "config.pbtxt").write_text('backend: "<script>window.broken=2</script>\\u202e"')
    with served(repository) as server, browser.console(server) as console:
        page = console.open()
        expect(row(page, "harmless")).to_contain_text("Ready")
        hostile = page.locator("table.models tbody tr").filter(has_text="onerror")
        expect(hostile).to_have_count(1)
        expect(hostile.locator("th a")).to_contain_text("U+202E")
        assert page.locator("main img, main script").count() == 0
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


def test_access_policy_asks_for_an_api_key_and_shows_its_models(repository, browser, tmp_path):
    for name in ("one", "two", "other"):
        write_identity(repository, name, ["FP32"])
    reader = [(["read"], ["one", "two"])]
    policy = Policy(tmp_path / "access", {"reader": reader, "runner": [(["infer"], ["one"])]})
    with served(repository, policy.option) as server, browser.console(server) as console:
        console.tolerates_failures = True
        page = console.open()
        key = page.get_by_label("Key for X-API-Key")
        expect(key).to_be_visible()
        console.assert_accessible()
        # Neither a key that nobody has nor one without the right shows anything.
        for refused in ("nereid_0", policy.keys["runner"]):
            key.fill(refused)
            page.get_by_role("button", name="Use this key").click()
            expect(page.locator("table.models")).to_have_count(0)
        page.evaluate("sessionStorage.clear()")
        page.reload()
        key.fill(policy.keys["reader"])
        page.get_by_role("button", name="Use this key").click()
        expect(row(page, "one")).to_contain_text("Ready")
        expect(row(page, "two")).to_contain_text("Ready")
        expect(row(page, "other")).to_have_count(0)
