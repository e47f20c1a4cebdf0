"""The console's charts in a real browser."""

import pytest

import console_pages
import nereid_server
from console_pages import PHONE, expect
from http_requests import infer, tensor
from model_files import write_identity
from waiting import eventually


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with two models, of which one had requests that are in the history."""
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "busy", ["FP32"])
    write_identity(repository, "idle", ["FP32"])
    with nereid_server.running(repository) as server:
        body = {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}

        def is_sampled():
            assert infer(server, "busy", body).status == 200
            history = console_pages.document(server, "history")
            return history["models"] and len(history["server"]) > 2

        assert eventually(is_sampled)
        yield server


def value(page, chart, name):
    """The last value of a line in a chart's legend."""
    legend = page.get_by_role("region", name=chart, exact=True).locator(".legend span").filter(has_text=name)
    return legend.locator("b")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [console_pages.DESK, PHONE], ids=["desk", "phone"])
def test_server_has_charts_of_the_last_hour(server, browser, theme, size):
    with browser.console(server, size, theme) as console:
        page = console.open("activity")
        expect(page.locator(".uplot canvas")).to_have_count(6)
        expect(value(page, "Memory of the server", "memory")).to_contain_text("MiB")
        expect(value(page, "Waiting requests", "waiting")).to_have_text("0")
        page.get_by_role("button", name="1 hour").click()
        expect(page.locator(".uplot canvas")).to_have_count(6)
        drawn = page.locator(".uplot canvas").first.evaluate("canvas => canvas.toDataURL().length")
        page.get_by_role("button", name="Light" if theme == "dark" else "Dark").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "light" if theme == "dark" else "dark")
        again = page.locator(".uplot canvas").first.evaluate("canvas => canvas.toDataURL().length")
        assert drawn > 1000 and again > 1000
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


def test_models_have_charts_of_their_own(server, browser):
    with browser.console(server) as console:
        page = console.open("models/busy/charts")
        expect(page.locator(".uplot canvas")).to_have_count(4)
        # Somewhere in the last minutes there were requests: the chart's highest point is not zero.
        chart = page.get_by_role("region", name="Requests", exact=True).locator(".u-over")
        seen = set()
        box = chart.bounding_box()
        for step in range(0, 101, 4):
            page.mouse.move(box["x"] + box["width"] * step / 100.01, box["y"] + 20)
            seen.add(value(page, "Requests", "requests").inner_text())
        assert any(text not in ("0", "–") for text in seen), seen
        console.open("models/idle/charts")
        expect(page.locator(".uplot canvas")).to_have_count(4)
        expect(value(page, "Requests", "requests")).to_have_text("0")
        console.assert_accessible()


def test_history_needs_the_right_to_statistics(repository, browser):
    write_identity(repository, "one", ["FP32"])
    flags = ["--http-restricted-api=statistics:key=v"]
    with nereid_server.running(repository, *flags) as server, browser.console(server) as console:
        console.tolerates_failures = True
        page = console.open("activity")
        page.get_by_label("Key for key").fill("v")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_label("Key for key")).to_have_count(0)
