"""The programs of docs/clients.md in languages and with packages that the other tests do not need. Not among the default tests:
`cargo xtask test guides`."""

import pytest
import test_clients_page

import generated_clients


@pytest.mark.parametrize("language", ["Go", "Java", "JavaScript over gRPC", "TypeScript"])
def test_a_program_does_the_five_tasks(tmp_path, language):
    test_clients_page.follow(tmp_path, language)


def test_a_generated_client_in_go_does_the_five_tasks(tmp_path):
    test_clients_page.follow(tmp_path, "Go over gRPC", **generated_clients.go(tmp_path))


def test_a_generated_client_in_java_does_the_five_tasks(tmp_path):
    test_clients_page.follow(tmp_path, "Java over gRPC", **generated_clients.java())
