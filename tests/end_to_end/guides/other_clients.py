"""The programs of docs/clients.md in languages and with packages that the other tests do not need. Not among the default tests:
`cargo xtask test guides`."""

import pytest
import test_clients_page


@pytest.mark.parametrize("language", ["Go", "Java", "JavaScript over gRPC"])
def test_a_program_does_the_five_tasks(tmp_path, language):
    test_clients_page.follow(tmp_path, language)
