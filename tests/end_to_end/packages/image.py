"""The images, built by buildah on a base of Debian's packages, and their contents run as a container's: by their user, with a root file
system that cannot be written. Not among the default tests: `cargo xtask test packages`.
"""

import json
import os
import resource
import shutil
import subprocess
import tarfile
from types import SimpleNamespace

import pytest

import built_packages
import nereid_server
from clean_root import Root, archive, clean_root
from places import ROOT

BASE = "docker.io/library/debian:trixie-slim"
CERTIFICATES = "/etc/ssl/certs"
# A container's root: not to be written, with a folder for temporary files, and the models.
CONTAIN = """
set -e
root=$1 models=$2 user=$3
shift 3
mount --make-rprivate /
mkdir -p "$root/proc" "$root/dev"
mount --bind "$root" "$root"
mount --bind "$models" "$root/models"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -o remount,bind,ro "$root"
exec env -i "$@"
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Both images, each with its configuration and its root."""
    xtask = os.environ.get("NEREID_XTASK")
    assert xtask, "set NEREID_XTASK to the path of the program of `cargo xtask`"
    folder = tmp_path_factory.mktemp("images")
    with tarfile.open(built_packages.package("nereid-*.tar.gz")) as packed:
        member = next(member for member in packed if member.name.endswith("bin/nereid"))
        member.name = "nereid"
        packed.extract(member, folder, filter="data")
    with clean_root(folder, "trixie", "buildah", "netavark", "crun") as root:
        _set_limits(root)
        target = folder / "target"
        target.mkdir()
        root.shared = [ROOT, target]
        tool = root.program("env", "BUILDAH_ISOLATION=chroot", "buildah", "--storage-driver=vfs", folder=folder)

        def buildah(*arguments):
            return subprocess.run([tool, *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

        base = root.copy(archive("trixie"), "srv")
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, str(base), "/")
        buildah("commit", "--quiet", "--rm", container, BASE)
        # Servers' certificates are checked as on this machine while an image is built.
        extra = ["--pull=never", f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"]
        line = [xtask, "package", "image", "--binary", folder / "nereid", "--image-tool", tool]
        line += [f"--image-argument={argument}" for argument in extra]
        subprocess.run(line, cwd=ROOT, check=True, env=os.environ | {"CARGO_TARGET_DIR": str(target)})

        def image(tag):
            container = buildah("from", "--pull=never", tag)
            mounted = buildah("mount", container).removeprefix("/")
            described = json.loads(buildah("inspect", "--type=image", tag))
            return SimpleNamespace(config=described["Docker"]["config"], root=Root(root.folder / mounted))

        version = subprocess.run([folder / "nereid", "--version"], capture_output=True, text=True, check=True).stdout
        version = version.split()[1].strip(",")
        yield {"slim": image(f"nereid:{version}-slim"), "nereid": image(f"nereid:{version}")}


def _set_limits(root):
    """Limits that this machine allows, where the default of containers is higher."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    limits = [
        f"{name}={soft}:{hard}" for name, (soft, hard) in {name: resource.getrlimit(kind) for name, kind in kinds.items()}.items()
    ]
    settings = root.folder / "etc/containers/containers.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"[containers]\ndefault_ulimits = {json.dumps(limits)}\n")


def contained(image, models, folder):
    """A script that runs the image's program as a container would."""
    user = image.config["User"]
    words = ["unshare", "--mount", "bash", "-c", CONTAIN, "contain", image.root.folder, models, user]
    words += [*image.config["Env"], shutil.which("chroot"), f"--userspec={user}", image.root.folder, *image.config["Cmd"][:1]]
    script = folder / "contained"
    script.write_text(
        f"#!/usr/bin/env python3\nimport os, sys\nos.execvp('unshare', {[str(word) for word in words]} + sys.argv[1:])\n"
    )
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("name", ["slim", "nereid"])
def test_image_serves_as_a_user_that_cannot_write_its_root(images, name, tmp_path):
    image = images[name]
    with_python = name == "nereid"
    built_packages.write_models(tmp_path / "models", python=with_python)
    tmp_path.chmod(0o755)
    flags = ["--backend-config=onnxruntime,engine=ort"] if with_python else []
    program = contained(image, tmp_path / "models", tmp_path)
    with nereid_server.running("/models", *flags, program=program) as server:
        built_packages.check_models(server, python=with_python)
        assert ("ONNX Runtime 1." in server.log) == with_python
        check = [program, *image.config["Healthcheck"]["Test"][2:]]
        subprocess.run([*check, "--url", f"http://{server.url}"], check=True)
        assert subprocess.run([*check, "--url", "http://127.0.0.1:1"], capture_output=True).returncode == 1
    assert server.exit_code == 0


@pytest.mark.parametrize("name", ["slim", "nereid"])
def test_configuration_is_that_of_a_server(images, name):
    config = images[name].config
    assert config["User"] == "65532:65532"
    assert config["Cmd"] == ["nereid", "--model-repository=/models"] and not config.get("Entrypoint")
    assert set(config["ExposedPorts"]) == {"8000/tcp", "8001/tcp", "8002/tcp"}
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "nereid", "health"]


def test_slim_image_has_the_program_and_its_libraries_only(images):
    root = images["slim"].root.folder
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    programs = [path.name for path in files if path.parent.name in ("bin", "sbin")]
    assert programs == ["nereid"]
    program = root / "usr/bin/nereid"
    total = sum(path.stat().st_size for path in files)
    assert total - program.stat().st_size < 8_000_000
    # Development builds are larger than what ships.
    described = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert total < 51_000_000 or "profile dist" not in described
    assert (root / "usr/share/doc/nereid/THIRD-PARTY-NOTICES.txt").is_file()
