"""Renders a chart by Helm, checks objects against Kubernetes's schemas, and reads HCL. Reads JSON from standard input, and writes it.

Runs in the environment that charts.py makes.
"""

import json
import sys

import hcl2
import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError


def problems(objects, releases):
    """The problems of objects, and the kinds that Kubernetes does not have by itself."""
    found, unknown = [], set()
    for item in objects:
        for release in releases:
            try:
                kubernetes_validate.validate(item, release, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                unknown.add(item["kind"])
            except kubernetes_validate.ValidationError as error:
                path = ".".join(map(str, error.path))
                found.append(f"{item['kind']} in {release}: {path}: {error.message}")
    return {"problems": found, "unknown": sorted(unknown)}


def render(chart, path, case, releases):
    """What becomes of the chart with these values."""
    try:
        chart.validate_schema(case["values"])
        manifests = chart.render(case["values"], name=case.get("name", "nereid"), namespace="models")
    except HelmError as error:
        return {"error": str(error)}
    notes = manifests.pop("nereid/templates/NOTES.txt")
    objects = [item for text in manifests.values() for item in yaml.safe_load_all(text) if item]
    messages = lint(path, case["values"], strict=True, kube_version=f"{releases[-1]}.0")
    # Severity 1 is information.
    lines = [message["error"] for message in messages["messages"] if message["severity"] > 1] + messages["errors"]
    return {"objects": objects, "notes": notes, "lint": lines, **problems(objects, releases)}


def plain(value):
    """A part of a file in HCL without the quotes of its strings, and without the reader's own marks."""
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.removeprefix('"').removesuffix('"') if isinstance(value, str) else value


def main():
    given = json.load(sys.stdin)
    if sys.argv[1] == "check":
        answer = problems(given["objects"], given["releases"])
    elif sys.argv[1] == "hcl":
        with open(given["path"]) as file:
            answer = plain(hcl2.load(file))
    else:
        chart = Chart.load(given["chart"])
        answer = {name: render(chart, given["chart"], case, given["releases"]) for name, case in given["cases"].items()}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
