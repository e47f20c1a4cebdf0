"""Runs the pages of `docs` as a reader would: files are saved, commands executed, and their output compared.

- A line that ends with the name of a file in backticks and a colon, before a block, has the block saved as this file.
- In blocks of the kind `console`, lines that begin with `$ ` are commands for bash, with `\\` for their continuation; the others
  are their output, in which `...` stands for anything.
- `$ nereid ... &` starts the server under test, at ports of its own, which take the place of 8000, 8001 and 8002 in everything.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nereid_server
from places import ROOT

# A build takes minutes on a busy machine.
LIMIT_S = 900
_FENCE = re.compile(r"^( *)```(\S*)$")
_FILE = re.compile(r"`([^`\s]+)`[^`]*:$")
_SERVER = re.compile(r"^(?:\S+=\S+ )*nereid( --.*)? &$")


class Block:
    """A fenced block: its kind, the line before it, its text, and the heading that it is under."""

    def __init__(self, kind, before, text, heading):
        self.kind, self.before, self.text, self.heading = kind, before, text, heading

    @property
    def file(self):
        """The name of the file that the block is, if it is one."""
        found = _FILE.search(self.before)
        return found and found.group(1)

    def commands(self):
        """The commands, each with the output that the page shows."""
        commands: list[tuple[str, list[str]]] = []
        lines = iter(self.text.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                assert commands, f"the block begins with output: {line}"
                commands[-1][1].append(line)
                continue
            command = line.removeprefix("$ ")
            # A line goes on behind a backslash, and within quotes.
            while command.endswith("\\") or command.count("'") % 2:
                command += "\n" + next(lines)
            commands.append((command, []))
        return commands


def blocks(page, *sections):
    """The fenced blocks of a page, or of the sections with these headings."""
    found: list[Block] = []
    before = heading = indent = ""
    open_block = None
    for line in (ROOT / page).read_text().splitlines():
        fence = _FENCE.match(line)
        if open_block:
            if fence and not fence.group(2):
                found.append(open_block)
                open_block = None
            else:
                open_block.text += line.removeprefix(indent) + "\n"
        elif fence:
            indent = fence.group(1)
            open_block = Block(fence.group(2), before, "", heading)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.strip():
            before = line.strip()
    return [block for block in found if not sections or block.heading in sections]


class Reader:
    """Follows pages in a folder."""

    def __init__(self, folder, path=(), **variables):
        """`path` has folders to look for programs in, before the usual ones and the environment of the tests."""
        self.folder = folder
        folders = [Path(nereid_server.binary()).parent, *path, Path(sys.executable).parent, os.environ["PATH"]]
        self._variables = os.environ | {"PATH": ":".join(map(str, folders)), "VIRTUAL_ENV": sys.prefix} | variables
        self._server = None
        self._files: list[Path] = []

    def follow(self, page, *sections):
        """Follows a page, or some sections of it, from the first block to the last one; there must be a command."""
        count = 0
        try:
            for block in blocks(page, *sections):
                if block.kind == "console":
                    for command, output in block.commands():
                        self._execute(command, output)
                        count += 1
                elif block.file:
                    path = self.folder / block.file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(self._placed(block.text))
                    self._files.append(path)
            if self._server:
                self._server.stop()
        finally:
            if self._server:
                self._server.kill()
                self._server = None
        assert count, f"{page} has no commands"

    def _placed(self, text):
        if self._server is None:
            return text
        ports = {"8000": self._server.port, "8001": self._server.grpc_port, "8002": self._server.metrics_port}
        return re.sub(r"\blocalhost:(800[012])\b", lambda port: f"127.0.0.1:{ports[port.group(1)]}", text)

    def _execute(self, command, output):
        server = _SERVER.match(command)
        if server:
            assert self._server is None, "a server is running already"
            flags = shlex.split(server.group(1) or " --model-repository=models")
            repository = next(flag for flag in flags if flag.startswith("--model-repository="))
            flags.remove(repository)
            # The engine that a reader has, and not the one that is the same on every machine.
            flags.append("--backend-config=onnxruntime,engine=auto")
            # Paths of flags are relative to the folder.
            program = self.folder / ".server"
            program.write_text(f'#!/bin/sh\ncd {shlex.quote(str(self.folder))} && exec nereid "$@"\n')
            program.chmod(0o755)
            self._server = nereid_server.Server(repository.partition("=")[2], *flags, env=self._variables, program=program)
            self._server.wait_until_ready()
            for path in self._files:
                path.write_text(self._placed(path.read_text()))
            return
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._placed(command)],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert run.returncode == 0, f"$ {command}\n{run.stdout}{run.stderr}"
        if output:
            shown = self._placed("\n".join(output))
            pattern = ".*".join(map(re.escape, shown.split("...")))
            assert re.fullmatch(pattern, run.stdout.rstrip("\n"), re.DOTALL), f"$ {command}\n{run.stdout}"
