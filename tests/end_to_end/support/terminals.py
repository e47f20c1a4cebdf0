"""Programs whose errors go to a terminal, and what it shows."""

import os
import pty
import re
import subprocess
import threading

from cloud_repositories import LIMIT_S

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
