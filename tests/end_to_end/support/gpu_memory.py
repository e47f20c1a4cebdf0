"""Memory of a GPU as a client has it: allocated, filled, shared and read by NVIDIA's driver library.

The library is the stand-in of `tests/gpu`, which needs no GPU, or the one that NEREID_TEST_CUDA_DRIVER names.
"""

import base64
import ctypes
import os
import subprocess
from pathlib import Path

_SOURCES = Path(__file__).resolve().parents[2] / "gpu"
STANDIN = _SOURCES / "standin.c"
_NVML = _SOURCES / "nvml.c"
HANDLE_SIZE = 64


def named_driver():
    """The library that the environment names, or None for the stand-in."""
    return os.environ.get("NEREID_TEST_CUDA_DRIVER")


def compile_standin(folder):
    """Compiles the stand-in; the path of the library."""
    return _compiled(STANDIN, folder / "libcuda.so.1")


def _compiled(source, library):
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["cc", *flags, source, "-o", library], check=True)
    return str(library)


class Nvml:
    """The stand-in for NVIDIA's management library, and what its GPUs report."""

    def __init__(self, folder):
        _compiled(_NVML, folder / "libnvidia-ml.so.1")
        self._readings = folder / "readings"
        # Lines "GPU process bytes" of what processes take in addition.
        self.processes = folder / "processes"
        # The variables of the process.
        self.environment = {
            "LD_LIBRARY_PATH": str(folder),
            "STANDIN_GPUS": str(self._readings),
            "STANDIN_GPU_PROCESSES": str(self.processes),
        }

    def report(self, *gpus):
        """Each GPU reports percent of time in use, bytes in use, and milliwatts from now on; None for a value that it lacks."""
        lines = (" ".join("-" if value is None else str(value) for value in gpu) for gpu in gpus)
        fresh = self._readings.with_suffix(".fresh")
        fresh.write_text("\n".join(lines))
        fresh.rename(self._readings)


class Standin:
    """What the stand-in of a process reads and writes, in a folder: the calls that fail, and the calls that were made."""

    def __init__(self, folder):
        self._failing, self._log = folder / "failing", folder / "copies"
        # The variables of the process.
        self.environment = {"STANDIN_FAIL": str(self._failing), "STANDIN_LOG": str(self._log)}

    def fail(self, *calls):
        """These calls, and no others, fail from now on."""
        self._failing.write_text("\n".join(calls))

    def copies(self):
        """The copies since the last call."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.write_text("")
        return [line for line in lines if "Memcpy" in line]


class Driver:
    """The driver library in this process, with the context of one GPU."""

    def __init__(self, library, device=0):
        self.library = ctypes.CDLL(library)
        self.device = device
        self._call("cuInit", 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context

    def _call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name} failed with {code}"

    def within(self, name, *arguments):
        """Calls a function in the context of the GPU."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            self._call(name, *arguments)
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def copy_out(self, target, address, size):
        """Copies from memory of the GPU to an address of this process."""
        self.within("cuMemcpyDtoH_v2", ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def allocate(self, contents, size=None):
        """Memory of the GPU that begins with these bytes."""
        return Memory(self, contents, size or len(contents))


class Memory:
    """Memory of the GPU."""

    def __init__(self, driver, contents, size):
        self._driver = driver
        self.size = size
        address = ctypes.c_uint64()
        driver.within("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.address = address.value
        self.write(bytes(contents).ljust(size, b"\0"))

    @property
    def handle(self):
        """What other processes open it with."""
        handle = (ctypes.c_char * HANDLE_SIZE)()
        self._driver.within("cuIpcGetMemHandle", handle, ctypes.c_uint64(self.address))
        return handle.raw

    @property
    def raw_handle(self):
        """The handle in base64, as Triton's clients take it."""
        return base64.b64encode(self.handle)

    def write(self, contents, offset=0):
        """Copies bytes there."""
        address = ctypes.c_uint64(self.address + offset)
        self._driver.within("cuMemcpyHtoD_v2", address, contents, ctypes.c_size_t(len(contents)))
        self._driver.within("cuStreamSynchronize", None)

    def read(self, size=None, offset=0):
        """Copies bytes from there."""
        target = (ctypes.c_char * (size or self.size - offset))()
        address = ctypes.c_uint64(self.address + offset)
        self._driver.within("cuMemcpyDtoH_v2", target, address, ctypes.c_size_t(len(target)))
        return target.raw

    def free(self):
        """Gives it back."""
        self._driver.within("cuMemFree_v2", ctypes.c_uint64(self.address))
