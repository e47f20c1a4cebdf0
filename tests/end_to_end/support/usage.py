"""What a server uses under a load of wrk, for measurements."""

import os
import re
import subprocess
from pathlib import Path

from processes import tree

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(*pids):
    """The processor time of these processes and their descendants so far."""
    total = 0
    for pid in {each for root in pids for each in tree(root)}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def wrk(connections, seconds, script, url, *arguments):
    """What the script of wrk counted, by name. No request may fail."""
    command = ["wrk", f"-c{connections}", "-t1", f"-d{seconds}s", "--timeout=30s", "--latency", "-s", script, url, "--", *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (line,) = re.findall(r"^seen (.*)", printed, re.MULTILINE)
    seen = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
    failed = {name: seen[name] for name in ("connect", "read", "write", "status", "timeout") if seen[name]}
    assert seen["requests"] and not failed, printed
    return seen
