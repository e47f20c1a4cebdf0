"""Draws measurements as charts, each for light and for dark pages. Needs Matplotlib; benchmarks call it with what they measured.

As a program, it reads a chart in JSON from standard input: `python docs/pictures/plots.py FOLDER/NAME < chart.json`.
"""

import io
import json
import re
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

COLORS = {
    "light": {"text": "#1f2328", "faint": "#59636e", "grid": "#d1d9e0", "series": ["#0969da", "#bc4c00", "#8250df", "#1a7f37"]},
    "dark": {"text": "#e6edf3", "faint": "#9198a1", "grid": "#3d444d", "series": ["#4493f8", "#f0883e", "#ab7df8", "#3fb950"]},
}
MARKS = "os^D"
WIDTH, HEIGHT = 9.2, 3.6

# The same numbers give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nereid", "font.family": "sans-serif", "font.size": 10})


def number(value, _=None):
    """A tick: 20000 is 20,000, and 0.5 stays."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _panel(axes, panel, colors):
    for (name, points), color, mark in zip(panel["series"], colors["series"], MARKS, strict=False):
        if panel.get("bars"):
            continue
        across, up = zip(*points, strict=True)
        how = {"linewidth": 0, "markersize": 6, "alpha": 0.8} if panel.get("points") else {"linewidth": 1.6, "markersize": 4}
        axes.plot(across, up, color=color, marker=mark if len(points) < 30 or panel.get("points") else None, label=name, **how)
    if panel.get("bars"):
        groups = [name for name, _ in panel["series"][0][1]]
        width = 0.8 / len(panel["series"])
        for index, ((name, points), color) in enumerate(zip(panel["series"], colors["series"], strict=False)):
            places = [group + (index - (len(panel["series"]) - 1) / 2) * width for group in range(len(groups))]
            axes.bar(places, [value for _, value in points], width * 0.92, color=color, label=name)
        axes.set_xticks(range(len(groups)), groups)
    if panel.get("log_x"):
        axes.set_xscale("log", base=panel["log_x"])
        axes.xaxis.set_major_locator(LogLocator(base=panel["log_x"], numticks=9))
        axes.xaxis.set_major_formatter(FuncFormatter(number))
    if panel.get("log_y"):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(number))
    axes.set_xlabel(panel["x"], color=colors["faint"])
    axes.set_title(panel["y"], color=colors["text"], fontsize=10, loc="left")
    axes.tick_params(colors=colors["faint"], length=0, which="both")
    axes.grid(axis="y", color=colors["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colors["grid"])


def svg(chart, colors):
    """The picture of a chart: its panels side by side, with one legend."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    panels = chart["panels"]
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.patch.set_alpha(0)
        _panel(axes, panel, colors)
    handles, names = figure.axes[0].get_legend_handles_labels()
    if len(names) > 1:
        figure.legend(handles, names, loc="outside upper left", ncols=len(names), frameon=False, labelcolor=colors["text"])
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Title": chart["title"], "Creator": None})
    text = re.sub(r"font-family: '[^;]*sans-serif", "font-family: system-ui, sans-serif", out.getvalue())
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def write(path, chart):
    """Writes `path` with the name of each theme."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for theme, colors in COLORS.items():
        path.with_name(f"{path.name}-{theme}.svg").write_text(svg(chart, colors))


if __name__ == "__main__":
    write(sys.argv[1], json.load(sys.stdin))
