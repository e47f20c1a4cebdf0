"""The console's pages of models in a real browser: requests by form, answers, and the requests to copy."""

import json
import shutil
import struct
import subprocess
import sys
import zlib

import pytest

import console_pages
import nereid_server
from console_pages import HOSTILE, PHONE, expect, texts
from http_requests import infer, request, tensor
from model_files import config, write_identity, write_model
from places import EXAMPLES

WORDS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)[0].decode()
            sender = request.get_response_sender()
            for word in text.split():
                output = pb_utils.Tensor("WORD", np.array([word + " "], dtype=object))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
HOSTILE_NAME = HOSTILE.replace("/", "\u2215").replace("\u0007", "")
FLAGS = [
    "--model-control-mode=explicit",
    "--load-model=*",
    "--exit-on-error=false",
    "--strict-readiness=false",
    f"--backend-config=python,python={sys.executable}",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the examples, a model of texts, one that streams, one with a hostile name, and one that cannot be loaded."""
    repository = tmp_path_factory.mktemp("console") / "models"
    shutil.copytree(EXAMPLES / "model_repository", repository)
    write_identity(repository, "numbers", ["INT64", "FP16", "BF16", "UINT8", "BOOL", "FP64"])
    write_identity(repository, "texts", ["BYTES"], dims=(1,))
    write_identity(repository, HOSTILE_NAME, ["INT32"])
    # The folder names the model: its name has no form in a configuration's text.
    path = repository / HOSTILE_NAME / "config.pbtxt"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("name:")))
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "words", config("words", "python", [("TEXT", "BYTES", [1])], [("WORD", "BYTES", [1])], extra=decoupled))
    (repository / "words" / "1" / "model.py").write_text(WORDS)
    write_model(repository, "bad", 'backend: "identity" max_batch_size: -7')
    with nereid_server.running(repository, *FLAGS, ready=False) as server:
        yield server


def png(pgm):
    """A picture in gray as PNG. It has the form of a portable graymap with numbers in text."""
    words = [word for line in pgm.read_text().splitlines() if not line.startswith("#") for word in line.split()]
    assert words[0] == "P2", words[0]
    width, height, highest, *levels = map(int, words[1:])
    levels = [level * 255 // highest for level in levels]
    rows = b"".join(b"\0" + bytes(levels[row * width : (row + 1) * width]) for row in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def send(page):
    """Sends the form's request."""
    page.get_by_role("button", name="Send").click()


def answers(page, text):
    """Waits until the answer has this text."""
    expect(page.get_by_role("region", name="Answer")).to_contain_text(text)


def cells(page, output):
    """The values of an output that is shown as a table."""
    shown = page.locator(".result").filter(has=page.get_by_role("heading", name=output, exact=True))
    expect(shown).to_have_count(1)
    return texts(shown.locator("td"))


def test_image_is_classified(server, browser):
    with browser.console(server) as console:
        page = console.open("models/digits")
        page.get_by_label("From").select_option("image")
        image = {"name": "three.png", "mimeType": "image/png", "buffer": png(EXAMPLES / "images" / "digit_3.pgm")}
        page.get_by_label("image, image file").set_input_files(image)
        expect(page.get_by_role("img", name="The image as the model gets it")).to_be_visible()
        send(page)
        expect(page.locator(".classes > span").first).to_have_text("three")
        assert page.locator(".classes .track").count() == 10
        console.assert_accessible()
        page.get_by_role("button", name="Values", exact=True).click()
        assert len(cells(page, "probabilities")) == 10
        text = {"name": "x.txt", "mimeType": "text/plain", "buffer": b"no image"}
        page.get_by_label("image, image file").set_input_files(text)
        expect(page.get_by_role("alert")).to_contain_text("no image that the browser can read")


def test_ensemble_takes_an_image_of_bytes_and_shows_its_steps(server, browser):
    with browser.console(server) as console:
        page = console.open("models/read_digit")
        page.get_by_label("From").select_option("image")
        image = {"name": "three.png", "mimeType": "image/png", "buffer": png(EXAMPLES / "images" / "digit_3.pgm")}
        page.get_by_label("pixels, image file").set_input_files(image)
        send(page)
        expect(page.locator(".classes > span").first).to_have_text("3")
        page.get_by_role("link", name="Steps").click()
        graph = page.get_by_role("group", name="Graph of the ensemble")
        tensors = graph.locator("text.label").evaluate_all("all => all.map(one => one.firstChild.textContent)")
        assert tensors == ["pixels", "image", "probabilities"]
        console.assert_accessible()
        graph.get_by_role("link", name="digits").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("digits")


def test_values_of_every_type_reach_the_model(server, browser):
    sent = {
        "INPUT0": ["9223372036854775807", "-9223372036854775808", "0", "1"],
        "INPUT1": ["1.5", "-65504", "0.0999756", "6.10352e-5"],
        "INPUT2": ["1.5", "-3.38953e+38", "0.101563", "2"],
        "INPUT3": ["0", "255", "7", "8"],
        "INPUT4": ["true", "false", "false", "true"],
        "INPUT5": ["0.1", "-1e-300", "3", "4"],
    }
    with browser.console(server) as console:
        page = console.open("models/numbers")
        for name, values in sent.items():
            page.get_by_label(f"{name}, values in JSON").fill(f"[{', '.join(values)}]")
        send(page)
        for index, values in enumerate(sent.values()):
            shown = cells(page, f"OUTPUT{index}")
            if index in (0, 3, 4):
                assert shown == values
            else:
                assert [float(value) for value in shown] == pytest.approx([float(value) for value in values], rel=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2, 3]", "INPUT3 has 3 values; its shape [4] has 4"),
        ("[1, 2, 3, 256]", "256 is out of range for UINT8"),
        ("[1, 2, 3, 0.5]", "0.5 is not a whole number"),
        ("[1, 2, 3, true]", "true is not a number"),
        ("[1, 2", "INPUT3: "),
    ],
)
def test_mistakes_are_found_before_the_request(server, browser, text, message):
    with browser.console(server) as console:
        page = console.open("models/numbers")
        page.get_by_label("INPUT3, values in JSON").fill(text)
        send(page)
        expect(page.get_by_role("alert")).to_contain_text(message)


