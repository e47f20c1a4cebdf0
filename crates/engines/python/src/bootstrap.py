import sys

if sys.implementation.name != "cpython" or sys.version_info < (3, 9) or "t" in getattr(sys, "abiflags", ""):
    sys.exit("models need CPython 3.9 or newer, not free-threaded: this is %s, %s" % (sys.executable, sys.version))

from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from io import TextIOWrapper
from os import close

name = "c_python_backend_utils"
loader = ExtensionFileLoader(name, sys.argv[1])
spec = spec_from_file_location(name, sys.argv[1], loader=loader)
assert spec
module = module_from_spec(spec)
sys.modules[name] = module
loader.exec_module(module)
if sys.argv[1].startswith("/proc/self/fd/"):
    # The processes that the model starts need no descriptor of the library.
    close(int(sys.argv[1].rpartition("/")[2]))
driver = sys.argv[2:3]
sys.argv[:] = [""]
sys.path.insert(0, "")
for stream in sys.stdout, sys.stderr:
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)
module.main("Python %d.%d.%d (%s)" % (*sys.version_info[:3], sys.executable), *driver)
