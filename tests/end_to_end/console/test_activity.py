"""The console's charts in a real browser."""

import itertools
import sys

import pytest

import console_pages
import nereid_server
from console_pages import HOSTILE, PHONE, expect
from http_requests import infer, request, tensor
from model_files import config, write_identity, write_model
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
        expect(value(page, "Memory", "server")).to_contain_text("MiB")
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


ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one)]) for one in found]
"""


def test_phases_batches_cache_and_processes_have_charts_where_there_are_any(repository, browser):
    tensors = ([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])])
    extra = "max_batch_size: 8\nresponse_cache { enable: true }"
    write_model(repository, "echo", config("echo", "python", *tensors, extra=extra))
    (repository / "echo" / "1" / "model.py").write_text(ECHO)
    flags = [
        f"--backend-config=python,python={sys.executable}",
        "--metrics-config=summary_latencies=true",
        "--cache-config=local,size=1048576",
    ]
    with nereid_server.running(repository, *flags) as server, browser.console(server) as console:
        numbers = itertools.count()

        def is_sampled():
            for number in itertools.islice(numbers, 4):
                # The second one is found in the cache.
                for _ in range(2):
                    body = {"inputs": [tensor("INPUT0", "FP32", [3, 1], [number, 0, 0])]}
                    assert infer(server, "echo", body).status == 200
            history = console_pages.document(server, "history?model=echo")
            samples = history["models"][0]["samples"] if history["models"] else []
            return any(sample[10] > 0 and sample[-1] for sample in samples)

        assert eventually(is_sampled)
        page = console.open("models/echo/charts")
        expect(page.locator(".uplot canvas")).to_have_count(9)
        expect(value(page, "Memory", "memory")).to_contain_text("MiB")
        for chart in ("Latency of half of the requests", "Latency of 99 % of the requests"):
            region = page.get_by_role("region", name=chart, exact=True)
            expect(region.locator(".legend span")).to_have_count(5)
        # Batches of 3 share a row with those of 4.
        batches = page.get_by_role("region", name="Batch sizes")
        expect(batches.locator(".sizes")).to_contain_text("3–4")
        drawn = batches.locator("canvas").evaluate(
            "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0)"
        )
        assert drawn
        seen = set()
        box = batches.locator("canvas").bounding_box()
        for step in range(0, 101, 2):
            page.mouse.move(box["x"] + box["width"] * step / 100.01, box["y"] + 20)
            seen.add(batches.locator(".legend").inner_text())
        assert "3–4: 100 %" in seen, seen
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        console.open("models/echo/statistics")
        expect(page.get_by_text("1, busy")).to_contain_text("% of the time")
        console.open("activity")
        expect(page.locator(".uplot canvas")).to_have_count(7)
        expect(value(page, "Memory", "processes of models")).to_contain_text("MiB")
        console.open()
        release = ".".join(map(str, sys.version_info[:3]))
        expect(console_pages.row(page, "echo")).to_contain_text(f"Python {release} · 1 × CPU · 1 process")


def test_changes_of_states_are_listed(repository, browser):
    write_identity(repository, "one", ["FP32"])
    write_model(repository, "bad", 'backend: "identity" max_batch_size: -7')
    flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--strict-readiness=false"]
    with nereid_server.running(repository, *flags, ready=False) as server, browser.console(server) as console:
        server.wait_until_loaded()
        page = console.open("activity")
        rows = page.get_by_role("region", name="Changes of states").last.locator("tbody tr")
        expect(rows.filter(has_text="bad").filter(has_text="Failed")).to_contain_text("max_batch_size")
        expect(rows.filter(has_text="the server").filter(has_text="Ready").first).to_be_visible()
        assert request(server, "POST", "/v2/repository/models/one/unload").status == 200
        console.open("models/one/statistics")
        # The console looks now and then: of an unload that a load follows at once it sees nothing.
        expect(rows.filter(has_text="Unloaded")).to_have_count(1)
        assert request(server, "POST", "/v2/repository/models/one/load").status == 200
        console.open("models/one/statistics")
        expect(rows.filter(has_text="Unloaded")).to_have_count(1)
        expect(rows.filter(has_text="Ready")).to_have_count(2)
        expect(rows.filter(has_text="max_batch_size")).to_have_count(0)
        console.assert_accessible()
        console.assert_no_sideways_scrolling()


def test_open_sequences_are_listed_with_age_and_state(repository, browser):
    state = 'state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 1000 '
    state += 'initial_state { name: "zero" data_type: TYPE_FP32 dims: 1000 zero_data: true } }'
    extra = f"sequence_batching {{ max_sequence_idle_microseconds: 600000000 {state} }}"
    tensors = ([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])])
    write_model(repository, "counter", config("counter", "identity", *tensors, max_batch_size=2, extra=extra))
    with nereid_server.running(repository) as server, browser.console(server) as console:
        page = console.open("models/counter/statistics")
        expect(page.get_by_text("No client has a sequence open.")).to_be_visible()
        one = [tensor("INPUT0", "FP32", [1, 1], [1.0])]
        for sequence in (7, HOSTILE):
            body = {"parameters": {"sequence_id": sequence, "sequence_start": True}, "inputs": one}
            assert infer(server, "counter", body).status == 200
        rows = page.get_by_role("region", name="Open sequences").last.locator("tbody tr")
        expect(rows).to_have_count(2)
        assert rows.nth(0).inner_text().split("\t")[:2] == ["7", "instance 0, slot 0"]
        expect(rows.nth(0)).to_contain_text("3.91 KiB")
        expect(rows.nth(1)).to_contain_text("<img src=x")
        assert page.locator("main img").count() == 0
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        for left, sequence in ((1, 7), (0, HOSTILE)):
            body = {"parameters": {"sequence_id": sequence, "sequence_end": True}, "inputs": one}
            assert infer(server, "counter", body).status == 200
            expect(rows).to_have_count(left)


def test_history_needs_the_right_to_statistics(repository, browser):
    write_identity(repository, "one", ["FP32"])
    flags = ["--http-restricted-api=statistics:key=v"]
    with nereid_server.running(repository, *flags) as server, browser.console(server) as console:
        console.tolerates_failures = True
        page = console.open("activity")
        page.get_by_label("Key for key").fill("v")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_label("Key for key")).to_have_count(0)