def test_error_of_the_server_is_shown(server, browser):
    with browser.console(server) as console:
        console.tolerates_failures = True
        page = console.open("models/texts")
        page.get_by_label("Parameters").fill('{"priority": "high"}')
        page.get_by_label("INPUT0, text").fill("x")
        send(page)
        expect(page.get_by_role("alert")).to_contain_text("priority")


def test_text_is_shown_as_text(server, browser):
    with browser.console(server) as console:
        page = console.open("models/texts")
        page.get_by_label("INPUT0, text").fill(f"héllo {HOSTILE}")
        send(page)
        answers(page, "héllo <img src=x")
        answers(page, "U+202E")
        assert page.locator("main img").count() == 0
        console.assert_accessible()


def test_responses_are_streamed(server, browser):
    with browser.console(server) as console:
        page = console.open("models/words")
        page.get_by_label("TEXT, text").fill(f"one two three {HOSTILE.split()[0]}")
        send(page)
        answers(page, "one two three <img")
        answers(page, "4 responses in")
        page.get_by_role("button", name="One answer").click()
        console.tolerates_failures = True
        send(page)
        expect(page.get_by_role("alert")).to_contain_text("decoupled")


def snippet(page, language):
    """The request to copy in a language."""
    page.get_by_role("button", name=language, exact=True).click()
    return page.get_by_label("Request", exact=True).inner_text()


