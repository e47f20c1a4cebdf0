"""Access policies with their keys, made by the program's own commands, and the table of rights in the documents."""

import re
import subprocess
from dataclasses import dataclass, replace

import nereid_server
from places import ROOT

PAGE = ROOT / "docs" / "security.md"
RIGHTS = ("infer", "read", "control", "files", "admin")
# A further path of OpenAI's interface, with the same rights.
OPENAI_PREFIX = "/openai"
_ROW = re.compile(r"\| (HTTP|OpenAI|gRPC|metrics|SageMaker|Vertex AI) \| `([^`]+)` \| ([^|]+?) \|(.*)\|$")


@dataclass(frozen=True)
class Row:
    """A request of the table, and what it needs."""

    face: str
    request: str
    needs: str
    further: str

    @property
    def right(self):
        """The right that it needs, if it is a certain one."""
        found = re.match(r"`(\w+)`", self.needs)
        return found and found.group(1)


def rows():
    """Every route and call, as the page lists them from their declarations, and those below the further path."""
    matches = [_ROW.match(line) for line in PAGE.read_text().splitlines()]
    found = [Row(*(cell.strip() for cell in row.groups())) for row in matches if row]
    further = [row for row in found if row.face == "OpenAI"]
    assert further
    return found + [replace(row, request=row.request.replace(" /", f" {OPENAI_PREFIX}/", 1)) for row in further]


def nereid(*arguments):
    """Runs a command of the program; returns what it printed. It must succeed."""
    outcome = subprocess.run([nereid_server.binary(), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome
    return outcome.stdout


class Policy:
    """A policy in a folder, and the keys of its principals."""

    def __init__(self, folder, principals, anonymous=None):
        """`principals` has a list of `(rights, patterns, *limits)` for each name; so has `anonymous`, if such clients have rights."""
        folder.mkdir(exist_ok=True)
        self.file = folder / "access.toml"
        self.keys_file = folder / "keys"
        self.write(principals, anonymous)
        self.keys = {name: self.add_key(name) for name in principals}

    @staticmethod
    def text(principals, anonymous=None):
        """The text of a policy."""
        lines = ["keys = 'keys'"]
        clients = [(name, f"[principals.{name}]", grants) for name, grants in principals.items()]
        if anonymous is not None:
            clients.append(("nobody", "[anonymous]", anonymous))
        for name, head, grants in clients:
            roles = [f"{name}-{index}" for index in range(len(grants))]
            lines += [head, f"roles = {roles}"]
            for role, (rights, models, *limits) in zip(roles, grants):
                lines += [f"[roles.{role}]", f"rights = {list(rights)}", f"models = {list(models)}", *limits]
        return "\n".join(lines) + "\n"

    def write(self, principals, anonymous=None):
        """Replaces the policy in one step."""
        new = self.file.with_suffix(".new")
        new.write_text(self.text(principals, anonymous))
        new.replace(self.file)

    def add_key(self, principal, *flags):
        """A new key of a principal."""
        return nereid("keys", "add", self.file, principal, *flags).strip()

    def revoke(self, key):
        """Revokes a key."""
        nereid("keys", "revoke", self.file, key)

    @property
    def option(self):
        """The option of a server under this policy."""
        return f"--access={self.file}"


def bearer(key):
    """The header of a key."""
    return {"Authorization": f"Bearer {key}"}
