"""The package silero-vad without its dependencies: its rules for what is speech, and its model for PyTorch.

Its module imports torch (half a gigabyte), but the rules are plain Python. It is fetched once for each test environment.
"""

import fcntl
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import modules

PACKAGE = "silero-vad==6.2.3"
_MODULE = "silero_vad/utils_vad.py"
_TORCHSCRIPT = "silero_vad/data/silero_vad.jit"
_HOME = Path(sys.prefix) / "silero-vad"


def rules():
    """The package's `get_speech_timestamps_from_probs`: from the probabilities of steps to a list of speeches, each with
    `start` and `end` in samples."""
    path = _fetched(_MODULE)
    # What the module's definitions name when it is imported.
    torch = types.ModuleType("torch")
    vars(torch).update(Tensor=object, device=lambda *arguments: None, no_grad=lambda: lambda function: function)
    packaging = types.ModuleType("packaging")
    vars(packaging).update(version=None)
    names = {"torch": torch, "packaging": packaging}
    known = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        found = modules.load(path)
    finally:
        for name, before in known.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
    return found.get_speech_timestamps_from_probs


def torchscript():
    """The path of the model as TorchScript."""
    return _fetched(_TORCHSCRIPT)


def _fetched(name):
    _HOME.mkdir(exist_ok=True)
    found = _HOME / name
    with open(_HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "download", "--no-deps", "--dest", str(_HOME), PACKAGE], check=True)
            (wheel,) = _HOME.glob("*.whl")
            with zipfile.ZipFile(wheel) as files:
                files.extractall(_HOME, [_MODULE, _TORCHSCRIPT])
            wheel.unlink()
    return found
