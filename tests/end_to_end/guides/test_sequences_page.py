"""The examples of docs/sequences-and-streams.md."""

import pytest

from guide_pages import Reader


@pytest.mark.parametrize("section", ["A state in the model", "A state in the server", "Several responses"])
def test_an_example_works_as_printed(tmp_path, section):
    Reader(tmp_path).follow("docs/sequences-and-streams.md", section)
