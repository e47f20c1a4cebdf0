"""Root file systems with nothing but Debian's base system, in which packages are installed and started as on a new machine.

mmdebstrap makes them of Debian's packages, once for each environment of the tests; every user gets a copy. Needs the superuser, and
changes nothing of the machine: commands run with namespaces of their own.
"""

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import debian_packages
from once import once
from processes import tree
from waiting import eventually

# Releases of Debian, and the glibc 2 of each.
GLIBC = {"bullseye": 31, "bookworm": 36, "trixie": 41}

_HOME = Path(sys.prefix) / "clean-roots"
_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
# Nothing of this machine's environment reaches a command.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CLEAN = ["env", "-i", f"PATH={_PATH}", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"]

# Mounts what programs expect, and becomes the command, in the same process, so that signals reach it.
_ENTER = """
set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
exec chroot "$root" env --chdir="$PWD" "$@"
"""

# Starts a machine: a control group of its own, then systemd as the first process of its namespaces.
_BOOT = """
set -e
root=$1
mount --make-rprivate /
mount -t cgroup2 cgroup2 "$root/mnt"
mkdir "$root/mnt/$2"
echo $$ >"$root/mnt/$2/cgroup.procs"
umount "$root/mnt"
exec unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child bash -c "$3" init "$root"
"""

_INIT = """
set -e
root=$1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=tests PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
"""

# Removes the control groups of a machine that has ended.
_FORGET = """
mount --make-rprivate /
mount -t cgroup2 cgroup2 "$1/mnt"
find "$1/mnt/$2" -depth -type d -exec rmdir {} +
"""


class Root:
    """A root file system that a test may change."""

    def __init__(self, folder):
        self.folder = folder
        # Folders of this machine that commands see in the same places.
        self.shared = []

    def enter(self, *command, user=None):
        """The command line that runs a command in the root, in the process that it is started in."""
        if user is not None:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        words = [self.folder, *self.shared, "--", *_CLEAN, *command]
        return ["unshare", "--mount", "bash", "-c", _ENTER, "enter", *map(str, words)]

    def run(self, *command, check=True, user=None):
        """Runs a command, and returns what it prints."""
        return _run(self.enter(*command, user=user), check)

    def program(self, *command, folder, user=None):
        """A script in a folder of this machine that runs a command of the root, followed by the script's arguments."""
        script = folder / "enter"
        # The working directory need not exist in the root.
        away = "" if self.shared else "cd /\n"
        script.write_text(f'#!/bin/bash\n{away}exec {shlex.join(self.enter(*command, user=user))} "$@"\n')
        script.chmod(0o755)
        return script

    def copy(self, path, *to):
        """Copies a file or folder of the machine into the root, and returns its path there."""
        target = self.folder.joinpath(*to, Path(path).name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(path).is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copy(path, target)
        return Path("/") / target.relative_to(self.folder)

    @contextmanager
    def booted(self):
        """The root as a machine without a network that systemd has started: yields a function like `run`."""
        group = f"nereid-tests-{os.getpid()}"
        namespaces = ["unshare", "--mount", "bash", "-c"]
        process = subprocess.Popen([*namespaces, _BOOT, "boot", self.folder, group, _INIT], stdin=subprocess.DEVNULL)
        try:
            assert eventually(lambda: _systemd_of(process))
            enter = ["nsenter", f"--target={_systemd_of(process)}", "--all", "--root", "--wd"]

            def run(*command, check=True):
                return _run([*enter, *_CLEAN, *map(str, command)], check)

            states = ("running", "degraded")
            assert eventually(lambda: run("systemctl", "is-system-running", check=False).strip() in states)
            yield run
        finally:
            process.kill()
            process.wait()
            forget = [*namespaces, _FORGET, "forget", self.folder, group]
            assert eventually(lambda: subprocess.run(forget, capture_output=True).returncode == 0)


def _systemd_of(process):
    """The first process of a machine, once it is systemd."""
    for child in tree(process.pid)[1:]:
        try:
            if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                return child
        except OSError:
            pass  # A command of the script, which has ended.
    return None


def _run(command, check):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd="/")
    assert not check or done.returncode == 0, f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}"
    return done.stdout


@contextmanager
def clean_root(folder, release, *packages):
    """A copy of a Debian release's base system with these packages, in a folder, for the length of a `with` block."""
    base = archive(release, *packages)
    root = folder / "root"
    root.mkdir(parents=True)
    try:
        subprocess.run(["tar", "--extract", "--numeric-owner", f"--file={base}", f"--directory={root}"], check=True)
        # Names are resolved, and servers' certificates checked, as on this machine.
        for file in [Path("etc/resolv.conf"), Path("etc/hosts"), _CERTIFICATES]:
            shutil.copy(Path("/") / file, root / file)
        yield Root(root)
    finally:
        shutil.rmtree(root)


def archive(release, *packages):
    """The base system with these packages as a tar file."""
    _HOME.mkdir(exist_ok=True)
    home = _HOME / "-".join([release, *packages])
    once(home, lambda: _make(home / "root.tar", release, packages))
    return home / "root.tar"


def _make(target, release, packages):
    tool = debian_packages.unpack("mmdebstrap", ["mmdebstrap"]) / "usr/bin/mmdebstrap"
    include = ",".join(["ca-certificates", *packages])
    line = ["perl", tool, "--mode=root", "--variant=minbase", f"--include={include}", release, target, debian_packages.MIRROR]
    subprocess.run(line, check=True, stdin=subprocess.DEVNULL)
