"""Waits for conditions."""

import time

from http_requests import LIMIT_S


def eventually(met, limit_s=LIMIT_S):
    """Waits for a condition, and returns whether it was met in time."""
    deadline = time.monotonic() + limit_s
    while not met():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
