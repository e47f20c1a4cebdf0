"""The Debian package: installed, upgraded, removed and purged on a machine that has nothing but Debian's base system, and its service
under systemd. Not among the default tests: `cargo xtask test packages`.
"""

import json
import re
import subprocess
from types import SimpleNamespace

import pytest

import built_packages
import nereid_server
from clean_root import clean_root
from waiting import eventually

CONFIGURATION = "etc/nereid/nereid.toml"
INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends"]


def with_version(deb, version, folder):
    """The same package with another version and one more line in its configuration."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", control.read_text()))
    made = folder / f"nereid_{version}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, made], check=True, capture_output=True)
    return made


def installed_version(run):
    return run("dpkg-query", "--show", "--showformat=${Version} ${Status}", "nereid")


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_package_is_installed_upgraded_removed_and_purged(release, tmp_path):
    deb = built_packages.package("nereid_*.deb")
    with clean_root(tmp_path, release) as root:
        configuration, models = root.folder / CONFIGURATION, root.folder / "var/lib/nereid/models"
        root.run("apt-get", "update")
        root.run(*INSTALL, root.copy(deb, "srv"))
        assert root.run("dpkg", "--verify", "nereid") == ""
        assert "nologin" in root.run("getent", "passwd", "nereid")
        assert root.run("stat", "--format=%U %a", "/var/lib/nereid", "/var/lib/nereid/models").split() == ["nereid", "750"] * 2

        # The program, with the configuration and the user of the service.
        built_packages.write_models(models)
        root.run("chown", "--recursive", "nereid:nereid", "/var/lib/nereid/models")
        program = root.program("/usr/bin/nereid", folder=tmp_path, user="nereid")
        with nereid_server.running("/var/lib/nereid/models", f"--config-file=/{CONFIGURATION}", program=program) as server:
            built_packages.check_models(server)

        configuration.write_text(configuration.read_text() + "log-verbose = 1\n")
        newer = with_version(deb, "99.0", tmp_path)
        root.run("dpkg", "--install", root.copy(newer, "srv"))
        assert installed_version(root.run) == "99.0 install ok installed"
        assert configuration.read_text().endswith("log-verbose = 1\n")
        assert (models / "digits").is_dir()

        root.run("apt-get", "remove", "--yes", "nereid")
        assert not (root.folder / "usr/bin/nereid").exists()
        assert configuration.exists() and (models / "digits").is_dir()
        root.run("apt-get", "purge", "--yes", "nereid")
        assert not (root.folder / "etc/nereid").exists() and not (root.folder / "var/cache/nereid").exists()
        # Models belong to the administrator.
        assert (models / "digits").is_dir()

        root.run("rm", "--recursive", "/var/lib/nereid/models/digits")
        root.run("dpkg", "--install", root.copy(newer, "srv"))
        root.run("apt-get", "purge", "--yes", "nereid")
        left = root.run("find", "/", "-xdev", "-iname", "*nereid*", "-not", "-path", "/srv/*", "-not", "-path", "/proc/*")
        # dpkg's records of what it did, and systemd's of a service that is enabled again by the next installation.
        assert [path for path in left.split() if not path.startswith(("/var/log", "/var/lib/apt", "/var/cache/apt"))] == []


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine with systemd, the package, and models in ONNX and Python."""
    with clean_root(tmp_path_factory.mktemp("machine"), "bookworm", "curl", "dbus", "python3-numpy", "systemd-sysv") as root:
        deb = root.copy(built_packages.package("nereid_*.deb"), "srv")
        built_packages.write_models(root.folder / "srv" / "models", python=True)
        with root.booted() as run:
            run("dpkg", "--install", deb)
            run("cp", "--recursive", "/srv/models", "/var/lib/nereid")
            run("chown", "--recursive", "nereid:nereid", "/var/lib/nereid")
            yield SimpleNamespace(root=root, run=run)


def state(machine):
    """Properties of the service, by name."""
    names = "ActiveState,ExecMainPID,ExecMainStatus,Result,UnitFileState,NRestarts"
    lines = machine.run("systemctl", "show", f"--property={names}", "nereid").splitlines()
    return dict(line.split("=", 1) for line in lines)


