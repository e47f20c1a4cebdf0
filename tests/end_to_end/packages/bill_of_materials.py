"""The bill of materials, checked with the schema of CycloneDX. Not among the default tests: `cargo xtask test packages`."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import built_packages

VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)
"""


def test_documents_follow_the_schema_and_are_in_the_packages(tmp_path):
    document = built_packages.package("nereid-*.cdx.json")
    with zipfile.ZipFile(built_packages.package("nereid_server-*.whl")) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/sboms/nereid.cdx.json"))
        of_wheel = Path(wheel.extract(name, tmp_path))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    python = tmp_path / "tools" / "bin" / "python"
    tools = "cyclonedx-python-lib[json-validation]==11.12.0"
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", tools], check=True)
    for file, own in [(document, "nereid-cli"), (of_wheel, "pyo3")]:
        subprocess.run([python, "-c", VALIDATE, file], check=True)
        listed = json.loads(file.read_text())
        assert {"tokio", "hyper", "tract-onnx", own} <= {component["name"] for component in listed["components"]}

    listed = json.loads(document.read_text())
    with tarfile.open(built_packages.package("nereid-*.tar.gz")) as archive:
        name = next(name for name in archive.getnames() if name.endswith(".cdx.json"))
        member = archive.extractfile(name)
        assert member and json.load(member) == listed