# The functions of the crate ureq that requests in Rust use, over a plain socket.
UREQ = """
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
pub struct Post(String, String);
pub struct Answer(Body);
pub struct Body(Vec<u8>);
pub fn post(url: &str) -> Post { Post(url.to_owned(), String::new()) }
impl Post {
    pub fn header(mut self, name: &str, value: &str) -> Self { self.1 += &format!("{name}: {value}\\r\\n"); self }
    pub fn send(self, body: &str) -> Result<Answer> {
        let (host, path) = self.0.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
        let mut stream = TcpStream::connect(host)?;
        write!(stream, "POST /{path} HTTP/1.0\\r\\n{}Content-Length: {}\\r\\n\\r\\n{body}", self.1, body.len())?;
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        let head = all.windows(4).position(|end| end == b"\\r\\n\\r\\n").ok_or(Error::other("no head"))?;
        Ok(Answer(Body(all.split_off(head + 4))))
    }
}
impl Answer { pub fn body_mut(&mut self) -> &mut Body { &mut self.0 } }
impl Body {
    pub fn read_to_string(&mut self) -> Result<String> { String::from_utf8(self.0.clone()).map_err(Error::other) }
    pub fn as_reader(&mut self) -> &[u8] { &self.0 }
}
"""


def built(folder, code):
    """A program in Rust."""
    for name, text in (("ureq", UREQ), ("request", code)):
        (folder / f"{name}.rs").write_text(text)
        kind = ["--crate-type=lib"] if name == "ureq" else ["--extern", "ureq=libureq.rlib"]
        command = ["rustc", "--edition=2024", *kind, f"{name}.rs"]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
    return folder / "request"


