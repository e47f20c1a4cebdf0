//! Outputs of each family of models, whole and cut anywhere.

mod pythonic;

use proptest::prelude::*;
use serde_json::json;

use super::formats::ToolFormat;
use super::reasoning::{MISTRAL, THINK, Tags};
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

/// A part of an answer, with a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Read {
    Content(String),
    Reasoning(String),
    Call(String, String),
}

fn content(text: &str) -> Read {
    Read::Content(text.into())
}

fn reasoning(text: &str) -> Read {
    Read::Reasoning(text.into())
}

fn call(name: &str, arguments: &str) -> Read {
    Read::Call(name.into(), arguments.into())
}

/// The parts of an output that arrives in these pieces. Neighbouring texts are joined.
fn parse<'p>(parsing: &Parsing, pieces: impl IntoIterator<Item = &'p str>) -> Vec<Read> {
    let (mut parser, mut parts) = (parsing.parser(), Vec::new());
    for piece in pieces {
        parser.push(piece.to_owned(), &mut parts);
    }
    parser.finish(&mut parts);
    assert_eq!(parser.has_called(), parts.iter().any(|part| matches!(part, Part::Call(_))));
    let mut read: Vec<Read> = Vec::new();
    for part in parts {
        match (read.last_mut(), part) {
            (Some(Read::Content(text)), Part::Content(more)) => text.push_str(&more),
            (Some(Read::Reasoning(text)), Part::Reasoning(more)) => text.push_str(&more),
            (Some(Read::Call(_, arguments)), Part::Arguments(more)) => arguments.push_str(&more),
            (_, Part::Content(text)) => read.push(Read::Content(text)),
            (_, Part::Reasoning(text)) => read.push(Read::Reasoning(text)),
            (_, Part::Call(name)) => read.push(Read::Call(name, String::new())),
            (_, Part::Arguments(_)) => panic!("arguments without a call"),
        }
    }
    read
}

fn written(format: ToolFormat) -> Parsing {
    Parsing { calls: Calls::Written(format, tools()), ..Parsing::default() }
}

fn thinking(has_begun: bool) -> Parsing {
    Parsing { reasoning: reasons(THINK, has_begun), ..Parsing::default() }
}

fn reasons(tags: Tags, has_begun: bool) -> Reasons {
    Reasons::Tags { tags, has_begun }
}

fn messages() -> Parsing {
    Parsing { reasoning: Reasons::Messages("assistant".into()), ..written(ToolFormat::Harmony) }
}

fn forced(calls: Calls) -> Parsing {
    Parsing { calls, ..Parsing::default() }
}

/// How to read an output, the output, and its parts.
type Case = (Parsing, &'static str, Vec<Read>);

fn outputs() -> Vec<Case> {
    [
        plain_outputs(),
        hermes_outputs(),
        coder_outputs(),
        mistral_outputs(),
        llama_outputs(),
        pythonic::outputs(),
        deepseek_outputs(),
        harmony_outputs(),
    ]
    .concat()
}

fn oslo() -> Read {
    call("weather", "{\"city\": \"Oslo\"}")
}

fn plain_outputs() -> Vec<Case> {
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
            Parsing { reasoning: reasons(THINK, false), ..forced(Calls::Arguments("weather".into())) },
            "{\"city\": \"Oslo\"}",
            vec![oslo()],
        ),
        (forced(Calls::Arguments("weather".into())), "\n{\"city\": \"Oslo\"} \n", vec![oslo()]),
        (
            forced(Calls::Arguments("weather".into())),
            "{\"city\": \"Os",
            vec![call("weather", "{\"city\": \"Os")],
        ),
        (
            forced(Calls::List),
            "[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}]",
            vec![oslo()],
        ),
        (
            forced(Calls::List),
            "[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}},\n {\"name\": \"g\", \"parameters\": {}}]",
            vec![oslo(), call("g", "{}")],
        ),
        (
            Parsing { single_call: true, ..forced(Calls::List) },
            "[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}, {\"name\": \"g\", \"parameters\": {}}]",
            vec![oslo()],
        ),
        (forced(Calls::List), "no list", vec![content("no list")]),
        (forced(Calls::List), "[]", vec![content("[]")]),
    ]
}

