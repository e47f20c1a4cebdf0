"""Draws the diagrams of the guides, each for light and for dark pages: `python docs/pictures/diagrams.py`."""

from pathlib import Path

COLORS = {
    "light": {"text": "#1f2328", "faint": "#59636e", "line": "#8c959f", "box": "#f6f8fa", "mark": "#ddf4ff", "markline": "#0969da"},
    "dark": {"text": "#e6edf3", "faint": "#9198a1", "line": "#656c76", "box": "#151b23", "mark": "#0c2d6b", "markline": "#4493f8"},
}
FONT = "font-family='system-ui, sans-serif' font-size='14'"


class Drawing:
    """Boxes, arrows and texts."""

    def __init__(self, width, height, title):
        self._head = (width, height, title)
        self._parts: list[str] = []

    def box(self, x, y, width, height, *lines, marked=False):
        """A box with lines of text; the first one is bold."""
        fill, line = ("mark", "markline") if marked else ("box", "line")
        self._parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{{{fill}}}' stroke='{{{line}}}'/>"
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for index, text in enumerate(lines):
            self.text(x + width / 2, top + 18 * index, text, anchor="middle", bold=index == 0, faint=index > 0)

    def text(self, x, y, text, anchor="start", bold=False, faint=False):
        """A line of text."""
        weight = " font-weight='600'" if bold else ""
        color = "faint" if faint else "text"
        self._parts.append(f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' fill='{{{color}}}'{weight}>{text}</text>")

    def arrow(self, *points):
        """A line through points, with a head at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f"<polyline points='{path}' fill='none' stroke='{{line}}' stroke-width='1.5' marker-end='url(#head)'/>")

    def svg(self, colors):
        """The picture in these colours."""
        width, height, title = self._head
        head = "<path d='M0,0 L8,4 L0,8 z' fill='{line}'/>"
        marker = f"<marker id='head' markerWidth='8' markerHeight='8' refX='7' refY='4' orient='auto'>{head}</marker>"
        body = "\n".join([f"<defs>{marker}</defs>", *self._parts])
        start = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' {FONT} role='img'>"
        return f"{start}\n<title>{title}</title>\n{body.format(**colors)}\n</svg>\n"


def request():
    """The way of a request, from the socket and back."""
    drawing = Drawing(920, 250, "How a request flows")
    steps = [
        ("HTTP, gRPC", "decode, access"),
        ("model", "found by name"),
        ("admission", "fits signature, limits"),
        ("queue", "batcher, sequences"),
        ("instance", "runs the backend"),
    ]
    for index, step in enumerate(steps):
        x = 20 + 180 * index
        drawing.box(x, 60, 155, 60, *step, marked=index == 3)
        if index:
            drawing.arrow((x - 25, 90), (x - 2, 90))
    drawing.text(20, 40, "request")
    drawing.arrow((80, 35), (97, 35), (97, 58))
    drawing.box(380, 160, 155, 60, "response cache", "may answer at once")
    drawing.arrow((457, 122), (457, 158))
    drawing.box(740, 160, 155, 60, "responder", "statistics, outputs")
    drawing.arrow((817, 122), (817, 158))
    drawing.arrow((738, 205), (655, 205), (655, 236), (97, 236), (97, 122))
    drawing.arrow((378, 190), (130, 190), (130, 122))
    drawing.text(150, 229, "response", faint=True)
    drawing.text(150, 183, "cached response", faint=True)
    return drawing


def batching():
    """Requests of several clients that become one execution."""
    drawing = Drawing(920, 260, "How dynamic batching works")
    drawing.text(20, 30, "time", faint=True)
    drawing.arrow((60, 25), (890, 25))
    for index, (x, rows) in enumerate([(70, 1), (150, 2), (230, 1), (790, 1)]):
        plural = "s" if rows > 1 else ""
        drawing.box(x, 50, 70, 48, f"client {index + 1}", f"{rows} row{plural}")
    drawing.box(340, 50, 200, 48, "queue", "waits for more requests")
    drawing.arrow((302, 74), (338, 74))
    drawing.text(455, 120, "until max_batch_size, a preferred size,", faint=True)
    drawing.text(455, 138, "or max_queue_delay_microseconds", faint=True)
    drawing.box(340, 160, 200, 60, "one execution", "4 rows for 3 clients", marked=True)
    drawing.arrow((440, 100), (440, 158))
    drawing.box(725, 160, 180, 60, "next execution", "1 row, an idle instance")
    drawing.arrow((825, 100), (825, 158))
    drawing.arrow((338, 190), (105, 190), (105, 100))
    drawing.arrow((338, 198), (185, 198), (185, 100))
    drawing.arrow((338, 206), (265, 206), (265, 100))
    drawing.text(100, 240, "each client gets the rows that it sent", faint=True)
    return drawing


def sequences():
    """Requests of sequences, which stay with the instance that has their state."""
    drawing = Drawing(920, 250, "How a sequence is routed")
    for index, (name, end) in enumerate(
        [("sequence 7", "start, then more"), ("sequence 8", "start, then more"), ("sequence 9", "start")]
    ):
        drawing.box(20, 25 + 70 * index, 170, 52, name, end)
    drawing.box(290, 40, 190, 150, "sequence batcher", "correlation id:", "instance and slot", marked=True)
    for index in range(3):
        drawing.arrow((192, 51 + 70 * index), (288, 80 + 35 * index))
    for index, (slots, state) in enumerate(
        [(("slot 1: sequence 7", "slot 2: sequence 9"), "states"), (("slot 1: sequence 8", "slot 2: free"), "states")]
    ):
        y = 25 + 100 * index
        drawing.box(600, y, 170, 80, f"instance {index + 1}", *slots)
        drawing.box(800, y + 15, 100, 50, state, "kept here")
        drawing.arrow((482, 95 + 40 * index), (598, y + 40))
        drawing.arrow((772, y + 40), (798, y + 40))
    drawing.text(290, 222, "A new sequence takes a free slot, or waits in the backlog. Its slot is free again after", faint=True)
    drawing.text(290, 240, "sequence_end, or when it was idle for max_sequence_idle_microseconds.", faint=True)
    return drawing


DIAGRAMS = {"request-flow": request, "batching": batching, "sequences": sequences}


def files():
    """The pictures by the names of their files."""
    return {f"{name}-{theme}.svg": draw().svg(colors) for name, draw in DIAGRAMS.items() for theme, colors in COLORS.items()}


if __name__ == "__main__":
    for name, text in files().items():
        (Path(__file__).parent / name).write_text(text)
