"""The console in a real browser. A page that reports an error, breaks its security policy or asks another host fails its test."""

import json
import re
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote as _quote

from playwright.sync_api import expect, sync_playwright

import chromium
from http_requests import request

LIMIT_MS = 15_000
DESK = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 844}
# What the rules of axe that the tests apply are for.
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
# The text of a script that must never run, and the name that it would set.
HOSTILE = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>\'"&\u202etxt\u2066\u0007'

expect.set_options(timeout=LIMIT_MS)


class Console:
    """A tab with the console of a server."""

    def __init__(self, page, server):
        self.page = page
        self._home = f"http://{server.url}/"
        self.complaints: list[str] = []
        self.other_hosts: list[str] = []
        # Whether failed requests are expected, because the server is away or refuses some.
        self.tolerates_failures = False
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._see)

    def _hear(self, message):
        is_request = "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not (is_request and self.tolerates_failures):
            self.complaints.append(message.text)

    def _see(self, request):
        if not request.url.startswith(self._home):
            self.other_hosts.append(request.url)

    def open(self, path=""):
        """Opens a page by its address behind `#/`."""
        self.page.goto("about:blank")
        self.page.goto(f"{self._home}#/{path}")
        expect(self.page.locator("main")).not_to_be_empty()
        return self.page

    def assert_accessible(self):
        """axe finds nothing on the page as it is."""
        if not self.page.evaluate("'axe' in window"):
            # The policy of the page forbids scripts of others, so this one comes through the debugger.
            self.page.evaluate(Path(chromium.axe()).read_text())
        options = {"runOnly": {"type": "tag", "values": _RULES}, "resultTypes": ["violations"]}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        violations = [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found["violations"]]
        assert not violations, json.dumps(violations, indent=1)

    def assert_sound(self):
        """Nothing went wrong, ran that should not, or left this server."""
        assert not self.complaints, self.complaints
        assert not self.other_hosts, self.other_hosts
        assert self.page.evaluate("window.broken === undefined")

    def assert_no_sideways_scrolling(self):
        """The page is as wide as the window."""
        assert self.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


class Browser:
    """A browser that opens consoles."""

    def __init__(self, browser):
        self._browser = browser

    @contextmanager
    def console(self, server, size=None, theme="light", **how):
        """A tab in a profile of its own. It is checked at its end."""
        context = self._browser.new_context(viewport=size or DESK, color_scheme=theme, **how)
        context.set_default_timeout(LIMIT_MS)
        try:
            console = Console(context.new_page(), server)
            yield console
            console.assert_sound()
        finally:
            context.close()


@contextmanager
def browser():
    """A browser for the length of a `with` block."""
    program, environment = chromium.program()
    with sync_playwright() as playwright:
        # The tests may run as the superuser, for whom there is no sandbox. The microphone is a tone that the browser makes.
        flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        started = playwright.chromium.launch(executable_path=program, env=environment, args=flags)
        try:
            yield Browser(started)
        finally:
            started.close()


def row(page, model):
    """The row of a model in the overview."""
    return page.locator("table.models tbody tr").filter(has=page.get_by_role("link", name=model, exact=True))


def texts(locator):
    """The texts of elements, without white space around them."""
    return [re.sub(r"\s+", " ", text).strip() for text in locator.all_inner_texts()]


def document(server, name):
    """A document of the console's own API."""
    answer = request(server, "GET", f"/console/api/{name}")
    assert answer.status == 200, answer
    return answer.json


def quote(name):
    """A name as a part of an address."""
    return _quote(name, safe="")