fn hermes_outputs() -> Vec<Case> {
    let hermes = || written(ToolFormat::Hermes);
    let thinking = || Parsing { reasoning: reasons(THINK, true), ..hermes() };
    vec![
        (
            hermes(),
            "It is:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>\n",
            vec![content("It is:"), oslo(), call("g", "{}")],
        ),
        (
            hermes(),
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Oslo\\\"}\"}",
            vec![oslo()],
        ),
        // The arguments precede the name.
        (
            hermes(),
            "<tool_call>{\"arguments\": {\"city\": \"Oslo\"}, \"name\": \"weather\"}</tool_call>",
            vec![oslo()],
        ),
        // Marks, braces and escapes within texts.
        (
            hermes(),
            "<tool_call>{\"name\": \"f\", \"id\": \"{\\\"arguments\\\": {\", \"arguments\": {\"a\": \"}</tool_call>{\\\\\", \"é\\u00e9\": [\"\\\"]\", {}]}}</tool_call> ok",
            vec![call("f", "{\"a\": \"}</tool_call>{\\\\\", \"é\\u00e9\": [\"\\\"]\", {}]}"), content(" ok")],
        ),
        // Several calls in one tag, a brace too many, a missing end.
        (
            hermes(),
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}}\n{\"name\": \"g\", \"arguments\": {}}<tool_call>{\"name\": \"h\", \"arguments\": {}}",
            vec![call("f", "{}"), call("g", "{}"), call("h", "{}")],
        ),
        // A brace too few.
        (
            hermes(),
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
            vec![call("f", "{\"a\": 1}"), call("g", "{}")],
        ),
        (
            hermes(),
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, ",
            vec![call("f", "{\"a\": [1, ")],
        ),
        (hermes(), "a <tool_call>no json</tool_call> b", vec![content("a <tool_call>no json</tool_call> b")]),
        (
            hermes(),
            "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call> <tool_call>{\"name\": \"g\"}</tool_call>",
            vec![content("<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>"), call("g", "{}")],
        ),
        (hermes(), "<tool_call> </tool_call>", vec![content("<tool_call> </tool_call>")]),
        (hermes(), "a < b <tool", vec![content("a < b <tool")]),
        (hermes(), "a \n", vec![content("a \n")]),
        // A call within reasoning.
        (
            thinking(),
            "I call it. <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
            vec![reasoning("I call it. "), call("g", "{}")],
        ),
        (
            thinking(),
            "I could <tool_call>{\"name\": \"g\"}</tool_call> but</think>\n\nno.",
            vec![reasoning("I could <tool_call>{\"name\": \"g\"}</tool_call> but"), content("no.")],
        ),
        (thinking(), "a <tool_call> b", vec![reasoning("a <tool_call> b")]),
    ]
}

