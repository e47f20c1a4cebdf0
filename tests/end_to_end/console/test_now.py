"""What the console shows of a model at the moment, and of GPUs: queues by priority, sequences, processes, engines."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import console_pages
import gpu_memory
import nereid_server
from console_pages import PHONE, expect, row
from http_requests import infer, tensor
from model_files import config, scale_model, write_identity, write_model
from waiting import eventually

ONE = [tensor("INPUT0", "FP32", [1, 1], [1.0])]
TENSORS = ([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])])
LEVELS = """
dynamic_batching {
  priority_levels: 3
  default_priority_level: 2
  priority_queue_policy { key: 1 value { max_queue_size: 5 } }
  priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 600000000 } }
}
"""
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one)]) for one in found]
"""


def held(gate):
    """The parameter that holds a model's executions at a gate."""
    return f'parameters {{ key: "gate" value {{ string_value: "{gate.path}" }} }}'


def test_queue_is_shown_by_priority(repository, browser, gate):
    text = config("levels", "identity", *TENSORS, max_batch_size=1, extra=LEVELS + held(gate))
    write_model(repository, "levels", text)
    with (
        nereid_server.running(repository) as server,
        browser.console(server, PHONE, "dark") as console,
        ThreadPoolExecutor() as pool,
    ):
        page = console.open("models/levels/statistics")
        now = page.get_by_role("region", name="At the moment")
        expect(now).to_contain_text("Waiting0 requests")
        rows = page.get_by_role("region", name="Queue by priority").locator("tbody tr")
        expect(rows).to_have_count(3)

        def send(priority):
            # 9 is no level of the model, so that request has the default priority.
            return pool.submit(infer, server, "levels", {"parameters": {"priority": priority}, "inputs": ONE})

        sent = [send(1)]
        first = gate.entered()
        sent += [send(priority) for priority in (1, 3, 3, 9, 3)]
        expect(now).to_contain_text("Waiting5 requests")
        for index, (level, waiting, room, longest) in enumerate(
            [
                ("1, most urgent", "1", "5", "no limit"),
                ("2 default", "1", "any number", "no limit"),
                ("3", "3", "any number", "10 min, then behind the others"),
            ]
        ):
            cells = console_pages.texts(rows.nth(index).locator("th, td"))
            assert (cells[0], cells[1], cells[3], cells[4]) == (level, waiting, room, longest)
            assert cells[2], cells
        console.assert_accessible()
        console.assert_no_sideways_scrolling()
        first.release()
        second = gate.entered()
        # The most urgent request left first.
        expect(rows.nth(0).locator("td").first).to_have_text("0")
        second.release()
        gate.open()
        assert [one.result().status for one in sent] == [200] * len(sent)
        expect(now).to_contain_text("Waiting0 requests")
        console.open("models/levels/signature")
        expect(page.get_by_role("region", name="Facts")).to_contain_text("3 levels, 2 by default")


def test_model_shows_its_engine_processes_sequences_and_warm_up(repository, browser):
    write_model(repository, "echo", config("echo", "python", *TENSORS))
    (repository / "echo" / "1" / "model.py").write_text(ECHO)
    scale_model("scaled").write(repository)
    zeros = 'inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }'
    warm_up = f'model_warmup {{ name: "zeros" batch_size: 2 count: 3 {zeros} }}'
    write_model(
        repository,
        "counter",
        config("counter", "identity", *TENSORS, max_batch_size=2, extra=f"sequence_batching {{ }}\n{warm_up}"),
    )
    write_model(repository, "batched", config("batched", "identity", *TENSORS, max_batch_size=2, extra="dynamic_batching { }"))
    flags = [f"--backend-config=python,python={sys.executable}", "--backend-config=onnxruntime,engine=tract"]
    with nereid_server.running(repository, *flags) as server, browser.console(server) as console:
        page = console.open()
        expect(row(page, "scaled")).to_contain_text("onnxruntime · tract 0.23 · 1 × CPU")
        python = ".".join(map(str, sys.version_info[:3]))
        expect(row(page, "echo")).to_contain_text(f"Python {python} · 1 × CPU · 1 process")
        # Models are found by their engines.
        page.get_by_label("Search models").fill("tract")
        expect(page.locator("table.models tbody tr")).to_have_count(1)
        now = page.get_by_role("region", name="At the moment")
        console.open("models/echo/statistics")
        expect(now).to_contain_text("MiB of memory")
        console.open("models/batched/statistics")
        expect(now).to_contain_text("priority_levels of dynamic_batching adds more")
        body = {"parameters": {"sequence_id": 7, "sequence_start": True}, "inputs": ONE}
        assert infer(server, "counter", body).status == 200
        console.open("models/counter/statistics")
        expect(now).to_contain_text("1 is open")
        console.assert_accessible()
        console.open("models/counter/signature")
        expect(page.get_by_role("region", name="Facts")).to_contain_text("zeros, batch of 2, 3 times")
        console.open("models/echo/signature")
        memory = re.compile(r"Memory[\d.]+ MiB, measured \(when loaded: .+ in the server, [\d.]+ MiB in processes\)")
        expect(page.get_by_role("region", name="Facts")).to_contain_text(memory)


def test_gpus_have_the_last_hour(repository, browser, tmp_path):
    write_identity(repository, "one", ["FP32"])
    library = gpu_memory.compile_standin(tmp_path)
    nvml = gpu_memory.Nvml(tmp_path)
    nvml.report((25, 1 << 30, 70_000), (None, 2 << 30, None))
    with nereid_server.running(repository, f"--cuda-driver-library={library}", env=os.environ | nvml.environment) as server:

        def samples():
            found = console_pages.document(server, "gpus")["gpus"]
            return [one["samples"] for one in found] if found else [[]]

        assert eventually(lambda: len(samples()[0]) >= 1)
        nvml.report((75, 3 << 30, 140_000), (None, 2 << 30, None))
        assert eventually(lambda: samples()[0][-1][1] == 0.75)
        first, second = samples()
        assert [sample[1:] for sample in (first[0], first[-1])] == [[0.25, 1 << 30, 70.0], [0.75, 3 << 30, 140.0]]
        assert second[0][1:] == [None, 2 << 30, None]
        with browser.console(server) as console:
            page = console.open("activity")
            busy = page.get_by_role("region", name="GPUs busy", exact=True)
            expect(busy.locator(".legend")).to_contain_text("GPU 0 75 %")
            expect(page.get_by_role("region", name="Memory of GPUs in use", exact=True)).to_contain_text("GPU 1 2.00 GiB")
            # The page was opened after the load had changed, and shows how it was before.
            chart = busy.locator(".u-over")
            chart.scroll_into_view_if_needed()
            box = chart.bounding_box()
            seen = set()
            for step in range(0, 101, 4):
                page.mouse.move(box["x"] + box["width"] * step / 100.01, box["y"] + 20)
                seen.add(busy.locator(".legend b").first.inner_text())
            assert {"25 %", "75 %"} <= seen, seen
            rows = page.get_by_role("region", name="GPUs", exact=True).last.locator("tbody tr")
            assert [text.split("\t")[2:] for text in rows.all_inner_texts()] == [
                ["3.00 GiB of 4.00 GiB", "75 %", "140 W"],
                ["2.00 GiB of 4.00 GiB", "", ""],
            ]
            console.assert_accessible()
            console.assert_no_sideways_scrolling()
