//! Outputs of each family of models, whole and cut anywhere.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fields::Fields;
use crate::tools::ToolSet;

fn tools() -> Arc<[Tool]> {
    let schema = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "detailed": {"type": "boolean"}, "more": {"type": "object"}}});
    let request =
        json!({"tools": [{"type": "function", "function": {"name": "weather", "parameters": schema}}]});
    ToolSet::take(&mut Fields::parse(request.to_string().as_bytes()).unwrap()).unwrap().tools.into()
}

fn call(name: &str, arguments: &str) -> Part {
    Part::Call(ToolCall { name: name.into(), arguments: arguments.into() })
}

/// The parts of an output that arrives in these pieces. Neighbouring texts are joined.
fn parse<'p>(parsing: &Parsing, pieces: impl IntoIterator<Item = &'p str>) -> Vec<Part> {
    let (mut parser, mut parts) = (parsing.parser(), Vec::new());
    for piece in pieces {
        parser.push(piece.to_owned(), &mut parts);
    }
    parser.finish(&mut parts);
    assert_eq!(parser.has_called(), parts.iter().any(|part| matches!(part, Part::Call(_))));
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Part::Content(text)), Part::Content(more)) => text.push_str(&more),
            (Some(Part::Reasoning(text)), Part::Reasoning(more)) => text.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    joined
}

/// How to read an output, the output, and its parts.
fn outputs() -> Vec<(Parsing, &'static str, Vec<Part>)> {
    let written = |format| Parsing { reasoning: None, calls: Calls::Written(format, tools()) };
    let thinking = |has_begun| Parsing { reasoning: Some(has_begun), calls: Calls::None };
    let content = |text: &str| Part::Content(text.into());
    let reasoning = |text: &str| Part::Reasoning(text.into());
    let oslo = || call("weather", "{\"city\": \"Oslo\"}");
    let (hermes, coder) = (ToolFormat::Hermes, ToolFormat::Qwen3Coder);
    let (mistral, llama) = (ToolFormat::Mistral, ToolFormat::Llama3);
    vec![
        (Parsing::default(), "<think>a</think>", vec![content("<think>a</think>")]),
        (
            thinking(false),
            "\n<think>\na\n</think>\n\nb <think>",
            vec![reasoning("\na\n"), content("b <think>")],
        ),
        (thinking(false), " a <think>b</think>", vec![content(" a <think>b</think>")]),
        (thinking(false), "<thin", vec![content("<thin")]),
        (thinking(true), "a</think>b", vec![reasoning("a"), content("b")]),
        (thinking(true), "a </thin", vec![reasoning("a </thin")]),
        (thinking(true), "a</think> \n", vec![reasoning("a")]),
        (
            written(hermes),
            "It is:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>\n",
            vec![content("It is:"), oslo(), call("g", "{}")],
        ),
        (
            written(hermes),
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Oslo\\\"}\"}",
            vec![oslo()],
        ),
        (written(hermes), "a <tool_call>no json</tool_call> b", vec![content("ano json b")]),
        (written(hermes), "a < b <tool", vec![content("a < b <tool")]),
        (
            written(coder),
            "Well.\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
             <parameter=detailed>True</parameter><parameter=more>{\"a\": [1]}</parameter>\n</function>\n</tool_call>",
            vec![
                content("Well."),
                call(
                    "weather",
                    "{\"city\": \"New\\nYork\", \"days\": 3, \"detailed\": true, \"more\": {\"a\": [1]}}",
                ),
            ],
        ),
        (
            written(coder),
            "<function=weather><parameter=city>42</parameter></function>",
            vec![call("weather", "{\"city\": \"42\"}")],
        ),
        (
            written(mistral),
            "See: [TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"g\", \"arguments\": {}}]",
            vec![content("See:"), oslo(), call("g", "{}")],
        ),
        (
            written(mistral),
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]g{\"a\": 1}",
            vec![oslo(), call("g", "{\"a\": 1}")],
        ),
        (written(mistral), "[TOOL_CALLS] broken", vec![content(" broken")]),
        (written(mistral), "a [TOOL", vec![content("a [TOOL")]),
        (
            written(llama),
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}; {\"name\": \"g\", \"parameters\": {\"a\": 1}}",
            vec![oslo(), call("g", "{\"a\": 1}")],
        ),
        (
            written(llama),
            "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
            vec![oslo()],
        ),
        (written(llama), "{\"just\": \"json\"}", vec![content("{\"just\": \"json\"}")]),
        (written(llama), "Hello {there}", vec![content("Hello {there}")]),
        (
            Parsing { reasoning: Some(false), calls: Calls::Arguments("weather".into()) },
            "{\"city\": \"Oslo\"}",
            vec![oslo()],
        ),
        (
            Parsing { reasoning: None, calls: Calls::List },
            "[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}]",
            vec![oslo()],
        ),
        (Parsing { reasoning: None, calls: Calls::List }, "no list", vec![content("no list")]),
    ]
}

#[test]
fn outputs_are_read_as_their_family_writes_them() {
    for (parsing, output, expected) in outputs() {
        assert_eq!(parse(&parsing, [output]), expected, "{output}");
        let characters: Vec<_> =
            output.char_indices().map(|(at, one)| &output[at..at + one.len_utf8()]).collect();
        assert_eq!(parse(&parsing, characters), expected, "{output}, by characters");
    }
}

proptest! {
    #[test]
    fn cuts_change_nothing(case in 0..outputs().len(), cuts in prop::collection::vec(0_usize..200, 0..6)) {
        let (parsing, output, expected) = outputs().swap_remove(case);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(output.len())).collect();
        cuts.extend([0, output.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &output[pair[0]..pair[1]]);
        prop_assert_eq!(parse(&parsing, pieces), expected);
    }

    /// No text makes a parser fail, and without calls and marks all of it is content.
    #[test]
    fn any_text_is_read(case in 0..outputs().len(), text in "[a {}\":<>/\\[\\];=]{0,40}") {
        let (parsing, ..) = outputs().swap_remove(case);
        parse(&parsing, [text.as_str()]);
    }
}

#[test]
fn families_are_known_by_their_names() {
    for (name, format) in [
        ("hermes", ToolFormat::Hermes),
        ("qwen3", ToolFormat::Hermes),
        ("qwen3_coder", ToolFormat::Qwen3Coder),
        ("mistral", ToolFormat::Mistral),
        ("llama3", ToolFormat::Llama3),
    ] {
        assert_eq!(ToolFormat::named(name), Some(format));
        assert!(ToolFormat::NAMES.contains(name));
    }
    assert_eq!(ToolFormat::named("gpt"), None);
}
