"""The pages that list what the server has: its metrics and its routes. They list all of it, and nothing else."""

import re
import sys

import pytest

import nereid_server
from access_policies import OPENAI_PREFIX, Policy, rows
from http_requests import infer, request, tensor
from model_files import config, write_model
from places import ROOT
from scrapes import DOCUMENTED, Scrape
from waiting import eventually

DOCS = ROOT / "docs"
# Routes of other servers, and beginnings of ours.
OTHER_PATHS = {"/v1/models/NAME/metadata", "/v1", "/v1/", "/v2/models"}
CRASHES = """
import os


class TritonPythonModel:
    def execute(self, requests):
        os._exit(1)
"""
# Of GPUs, clouds, language models, fallbacks, releases, and caches in Redis.
OF_OTHERS = re.compile(
    r"nv_gpu_.*|nv_energy_.*|nereid_(repository|release|dragonfly|model_fetch)_.*|nereid_cache_available|nereid_ensemble_fallbacks_total"
    r"|nv_trt_llm_.*|vllm:.*|gen_ai_.*"
)


def test_every_metric_of_the_page_is_one_of_the_server():
    sources = "\n".join(file.read_text() for file in (ROOT / "crates").rglob("*.rs") if "tests" not in file.stem)

    def is_there(name):
        plain = name.removeprefix("vllm:").removeprefix("gen_ai_server_")
        return any(f'"{form}"' in sources for form in (name, plain, plain.removesuffix("_seconds")))

    assert len(DOCUMENTED) > 80
    assert not [name for name in sorted(DOCUMENTED) if not is_there(name)]


def test_a_server_with_every_feature_has_the_metrics_of_the_page(tmp_path, repository):
    tensors = ([("INPUT0", "INT32", [1])], [("OUTPUT0", "INT32", [1])])
    cached = "response_cache { enable: true }"
    write_model(repository, "cached", config("cached", "identity", *tensors, 8, cached))
    objective = 'dynamic_batching { }\nparameters { key: "latency_objective_microseconds" value { string_value: "50000" } }'
    write_model(repository, "objective", config("objective", "identity", *tensors, 8, objective))
    grows = 'parameters { key: "instances_max" value { string_value: "2" } }'
    write_model(repository, "grows", config("grows", "identity", *tensors, 8, grows))
    write_model(repository, "broken", config("broken", "no-such-backend", *tensors, 8))
    write_model(repository, "crashes", config("crashes", "python", *tensors))
    (repository / "crashes/1/model.py").write_text(CRASHES)
    policy = Policy(tmp_path / "access", {"client": [(["infer", "read"], ["*"])]}, anonymous=[(["read"], ["*"])])
    flags = [
        f"--backend-config=python,python={sys.executable}",
        f"--access={policy.file}",
        f"--audit-log={tmp_path / 'audit'}",
        "--cache-config=local,size=1048576",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=histogram_latencies=true",
        "--model-memory-budget=1073741824",
        "--exit-on-error=false",
        "--strict-readiness=false",
    ]
    with nereid_server.running(repository, *flags) as server:
        key = {"Authorization": f"Bearer {policy.keys['client']}"}
        infer(server, "crashes", {"inputs": [tensor("INPUT0", "INT32", [1], [7])]}, headers=key)

        def has_all():
            # Some appear only once executions were measured.
            for model in ("cached", "objective", "grows"):
                answer = infer(server, model, {"inputs": [tensor("INPUT0", "INT32", [1, 1], [[7]])]}, headers=key)
                assert answer.status == 200, answer
            return not _missing(server)

        assert eventually(has_all), _missing(server)


def _missing(server):
    return sorted(name for name in DOCUMENTED - set(Scrape(server).kinds) if not OF_OTHERS.fullmatch(name))


def _routes(text):
    """The routes of a text, with and without what is in brackets."""
    found = set()
    for method, path in re.findall(r"`(GET|POST) (/[^`]+)`", text):
        for part in ("", r"\1"):
            found.add(f"{method} " + re.sub(r"\[([^]]*)\]", part, path))
    return found


def test_the_page_on_protocols_and_the_description_have_every_route(repository):
    table = (DOCS / "protocols.md").read_text().split("\n## ")[1]
    assert table.startswith("Routes\n")
    declared = {row.request for row in rows() if row.face in ("HTTP", "metrics") and "/console/" not in row.request}
    assert _routes(table) == declared - {"GET *"}
    with nereid_server.running(repository) as server:
        paths = request(server, "GET", "/v2/openapi.json").json["paths"]
    described = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods if method in ("get", "post")}
    assert described == {route for route in declared if " /v2" in route}
    calls = {row.request.rpartition("/")[2] for row in rows() if row.face == "gRPC"}
    assert set(re.findall(r"`([A-Z]\w+)`", table)) == calls


@pytest.mark.parametrize(("page", "face", "start"), [("console", "HTTP", "/console/"), ("openai", "OpenAI", "/")])
def test_pages_on_other_interfaces_have_their_routes(page, face, start):
    text = (DOCS / f"{page}.md").read_text()
    paths = {row.request.split(" ", 1)[1] for row in rows() if row.face == face}
    # Below the further prefix are the same routes.
    paths = {path for path in paths if not path.startswith(OPENAI_PREFIX)}
    forms = {path: re.sub(r"\\\{\w+\\\}", r"[\\w{}]+", re.escape(path)) for path in paths if path.startswith(start)}
    assert forms
    assert not [path for path, form in forms.items() if not re.search(rf"{form}(?![\w/])", text)]


def test_documents_name_no_other_paths():
    routes = [row.request.split(" ", 1)[1] for row in rows() if row.face in ("HTTP", "OpenAI")]
    forms = re.compile("|".join(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route)) for route in routes))
    pages = [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    count, unknown = 0, []
    for page in pages:
        # The page on protocols has optional parts in brackets.
        text = page.read_text().replace("[/", "/").replace("}]", "}")
        for path in re.findall(r"(?<![\w.>/])(?:localhost:8000)?((?:/v2|/v1|/console/api)(?:/[\w{}<>$%.:-]*)*)", text):
            count += 1
            plain = path.rstrip(".:")
            if not forms.fullmatch(plain) and plain not in OTHER_PATHS:
                unknown.append(f"{page.name}: {path}")
    assert count > 200
    assert not unknown
