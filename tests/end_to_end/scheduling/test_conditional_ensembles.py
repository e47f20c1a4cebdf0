"""Ensembles with conditions, maps and fallbacks: the example of docs/ensembles.md, beside the same chain as a model in Python."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import nereid_server
from gates import Gate
from guide_pages import blocks
from http_requests import LIMIT_S, infer, request, tensor
from model_files import config, write_identity, write_model
from places import EXAMPLES
from scrapes import Scrape
from waiting import eventually

CHAIN = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils


def ask(model, output, *inputs):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=output, inputs=list(inputs))


def read(response, name):
    return pb_utils.get_output_tensor_by_name(response, name).as_numpy()


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        page = pb_utils.get_input_tensor_by_name(request, "page")
        found = await ask("find_marks", ["crops", "found"], page).async_exec()
        if not read(found, "found")[0]:
            return pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array(["nothing"], np.object_))])
        crops = read(found, "crops")
        for model in ("name_mark", "describe_mark"):
            asked = [ask(model, ["name"], pb_utils.Tensor("crop", crop[None])).async_exec() for crop in crops]
            named = await asyncio.gather(*asked)
            if not any(answer.has_error() for answer in named):
                break
        names = pb_utils.Tensor("names", np.concatenate([read(answer, "name") for answer in named]))
        text = await ask("join_names", ["text"], names).async_exec()
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(text, "text")])
"""
NAMES = {1: "dot", 4: "bar", 16: "block"}


def write_example(repository):
    """The models of the page."""
    for block in blocks("docs/ensembles.md"):
        if block.file:
            path = repository.parent / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    (repository / "read_marks" / "1").mkdir()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("conditions") / "models"
    write_example(repository)
    chain = config("chain", "python", [("page", "UINT8", [4, -1])], [("text", "BYTES", [1])])
    write_model(repository, "chain", chain)
    (repository / "chain" / "1" / "model.py").write_text(CHAIN)
    with nereid_server.running(repository, f"--backend-config=python,python={sys.executable}") as server:
        yield server


def page_of(sizes):
    """A page with marks of these sizes, each four columns wide at most."""
    page = np.zeros((4, 5 * len(sizes) + 1), np.uint8)
    for place, size in enumerate(sizes):
        page[:, 5 * place : 5 * place + 4].T.flat[:size] = 1
    return page


def text_of(sizes):
    if all(size in NAMES for size in sizes):
        return " ".join(NAMES[size] for size in sizes) or "nothing"
    return " ".join(f"{size}px" for size in sizes)


