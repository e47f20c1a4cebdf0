"""Maps inputs to a model's arguments, and outputs to its results, as `naming.rs` and `package.rs` do; one table of cases tests
both. Knows neither torch nor the server.
"""

import json


class Misfit(Exception):
    """Something that does not fit, by name."""


def _number(name):
    """The number at the end of a name such as INPUT__0; None if it has none."""
    digits = name.rpartition("__")[2] if "__" in name else ""
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _find(name, names):
    """A position among names, by name or number; None if it is neither."""
    if name in names:
        return names.index(name)
    number = _number(name)
    return number if number is not None and number < len(names) else None


def _listed(names):
    return ", ".join("'%s'" % name for name in names) or "none"


_TAKES = {"tensor": "a tensor of numbers", "number": "a number", "texts": "strings"}


def call(inputs, arguments):
    """The position of each argument's input, None for one that keeps its default; or None if the one argument is a dictionary
    of all inputs. `inputs` are names, each with whether it holds strings; `arguments` are a name, what it takes (tensor,
    tensors, texts, number, unknown), and whether it is required.
    """
    names = [name for name, _, _ in arguments]
    if len(arguments) == 1 and arguments[0][1] == "tensors":
        for name, is_text in inputs:
            if is_text:
                raise Misfit("input '%s' holds strings, but the model takes a dictionary of tensors" % name)
        return None
    is_named = any(_find(name, names) is not None for name, _ in inputs)
    places: list[int | None] = [None] * len(arguments)
    for index, (name, is_text) in enumerate(inputs):
        at = _find(name, names) if is_named else (index if index < len(names) else None)
        if at is None:
            message = "input '%s' is not an argument of the model's forward (its arguments: %s)"
            raise Misfit(message % (name, _listed(names)))
        if places[at] is not None:
            other = inputs[places[at]][0]
            raise Misfit("inputs '%s' and '%s' are the same argument '%s' of the model" % (other, name, names[at]))
        kind = arguments[at][1]
        if kind not in _TAKES or (kind == "texts") != is_text:
            takes = _TAKES.get(kind, "what a request cannot carry")
            raise Misfit("input '%s': the argument '%s' of the model takes %s" % (name, names[at], takes))
        places[at] = index
    for (name, _, is_required), place in zip(arguments, places):
        if is_required and place is None:
            raise Misfit("the model's argument '%s' has no input" % name)
    while places and places[-1] is None:
        places.pop()
    return places


def results(outputs, names=None):
    """The position of each output among a model's results, which a package names."""
    if names is None:
        places = [_number(name) for name in outputs]
        if None in places:
            places = list(range(len(outputs)))
    else:
        is_named = any(_find(name, names) is not None for name in outputs)
        places = [_find(name, names) if is_named else index for index, name in enumerate(outputs)]
        for name, place in zip(outputs, places):
            if place is None or place >= len(names):
                raise Misfit("output '%s' is not one of the model's results (%s)" % (name, _listed(names)))
    for at, place in enumerate(places):
        if place in places[:at]:
            other = outputs[places.index(place)]
            raise Misfit("outputs '%s' and '%s' are the same result of the model" % (other, outputs[at]))
    return places


def call_spec(inputs, outputs):
    """The names of a package's inputs and outputs, from the two parts of its call specification."""
    positional, by_key = json.loads(inputs)[1]["children_spec"]
    names = list(_tensors(positional, "ARGS")) + list(_tensors(by_key, "KWARGS"))
    return names, list(_tensors(json.loads(outputs)[1], "RESULT"))


def _tensors(node, name):
    if node["type"] is None:
        yield name
        return
    children, keys = node.get("children_spec") or [], node.get("context")
    if isinstance(keys, str):
        try:
            keys = json.loads(keys)
        except ValueError:
            keys = None
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = range(len(children))
    for key, child in zip(keys, children):
        key = key if isinstance(key, str) else json.dumps(key)
        yield from _tensors(child, "%s[%s]" % (name, key))
