"""The destination of log messages from the process's servers."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Callable, NamedTuple, Optional, Union

from ._library import native

_LEVELS = ["info", "warning", "error", "verbose"]
_lock = threading.Lock()
_thread: Optional[threading.Thread] = None


class LogRecord(NamedTuple):
    """A message of a server or a model."""

    level: str
    """`error`, `warning`, `info` or `verbose`."""
    file: str
    """The name of the source file."""
    line: int
    """The line in that file."""
    micros: int
    """The time of logging, in microseconds since 1970."""
    message: str
    """The text."""


def configure_log(
    *,
    error: bool = True,
    warning: bool = True,
    info: bool = False,
    verbose: int = 0,
    format: str = "default",
    file: Optional[Union[str, os.PathLike[str]]] = None,
    callback: Optional[Callable[[LogRecord], object]] = None,
) -> None:
    """Configures the log of this process's servers: its levels, and its destination, which is a file, standard error, or
    `callback`, called from a separate thread. When this returns, the previous callback has received all its records.
    """
    if callback is not None and file is None:
        file = os.devnull
    native.set_log_levels(error, warning, info, verbose, format)
    native.set_log_file("" if file is None else os.fspath(file))
    global _thread
    with _lock:
        _end()
        if callback is not None:
            native.start_records()
            _thread = threading.Thread(target=_report, args=(callback,), name="nereid-log", daemon=True)
            _thread.start()


def _report(callback: Callable[[LogRecord], object]) -> None:
    while (record := native.next_record(True)) is not None:
        level, file, line, micros, message = record
        try:
            callback(LogRecord(_LEVELS[level], file, line, micros, message))
        except Exception as error:
            # A callback that fails must not lose the messages after this one.
            threading.excepthook(threading.ExceptHookArgs([type(error), error, error.__traceback__, _thread]))


def _end() -> None:
    """Ends the thread once it has reported everything."""
    global _thread
    if _thread is not None:
        native.stop_records()
        if _thread is not threading.current_thread():
            _thread.join()
        _thread = None


def _forget() -> None:
    """A forked process lacks its parent's threads."""
    global _thread, _lock
    _thread, _lock = None, threading.Lock()


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)
configure_log()
