"""Writes images/page.pgm: lines of text in several sizes, the last of them upside down.

python examples/training/make_page.py
"""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

TARGET = Path(__file__).resolve().parents[1] / "images/page.pgm"
LINES = [("Nereid serves models", 26, False), ("written in Python, too", 20, False), ("Room 42, second floor", 24, True)]


def main():
    page = Image.new("L", (360, 150), 245)
    top = 12
    for text, size, is_turned in LINES:
        line = Image.new("L", (340, size + 12), 245)
        ImageDraw.Draw(line).text((10, 4), text, fill=20, font=ImageFont.load_default(size))
        page.paste(line.rotate(180) if is_turned else line, (10, top))
        top += size + 20
    page.save(TARGET)


if __name__ == "__main__":
    main()
