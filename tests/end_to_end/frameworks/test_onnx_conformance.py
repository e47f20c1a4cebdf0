"""ONNX's own conformance cases in each engine, compared with the table in docs/onnx-conformance.md.

`UPDATE_ONNX_CONFORMANCE=1` writes the table anew.
"""

import os
from collections import Counter, defaultdict

import pytest

import onnx_cases
from onnx_cases import PASSED, REFUSED, WRONG
from onnx_engines import FLAGS
from places import EXAMPLES

TABLE = EXAMPLES.parent / "docs/onnx-conformance.md"
UPDATE = "UPDATE_ONNX_CONFORMANCE"
OUTCOMES = [PASSED, REFUSED, WRONG]
SEVERAL = "several operators"
HEAD = f"""# ONNX's conformance cases

What becomes of the cases in the Python package `onnx`, version 1.23.2, when they are served: those of single operators,
those of operators written out in others (`expanded`), and PyTorch's. A case with several inputs also runs as a variant whose
inputs are constants of the model, all but the first, as exporters write axes, shapes and weights (`with_constants`). Casts
between all numbers are added (`own_cast`), of which ONNX has few. A result
passes within the case's tolerance, or within four units of rounding of its largest element; values that a recurrent operator
computes may differ by 2e-6. A refused case is one whose model does not load or whose request is an error.

`tests/end_to_end/frameworks/test_onnx_conformance.py` compares this file with a new run; `{UPDATE}=1` lets it write the file.
"""


@pytest.fixture(scope="module")
def cases():
    return onnx_cases.collect()


@pytest.fixture(scope="module")
def results(cases, tmp_path_factory):
    return {engine: onnx_cases.run(tmp_path_factory.mktemp(engine), cases, flags) for engine, flags in FLAGS.items()}


def heading(result):
    return next(iter(result.operators)) if len(result.operators) == 1 else SEVERAL


def counts(results):
    """The number of results for each outcome, for each operator."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        found[heading(result)][result.outcome] += 1
    return found


def row(name, *engines):
    return f"| {name} | " + " | ".join(str(engine[outcome]) for engine in engines for outcome in OUTCOMES) + " |"


def names(results):
    """Lists of case names, by operator."""
    found = defaultdict(list)
    for result in results:
        found[heading(result)].append(result.name.removeprefix("test_"))
    return [f"- {operator}: {', '.join(sorted(found[operator]))}" for operator in sorted(found)]


def table(results):
    tract, ort = counts(results["tract"]), counts(results["ort"])
    total = [Counter(result.outcome for result in results[engine]) for engine in ("tract", "ort")]
    partly = [it for it in results["tract"] if it.outcome == REFUSED and tract[heading(it)][PASSED] and heading(it) != SEVERAL]
    return "\n".join(
        [
            HEAD,
            "| operator | embedded: passed | refused | wrong | ONNX Runtime: passed | refused | wrong |",
            "|---|---|---|---|---|---|---|",
            row("all", *total),
            *(row(operator, tract[operator], ort[operator]) for operator in sorted(tract)),
            "",
            "## Wrong on ONNX Runtime",
            "",
            *names([it for it in results["ort"] if it.outcome == WRONG]),
            "",
            "## Refused by the embedded engine, of operators that it serves",
            "",
            *names(partly),
            "",
        ]
    )


def test_the_embedded_engine_is_never_wrong(results):
    assert [(it.name, it.why) for it in results["tract"] if it.outcome == WRONG] == []


def test_the_table_tells_what_becomes_of_each_case(results):
    made = table(results)
    if os.environ.get(UPDATE):
        TABLE.write_text(made)
    assert TABLE.read_text() == made, f"run this test with {UPDATE}=1"
