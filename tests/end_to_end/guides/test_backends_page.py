"""The backend in C++ of docs/backends.md. The step `guides` builds the one in Rust."""

from guide_pages import Reader
from places import ROOT


def test_the_backend_in_cpp_works_as_printed(tmp_path):
    (tmp_path / "nereid").symlink_to(ROOT)
    Reader(tmp_path).follow("docs/backends.md", "Your own backend", "In C++")
