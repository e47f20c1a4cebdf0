"""Prometheus's real server and its tool, as Debian packages them: the installed ones, or else those of its package, unpacked beside
the Python environment of the tests.
"""

import json
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import debian_packages
from http_requests import LIMIT_S
from ports import free_port
from waiting import eventually

_CONFIG = """
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: {rules}
scrape_configs:
  - job_name: nereid
    static_configs: [ {{ targets: {targets} }} ]
"""


def program(name="prometheus"):
    """The path of prometheus or promtool."""
    return shutil.which(name) or str(debian_packages.unpack("prometheus", ["prometheus"]) / "usr/bin" / name)


def promtool(*arguments, folder=None):
    """Runs the tool to its end, which must be a good one, and returns what it prints."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """A server of Prometheus that collects the metrics of some addresses each second."""

    def __init__(self, folder, targets, rules=()):
        self.port = free_port()
        config = Path(folder) / "prometheus.yml"
        config.write_text(_CONFIG.format(targets=json.dumps(list(targets)), rules=json.dumps([str(rule) for rule in rules])))
        flags = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{self.port}"]
        self._log = (Path(folder) / "prometheus.log").open("w")
        self._process = subprocess.Popen([program(), *flags], stdout=self._log, stderr=subprocess.STDOUT)
        assert eventually(self._is_ready), f"Prometheus is not ready: {self._log.name}"

    def _is_ready(self):
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=LIMIT_S) as answer:
                return answer.status == 200
        except OSError:
            return False

    def query(self, expression):
        """The samples of an expression now, as pairs of labels and value."""
        address = f"http://127.0.0.1:{self.port}/api/v1/query?{urlencode({'query': expression})}"
        with urlopen(address, timeout=LIMIT_S) as answer:
            result = json.load(answer)["data"]["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def stop(self):
        """Ends the process."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(LIMIT_S)
        self._log.close()


@contextmanager
def running(folder, targets, rules=()):
    """A server of Prometheus for the length of a `with` block."""
    prometheus = Prometheus(folder, targets, rules)
    try:
        yield prometheus
    finally:
        prometheus.stop()
