import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

path, call, side = sys.argv[1:]
name = "c_python_backend_utils"
spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
module = module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
sys.argv[:] = [""]
module.main(int(call), int(side))
