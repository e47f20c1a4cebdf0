"""The bill of materials, checked with the schema of CycloneDX. Not among the default tests: `cargo xtask test packages`."""

import json
import subprocess
import sys
import tarfile

import built_packages

VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)
"""


def test_document_follows_the_schema_and_is_in_the_archive(tmp_path):
    document = built_packages.package("nereid-*.cdx.json")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    python = tmp_path / "tools" / "bin" / "python"
    tools = "cyclonedx-python-lib[json-validation]==11.12.0"
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", tools], check=True)
    subprocess.run([python, "-c", VALIDATE, document], check=True)

    listed = json.loads(document.read_text())
    assert {"tokio", "hyper", "tract-onnx"} <= {component["name"] for component in listed["components"]}
    with tarfile.open(built_packages.package("nereid-*.tar.gz")) as archive:
        name = next(name for name in archive.getnames() if name.endswith(".cdx.json"))
        member = archive.extractfile(name)
        assert member and json.load(member) == listed
