"""The page on ensembles: its example, as a reader would follow it."""

from guide_pages import Reader


def test_example_answers_as_the_page_shows(tmp_path):
    Reader(tmp_path).follow("docs/ensembles.md")
