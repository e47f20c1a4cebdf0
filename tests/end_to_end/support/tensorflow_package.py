"""TensorFlow's library alone, of PyPI's package (274 MB), unpacked beside the Python environment of the tests: fetched once for
each environment, and nothing is installed.
"""

import sys
from pathlib import Path

from pinned_packages import Package, unpacked

_PACKAGE = Package(
    "tensorflow-cpu==2.21.0",
    "2b847d217b02ee7731ed91431daf3250daa0196c3c94614d23be27232e6e5b6c",
    {"tensorflow/libtensorflow_": ""},
)
# The folder of the library.
LIBRARY_FOLDER = Path(sys.prefix) / "tensorflow-2.21"
LIBRARY = LIBRARY_FOLDER / "libtensorflow_cc.so.2"
FLAGS = [f"--backend-config=tensorflow,library={LIBRARY_FOLDER}"]


def fetched():
    """Fetches it unless it is there."""
    unpacked(LIBRARY_FOLDER, [_PACKAGE])
