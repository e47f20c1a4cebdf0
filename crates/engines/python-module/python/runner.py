"""Runs a model: finds its class, and calls the methods that the server requests.

Modules that few models need are imported on demand: asyncio alone takes as much memory as all others together.
"""

import importlib.util
import os
import sys
import types
from typing import Any, Optional

import c_python_backend_utils as native
import triton_python_backend_utils as utils

# The prefix of arguments for this module.
_OURS = "nereid."

_class: Optional[type] = None
_model: Any = None


def _find(arguments):
    """The model's class. Its file is imported once."""
    global _class
    if _class is not None:
        return _class
    path = arguments[_OURS + "model_file"]
    if not os.path.isfile(path):
        raise utils.TritonModelException("Python model file not found in '%s'" % path)
    folder = os.path.dirname(os.path.abspath(path))
    folders = [folder, os.path.dirname(folder)]
    for key in ("version_directory", "model_directory"):
        folders.append(arguments.get(_OURS + key))
    sys.path.extend(entry for entry in dict.fromkeys(folders) if entry)
    utils._model_dir = os.path.join(arguments["model_repository"], arguments["model_version"])
    # A package around the module, so that relative imports of files next to it work.
    package = types.ModuleType(_package_name(folder))
    package.__path__ = [folder]
    sys.modules[package.__name__] = package
    name = "%s.%s" % (package.__name__, os.path.splitext(os.path.basename(path))[0])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise utils.TritonModelException("Python model file '%s' must be named '<name>.py'" % path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found = getattr(module, "TritonPythonModel", None)
    if found is None:
        raise utils.TritonModelException("'%s' has no class TritonPythonModel" % path)
    _class = found
    return found


def _package_name(folder):
    """The name of the package around a model's module: the folder's, unless a library has it. The folder of a backend may be called like
    the library that it uses, as vLLM's is."""
    name = os.path.basename(folder)
    if name in sys.modules:
        return "_" + name
    library = importlib.util.find_spec(name)
    is_library = library is not None and library.origin is not None and os.path.dirname(library.origin) != folder
    return "_" + name if is_library else name


def complete(pairs):
    """The model's configuration in JSON, completed by the model. A model that completes nothing is served as configured."""
    arguments = dict(pairs)
    found = _find(arguments)
    if not hasattr(found, "auto_complete_config"):
        return arguments["model_config"]
    completed = found.auto_complete_config(utils.ModelConfig(arguments["model_config"]))
    if not isinstance(completed, utils.ModelConfig):
        raise utils.TritonModelException(
            "auto_complete_config function in model '%s' must return a valid pb.ModelConfig object."
            % arguments.get("model_name", "")
        )
    import json

    return json.dumps(completed._model_config)


def initialize(pairs):
    """Creates the model. Returns its `execute`, whether it is decoupled, and whether it has `is_ready`."""
    global _model
    arguments = dict(pairs)
    _model = _find(arguments)()
    if hasattr(_model, "initialize"):
        _model.initialize({key: value for key, value in arguments.items() if not key.startswith(_OURS)})
    path = arguments[_OURS + "model_file"]
    execute = getattr(_model, "execute", None) or _no_execute(path)
    return execute, arguments.get(_OURS + "decoupled") == "true", hasattr(_model, "is_ready")


def _no_execute(path):
    def execute(requests):
        raise utils.TritonModelException("Python model %s does not implement `execute` method." % path)

    return execute


def is_ready():
    ready = _model.is_ready()
    if isinstance(ready, types.CoroutineType):
        ready = _run(ready).result()
    if not isinstance(ready, bool):
        raise utils.TritonModelException("is_ready() must return a bool, not '%s'" % type(ready).__name__)
    return ready


def finalize():
    global _model
    model, _model = _model, None
    if hasattr(model, "finalize"):
        model.finalize()


_loop = None


def _run(coroutine):
    """Runs a coroutine of the model in an event loop on a separate thread. Returns its future."""
    import asyncio
    import threading

    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        threading.Thread(target=_loop.run_forever, name="nereid-asyncio", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(coroutine, _loop)


def settle(returned, requests, decoupled):
    """The result of `execute` or of its coroutine; a decoupled model's coroutine continues in the background."""
    if not isinstance(returned, types.CoroutineType):
        return returned
    if decoupled:
        _run(_in_background(returned, requests))
        return None
    return _run(returned).result()


async def _in_background(coroutine, requests):
    try:
        if await coroutine is not None:
            raise utils.TritonModelException("the model is using the decoupled mode and the execute function must return None")
    except BaseException as error:
        import traceback

        traceback.print_exc()
        for request in requests:
            native.fail(request, "%s: %s" % (type(error).__name__, error))
