"""Makes the pictures of the console in docs/pictures, in four minutes: `pytest tests/end_to_end/console/pictures.py`. It runs only
if it is named.
"""

import json
import math
import shutil
import threading
import time
from http.client import HTTPConnection

from test_models import FLAGS, WORDS, png

import console_pages
import language_models
import nereid_server
from console_pages import expect
from http_requests import LIMIT_S, tensor
from model_files import config, write_model
from places import EXAMPLES, ROOT

FOLDER = ROOT / "docs/pictures"
# Bytes of a picture at most.
LIMIT = 150_000
LOADED_S = 100
FLOATS = [float(number % 10) / 10 for number in range(64)]
LOADS = [
    ("digits", [tensor("image", "FP32", [1, 1, 8, 8], FLOATS)], 30, 0.0),
    ("read_digit", [tensor("pixels", "UINT8", [1, 8, 8], [number % 17 for number in range(64)])], 15, 1.0),
    ("canary", [tensor("INPUT0", "FP32", [4], FLOATS[:4])], 25, 4.0),
    ("identity_fp32", [tensor("INPUT0", "FP32", [1, 4], FLOATS[:4])], 60, 2.0),
    (
        "add_sub",
        [
            tensor(name, kind, [1, 16], [1] * 16)
            for name, kind in [("INT0", "INT32"), ("INT1", "INT32"), ("FLOAT0", "FP32"), ("FLOAT1", "FP32")]
        ],
        20,
        3.0,
    ),
]


def load(server, ended, model, inputs, rate, phase):
    """Sends requests at a rate that rises and falls."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    body = json.dumps({"inputs": inputs})
    while not ended.wait(1 / (rate * (1.15 + math.sin(time.monotonic() / 14 + phase)))):
        connection.request("POST", f"/v2/models/{model}/infer", body)
        assert connection.getresponse().read()
    connection.close()


def take(browser, server, theme, path, name, act):
    """Makes a picture of a page."""
    with browser.console(server, {"width": 1280, "height": 800}, theme) as console:
        page = console.open(path)
        act(page)
        # The figures of a page that was just opened come with its first polls.
        page.wait_for_timeout(1000)
        file = FOLDER / f"{name}-{theme}.png"
        page.screenshot(path=file)
        assert file.stat().st_size < LIMIT, file


def classify(page):
    """Sends an image of a digit."""
    page.get_by_label("From").select_option("image")
    image = {"name": "three.png", "mimeType": "image/png", "buffer": png(EXAMPLES / "images" / "digit_3.pgm")}
    page.get_by_label("image, image file").set_input_files(image)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".classes > span").first).to_have_text("three")


def settled(page, text):
    """Waits until a page has its text."""
    expect(page.locator("main")).to_contain_text(text)


def talk(page):
    """Has a conversation."""
    for text, answer in [("say Models, versions and their states.", "their states."), ("count 12", "11 12")]:
        page.get_by_label("Message", exact=False).last.fill(text)
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("log")).to_contain_text(answer)
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)


def search(page):
    """Searches the log."""
    page.get_by_label("Search the log").fill("loaded")
    settled(page, "successfully loaded")


def trace(page):
    """Traces one of the requests that arrive all the time."""
    page.get_by_role("button", name="Trace the next request").click()
    expect(page.locator("table.waterfall tbody tr")).to_have_count(3)
    expect(page.get_by_role("button", name="Trace the next request")).to_be_enabled()


def compare(page):
    """Shows what a backend completed."""
    page.get_by_role("button", name="Difference").click()
    settled(page, "INT_SUM")


def test_pictures_are_made(repository):
    shutil.copytree(EXAMPLES / "model_repository", repository, dirs_exist_ok=True)
    decoupled = "model_transaction_policy { decoupled: true }"
    for name in ("stream_words", "translate"):
        text = config(name, "python", [("TEXT", "BYTES", [1])], [("WORD", "BYTES", [1])], extra=decoupled)
        write_model(repository, name, text)
        (repository / name / "1" / "model.py").write_text(WORDS if name == "stream_words" else f"import sentencepieces\n{WORDS}")
    language_models.write(repository, "talker")
    parameters = {"release_versions": "1=90, 2=10", "release_promote_after": "100000"}
    extra = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items())
    tensors = ([("INPUT0", "FP32", [4])], [("OUTPUT0", "FP32", [4])])
    write_model(repository, "canary", config("canary", "identity", *tensors, extra=f"version_policy {{ all {{ }} }}\n{extra}"))
    (repository / "canary" / "2").mkdir()
    FOLDER.mkdir(exist_ok=True)
    flags = [*FLAGS, "--metrics-config=summary_latencies=true"]
    with nereid_server.running(repository, *flags, ready=False) as server:
        ended = threading.Event()
        threads = [threading.Thread(target=load, args=(server, ended, *one)) for one in LOADS]
        try:
            for thread in threads:
                thread.start()
            time.sleep(LOADED_S)
            with console_pages.browser() as browser:
                for theme in ("light", "dark"):
                    overview = {"light": "digits", "dark": "add_sub"}[theme]
                    take(
                        browser,
                        server,
                        theme,
                        "",
                        "overview",
                        lambda page: expect(console_pages.row(page, overview)).to_be_visible(),
                    )
                    take(browser, server, theme, "models/digits", "try-it", classify)
                    take(
                        browser,
                        server,
                        theme,
                        "activity",
                        "activity",
                        lambda page: expect(page.locator(".uplot")).not_to_have_count(0),
                    )
                    take(
                        browser,
                        server,
                        theme,
                        "models/read_digit/graph",
                        "steps",
                        lambda page: expect(page.locator(".graph svg")).to_be_visible(),
                    )
                    take(browser, server, theme, "models/talker/chat", "chat", talk)
                    take(
                        browser, server, theme, "models/digits/statistics", "statistics", lambda page: settled(page, "99 % within")
                    )
                    take(
                        browser,
                        server,
                        theme,
                        "models/digits/charts",
                        "charts",
                        lambda page: expect(page.locator(".uplot")).not_to_have_count(0),
                    )
                    take(browser, server, theme, "models/read_digit/trace", "trace", trace)
                    take(browser, server, theme, "models/canary/release", "release", lambda page: settled(page, "Established"))
                    take(browser, server, theme, "models/add_sub/configuration", "configuration", compare)
                    take(browser, server, theme, "logs", "logs", search)
                    take(browser, server, theme, "settings", "settings", lambda page: settled(page, "trace"))
        finally:
            ended.set()
            for thread in threads:
                thread.join()