def random_pages(seed, count):
    """The sizes of marks of pages: most pages have names for all of their marks, some have none."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        known = random.random() < 0.7
        yield random.choice([1, 4, 16] if known else [1, 2, 4, 9, 16], random.integers(0, 6)).tolist()


def statistics(server, model):
    (found,) = request(server, "GET", f"/v2/models/{model}/stats").json["model_stats"]
    ends = found["inference_stats"]
    return ends["success"]["count"], ends["fail"]["count"]


def fallbacks(server):
    return Scrape(server).value("nereid_ensemble_fallbacks_total", model="read_marks", version="1")


def test_answers_equal_those_of_the_chain_in_python_over_http_and_grpc(server):
    http, grpc = tritonclient.http, tritonclient.grpc
    with http.InferenceServerClient(server.url) as over_http, grpc.InferenceServerClient(server.grpc_url) as over_grpc:
        for sizes in [[], [1], [2], [1, 4, 16], [16] * 40, *random_pages(1, 30)]:
            page = page_of(sizes)
            for package, client in ((http, over_http), (grpc, over_grpc)):
                given = package.InferInput("page", page.shape, "UINT8")
                given.set_data_from_numpy(page)
                for model in ("read_marks", "chain"):
                    answer = client.infer(model, [given], request_id="7")
                    assert answer.as_numpy("text").tolist() == [text_of(sizes).encode()], (model, sizes)


def test_a_thousand_concurrent_requests_of_which_many_fail_over(server):
    pages = list(random_pages(2, 1000))
    before = {
        model: statistics(server, model) for model in ("read_marks", "find_marks", "name_mark", "describe_mark", "join_names")
    }
    earlier = fallbacks(server)

    def ask(sizes):
        page = page_of(sizes)
        answer = infer(server, "read_marks", {"inputs": [tensor("page", "UINT8", page.shape, page.ravel().tolist())]})
        assert answer.status == 200, answer
        return answer.json["outputs"][0]["data"]

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, pages)) == [[text_of(sizes)] for sizes in pages]
    after = {model: [now - then for now, then in zip(statistics(server, model), before[model], strict=True)] for model in before}
    nameless = [sizes for sizes in pages if not all(size in NAMES for size in sizes)]
    named = [sizes for sizes in pages if sizes and sizes not in nameless]
    assert fallbacks(server) - earlier == len(nameless) > 100
    assert after["read_marks"] == after["find_marks"] == [1000, 0]
    assert after["join_names"] == [len(named) + len(nameless), 0]
    assert after["describe_mark"] == [sum(map(len, nameless)), 0]
    # What failed cancels the other marks of its page, unless they have been named already.
    succeeded, failed = after["name_mark"]
    assert succeeded >= sum(map(len, named)) and failed >= len(nameless)
    assert succeeded + failed <= sum(map(len, pages))


def traced(server, path):
    """The models of the last trace."""
    trace = request(server, "GET", path).json["trace"]
    return sorted(span["model"] for span in trace["spans"]) if trace else []


def test_a_trace_shows_which_steps_ran(server):
    path = "/console/api/models/read_marks/trace"
    for sizes, expected in (
        ([], ["read_marks", "find_marks"]),
        ([1, 4], ["read_marks", "find_marks", "name_mark", "name_mark", "join_names"]),
        ([2], ["read_marks", "find_marks", "name_mark", "describe_mark", "join_names"]),
    ):
        assert request(server, "POST", path).status in (200, 202, 204)
        page = page_of(sizes)
        answer = infer(server, "read_marks", {"inputs": [tensor("page", "UINT8", page.shape, page.ravel().tolist())]})
        assert answer.json["outputs"][0]["data"] == [text_of(sizes)]
        # A trace is complete after its answer.
        assert eventually(lambda: traced(server, path) == sorted(expected)), (sizes, traced(server, path))


def check(repository):
    command = [nereid_server.binary(), "check", str(repository)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def test_wrong_ensembles_are_refused_with_the_step_and_the_tensor(tmp_path):
    repository = tmp_path / "models"
    write_example(repository)
    path = repository / "read_marks" / "config.pbtxt"
    text = path.read_text()
    condition = 'input_map { key: "$if" value: "found" }'
    wrong = (
        (text.replace(condition, "", 1), "input_map", "under other conditions; repeat the conditions"),
        (
            text.replace('output_map { key: "found" value: "found" }', 'output_map { key: "found" value: "fuond" }'),
            "step[1].input_map",
            "no step writes tensor 'found'",
        ),
        (text.replace("parameters {", "# parameters {"), "output[0].name", "output 'text' exists only where 'found' is true"),
        (text.replace("$each:crop", "$each:crops", 1), "step[1].input_map", "has no input 'crops'; did you mean 'crop'?"),
        (text.replace('"\\"nothing\\""', '"nothing"'), "parameters", "there is no tensor 'nothing'"),
    )
    for changed, field, reason in wrong:
        assert changed != text
        path.write_text(changed)
        checked = check(repository)
        assert checked.returncode == 1 and field in checked.stdout and reason in checked.stdout, checked.stdout
    path.write_text(text)
    assert check(repository).returncode == 0
    path.write_text(wrong[2][0])
    flags = ["--exit-on-error=false", f"--backend-config=python,python={sys.executable}"]
    with nereid_server.running(repository, *flags, ready=False) as server:
        server.wait_until_loaded()
        index = {entry["name"]: entry for entry in request(server, "POST", "/v2/repository/index").json}
        assert wrong[2][2] in index["read_marks"]["reason"]
        assert index["name_mark"]["state"] == "READY"


def timed(step_of_slow, more=""):
    """An ensemble whose step may hang, and what becomes of it then."""
    step = (
        'step { model_name: "MODEL" model_version: -1 input_map { key: "INPUT0" value: "given" } EXTRA '
        'output_map { key: "OUTPUT0" value: "taken" } } '
    )
    steps = step.replace("MODEL", "slow").replace("EXTRA", step_of_slow)
    if more == "fallback":
        steps += step.replace("MODEL", "quick").replace("EXTRA", 'input_map { key: "$on_error" value: "taken" }')
    value = 'parameters { key: "$on_error:taken" value { string_value: "[7]" } }' if more == "value" else ""
    tensors = 'input { name: "given" data_type: TYPE_INT32 dims: -1 } output { name: "taken" data_type: TYPE_INT32 dims: -1 }'
    return f'platform: "ensemble" {tensors} ensemble_scheduling {{ {steps} }} {value}'


def test_a_step_that_hangs_ends_by_its_time_limit(repository, serve):
    limit = 'input_map { key: "$timeout" value: "100ms" }'
    with Gate() as gate:
        write_identity(repository, "slow", ["INT32"], gate=gate.path)
        write_identity(repository, "quick", ["INT32"])
        for name, more in (("fails", ""), ("replaced", "fallback"), ("given", "value")):
            write_model(repository, name, timed(limit, more))
        server = serve()
        body = {"inputs": [tensor("given", "INT32", [3], [1, 2, 3])]}
        answer = infer(server, "fails", body)
        assert answer.status == 503, answer
        assert answer.json["error"] == "in ensemble 'fails', step 0 (model 'slow') took longer than its time limit of 100ms"
        for name, expected in (("replaced", [1, 2, 3]), ("given", [7])):
            assert infer(server, name, body).json["outputs"][0]["data"] == expected
            assert Scrape(server).value("nereid_ensemble_fallbacks_total", model=name, version="1") == 1
        # The first execution hangs still; the others were cancelled before theirs.
        gate.entered()
        assert gate.is_empty()
        gate.open()
        assert eventually(lambda: sum(statistics(server, "slow")) == 3), statistics(server, "slow")
    write_model(repository, "wrong", timed(limit.replace("100ms", "soon")))
    done = check(repository)
    assert done.returncode == 1 and "is 'soon', must be a duration up to a day, such as 250ms" in done.stdout, done.stdout


def test_the_example_reads_the_digits_on_a_sheet():
    client = [sys.executable, f"{EXAMPLES}/clients/read_sheet.py"]
    digit = {number: f"{EXAMPLES}/images/digit_{number}.pgm" for number in (0, 3, 7)}
    flags = [f"--model-repository={EXAMPLES / 'conditional_repository'}", f"--backend-config=python,python={sys.executable}"]
    with nereid_server.running(EXAMPLES / "model_repository", *flags) as server:
        cases: tuple[tuple[list[str], list[str]], ...] = (
            ([digit[3], "-", digit[7]], ["cell 0: 3", "cell 2: 7"]),
            (["-", *[digit[0]] * 40, "-"], [f"cell {place}: 0" for place in range(1, 41)]),
            (["-", "-"], ["nothing is written"]),
        )
        for cells, expected in cases:
            before = statistics(server, "read_digit")[0]
            done = subprocess.run([*client, "--url", server.url, *cells], capture_output=True, text=True, timeout=LIMIT_S)
            assert [line.split(" (")[0] for line in done.stdout.splitlines()] == expected, done
            assert statistics(server, "read_digit")[0] - before == sum(cell != "-" for cell in cells)
        wrong = infer(server, "read_sheet", {"inputs": [tensor("sheet", "UINT8", [3, 8], [0] * 24)]})
        assert wrong.status == 500 and "the sheet has 3 rows of pixels, must have 8 for each cell" in wrong.json["error"], wrong
