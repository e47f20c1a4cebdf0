"""Work that is done once for each environment of the tests, such as fetching a program."""

import fcntl


def once(home, act):
    """Calls `act` unless it has succeeded for this folder before. Of several workers one calls it, and the others wait."""
    home.mkdir(exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = home / "ready"
        if not ready.exists():
            act()
            ready.touch()
