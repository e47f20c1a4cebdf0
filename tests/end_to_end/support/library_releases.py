"""Releases of the frameworks' libraries that the server promises to run with, fetched from PyPI, npm and Debian and unpacked beside
the Python environment of the tests, each once for each environment. Nothing is installed.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import tensorflow_package
import torch_package
import torch_wheel
from pinned_packages import Package, unpacked

HOME = Path(sys.prefix) / "library-releases"


def _onnx_runtime(release, sha256):
    return [Package(f"onnxruntime=={release}", sha256, {"onnxruntime/capi/libonnxruntime": ""})]


def _openvino(release, sha256):
    # The plugins for GPUs and NPUs are large, and a machine without these devices does not need them.
    names = ("libopenvino.so", "libopenvino_c.so", "libopenvino_intel_cpu_plugin", "libopenvino_onnx", "libopenvino_ir", "libtbb")
    return [Package(f"openvino=={release}", sha256, {f"openvino/libs/{name}": "" for name in names})]


def _tensorflow(release, sha256):
    return [Package(f"tensorflow-cpu=={release}", sha256, {"tensorflow/libtensorflow_": ""})]


def _pytorch(release, sha256, cuda, runtime, cupti):
    """PyTorch's library and headers, with the two libraries of CUDA that it needs on the CPU."""
    names = {f"torch/lib/{name}": "" for name in ("libtorch_cpu.so", "libc10.so", "libgomp")}
    return [
        Package(f"torch=={release}", sha256, names | {"torch/include/": "include"}),
        Package(f"nvidia-cuda-runtime-{cuda}=={runtime[0]}", runtime[1], {"nvidia/cuda_runtime/lib/libcudart.so": ""}),
        Package(f"nvidia-cuda-cupti-{cuda}=={cupti[0]}", cupti[1], {"nvidia/cuda_cupti/lib/libcupti.so": ""}),
    ]


# The oldest promised release with a library that the server loads, some between, and the newest. docs/frameworks.md lists the same
# releases. Those without a list of packages are shared with other tests, or have a Python that writes models.
RELEASES = {
    "onnxruntime": {
        # PyPI's package of this release has no library of its own.
        "1.17.3": [
            Package(
                "onnxruntime-node@1.17.3",
                "fd586d4ab53d89fdade19ffcc75b208fd66ab417b247cb6ae299be1bb40d76be",
                {"package/bin/napi-v3/linux/x64/libonnxruntime": ""},
            )
        ],
        "1.19.2": _onnx_runtime("1.19.2", "a36511dc07c5c964b916697e42e366fa43c48cdb3d3503578d78cef30417cb84"),
        "1.20.1": _onnx_runtime("1.20.1", "5eec64c0269dcdb8d9a9a53dc4d64f87b9e0c19801d9321246a53b7eb5a7d1bc"),
        "1.21.1": _onnx_runtime("1.21.1", "982dcc04a6688e1af9e3da1d4ef2bdeb11417cf3f8dde81f8f721043c1919a4f"),
        "1.22.1": _onnx_runtime("1.22.1", "f6effa1299ac549a05c784d50292e3378dbbf010346ded67400193b09ddc2f04"),
        "1.23.2": _onnx_runtime("1.23.2", "da44b99206e77734c5819aa2142c69e64f3b46edc3bd314f6a45a932defc0b3e"),
        "1.27.0": _onnx_runtime("1.27.0", "e4f7b0e90d2d212e2c2deaa6c8291616183ab815d3ec558ea12d3ac8b26d36f4"),
        "1.31.1": _onnx_runtime("1.31.1", "5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f"),
    },
    "openvino": {
        "2024.3.0": _openvino("2024.3.0", "eeb8cd2dde4b64a463d11be690fc3d4b5bc29d5eb0bcfb7e41707a23c317c8c9"),
        "2025.0.0": _openvino("2025.0.0", "d66c9cb37cdf2490b54645e5e35bb21efae44c232cafcd7d4bbc7774d5830143"),
        "2026.4.1": _openvino("2026.4.1", "2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf"),
    },
    "tensorflow": {
        "2.12.0": _tensorflow("2.12.0", "e8c7047552a2d759f3e65ac13e36dd24bb5fec2e6576e848287811ec44b3d62f"),
        "2.17.1": _tensorflow("2.17.1", "4935d35d15924602605c839cb6cd5a578f89f626d8736f62065fe3a089b63b6f"),
        "2.21.0": SimpleNamespace(
            fetched=tensorflow_package.fetched, library_folder=tensorflow_package.LIBRARY_FOLDER, environment=dict
        ),
    },
    "pytorch": {
        "1.13.1": torch_package.RELEASE,
        "2.0.1": _pytorch(
            "2.0.1",
            "e617b1d0abaf6ced02dbb9486803abfef0d581609b09641b34fa315c9c40766d",
            "cu11",
            ("11.7.99", "cc768314ae58d2641f07eac350f40f99dcb35719c4faff4bc458a7cd2b119e31"),
            ("11.7.101", "e0cfd9854e1f2edaa36ca20d21cd0bdd5dcfca4e3b9e130a082e05b33b6c5895"),
        ),
        "2.6.0": torch_wheel.OLDEST_WITH_PACKAGES,
        "2.15.0": torch_wheel.NEWEST,
    },
}

# ONNX Runtime's libraries of this age crash at the end of a process that still holds their environment.
OLD_ONNX_RUNTIME = "1.20.1"


def folder(framework, release):
    """The folder with the library of a release."""
    source = RELEASES[framework][release]
    if not isinstance(source, list):
        source.fetched()
        return source.library_folder
    return unpacked(HOME / framework / release, source)


def environment(framework, release):
    """The variables with which the library is loaded."""
    source = RELEASES[framework][release]
    if isinstance(source, list):
        # The shim that the server compiles for libtorch stays for the next run.
        return {"XDG_CACHE_HOME": str(HOME / framework / release / "cache")} if framework == "pytorch" else {}
    return source.environment()


def old_onnx_runtime():
    """The folder with the one old release that the default tests need."""
    return folder("onnxruntime", OLD_ONNX_RUNTIME)
