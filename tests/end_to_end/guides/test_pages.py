"""What pages of `docs` show besides examples: the messages of the server, and diagrams."""

import re
import runpy

from places import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
# The system's own words.
OF_OTHERS = {"Address already in use"}


def messages():
    rows = (line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    return [found.group(1) for row in rows if (found := re.match(r"`([^`]+)`", row)) and not row.startswith("`nv_")]


def test_every_message_of_the_page_is_one_of_the_server():
    sources = "\n".join(file.read_text() for end in ("rs", "py") for file in (ROOT / "crates").rglob(f"*.{end}"))
    # A long text continues on the next line.
    sources = re.sub(r"\\\n\s*", "", sources)
    missing = []
    for message in set(messages()) - OF_OTHERS:
        parts = [re.escape(part) for part in message.split("...")]
        if not re.search(r"(\{[^}\n]*\}|[\w.]+)".join(parts), sources):
            missing.append(message)
    assert not missing
    assert len(messages()) > 15


def test_the_diagrams_are_as_their_script_draws_them():
    folder = ROOT / "docs" / "pictures"
    drawn = runpy.run_path(str(folder / "diagrams.py"))["files"]()
    assert len(drawn) == 6
    for name, text in drawn.items():
        assert (folder / name).read_text() == text, f"{name} is out of date: python docs/pictures/diagrams.py"
