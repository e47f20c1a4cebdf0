"""The console's log and settings in a real browser."""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import console_pages
import nereid_server
from access_policies import Policy
from console_pages import HOSTILE, PHONE, expect, texts
from http_requests import infer, request, tensor
from model_files import config, write_identity, write_model


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that logged a load, and a message with a hostile name."""
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "good", ["FP32"])
    folder = repository / HOSTILE.replace("/", "\u2215") / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text('backend: "none"')
    flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--strict-readiness=false"]
    flags.append(f"--trace-config=triton,file={repository.parent / 'trace.json'}")
    with nereid_server.running(repository, *flags, ready=False) as server:
        yield server


def test_log_is_shown_searched_and_followed(server, browser):
    with browser.console(server) as console:
        page = console.open("logs")
        lines = page.locator(".log li")
        expect(lines.filter(has_text="successfully loaded 'good'")).to_have_count(1)
        hostile = lines.filter(has_text="failed to load").filter(has_text="onerror")
        expect(hostile).to_have_count(1)
        expect(hostile).to_contain_text("U+202E")
        page.get_by_label("Levels").select_option("error")
        expect(lines.filter(has_text="successfully loaded")).to_have_count(0)
        assert set(texts(page.locator(".log li > span:nth-child(2)"))) == {"error"}
        page.get_by_label("Levels").select_option("")
        page.get_by_label("Search the log").fill("LOADED good")
        expect(lines).to_have_count(1)
        page.get_by_label("Search the log").fill("no such line")
        expect(page.get_by_text("No line matches.")).to_be_visible()
        page.get_by_label("Search the log").fill("successfully")
        expect(lines).to_have_count(1)
        assert request(server, "POST", "/v2/repository/models/good/load").status == 200
        expect(lines).to_have_count(1)
        assert request(server, "POST", "/v2/repository/models/good/unload").status == 200
        assert request(server, "POST", "/v2/repository/models/good/load").status == 200
        count = 3
        expect(lines).to_have_count(count)
        page.get_by_role("button", name="Pause").click()
        assert request(server, "POST", "/v2/repository/models/good/unload").status == 200
        assert request(server, "POST", "/v2/repository/models/good/load").status == 200
        page.wait_for_timeout(1500)
        assert lines.count() == count
        page.get_by_role("button", name="Go on").click()
        expect(lines).not_to_have_count(count)
        console.assert_accessible()


@pytest.mark.parametrize("page_name", ["logs", "settings"])
@pytest.mark.parametrize("size", [console_pages.DESK, PHONE], ids=["desk", "phone"])
def test_pages_are_accessible_in_the_dark(server, browser, page_name, size):
    with browser.console(server, size, "dark") as console:
        page = console.open(page_name)
        expect(page.locator(".log li, form").first).to_be_visible()
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


def test_log_settings_are_changed(server, browser):
    with browser.console(server) as console:
        page = console.open("settings")
        form = page.get_by_role("form", name="Log")
        expect(form.get_by_label("Format of lines")).to_have_value("default")
        form.get_by_label("Level of verbose lines").fill("2")
        form.get_by_label("Information").uncheck()
        form.get_by_label("Format of lines").select_option("ISO8601")
        form.get_by_role("button", name="Apply").click()
        expect(form.get_by_role("status")).to_be_visible()
        settings = request(server, "GET", "/v2/logging").json
        assert (settings["log_verbose_level"], settings["log_info"], settings["log_format"]) == (2, False, "ISO8601")
        console.tolerates_failures = True
        form.get_by_label("Level of verbose lines").fill("99999999999")
        form.get_by_role("button", name="Apply").click()
        expect(form.get_by_role("alert")).to_contain_text("log_verbose_level")
        assert request(server, "GET", "/v2/logging").json == settings
        request(server, "POST", "/v2/logging", '{"log_verbose_level": 0, "log_info": true, "log_format": "default"}')


def test_trace_settings_are_changed(server, browser):
    with browser.console(server) as console:
        page = console.open("settings")
        form = page.get_by_role("form", name="Traces")
        form.get_by_label("Times").check()
        form.get_by_label("Trace one request of").fill("7")
        form.get_by_role("button", name="Apply").click()
        expect(form.get_by_role("status")).to_be_visible()
        settings = request(server, "GET", "/v2/trace/setting").json
        assert (settings["trace_level"], settings["trace_rate"]) == (["TIMESTAMPS"], "7")
        form.get_by_label("Times").uncheck()
        form.get_by_role("button", name="Apply").click()
        expect(form.get_by_role("status")).to_be_visible()
        assert request(server, "GET", "/v2/trace/setting").json["trace_level"] == ["OFF"]


def test_who_changed_what_is_shown(repository, browser, tmp_path):
    name = HOSTILE.replace("/", "\u2215").replace("\u0007", "")
    write_identity(repository, "good", ["FP32"])
    shutil.copytree(repository / "good", repository / name)
    path = repository / name / "config.pbtxt"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("name:")))
    policy = Policy(tmp_path / "access", {"ann": [(["read", "control", "admin"], ["*"])], "reader": [(["read"], ["*"])]})
    flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", policy.option]
    with nereid_server.running(repository, *flags) as server, browser.console(server) as console:
        key = {"X-API-Key": policy.keys["ann"]}
        for path, body in [
            ("/v2/logging", '{"log_verbose_level": 1}'),
            (f"/v2/repository/models/{console_pages.quote(name)}/load", "{}"),
            ("/v2/repository/models/absent/load", "{}"),
        ]:
            request(server, "POST", path, body, key)
        # What may not be done changes nothing.
        assert request(server, "POST", "/v2/logging", "{}", {"X-API-Key": policy.keys["reader"]}).status == 403
        console.tolerates_failures = True
        page = console.open("settings")
        page.get_by_label("Key for X-API-Key").first.fill(policy.keys["ann"])
        page.get_by_role("button", name="Use this key").first.click()
        rows = page.get_by_role("region", name="Who changed what").last.locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(2)).to_contain_text("HTTP POST /v2/logging")
        expect(rows.nth(2)).to_contain_text("Done")
        expect(rows.nth(1)).to_contain_text("<img src=x")
        expect(rows.nth(0)).to_contain_text("Failed")
        expect(rows.filter(has_text="ann")).to_have_count(3)
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


FLOOD = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        begin = time.monotonic()
        for number in range(30000):
            print(f"line {number} of the flood", flush=number % 100 == 99)
            time.sleep(max(0.0, begin + number / 10000 - time.monotonic()) if number % 100 == 99 else 0)
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(one, "IN")]) for one in requests]
"""


