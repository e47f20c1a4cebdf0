"""Programs on terminals, and what these show."""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading

from cloud_repositories import LIMIT_S
from waiting import eventually

_COMMAND = re.compile(r"\x1b\[([?\d]*)([A-Za-z])")


class Terminal:
    """A program whose errors go to a terminal."""

    def __init__(self, *command, env):
        ours, theirs = pty.openpty()
        self.text = ""
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=env, text=True
            )
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def _read(self, terminal):
        try:
            while received := os.read(terminal, 4096):
                self.text += received.decode()
        except OSError:
            # Nobody has the other end any more.
            pass
        finally:
            os.close(terminal)

    @property
    def lines(self):
        """Each was written over the one before it."""
        return self.text.split("\r\x1b[K")

    def wait(self):
        """What it prints, once it has ended well."""
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self.process.returncode == 0, self.text
        return printed

    def rows(self, width=1000):
        """What a terminal of this width and any height shows, from the first row to that of the cursor."""
        rows: list[list[str]] = [[]]
        row, column, wraps, text = 0, 0, True, self.text
        place = 0
        while place < len(text):
            if command := _COMMAND.match(text, place):
                place = command.end()
                match command.groups():
                    case number, "A":
                        row -= int(number)
                    case "", "J":
                        del rows[row + 1 :], rows[row][column:]
                    case "?7", switch:
                        wraps = {"h": True, "l": False}[switch]
                    case unknown:
                        raise AssertionError(unknown)
                continue
            letter, place = text[place], place + 1
            if letter == "\r":
                column = 0
                continue
            if letter == "\n" or (column == width and wraps):
                row, column = row + 1, column if letter == "\n" else 0
                if row == len(rows):
                    rows.append([])
            if letter == "\n":
                continue
            column = min(column, width - 1)
            rows[row] += [" "] * (column - len(rows[row]) + 1)
            rows[row][column] = letter
            column += 1
        return ["".join(row).rstrip() for row in rows]


class FullScreen:
    """A program that has a terminal for itself: it draws frames, and reads keys."""

    def __init__(self, *command, env, width=120, height=30):
        self._ours, theirs = pty.openpty()
        self.text = ""
        self.resize(width, height)
        self._settings = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while received := os.read(self._ours, 4096):
                self.text += decoder.decode(received)
        except OSError:
            # Nobody has the other end any more.
            pass

    def press(self, keys):
        """Types keys."""
        os.write(self._ours, keys.encode())

    def resize(self, width, height):
        """Changes the size of the terminal."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    @property
    def lines(self):
        """The lines of the last frame, without styles."""
        whole = [frame.partition("\x1b[J")[0] for frame in self.text.split("\x1b[H") if "\x1b[J" in frame]
        last = whole[-1] if whole else ""
        return [line.rstrip() for line in re.sub(r"\x1b\[\d*[mK]", "", last).split("\r\n")]

    def wait_for(self, shown):
        """Waits for a frame of which this is true, and returns its lines."""
        found: list[str] = []

        def met():
            found[:] = self.lines
            return shown(found)

        assert eventually(met, LIMIT_S), "\n".join(found)
        return found

    def assert_restored(self):
        """The program ended well, and left the terminal as it was."""
        assert self.process.wait(LIMIT_S) == 0, self.text
        assert termios.tcgetattr(self._theirs) == self._settings
        # The last of it may still be on its way to the reader.
        assert eventually(lambda: self.text.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l"), LIMIT_S), self.text[-100:]

    def close(self):
        """Ends the program, if it runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(LIMIT_S)
        os.close(self._theirs)
        self._reader.join(LIMIT_S)
        os.close(self._ours)
