"""Reads a server's metrics as a collector does, with the parser of Prometheus's own client library. Each of them has to be in
docs/metrics.md."""

import re
from http.client import HTTPConnection

from prometheus_client.parser import text_string_to_metric_families

from http_requests import LIMIT_S, Answer
from places import ROOT

# The metrics that the page describes.
DOCUMENTED = frozenset(re.findall(r"`((?:nv|nereid|gen_ai)_\w+|vllm:\w+)`", (ROOT / "docs/metrics.md").read_text()))
# Beginnings of the server's own names. Models and backends register others.
_OWN = ("nv_", "nereid_", "vllm:", "gen_ai_")


def get(server, path="/metrics", method="GET", headers=None):
    """One request to the port of metrics, over a connection of its own."""
    connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


class Scrape:
    """All metrics at one moment."""

    def __init__(self, server):
        answer = get(server)
        assert answer.status == 200, answer
        self.text = answer.body.decode()
        # The kind of each family, as its line says.
        lines = (line.split() for line in self.text.splitlines() if line.startswith("# TYPE "))
        self.kinds = {name: kind for _, _, name, kind in lines}
        unknown = [name for name in self.kinds if name.startswith(_OWN) and name not in DOCUMENTED]
        assert not unknown, f"docs/metrics.md lacks {unknown}"
        self.samples: dict[tuple[str, frozenset], float] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                # The parser has ideas of its own of what counters are called.
                name = sample.name if sample.name in self.text else sample.name.removesuffix("_total")
                key = (name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"duplicate sample: {key}"
                self.samples[key] = sample.value

    def value(self, name, **labels):
        """The value of the sample with exactly these labels; None if there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    def named(self, name):
        """The samples of a name, by their labels."""
        return {labels: value for (sample, labels), value in self.samples.items() if sample == name}

    def pending(self, model, version="1"):
        """How many requests wait for a model."""
        return self.value("nv_inference_pending_request_count", model=model, version=version)

    def failures(self, model, version="1"):
        """The failed requests of a model that there are, by their reason."""
        reasons = ("BACKEND", "CANCELED", "OTHER", "REJECTED")
        values = {
            reason: self.value("nv_inference_request_failure", model=model, version=version, reason=reason) for reason in reasons
        }
        return {reason: value for reason, value in values.items() if value != 0}
