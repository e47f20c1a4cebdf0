"""Checks objects of KServe against the types of its package: reads a list in JSON, and writes a list with the problems of each.

Runs in the environment that kserve_package.py makes.
"""

import importlib.util
import json
import re
import sys
import types

from kubernetes import client

# The package without its own first lines, which import servers and take ten seconds.
package = types.ModuleType("kserve")
spec = importlib.util.find_spec("kserve")
package.__path__ = (spec and spec.submodule_search_locations) or []
sys.modules["kserve"] = package
models = importlib.import_module("kserve.models")

KINDS = {
    "ClusterServingRuntime": models.V1alpha1ClusterServingRuntime,
    "InferenceService": models.V1beta1InferenceService,
    "InferenceGraph": models.V1alpha1InferenceGraph,
}
PRIMITIVES: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "bool": bool}
LIST, DICT = re.compile(r"list\[(.*)\]"), re.compile(r"dict\(str, (.*)\)")


def problems(value, kind, path):
    """The problems of a value of a type, which the package names in words."""
    if kind in PRIMITIVES:
        right = isinstance(value, PRIMITIVES[kind]) and isinstance(value, bool) == (kind == "bool")
        return [] if right else [f"{path}: {value!r} is not of type {kind}"]
    if of := LIST.fullmatch(kind):
        if not isinstance(value, list):
            return [f"{path}: {value!r} is not a list"]
        return [found for number, item in enumerate(value) for found in problems(item, of[1], f"{path}.{number}")]
    if of := DICT.fullmatch(kind):
        if not isinstance(value, dict):
            return [f"{path}: {value!r} is not a map"]
        return [found for key, item in value.items() for found in problems(item, of[1], f"{path}.{key}")]
    model = getattr(models, kind, None) or getattr(client, kind, None)
    # Such as `object`, and quantities, which are numbers or strings.
    return [] if model is None else problems_of_model(value, model, path)


def problems_of_model(value, model, path):
    """The problems of an object, the fields that its type does not have included."""
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is not a map"]
    names = {name: attribute for attribute, name in model.attribute_map.items()}
    found = [f"{path}: unknown field {name}" for name in value if name not in names]
    for name in value.keys() & names.keys():
        found += problems(value[name], model.openapi_types[names[name]], f"{path}.{name}")
    try:
        model(**{names[name]: item for name, item in value.items() if name in names})
    except ValueError as error:
        found.append(f"{path}: {error}")
    return found


def main():
    objects = json.load(sys.stdin)
    json.dump([problems_of_model(item, KINDS[item["kind"]], item["kind"]) for item in objects], sys.stdout)


if __name__ == "__main__":
    main()
