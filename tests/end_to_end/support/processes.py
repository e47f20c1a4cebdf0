"""What the processes of a server hold: descriptors, shared memory, processes."""

import os
from pathlib import Path

from waiting import eventually


def tree(pid):
    """The process and all that it started, by their numbers."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # It has ended.
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def holdings(pid):
    """How many processes, descriptors and shared memory files a server and its processes have, and the bytes in the latter."""
    processes = tree(pid)
    descriptors, files = 0, {}
    for process in processes:
        for link in Path(f"/proc/{process}/fd").iterdir():
            try:
                target, stat = os.readlink(link), os.stat(link)
            except OSError:
                continue  # It was closed.
            descriptors += 1
            if target.startswith("/memfd:"):
                files[stat.st_ino] = stat.st_blocks * 512
    return {
        "processes": len(processes),
        "descriptors": descriptors,
        "files of shared memory": len(files),
        "bytes of shared memory": sum(files.values()),
    }


def stop_all_of(server):
    """Stops a server, which must exit cleanly, and none of the processes that it started may be left."""
    started = tree(server.pid)
    server.stop()
    assert server.exit_code == 0
    assert eventually(lambda: not any(map(_runs, started))), started


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
