"""Requests by the console beyond a form's values: kept and shared ones, sounds, and conversations."""

import base64
import io
import json
import math
import struct
import subprocess
import sys
import wave

import pytest

import language_models
import nereid_server
from console_pages import HOSTILE, expect, texts
from model_files import config, write_identity, write_model

FLAGS = ["--strict-readiness=false", f"--backend-config=python,python={sys.executable}"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with models of numbers, texts and sound, and one of language."""
    repository = tmp_path_factory.mktemp("console") / "models"
    write_identity(repository, "numbers", ["FP32", "INT64"], dims=(-1,))
    write_identity(repository, "texts", ["BYTES"], dims=(1,))
    for name, datatype in (("sound", "FP32"), ("pcm", "INT16")):
        tensors = ([("INPUT0", datatype, [1, -1])], [("OUTPUT0", datatype, [1, -1])])
        write_model(repository, name, config(name, "identity", *tensors))
    for name, datatype, dims in (("picture", "UINT8", [10, 12, 3]), ("planes", "FP32", [1, 10, 12]), ("map", "FP64", [4, 5])):
        write_model(repository, name, config(name, "identity", [("INPUT0", datatype, dims)], [("OUTPUT0", datatype, dims)]))
    language_models.write(repository, "talker")
    with nereid_server.running(repository, *FLAGS, ready=False) as server:
        server.wait_until_loaded()
        yield server


def send(page):
    page.get_by_role("button", name="Send").click()


def cells(page):
    """The values of all outputs."""
    return texts(page.locator(".result td"))


def link_of(request, model="numbers"):
    """The address of a shared request, as anybody could write it."""
    content = base64.urlsafe_b64encode(json.dumps(request).encode()).decode().rstrip("=")
    return f"models/{model}?request={content}"


def sound(rate, seconds, frequency=440):
    """A tone in the form of WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        levels = (int(16000 * math.sin(2 * math.pi * frequency * at / rate)) for at in range(int(rate * seconds)))
        writer.writeframes(b"".join(struct.pack("<hh", level, level) for level in levels))
    return file.getvalue()


def test_requests_are_kept_in_the_browser(server, browser):
    with browser.console(server) as console:
        page = console.open("models/texts")
        text = page.get_by_label("INPUT0, text")
        for value, name in (("first", "one"), ("second", HOSTILE[:40])):
            text.fill(value)
            page.get_by_label("Name").fill(name)
            page.get_by_role("button", name="Keep this request").click()
        console.assert_accessible()
        # After the page was closed.
        console.open("models/texts")
        page.get_by_role("button", name="one", exact=True).click()
        expect(text).to_have_value("first")
        send(page)
        expect(page.get_by_role("region", name="Answer")).to_contain_text("first")
        kept = page.get_by_role("region", name="Kept in this browser")
        kept.get_by_role("button", name=f"Forget {HOSTILE[:40]}").click()
        assert texts(kept.get_by_role("listitem").get_by_role("button")) == ["one", "✕"]
        # Another model has requests of its own.
        console.open("models/numbers")
        expect(kept.get_by_role("listitem")).to_have_count(0)


def test_a_link_opens_the_same_request(server, browser):
    with browser.console(server, permissions=["clipboard-read", "clipboard-write"]) as console:
        page = console.open("models/numbers")
        page.get_by_label("INPUT0, size of dimension 1").fill("3")
        page.get_by_label("INPUT0, size of dimension 1").press("Tab")
        page.get_by_label("INPUT0, values in JSON").fill("[0.5, -1, 7]")
        page.get_by_label("Parameters").fill('{"priority": 0}')
        page.get_by_role("button", name="Copy a link").click()
        address = page.evaluate("navigator.clipboard.readText()")
        assert address.startswith(f"http://{server.url}/#/models/numbers?request=")
    with browser.console(server) as console:
        page = console.open(address.split("#/")[1])
        expect(page.get_by_label("INPUT0, values in JSON")).to_have_value("[0.5, -1, 7]")
        expect(page.get_by_label("Parameters")).to_have_value('{"priority": 0}')
        # Only the user sends it.
        expect(page.get_by_role("region", name="Answer")).to_contain_text("The answer appears here")
        send(page)
        expect(page.locator(".result td").nth(2)).to_have_text("7")


@pytest.mark.parametrize(
    "request_text",
    [
        None,
        7,
        [],
        {"inputs": 3, "how": HOSTILE, "parameters": {"a": 1}},
        {"inputs": {"INPUT0": None, "INPUT1": []}},
        {"inputs": {"INPUT0": {"mode": "constructor", "scale": "toString", "sizes": [4000000000], "text": 9}}},
        {"inputs": {"INPUT0": {"mode": "zeros", "sizes": [-1]}, "__proto__": {"sizes": "x"}}},
        {"inputs": {"INPUT0": {"mode": "values", "sizes": [1e9], "text": HOSTILE}}},
        {"inputs": {"INPUT0": {"mode": "random", "seed": "x", "sizes": [2, 2]}}},
    ],
)
def test_links_of_anybody_are_harmless(server, browser, request_text):
    with browser.console(server) as console:
        page = console.open(link_of(request_text))
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        send(page)
        expect(page.get_by_role("status").or_(page.get_by_role("alert")).filter(has_text="a")).not_to_have_count(0)
    with browser.console(server) as console:
        page = console.open("models/numbers?request=%25%25not-base64")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()


@pytest.mark.parametrize(("model", "scale"), [("sound", 1), ("pcm", 32767)])
def test_a_sound_is_sent_in_the_rate_of_the_model(server, browser, model, scale):
    with browser.console(server) as console:
        page = console.open(f"models/{model}")
        page.get_by_label("From").select_option("audio")
        page.get_by_label("INPUT0, samples a second").fill("8000")
        page.get_by_label("INPUT0, samples a second").press("Tab")
        file = {"name": "tone.wav", "mimeType": "audio/wav", "buffer": sound(16000, 0.5)}
        page.get_by_label("INPUT0, sound file").set_input_files(file)
        expect(page.get_by_role("img", name="The sound as the model gets it")).to_be_visible()
        console.assert_accessible()
        send(page)
        result = page.locator(".result")
        # Half a second at 8 kHz, from a file of twice as many samples.
        expect(result).to_contain_text("[1, 4000]")
        highest = float(result.inner_text().split("highest ")[1].split()[0])
        assert highest == pytest.approx(16000 / 32768 * scale, rel=0.05)
        page.get_by_label("INPUT0, sound file").set_input_files({"name": "x.txt", "mimeType": "text/plain", "buffer": b"no sound"})
        expect(page.get_by_role("alert")).to_contain_text("no sound that the browser can read")


def test_outputs_are_shown_as_pictures_maps_and_sound(server, browser):
    with browser.console(server) as console:
        for model, views, size in [
            ("picture", ["Picture", "Values"], (12, 10)),
            ("planes", ["Picture", "Map", "Values"], (12, 10)),
            ("map", ["Map", "Values"], (5, 4)),
        ]:
            page = console.open(f"models/{model}")
            page.get_by_label("From").select_option("random")
            send(page)
            result = page.locator(".result")
            group = result.get_by_role("group", name="View of OUTPUT0")
            expect(group).to_be_visible()
            assert texts(group.get_by_role("button")) == views
            group.get_by_role("button", name=views[0]).click()
            canvas = result.locator("canvas")
            assert canvas.evaluate("canvas => [canvas.width, canvas.height]") == list(size)
            shades = canvas.evaluate(
                "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size"
            )
            assert shades > 5
            console.assert_accessible()
            console.assert_no_sideways_scrolling()
            group.get_by_role("button", name="Values").click()
            expect(result.locator("canvas")).to_have_count(0)
        page = console.open("models/sound")
        page.get_by_label("From").select_option("audio")
        page.get_by_label("INPUT0, sound file").set_input_files(
            {"name": "tone.wav", "mimeType": "audio/wav", "buffer": sound(16000, 1)}
        )
        send(page)
        wave = page.get_by_role("img", name="OUTPUT0 as a wave")
        expect(wave).to_be_visible()
        page.get_by_label("Rate").select_option("8000")
        expect(wave).to_have_accessible_name("OUTPUT0 as a wave of 2.0 s")
        page.get_by_role("button", name="Play").click()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Play")).to_be_visible()
        console.assert_accessible()


def test_the_microphone_is_recorded(server, browser):
    with browser.console(server, permissions=["microphone"]) as console:
        page = console.open("models/sound")
        page.get_by_label("From").select_option("audio")
        page.get_by_role("button", name="Record").click()
        stop = page.get_by_role("button", name="Stop")
        expect(stop).to_be_visible()
        # The browser beeps once a second.
        page.wait_for_timeout(1500)
        stop.click()
        expect(page.get_by_role("img", name="The sound as the model gets it")).to_be_visible()
        send(page)
        expect(page.locator(".result")).to_contain_text("highest 0.")


def test_a_conversation_with_a_language_model(server, browser):
    with browser.console(server) as console:
        page = console.open("models/talker/chat")
        log = page.get_by_role("log")
        message = page.get_by_label("Message", exact=False).last
        message.fill("count 5")
        message.press("Enter")
        expect(log).to_contain_text("1 2 3 4 5")
        expect(log).to_contain_text("the first word after")
        # The same conversation for OpenAI's own client answers, too.
        message.fill("say 'quoted' \"words\" and \u202e")
        program = page.get_by_label("Request", exact=True).inner_text()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and done.stdout.startswith("'quoted' \"words\" and"), done
        page.get_by_role("group", name="Language").get_by_role("button", name="curl").click()
        expect(page.get_by_label("Request", exact=True)).to_contain_text("/v1/chat/completions")
        message.fill(f"say {HOSTILE}")
        page.get_by_role("button", name="Send").click()
        expect(log.locator(".message.assistant").last).to_contain_text("<script>")
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        message.fill("endless")
        message.press("Enter")
        expect(log).to_contain_text("tick tick tick")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        console.tolerates_failures = True
        message.fill("fail")
        message.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("the model is broken")
        page.get_by_role("button", name="Start again").click()
        expect(log).to_contain_text("Nothing is kept")
        # Other models have no such part.
        console.open("models/texts")
        expect(page.get_by_role("link", name="Signature")).to_be_visible()
        expect(page.get_by_role("link", name="Chat")).to_have_count(0)
