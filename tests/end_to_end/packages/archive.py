"""The archive, unpacked on a machine that has nothing but Debian's base system. Not among the default tests: `cargo xtask test packages`."""

import re
import subprocess

import pytest

import built_packages
import nereid_server
from clean_root import GLIBC, clean_root


def test_digests_are_those_of_the_packages():
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=built_packages.folder(), check=True)
    listed = {line.split()[1] for line in (built_packages.folder() / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in built_packages.folder().iterdir()} - {"SHA256SUMS"}


@pytest.mark.parametrize("release", GLIBC)
def test_the_program_of_the_archive_serves_where_nothing_is_installed(release, tmp_path):
    archive = built_packages.package("nereid-*.tar.gz")
    with clean_root(tmp_path, release) as root:
        inside = root.copy(archive, "srv")
        root.run("tar", "--extract", f"--file={inside}", "--directory=/usr/local", "--strip-components=1")
        program = (root.folder / "usr/local/bin/nereid").read_bytes()
        needed = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", program))
        if needed > GLIBC[release]:
            # Only builds for an older glibc run there (`cargo xtask package --glibc`).
            assert f"`GLIBC_2.{needed}' not found" in root.run("nereid", "--version", check=False)
            return
        assert root.run("nereid", "--version").strip()
        for path in ["share/man/man1/nereid.1", "share/doc/nereid/THIRD-PARTY-NOTICES.txt", "share/doc/nereid/LICENSE"]:
            assert (root.folder / "usr/local" / path).is_file(), path
        completed = "complete -p nereid"
        assert "_nereid" in root.run("bash", "-c", f"source /usr/local/share/bash-completion/completions/nereid && {completed}")
        built_packages.write_models(root.folder / "models")
        program = root.program("/usr/local/bin/nereid", folder=tmp_path)
        with nereid_server.running("/models", program=program) as server:
            built_packages.check_models(server)
        assert server.exit_code == 0
