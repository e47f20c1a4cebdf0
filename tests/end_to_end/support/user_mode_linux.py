"""A Linux of its own for what the tests' machine may lack, such as control groups that nobody else uses: Debian's package
user-mode-linux, a kernel that runs as a process of any user.

Its files are those of this machine. It has no network but its own loopback device, and one processor.
"""

import os
import signal
import subprocess
import sys

import debian_packages
from places import ROOT

SUPPORT = ROOT / "tests/end_to_end/support"
_INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
cd {folder}
{variables}
{python} {program} > output 2>&1
echo $? > status
exec {python} -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321FEDC)'
"""


def run(folder, program, limit_s, **variables):
    """Boots the kernel, runs a Python program of the support folder in `folder`, and returns what the program printed. It must succeed."""
    kernel = debian_packages.unpack("user-mode-linux", ["user-mode-linux"]) / "usr/bin/linux.uml"
    variables |= {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": "/dev/shm", "PYTHONPATH": SUPPORT}
    exports = "\n".join(f"export {name}='{value}'" for name, value in variables.items())
    init = folder / "init"
    init.write_text(_INIT.format(folder=folder, variables=exports, python=sys.executable, program=SUPPORT / program))
    init.chmod(0o755)
    files = ["root=/dev/root", "rootfstype=hostfs", "rw", f"init={init}", f"uml_dir={folder}", "mem=1536M"]
    consoles = ["con=null", "con0=null,fd:1", "ssl=null"]
    # Its processes are ours: without a session of its own, they would stay when it hangs.
    process = subprocess.Popen(
        [kernel, *files, *consoles],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        console, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        console, _ = process.communicate()
    output = (folder / "output").read_text() if (folder / "output").exists() else ""
    status = (folder / "status").read_text().strip() if (folder / "status").exists() else "missing"
    assert status == "0", f"status {status}\n{console.decode(errors='replace')[-4000:]}\n{output}"
    return output
