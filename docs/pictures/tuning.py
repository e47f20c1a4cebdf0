"""Draws what `nereid tune` measured, from the page that it wrote: `python docs/pictures/tuning.py nereid-tune-NAME.html`. Needs Matplotlib."""

import sys
from html.parser import HTMLParser
from pathlib import Path

ENGINES = ("ONNX Runtime", "OpenVINO", "embedded engine")


class Rows(HTMLParser):
    """The cells of the table of measurements, row by row. Rows of candidates that failed have a reason in place of figures."""

    def __init__(self, page):
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_cell = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self._is_cell = tag in ("td", "th")
        if self._is_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self._is_cell:
            self.rows[-1][-1] += data


def candidates(page):
    """Settings with requests a second, p99 in milliseconds and memory in MiB."""
    rows = [row for row in Rows(page).rows if len(row) == 7 and row[0] != "settings"]
    return {row[0]: (float(row[1]), float(row[3]), float(row[5])) for row in rows}


def chart(page):
    """Latency and memory over throughput: a mark for each candidate, by its engine."""
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for settings, figures in candidates(page).items():
        found = (engine for engine in ENGINES if engine in settings)
        engine = "present" if settings.startswith("present") else next(found, "configured engine")
        groups.setdefault(engine, []).append(figures)
    panels = [
        {
            "x": "requests/s",
            "y": name,
            "points": True,
            "log_y": is_log,
            "series": [(engine, [(figures[0], figures[column]) for figures in all_of]) for engine, all_of in groups.items()],
        }
        for column, name, is_log in ((1, "p99, ms", True), (2, "memory, MiB", False))
    ]
    return {"title": "Candidates of nereid tune", "panels": panels}


if __name__ == "__main__":
    import plots

    plots.write(Path(__file__).parent / "tuning", chart(Path(sys.argv[1]).read_text()))