@pytest.mark.parametrize("model", ["add_sub", "texts", HOSTILE_NAME])
def test_requests_to_copy_do_what_the_form_does(server, browser, tmp_path, model):
    with browser.console(server) as console:
        page = console.open(f"models/{console_pages.quote(model)}")
        if model == "texts":
            page.get_by_label("INPUT0, text").fill('it\'s "quoted" $HOME `id` \\n é \U0001f40b')
        send(page)
        expect(page.get_by_role("status").filter(has_text="answered in")).to_be_visible()
        languages = ("curl", "Python, HTTP", "Python, gRPC", "JavaScript", "Rust")
        curl, http, grpc, javascript, rust = (snippet(page, name) for name in languages)
        for text in (curl, http, grpc, javascript, rust):
            assert text.isascii(), text
        outputs = json.loads(subprocess.run(["bash", "-c", curl], capture_output=True, check=True).stdout)["outputs"]
        (tmp_path / "request.mjs").write_text(javascript)
        for program in (["node", tmp_path / "request.mjs"], [built(tmp_path, rust)]):
            ran = subprocess.run(program, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
            assert json.loads(ran.stdout)["outputs"] == outputs
        grpc = grpc.replace(f"{server.url.split(':')[0]}:8001", server.grpc_url)
        for code in (http, grpc):
            ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
            for output in outputs:
                assert output["name"] in ran.stdout
        if model == "texts":
            assert outputs[0]["data"] == ['it\'s "quoted" $HOME `id` \\n é \U0001f40b']
        if model == "add_sub":
            sums = dict(zip((output["name"] for output in outputs), outputs))
            assert cells(page, "INT_SUM") == [str(value) for value in sums["INT_SUM"]["data"]]


@pytest.mark.parametrize("model", ["digits", HOSTILE_NAME], ids=["digits", "hostile"])
@pytest.mark.parametrize("size", [console_pages.DESK, PHONE], ids=["desk", "phone"])
def test_every_part_is_accessible_and_sound(server, browser, model, size):
    with browser.console(server, size, "dark" if size is PHONE else "light") as console:
        for part, text in [
            ("", "Inputs"),
            ("signature", "Outputs"),
            ("charts", "one value each"),
            ("statistics", "Version 1"),
            ("configuration", "instance_group"),
        ]:
            page = console.open(f"models/{console_pages.quote(model)}/{part}")
            expect(page.locator("main")).to_contain_text(text)
            console.assert_accessible()
            console.assert_no_sideways_scrolling()


def test_what_a_backend_completed_is_shown(server, browser):
    with browser.console(server) as console:
        page = console.open("models/add_sub/configuration")
        shown = page.get_by_label("Configuration", exact=True).last
        expect(shown).to_contain_text("INT_SUM")
        page.get_by_role("button", name="Declared").click()
        expect(shown).to_contain_text('"max_batch_size": 8')
        expect(shown).not_to_contain_text("INT_SUM")
        page.get_by_role("button", name="Difference").click()
        table = page.get_by_role("region", name="What was completed")
        expect(table.get_by_role("row").filter(has_text='"INT_SUM"')).to_have_count(1)
        expect(table.get_by_role("row").filter(has_text="max_batch_size")).to_have_count(0)
        console.assert_accessible()
        # Its file has all of it.
        console.open("models/identity_fp32/configuration")
        page.get_by_role("button", name="Difference").click()
        expect(page.get_by_text("Nothing was completed")).to_be_visible()
        console.open(f"models/{console_pages.quote(HOSTILE_NAME)}/configuration")
        page.get_by_role("button", name="Declared").click()
        expect(shown).to_contain_text("INPUT0")


def test_quantiles_of_each_phase_are_shown_if_the_server_keeps_them(server, browser, repository):
    with browser.console(server) as console:
        page = console.open("models/digits/statistics")
        expect(page.get_by_role("region", name="Latency of the last minute")).to_contain_text("summary_latencies=true")
    write_identity(repository, "one", ["FP32"])
    with nereid_server.running(repository, "--metrics-config=summary_latencies=true") as kept, browser.console(kept) as console:
        for _ in range(20):
            assert infer(kept, "one", {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}).status == 200
        page = console.open("models/one/statistics")
        table = page.get_by_role("region", name="Latency by phase")
        expect(table.locator("tbody tr")).to_have_count(5)
        expect(table.locator("tbody td").first).to_contain_text("µs")
        console.assert_accessible()


def test_models_are_loaded_and_unloaded_with_the_answer_shown(server, browser):
    with browser.console(server) as console:
        page = console.open("models/scale_pixels")
        page.get_by_role("button", name="Reload").click()
        expect(page.get_by_text("Reloaded in")).to_be_visible()
        console.open("models/numbers")
        page.get_by_role("button", name="Unload").click()
        expect(page.get_by_text("Unloaded in")).to_be_visible()
        expect(page.get_by_role("button", name="Unload")).to_be_disabled()
        page.get_by_role("button", name="Load", exact=True).click()
        expect(page.get_by_text("Loaded in")).to_be_visible()
        console.tolerates_failures = True
        console.open("models/bad")
        page.get_by_role("button", name="Load", exact=True).click()
        expect(page.get_by_role("alert").filter(has_text="max_batch_size")).not_to_have_count(0)


def test_models_of_a_server_without_model_control_cannot_be_loaded(repository, browser):
    write_identity(repository, "one", ["FP32"])
    with nereid_server.running(repository) as server, browser.console(server) as console:
        page = console.open("models/one")
        expect(page.get_by_text("--model-control-mode=explicit")).to_be_visible()
        expect(page.get_by_role("button", name="Reload")).to_be_disabled()
        console.open("models/nothing%3Cb%3E")
        expect(page.get_by_text("contain no model of this name")).to_be_visible()


def test_page_works_by_keyboard_alone(server, browser):
    with browser.console(server) as console:
        page = console.open()
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.keyboard.press("/")
        page.keyboard.type("texts")
        page.keyboard.press("Tab")
        link = page.get_by_role("link", name="texts")
        for _ in range(20):
            if link.evaluate("link => link === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("texts")
        text = page.get_by_label("INPUT0, text")
        for _ in range(30):
            if text.evaluate("text => text === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.type("by keyboard")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        answers(page, "by keyboard")


def test_versions_have_pages_of_their_own(repository, browser):
    write_identity(repository, "two", ["FP32"])
    text = (repository / "two" / "config.pbtxt").read_text()
    (repository / "two" / "config.pbtxt").write_text(f"{text}version_policy {{ all {{ }} }}\n")
    (repository / "two" / "2").mkdir()
    with nereid_server.running(repository) as server, browser.console(server) as console:
        page = console.open("models/two")
        page.get_by_role("link", name="Version 1").click()
        send(page)
        expect(page.get_by_role("status").filter(has_text="answered in")).to_be_visible()
        assert "/versions/1/infer" in snippet(page, "curl")
        statistics = request(server, "GET", "/v2/models/two/stats").json["model_stats"]
        assert [one["inference_count"] for one in statistics] == [1, 0]
