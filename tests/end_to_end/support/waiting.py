"""Waits for conditions."""

import time

from http_requests import LIMIT_S


def eventually(met, limit_s=LIMIT_S):
    """Waits for a condition, and returns whether it was met in time. Checks less often the longer that takes: a check may cost the
    machine more than the wait."""
    start = time.monotonic()
    while not met():
        waited = time.monotonic() - start
        if waited > limit_s:
            return False
        time.sleep(min(max(0.01, waited / 20), 0.05))
    return True
