"""Conditions, maps and fallbacks in the picture of an ensemble, in a real browser."""

import pytest

import nereid_server
from console_pages import expect, texts
from model_files import write_identity

CONFIG = """
platform: "ensemble"
input [ { name: "is_long" data_type: TYPE_BOOL dims: [ 1 ] }, { name: "parts" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output { name: "made" data_type: TYPE_FP32 dims: [ -1, 3 ] }
ensemble_scheduling { step [
  { model_name: "part" model_version: -1 input_map { key: "$if" value: "is_long" } input_map { key: "$each:INPUT0" value: "parts" }
    output_map { key: "OUTPUT0" value: "made" } },
  { model_name: "spare" model_version: -1 input_map { key: "$on_error" value: "made" } input_map { key: "$if" value: "is_long" }
    input_map { key: "$each:INPUT0" value: "parts" } output_map { key: "OUTPUT0" value: "made" } },
  { model_name: "whole" model_version: -1 input_map { key: "$unless" value: "is_long" } input_map { key: "INPUT0" value: "parts" }
    output_map { key: "OUTPUT0" value: "made" } }
] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("console") / "models"
    for name, dims in (("part", [3]), ("spare", [3]), ("whole", [-1, 3])):
        write_identity(repository, name, ["FP32"], dims=dims)
    (repository / "choice" / "1").mkdir(parents=True)
    (repository / "choice" / "config.pbtxt").write_text(CONFIG)
    with nereid_server.running(repository) as server:
        yield server


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_dashed_arrows_show_when_a_step_runs(server, browser, theme):
    with browser.console(server, theme=theme) as console:
        page = console.open("models/choice")
        page.get_by_role("link", name="Steps").click()
        graph = page.get_by_role("group", name="Graph of the ensemble")
        expect(graph).to_be_visible()
        labels = graph.locator("text.label").evaluate_all("all => all.map(one => one.firstChild.textContent)")
        dashed = graph.locator("g:has(.dashed) text.label").evaluate_all("all => all.map(one => one.firstChild.textContent)")
        conditions = ["if is_long", "if is_long", "if it fails", "unless is_long"]
        assert sorted(dashed) == conditions
        assert sorted(labels) == sorted([*conditions, "each of parts", "each of parts", "parts", "made", "made", "made"])
        rows = page.get_by_role("region", name="Steps, table").locator("tbody tr")
        assert texts(rows.nth(1).locator("td"))[:4] == ["spare", "each of parts", "made", "if made fails, if is_long"]
        console.assert_accessible()
