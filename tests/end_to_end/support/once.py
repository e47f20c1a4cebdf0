"""Work that is done once for each environment of the tests, such as fetching a program."""

import fcntl


def once(home, act, mark="ready"):
    """Calls `act` unless it has succeeded before, as the file `mark` in this folder shows. One of several workers calls it, and the
    others wait."""
    home.mkdir(exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = home / mark
        if not ready.exists():
            act()
            ready.touch()
