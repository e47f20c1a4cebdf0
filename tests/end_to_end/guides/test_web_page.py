"""The page for browsers of docs/clients.md, in a real one and from another origin than the server's."""

import functools
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect, sync_playwright
from test_clients_page import ANSWERS, PAGE, PYTHON, write_models

import chromium
import nereid_server
from guide_pages import blocks

LIMIT_MS = 60_000


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def site(folder):
    """A site with the files of a folder; its origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def tab():
    """A page of a browser."""
    program, environment = chromium.program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, env=environment, args=["--no-sandbox"])
        try:
            yield browser.new_page()
        finally:
            browser.close()


@pytest.mark.parametrize(("allowed", "shown"), [(True, ANSWERS), (False, "TypeError: Failed to fetch\n")])
def test_a_page_does_the_five_tasks_if_its_origin_may(tmp_path, allowed, shown):
    (block,) = (block for block in blocks(PAGE, "In a browser") if block.file)
    models = write_models(tmp_path)
    with site(tmp_path) as origin, tab() as page:
        cors = f"--http-cors-origin={origin if allowed else 'http://elsewhere.example'}"
        with nereid_server.running(models, PYTHON, cors) as server:
            (tmp_path / block.file).write_text(block.text.replace("localhost:8000", server.url))
            page.goto(f"{origin}/{block.file}")
            expect(page.locator("#answers")).to_contain_text(shown.splitlines()[-1], timeout=LIMIT_MS)
            assert page.locator("#answers").text_content() == shown