def is_ready(machine):
    only_status = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
    return machine.run("curl", *only_status, "http://127.0.0.1:8000/v2/health/ready", check=False) == "200"


def infer(machine, model, *inputs):
    body = json.dumps({"inputs": inputs})
    return json.loads(machine.run("curl", "--silent", "--data", body, f"http://127.0.0.1:8000/v2/models/{model}/infer"))


def test_service_serves_models_within_its_limits(machine):
    assert state(machine)["ActiveState"] == "active" and state(machine)["UnitFileState"] == "enabled"
    machine.run("systemctl", "restart", "nereid")
    assert eventually(lambda: is_ready(machine)), machine.run("journalctl", "--no-pager", "--unit=nereid")
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": built_packages.NUMBERS}
    assert infer(machine, "double", tensor)["outputs"][0]["data"] == [2 * number for number in built_packages.NUMBERS]
    image = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
    assert "outputs" in infer(machine, "digits", image)
    status = machine.run("cat", f"/proc/{state(machine)['ExecMainPID']}/status")
    user = machine.run("id", "--user", "nereid").strip()
    assert f"Uid:\t{user}\t" in status and "CapBnd:\t0000000000000000" in status and "Seccomp:\t2" in status


def test_group_of_the_service_reaches_the_socket_that_the_configuration_suggests(machine):
    configuration = machine.root.folder / CONFIGURATION
    original = configuration.read_text()
    port, suggested = 'http-address = "127.0.0.1"', '#http-address = "unix:/run/nereid/nereid.sock"'
    assert f"\n{port}\n" in original and f"\n{suggested}\n" in original
    group = machine.run("id", "--group", "nereid").strip()
    only_status = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--unix-socket", "/run/nereid/nereid.sock"]

    def status(group):
        user = ["setpriv", "--reuid=65534", f"--regid={group}", "--clear-groups"]
        return machine.run(*user, "curl", *only_status, "http://localhost/v2/health/ready", check=False)

    configuration.write_text(original.replace(f"{port}\n", "", 1).replace(suggested, suggested[1:]))
    try:
        machine.run("systemctl", "restart", "nereid")
        assert eventually(lambda: status(group) == "200"), machine.run("journalctl", "--no-pager", "--unit=nereid")
        assert status("65534") == "000"
    finally:
        configuration.write_text(original)
        machine.run("systemctl", "restart", "nereid")
        # The next tests start the service, too, and systemd limits how often.
        machine.run("systemctl", "reset-failed", "nereid")


def test_service_is_restarted_after_a_crash_and_stops_cleanly(machine):
    assert eventually(lambda: is_ready(machine))
    machine.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "nereid")
    assert eventually(lambda: state(machine)["NRestarts"] == "1" and is_ready(machine))
    machine.run("systemctl", "stop", "nereid")
    assert (state(machine)["Result"], state(machine)["ExecMainStatus"]) == ("success", "0")
    machine.run("systemctl", "start", "nereid")
    assert eventually(lambda: is_ready(machine))


def test_upgrade_restarts_the_service_and_a_disabled_service_stays_so(machine, tmp_path):
    before = state(machine)["ExecMainPID"]
    deb = built_packages.package("nereid_*.deb")
    machine.run("dpkg", "--install", machine.root.copy(with_version(deb, "98.0", tmp_path), "srv"))
    assert eventually(lambda: is_ready(machine)) and state(machine)["ExecMainPID"] != before
    machine.run("systemctl", "disable", "--now", "nereid")
    (tmp_path / "second").mkdir()
    machine.run("dpkg", "--install", machine.root.copy(with_version(deb, "99.0", tmp_path / "second"), "srv"))
    assert installed_version(machine.run) == "99.0 install ok installed"
    assert (state(machine)["ActiveState"], state(machine)["UnitFileState"]) == ("inactive", "disabled")


def test_service_is_hardened(machine):
    report = machine.run("systemd-analyze", "security", "--no-pager", "nereid.service")
    exposure = re.search(r"Overall exposure level for nereid\.service: (\d+\.\d+)", report)
    assert exposure and float(exposure[1]) < 2.0, report


def test_removed_package_leaves_no_service(machine):
    machine.run("apt-get", "purge", "--yes", "nereid")
    assert machine.run("systemctl", "list-unit-files", "--no-legend", "nereid*", check=False).strip() == ""
