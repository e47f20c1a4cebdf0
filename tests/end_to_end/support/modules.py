"""Modules that are imported by their path."""

from importlib.util import module_from_spec, spec_from_file_location


def load(path):
    """The module of a file of Python code."""
    spec = spec_from_file_location(path.stem, path)
    assert spec and spec.loader, f"{path} is not a file of Python code"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
