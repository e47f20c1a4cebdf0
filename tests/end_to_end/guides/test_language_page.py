"""The examples of docs/language-models.md with a real model."""

import llamacpp_package
from guide_pages import Reader


def test_structured_output_and_tools_work_as_printed(tmp_path):
    version = tmp_path / "models/chat/1"
    version.mkdir(parents=True)
    (version / "model.gguf").symlink_to(llamacpp_package.model())
    package = tmp_path / "node_modules/@node-llama-cpp/linux-x64/bins"
    package.mkdir(parents=True)
    (package / "linux-x64").symlink_to(llamacpp_package.library_folder())
    reader = Reader(tmp_path, NODE_PATH=str(tmp_path / "node_modules"))
    reader.follow("docs/language-models.md", "Structured output and tools")
