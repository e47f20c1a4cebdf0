"""The console's log and settings in a real browser."""

import pytest

import console_pages
import nereid_server
from console_pages import HOSTILE, PHONE, expect, texts
from http_requests import request
from model_files import write_identity


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
        expect(form.get_by_label("Form of a line")).to_have_value("default")
        form.get_by_label("Level of verbose lines").fill("2")
        form.get_by_label("Information").uncheck()
        form.get_by_label("Form of a line").select_option("ISO8601")
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
        form.get_by_label("One of so many").fill("7")
        form.get_by_role("button", name="Apply").click()
        expect(form.get_by_role("status")).to_be_visible()
        settings = request(server, "GET", "/v2/trace/setting").json
        assert (settings["trace_level"], settings["trace_rate"]) == (["TIMESTAMPS"], "7")
        form.get_by_label("Times").uncheck()
        form.get_by_role("button", name="Apply").click()
        expect(form.get_by_role("status")).to_be_visible()
        assert request(server, "GET", "/v2/trace/setting").json["trace_level"] == ["OFF"]


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