fn coder_outputs() -> Vec<Case> {
    let coder = || written(ToolFormat::Qwen3Coder);
    vec![
        (
            coder(),
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
            coder(),
            "<function=weather><parameter=city>42</parameter></function>",
            vec![call("weather", "{\"city\": \"42\"}")],
        ),
        (
            coder(),
            "<tool_call><function=weather></function></tool_call><tool_call>\n<function=g>\n<parameter=a>\n\n\"x\" <b>\n\n</parameter>\n</function>\n</tool_call>",
            vec![call("weather", "{}"), call("g", "{\"a\": \"\\n\\\"x\\\" <b>\\n\"}")],
        ),
        // Ends that are missing.
        (
            coder(),
            "<tool_call><function=weather><parameter=city>a<parameter=days>1</function><function=g></tool_call> b",
            vec![call("weather", "{\"city\": \"a\", \"days\": 1}"), call("g", "{}"), content(" b")],
        ),
        (
            coder(),
            "<tool_call><function=weather><parameter=city>O\\sl",
            vec![call("weather", "{\"city\": \"O\\\\sl")],
        ),
        (coder(), "<tool_call><function=weather><parameter=days>\n1", vec![call("weather", "{\"days\": 1")]),
        (coder(), "<tool_call><function=weather><parameter=city>", vec![call("weather", "{\"city\": \"")]),
        // Only the ends of the call are missing.
        (coder(), "<tool_call><function=weather><parameter=city>Oslo</parameter>\n", vec![oslo()]),
        (coder(), "<tool_call><function=weather><para", vec![call("weather", "{}")]),
        (coder(), "a <function=we", vec![content("a <function=we")]),
        (coder(), "a <function=\n> b", vec![content("a <function=\n> b")]),
        (coder(), "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>", vec![call("g", "{}")]),
    ]
}

fn mistral_outputs() -> Vec<Case> {
    let mistral = || written(ToolFormat::Mistral);
    let thinking = |has_begun| Parsing { reasoning: reasons(MISTRAL, has_begun), ..mistral() };
    vec![
        (
            thinking(false),
            "[THINK]Which [city]?\n[/THINK]It is:[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]g[ARGS]{}",
            vec![reasoning("Which [city]?\n"), content("It is:"), oslo(), call("g", "{}")],
        ),
        (
            thinking(false),
            "[THINK]a[/THINK]\n\nb [THINK]c[/THINK]",
            vec![reasoning("a"), content("b [THINK]c[/THINK]")],
        ),
        (thinking(false), "[TOOL_CALLS]weather[CALL_ID]1b2[ARGS]{\"city\": \"Oslo\"}", vec![oslo()]),
        (thinking(false), "a [THINK]b[/THINK]", vec![content("a [THINK]b[/THINK]")]),
        (thinking(false), "[THINK]a [/THI", vec![reasoning("a [/THI")]),
        (thinking(true), "a</think>[/THINK]b", vec![reasoning("a</think>"), content("b")]),
        // A call within reasoning that never ends.
        (
            thinking(false),
            "[THINK]I call [TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}",
            vec![reasoning("I call "), oslo()],
        ),
        (
            thinking(false),
            "[THINK]I could [TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"} but[/THINK]no.",
            vec![reasoning("I could [TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"} but"), content("no.")],
        ),
        (
            mistral(),
            "See: [TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"g\", \"arguments\": {}}]",
            vec![content("See:"), oslo(), call("g", "{}")],
        ),
        (
            mistral(),
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]g{\"a\": \"[TOOL_CALLS]}\"}",
            vec![oslo(), call("g", "{\"a\": \"[TOOL_CALLS]}\"}")],
        ),
        (mistral(), "[TOOL_CALLS]weather[CALL_ID]a1B2[ARGS]{\"city\": \"Oslo\"}\n", vec![oslo()]),
        (
            mistral(),
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}] [/TOOL_CALLS] ok",
            vec![oslo(), content(" ok")],
        ),
        (mistral(), "a [/TOOL_CALLS]", vec![content("a [/TOOL_CALLS]")]),
        (mistral(), "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1", vec![call("f", "{\"a\": 1")]),
        (mistral(), "[TOOL_CALLS]f[ARGS]{\"a\": 1", vec![call("f", "{\"a\": 1")]),
        (mistral(), "[TOOL_CALLS] broken", vec![content("[TOOL_CALLS] broken")]),
        (mistral(), "[TOOL_CALLS] [1, 2]", vec![content("[TOOL_CALLS] [1, 2]")]),
        (mistral(), "[TOOL_CALLS] []", vec![content("[TOOL_CALLS] []")]),
        (mistral(), "[TOOL_CALLS] not a call: {}", vec![content("[TOOL_CALLS] not a call: {}")]),
        (mistral(), "a [TOOL", vec![content("a [TOOL")]),
    ]
}

