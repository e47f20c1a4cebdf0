"""What processes do with the files below a folder, as Linux's inotify reports it."""

import ctypes
import os
import struct

_LIBRARY = ctypes.CDLL(None, use_errno=True)
_NONBLOCK = 0o4000
# Opened, read, listed, changed, created or removed.
_EVENTS = 0x001 | 0x002 | 0x020 | 0x100 | 0x200
_HEAD = struct.Struct("iIII")


class Watch:
    """Reports each use of a file from now on. Folders that are made later are not watched."""

    def __init__(self, folder):
        self._descriptor = _LIBRARY.inotify_init1(_NONBLOCK)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        self._names = {}
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        for path in folders:
            number = _LIBRARY.inotify_add_watch(self._descriptor, os.fsencode(path), _EVENTS)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._names[number] = path

    def used(self):
        """The paths that were used since the last call."""
        found: set[str] = set()
        while True:
            try:
                events = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return found
            at = 0
            while at < len(events):
                number, _, _, length = _HEAD.unpack_from(events, at)
                name = events[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0").decode()
                found.add(str(self._names[number] / name))
                at += _HEAD.size + length

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._descriptor)
