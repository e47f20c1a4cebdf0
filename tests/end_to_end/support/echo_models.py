"""Models of text that return their prompt, so that a test sees what a template makes of a conversation, and a parser of an output."""

_ECHO = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_STRING dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: 1 }
"""
_MODEL = """
platform: "ensemble"
input {{ name: "text_input" data_type: TYPE_STRING dims: 1 }}
output {{ name: "text_output" data_type: TYPE_STRING dims: 1 }}
parameters {{ key: "tool_call_parser" value {{ string_value: "{parser}" }} }}
parameters {{ key: "reasoning_parser" value {{ string_value: "none" }} }}
ensemble_scheduling {{ step {{
  model_name: "echo" model_version: -1
  input_map {{ key: "INPUT0" value: "text_input" }}
  output_map {{ key: "OUTPUT0" value: "text_output" }}
}} }}
"""


def write(repository, name, template, parser):
    """Writes a model with this chat template, whose output is read by this parser."""
    if not (repository / "echo").exists():
        (repository / "echo/1").mkdir(parents=True)
        (repository / "echo/config.pbtxt").write_text(_ECHO)
    model = repository / name
    (model / "1").mkdir(parents=True)
    (model / "chat_template.jinja").write_text(template)
    (model / "config.pbtxt").write_text(_MODEL.format(parser=parser))