fn llama_outputs() -> Vec<Case> {
    let llama = || written(ToolFormat::Llama3);
    vec![
        (
            llama(),
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}; {\"name\": \"g\", \"parameters\": {\"a\": 1}}",
            vec![oslo(), call("g", "{\"a\": 1}")],
        ),
        (
            llama(),
            "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
            vec![oslo()],
        ),
        (
            llama(),
            "Let me see. <|python_tag|>{\"name\": \"g\", \"parameters\": {\"a\": \"};{\"}}\n",
            vec![content("Let me see."), call("g", "{\"a\": \"};{\"}")],
        ),
        (
            llama(),
            "[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}, {\"name\": \"g\", \"parameters\": {}}]\n",
            vec![oslo(), call("g", "{}")],
        ),
        (llama(), "[{\"a\": 1}, 2]", vec![content("[{\"a\": 1}, 2]")]),
        (llama(), "[1] says so", vec![content("[1] says so")]),
        (llama(), "{\"just\": \"json\"}", vec![content("{\"just\": \"json\"}")]),
        // An answer about a person.
        (llama(), " {\"name\": \"Ada\", \"age\": 36} ", vec![content(" {\"name\": \"Ada\", \"age\": 36} ")]),
        (llama(), "{\"name\": \"g\", \"parameters\": {\"a\": ", vec![call("g", "{\"a\": ")]),
        (llama(), "{\"name\": \"g\", \"parame", vec![content("{\"name\": \"g\", \"parame")]),
        (llama(), "Hello {there}", vec![content("Hello {there}")]),
    ]
}

fn deepseek_outputs() -> Vec<Case> {
    let deepseek = || written(ToolFormat::DeepSeek);
    vec![
        (
            deepseek(),
            "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜>\n\
             <｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"a\": \"}<｜tool▁call▁end｜\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n",
            vec![content("I look."), oslo(), call("g", "{\"a\": \"}<｜tool▁call▁end｜\"}")],
        ),
        (
            deepseek(),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜> ok",
            vec![oslo(), content(" ok")],
        ),
        // Ends that are missing.
        (
            deepseek(),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"a\": 1",
            vec![oslo(), call("g", "{\"a\": 1")],
        ),
        (
            deepseek(),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>no call<｜tool▁call▁end｜>",
            vec![content("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>no call<｜tool▁call▁end｜>")],
        ),
        (deepseek(), "a <｜tool▁call▁begin｜>we", vec![content("a <｜tool▁call▁begin｜>we")]),
    ]
}

