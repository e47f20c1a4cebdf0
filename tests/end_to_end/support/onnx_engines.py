"""The engines that serve ONNX models, each with the flags that choose it."""

from pathlib import Path

import onnxruntime

# The folder of the library in the Python package.
LIBRARY_FOLDER = Path(onnxruntime.__file__).parent / "capi"
LIBRARY = next(LIBRARY_FOLDER.glob("libonnxruntime.so*"))

FLAGS = {
    "tract": ["--backend-config=onnxruntime,engine=tract"],
    "ort": ["--backend-config=onnxruntime,engine=ort", f"--backend-config=onnxruntime,library={LIBRARY_FOLDER}"],
}
