"""A plugin of pytest: where files of tests run in several processes, those that take longest start first, so that none is left
running alone at the end.

Knows how long tests took from earlier runs, by pytest's cache.
"""

from collections import Counter

import pytest

_KEY = "nereid/seconds"
# Of a test that has not run before: files then start by their number of tests.
_USUAL_S = 1.0


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(_Controller(config), "longest-first")


def pytest_collection_modifyitems(config, items):
    """Orders the files. The processes must agree, so they are told how long tests take."""
    if not hasattr(config, "workerinput"):
        return
    seconds = config.workerinput[_KEY]
    total: Counter = Counter()
    for item in items:
        total[item.path] += seconds.get(item.nodeid, _USUAL_S)
    items.sort(key=lambda item: -total[item.path])


class _Controller:
    """The process that starts the others, and hears how long tests took."""

    def __init__(self, config):
        self._cache = getattr(config, "cache", None)
        self._earlier = self._cache.get(_KEY, {}) if self._cache else {}
        self._seconds: Counter = Counter()
        # xdist would order files by their number of tests.
        config.option.loadscopereorder = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        node.workerinput[_KEY] = self._earlier

    def pytest_runtest_logreport(self, report):
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        if self._cache and self._seconds:
            self._cache.set(_KEY, self._earlier | self._seconds)