fn harmony_outputs() -> Vec<Case> {
    let beginning = |text: &str| Parsing { reasoning: Reasons::Messages(text.into()), ..messages() };
    let calls = |text: &'static str| (messages(), text, vec![oslo()]);
    vec![
        (
            messages(),
            "<|channel|>analysis<|message|>Simple. <|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.\n<|return|>",
            vec![reasoning("Simple. "), content("2 + 2 = 4.\n")],
        ),
        (
            messages(),
            "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>\
             <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>",
            vec![reasoning("Need it."), content("I will look."), oslo()],
        ),
        // Places of the recipient, and names of the content's type.
        calls(
            " to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>",
        ),
        calls(
            "<|channel|>commentary to=functions.weather<|constrain|>json<|message|>\n{\"city\": \"Oslo\"}<|call|>",
        ),
        calls("<|channel|>commentary to=functions.weather<|message|>{\"city\": \"Oslo\"}<|call|>"),
        calls("<|channel|>analysis to=functions.weather code<|message|>{\"city\": \"Oslo\"}<|call|>"),
        calls(
            "<|channel|>commentary<|constrain|>json to=functions.weather<|message|>{\"city\": \"Oslo\"}<|end|>",
        ),
        calls("<|channel|>commentary functions.weather<|message|>{\"city\": \"Oslo\"}"),
        calls("<|channel|>commentary to=weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}"),
        calls(
            "<|start|>assistant to=functions.weather<|channel|>commentary<|message|>{\"city\": \"Oslo\"}<|start|>",
        ),
        (
            messages(),
            "<|channel|>commentary to=functions.g <|constrain|>json<|message|><|call|><|start|>assistant<|channel|>commentary to=functions.weather <|message|>{\"city\": \"Oslo\"}<|call|>",
            vec![call("g", "{}"), oslo()],
        ),
        // A tool's answer that the model makes up.
        (
            messages(),
            "<|channel|>commentary to=functions.g <|message|>{\"a\": \"<|message|>\"}<|call|><|start|>functions.g to=assistant<|channel|>commentary<|message|>{}<|end|>",
            vec![call("g", "{\"a\": \"<|message|>\"}")],
        ),
        // Tools that the model was trained with belong to its reasoning.
        (
            messages(),
            "<|channel|>analysis to=python code<|message|>1 + 1<|call|><|start|>assistant<|channel|>commentary to=browser.open<|message|>{}<|call|>",
            vec![reasoning("1 + 1\n{}")],
        ),
        (
            Parsing { calls: Calls::None, ..messages() },
            "<|channel|>commentary to=functions.g <|message|>{}<|call|>",
            vec![reasoning("{}")],
        ),
        (
            messages(),
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c",
            vec![reasoning("a\nb"), content("c")],
        ),
        // The prompt has begun the first message.
        (beginning("assistant<|channel|>final<|message|>"), "a<|return|>", vec![content("a")]),
        (beginning("assistant<|channel|>anal"), "ysis<|message|>a", vec![reasoning("a")]),
        (beginning(""), "<|start|>assistant<|channel|>final<|message|>a", vec![content("a")]),
        // What is cut off, malformed, or written without messages.
        (messages(), "<|channel|>final<|message|>a<|ret", vec![content("a<|ret")]),
        (messages(), "<|channel|>final", vec![]),
        (messages(), "<|channel|>commentary to=functions.wea", vec![]),
        (messages(), "<|channel|>analysis I think<|end|>", vec![reasoning("I think")]),
        (
            messages(),
            "<|message|>a<|end|>b<|end|>assistant<|channel|>final<|message|>c",
            vec![content("a\nb\nc")],
        ),
        (
            messages(),
            "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
            vec![reasoning("a"), content("b")],
        ),
        (messages(), " Hello\nthere <|", vec![content(" Hello\nthere <|")]),
        (messages(), "", vec![]),
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

/// The text in pieces, cut in front of these bytes.
fn pieces<'t>(text: &'t str, cuts: &[usize]) -> Vec<&'t str> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(*cut)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

#[test]
fn one_cut_anywhere_changes_nothing() {
    for (parsing, output, expected) in outputs() {
        for cut in 0..=output.len() {
            assert_eq!(parse(&parsing, pieces(output, &[cut])), expected, "{output} cut at {cut}");
        }
    }
}

/// Marks and texts of all formats, in any order.
fn fragment() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "f>",
        "</function>",
        "<parameter=",
        "a>",
        "</parameter>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "[f(",
        "a=",
        "<|python_start|>",
        "<|python_end|>",
        "(",
        ")",
        "'",
        "\\u00e9",
        "\\ud83d",
        "True",
        "1_0",
        "<|start|>",
        "assistant",
        "<|channel|>",
        "analysis",
        "final",
        " to=functions.f",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "{\"name\": \"f\", \"arguments\": ",
        "\"name\": \"f\"",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "\"parameters\": ",
        "{\"a\": 1}",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ",",
        ";",
        ":",
        " ",
        "\n",
        "é",
        "text",
        "<",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn cuts_change_nothing(case in 0..outputs().len(), cuts in prop::collection::vec(0_usize..300, 0..6)) {
        let (parsing, output, expected) = outputs().swap_remove(case);
        prop_assert_eq!(parse(&parsing, pieces(output, &cuts)), expected);
    }

    /// No text makes a parser fail, and none is read in another way because it arrives in pieces.
    #[test]
    fn any_text_is_read_alike_whole_and_in_pieces(
        case in 0..outputs().len(),
        fragments in prop::collection::vec(fragment(), 0..20),
        cuts in prop::collection::vec(0_usize..150, 0..6),
    ) {
        let (parsing, ..) = outputs().swap_remove(case);
        let text = fragments.concat();
        let whole = parse(&parsing, [text.as_str()]);
        prop_assert_eq!(&parse(&parsing, pieces(&text, &cuts)), &whole);
        prop_assert_eq!(&parse(&parsing, text.split_inclusive(|_| true)), &whole);
    }
}

#[test]
fn long_texts_without_ends_are_no_names_and_no_headers() {
    let long = "x".repeat(3000);
    for (parsing, begin) in [
        (written(ToolFormat::Qwen3Coder), "<tool_call><function="),
        (written(ToolFormat::Mistral), "[TOOL_CALLS]"),
        (messages(), ""),
    ] {
        let (mut parser, mut parts) = (parsing.parser(), Vec::new());
        parser.push(format!("{begin}{long}"), &mut parts);
        let read: String = parts
            .iter()
            .map(|part| match part {
                Part::Content(text) => text.as_str(),
                _ => panic!("{part:?}"),
            })
            .collect();
        assert!(read.contains(&long[..256]) && !parser.has_called(), "{read}");
        let text = format!("{begin}{long}");
        assert_eq!(parse(&parsing, text.split_inclusive(|_| true)), vec![content(&text)]);
    }
}

/// The name of a call is known before its arguments are complete, and their text arrives as it is written.
#[test]
fn calls_are_read_while_they_arrive() {
    for (format, name, rest, end) in [
        (
            ToolFormat::Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {",
            "\"a\": \"",
            "b\"}}</tool_call>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call><function=f>",
            "<parameter=a>b",
            "</parameter></function></tool_call>",
        ),
        (ToolFormat::Mistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {", "\"a\": \"", "b\"}}]"),
        (ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]{", "\"a\": \"", "b\"}"),
        (ToolFormat::Llama3, "{\"name\": \"f\", \"parameters\": {", "\"a\": \"", "b\"}}"),
        (ToolFormat::Pythonic, "[f(a='", "b", "')]"),
        (
            ToolFormat::Harmony,
            "<|channel|>commentary to=functions.f<|message|>",
            "{\"a\": \"",
            "b\"}<|call|>",
        ),
    ] {
        let (mut parser, mut parts) = (written(format).parser(), Vec::new());
        parser.push(name.to_owned(), &mut parts);
        assert_eq!(parts.first(), Some(&Part::Call("f".into())), "{name}");
        let before = parts.len();
        parser.push(rest.to_owned(), &mut parts);
        assert!(parts.len() > before || format == ToolFormat::Qwen3Coder, "{name}{rest}: {parts:?}");
        parser.push(end.to_owned(), &mut parts);
        parser.finish(&mut parts);
        let arguments = parts.iter().filter_map(|part| match part {
            Part::Arguments(text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(arguments.collect::<String>(), "{\"a\": \"b\"}", "{name}");
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
        ("pythonic", ToolFormat::Pythonic),
        ("gpt_oss", ToolFormat::Harmony),
        ("deepseek_v3", ToolFormat::DeepSeek),
    ] {
        assert_eq!(ToolFormat::named(name), Some(format));
        assert!(ToolFormat::NAMES.contains(name));
    }
    assert_eq!(ToolFormat::named("gpt"), None);
}
