"""Conversations that chat templates render: everything that a client of OpenAI's interface may send to a model of text."""

import copy

_CITY = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in \"a\" city <b> & 'c'.\nAlways.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "default": 3},
                "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "places": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                },
                "more": {"type": ["string", "null"], "nullable": True},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
_TIME = {
    "type": "function",
    "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}
_ARGUMENTS = {
    "city": 'Zürich "x" <b>',
    "days": 3,
    "f": 1.5,
    "t": True,
    "n": None,
    "l": [1, "a", {}],
    "o": {"a": {"b": []}},
    "e": "",
}


def _user(text):
    return {"role": "user", "content": text}


def _system(text):
    return {"role": "system", "content": text}


def _assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def _call(name, arguments, number=1):
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(text, number=1, name="get_weather"):
    return {"role": "tool", "tool_call_id": f"abcdefgh{number}", "name": name, "content": text}


def _thought(text):
    return {"reasoning_content": text, "thinking": text}


_CALLING = _assistant("", tool_calls=[_call("get_weather", _ARGUMENTS)])
_BERN = _call("get_weather", {"city": "Bern"})

# The messages, the tools, and variables of the template.
CONVERSATIONS = {
    "user": ([_user("Hello")], None, {}),
    "system": ([_system("Be brief."), _user("Hello")], None, {}),
    "turns": ([_system("Be brief."), _user(" Hello \n"), _assistant("Hi\n\nthere "), _user("And?\n")], None, {}),
    "developer": ([{"role": "developer", "content": "Be brief."}, _user("Hello")], None, {}),
    "unicode": (
        [_user("Grüße 日本 \U0001f600 \u2028 <|im_end|> {{ x }} {% y %}"), _assistant("é"), _user("'\"\\ <b>&amp;")],
        None,
        {},
    ),
    "empty texts": ([_system(""), _user(""), _assistant(""), _user("")], None, {}),
    "no generation": ([_user("Hello"), _assistant("Hi")], None, {"add_generation_prompt": False}),
    "continued": ([_user("Hello"), _assistant("Hi the")], None, {"add_generation_prompt": False, "continue_final_message": True}),
    "continued space": (
        [_user("Hello"), _assistant("Hi the ")],
        None,
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "thinking off": ([_user("Hello")], None, {"enable_thinking": False, "thinking": False}),
    "thinking on": ([_user("Hello")], None, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "reasoning": (
        [
            _user("1?"),
            _assistant("one", **_thought("I think\none.")),
            _user("2?"),
            _assistant("two", **_thought("so")),
            _user("3?"),
        ],
        None,
        {},
    ),
    "reasoning in tags": ([_user("1?"), _assistant("<think>\nI think\n</think>\n\none"), _user("2?")], None, {}),
    "tools": ([_user("Weather?")], [_CITY, _TIME], {}),
    "tools with system": ([_system("Be brief."), _user("Weather?")], [_CITY], {}),
    "call": ([_user("Weather?"), _CALLING], [_CITY], {"add_generation_prompt": False}),
    "answered call": ([_user("Weather?"), _CALLING, _result('{"t": 20}')], [_CITY], {}),
    "reasoned call": ([_user("Weather?"), {**_CALLING, **_thought("Look.")}, _result("20°C")], [_CITY], {}),
    "call with text": (
        [_user("Weather?"), _assistant("Let me see.", tool_calls=[_BERN]), _result("20"), _assistant("It is 20."), _user("Thanks")],
        [_CITY],
        {},
    ),
    "parallel calls": (
        [
            _user("Weather?"),
            _assistant("", tool_calls=[_BERN, _call("now", {}, 2)]),
            _result("20"),
            _result("noon", 2, "now"),
            _assistant("Fine."),
            _user("Thanks"),
        ],
        [_CITY, _TIME],
        {},
    ),
    "call without tools": ([_user("Weather?"), _assistant("", tool_calls=[_BERN]), _result("20")], None, {}),
    "documents": ([_user("Who?")], None, {"documents": [{"title": 'T"1', "text": "Text é"}, {"title": "T2", "text": "More"}]}),
    "two users": ([_user("a"), _user("b")], None, {}),
    "assistant first": ([_assistant("a"), _user("b")], None, {}),
    "system last": ([_user("a"), _assistant("b"), _system("c")], None, {}),
}


def conversations():
    """A copy of the conversations."""
    return copy.deepcopy(CONVERSATIONS)