def test_ten_thousand_lines_a_second_are_followed(repository, browser):
    write_model(repository, "flood", config("flood", "python", [("IN", "FP32", [1])], [("IN", "FP32", [1])]))
    (repository / "flood" / "1" / "model.py").write_text(FLOOD)
    flag = f"--backend-config=python,python={sys.executable}"
    with nereid_server.running(repository, flag) as server, browser.console(server) as console, ThreadPoolExecutor() as pool:
        page = console.open("logs")
        expect(page.locator(".log li").first).to_be_visible()
        flood = pool.submit(infer, server, "flood", {"inputs": [tensor("IN", "FP32", [1], [1.0])]})
        longest = page.evaluate(
            "() => new Promise(done => { const found = []; const list = new PerformanceObserver(all => found.push("
            "...all.getEntries().map(one => one.duration))); list.observe({type: 'longtask', buffered: false});"
            "setTimeout(() => done(Math.max(0, ...found)), 4000); })"
        )
        assert longest < 1000, longest
        assert flood.result().status == 200
        lines = page.locator(".log li")
        expect(lines.filter(has_text="line 29999 of the flood")).to_have_count(1)
        assert lines.count() == 1000
        page.get_by_label("Search the log").fill("29999")
        expect(lines).to_have_count(1)
        console.assert_accessible()


TALKER = """
import triton_python_backend_utils as pb_utils

print("a line while the file is imported", flush=True)


class TritonPythonModel:
    def initialize(self, args):
        print("a line of the model itself", flush=True)

    def execute(self, requests):
        return []
"""


def test_log_is_filtered_by_model(repository, browser):
    write_identity(repository, "one", ["FP32"])
    write_identity(repository, "one_0_more", ["FP32"])
    write_model(repository, "talker", config("talker", "python", [("IN", "FP32", [1])], [("IN", "FP32", [1])]))
    (repository / "talker" / "1" / "model.py").write_text(TALKER)
    flag = f"--backend-config=python,python={sys.executable}"
    with nereid_server.running(repository, flag) as server, browser.console(server) as console:
        page = console.open("models/one")
        page.get_by_role("link", name="Lines of the log about this model").click()
        lines = page.locator(".log li .text")
        expect(lines.filter(has_text="successfully loaded 'one' version 1")).to_have_count(1)
        assert not [text for text in lines.all_inner_texts() if "'one'" not in text]
        # The table of all models has no line of its own for a model.
        page.get_by_label("Models").select_option("talker")
        for text in ("a line while the file is imported", "a line of the model itself"):
            expect(lines.filter(has_text=text)).to_have_count(1)
        expect(lines.filter(has_text="'one'")).to_have_count(0)
        page.get_by_label("Levels").select_option("error")
        expect(page.get_by_text("No line matches.")).to_be_visible()
        page.get_by_label("Levels").select_option("")
        page.get_by_label("Models").select_option("")
        table = lines.filter(has_text="+---")
        expect(table).to_have_count(1)
        # Tables keep their lines.
        assert table.evaluate("table => getComputedStyle(table).whiteSpace") == "pre"
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


REFUSED = {
    "runner": ["", "activity", "logs", "settings", "models/one", "models/one/charts", "models/one/trace"],
    "reader": ["logs", "settings", "models/one/trace"],
}


@pytest.mark.parametrize("principal", REFUSED)
def test_each_page_shows_a_refused_right(repository, browser, tmp_path, principal):
    write_identity(repository, "one", ["FP32"])
    policy = Policy(tmp_path / "access", {"runner": [(["infer"], ["one"])], "reader": [(["read"], ["one"])]})
    with nereid_server.running(repository, policy.option) as server, browser.console(server) as console:
        console.tolerates_failures = True
        page = console.open()
        page.get_by_label("Key for X-API-Key").fill(policy.keys[principal])
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_label("Key for X-API-Key")).to_have_count(0)
        for path in REFUSED[principal]:
            console.open(path)
            expect(page.get_by_role("alert").filter(has_text="right").first).to_be_visible()
            console.assert_accessible()
            console.assert_no_sideways_scrolling()


def test_log_and_settings_need_the_right_to_them(repository, browser):
    write_identity(repository, "one", ["FP32"])
    flags = ["--http-restricted-api=logging:key=v"]
    with nereid_server.running(repository, *flags) as server, browser.console(server) as console:
        console.tolerates_failures = True
        page = console.open("logs")
        expect(page.get_by_label("Key for key")).to_be_visible()
        page = console.open("settings")
        expect(page.get_by_role("form", name="Traces")).to_be_visible()
        expect(page.get_by_role("form", name="Log")).to_have_count(0)
        page.get_by_label("Key for key").fill("v")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_role("form", name="Log")).to_be_visible()
