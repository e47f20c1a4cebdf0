"""The page for newcomers, as they would follow it."""

from guide_pages import Reader
from places import ROOT


def test_the_first_five_minutes_work_as_printed(tmp_path):
    (tmp_path / "nereid").symlink_to(ROOT)
    Reader(tmp_path).follow("docs/getting-started.md")
