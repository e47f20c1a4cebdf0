//! Calls written as Python.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn pythonic() -> Parsing {
    written(ToolFormat::Pythonic)
}

pub(super) fn outputs() -> Vec<Case> {
    let calls = |text: &'static str, calls: Vec<Read>| (pythonic(), text, calls);
    let arguments = |text: &'static str, arguments: &str| (pythonic(), text, vec![call("f", arguments)]);
    let text = |output: &'static str| (pythonic(), output, vec![content(output)]);
    vec![
        calls("[weather(city='Oslo')]", vec![oslo()]),
        calls("[weather(city='Oslo'), g(a=1)]\n", vec![oslo(), call("g", "{\"a\": 1}")]),
        calls("[weather(city='Oslo')]\n[g()]", vec![oslo(), call("g", "{}")]),
        calls("<|python_start|>[weather(city=\"Oslo\")]<|python_end|>", vec![oslo()]),
        calls(
            "I look.\n<|python_start|>[f(a=1)]<|python_end|> Done.",
            vec![content("I look."), call("f", "{\"a\": 1}"), content(" Done.")],
        ),
        // In text, only tools are called.
        calls(
            "See [f(a=1)]: [ weather( city = 'Oslo' ) ].",
            vec![content("See [f(a=1)]:"), oslo(), content(".")],
        ),
        calls("[ns.get-it(a=1)]", vec![call("ns.get-it", "{\"a\": 1}")]),
        // Literals.
        arguments(
            "[f(x=[1, {'a': None}], y=(1, -2.5), z={'t': True, \"u\": False, 1: 'b', None: []})]",
            "{\"x\": [1, {\"a\": null}], \"y\": [1, -2.5], \"z\": {\"t\": true, \"u\": false, \"1\": \"b\", \"null\": []}}",
        ),
        arguments(
            "[f(a=(), b=(1,), c=(1), d=((1), ('x',)), e=[],)]",
            "{\"a\": [], \"b\": [1], \"c\":  1, \"d\": [ 1, [\"x\"]], \"e\": []}",
        ),
        arguments(
            "[f(a=1_000, b=0xFf, c=-0b11, d=.5, e=1., f=1E5, g=+7, h=1e-3, i=0o17)]",
            "{\"a\": 1000, \"b\": 255, \"c\": -3, \"d\": 0.5, \"e\": 1.0, \"f\": 1e5, \"g\": 7, \"h\": 1e-3, \"i\": 15}",
        ),
        arguments("[f(a=true, b=null, c=[false,])]", "{\"a\": true, \"b\": null, \"c\": [false]}"),
        arguments(
            "[f(a='])}, g(b=\\'1\\')', b=\"it's [\\\"\")]",
            "{\"a\": \"])}, g(b='1')\", \"b\": \"it's [\\\"\"}",
        ),
        arguments(
            "[f(a='\\u00e9\\xe9\\U0001F600\\ud83d\\ude00\\ud83dx\\101\\n\\q\\\\é', b='\\x4', c='\\u12')]",
            "{\"a\": \"éé😀😀\u{fffd}xA\\n\\\\q\\\\é\", \"b\": \"\\\\x4\", \"c\": \"\\\\u12\"}",
        ),
        arguments(
            "[f(a='', b=\"\", c=r'\\d\\'', d=u'x', e='a' \"b\"\n'c')]",
            "{\"a\": \"\", \"b\": \"\", \"c\": \"\\\\d\\\\'\", \"d\": \"x\", \"e\": \"abc\"}",
        ),
        arguments(
            "[f(a='''it's\n\"\"x\\t''', b=\"\"\"\"\"\", c='a\nb', d=('x'\n 'y'))]",
            "{\"a\": \"it's\\n\\\"\\\"x\\t\", \"b\": \"\", \"c\": \"a\\nb\", \"d\":  \"xy\"}",
        ),
        arguments("[f(a='<|python_end|>', b='\u{1}')]", "{\"a\": \"<|python_end|>\", \"b\": \"\\u0001\"}"),
        // Other expressions are passed on.
        arguments(
            "[f(a=Oslo, b=1 + 2, c=g(x=1), d=1 2)]",
            "{\"a\": Oslo, \"b\": 1 + 2, \"c\": g(x=1), \"d\": 1 2}",
        ),
        arguments("[f(a=1, 'x')]", "{\"a\": 1, \"x\"}"),
        arguments("[f(a=1, x)]", "{\"a\": 1, x}"),
        arguments("[f(a={1, 2})]", "{\"a\": {\"1\", \"2\"}}"),
        // Missing ends.
        arguments("[f(a=1]", "{\"a\": 1}"),
        arguments("[f(a=1)", "{\"a\": 1}"),
        arguments("[f(a=1), ", "{\"a\": 1}"),
        arguments("<|python_start|>[f(a='x', b=[1<|python_end|>", "{\"a\": \"x\", \"b\": [1"),
        arguments("[f(a='x", "{\"a\": \"x"),
        arguments("[f(a='x\\u00", "{\"a\": \"x"),
        arguments("[f(a='x', ci", "{\"a\": \"x\""),
        arguments("[f(a=(1, 2", "{\"a\":  1, 2"),
        arguments("[f(a=Tru", "{\"a\": Tru"),
        // Texts without calls.
        text("[weather('Oslo')]"),
        text("[weather(1, city='Oslo')]"),
        text("[weather(city == 1)]"),
        text("[weather(*a)]"),
        text("[weather]"),
        text("[1, 2] and [x]"),
        text("[]"),
        text("weather(city='Oslo')"),
        text("a [weather(ci"),
        text("<|python_start|>print(1)<|python_end|>"),
        calls("[f(a=1), g(2)]", vec![call("f", "{\"a\": 1}"), content(", g(2)]")]),
        calls("[[f(a=1)], 2]", vec![call("f", "{\"a\": 1}"), content(", 2]")]),
    ]
}

/// A value as Python writes it. `quotes` and `spaces` choose among ways of doing so.
fn python(value: &Value, quotes: u8, space: &str) -> String {
    let join = |values: Vec<String>| values.join(&format!(",{space}"));
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_text(text, quotes),
        Value::Array(values) => {
            let list = join(values.iter().map(|value| python(value, quotes, space)).collect());
            match (quotes % 3, values.len()) {
                (0, 1) => format!("({list},)"),
                (0, _) => format!("({list})"),
                _ => format!("[{list}]"),
            }
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}:{space}{}", python_text(name, quotes), python(value, quotes, space))
            };
            format!("{{{}}}", join(members.iter().map(member).collect()))
        }
    }
}

fn python_text(text: &str, quotes: u8) -> String {
    let quote = ["'", "\"", "'''", "\"\"\""][usize::from(quotes % 4)];
    let mut python = quote.to_owned();
    for character in text.chars() {
        match character {
            '\\' | '\'' | '"' => python.extend(['\\', character]),
            '\n' if quotes % 4 < 2 => python.push_str("\\n"),
            character if u32::from(character) > 0xFFFF => {
                python.push_str(&format!("\\U{:08x}", u32::from(character)));
            }
            character if u32::from(character) > 0xFF && quotes.is_multiple_of(5) => {
                python.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            character => python.push(character),
        }
    }
    python + quote
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1_000_000..1_000_000).prop_map(|eighths: i32| Value::from(f64::from(eighths) / 8.0)),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any_text(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z<>|\\[\\](){},=:'\"\\\\ \n\té€😀]{0,10}", any::<String>()]
}

proptest! {
    /// Whatever the arguments are, they arrive as they were meant, however the output is cut.
    #[test]
    fn arguments_are_those_that_were_written(
        members in prop::collection::btree_map("[a-z_][a-z0-9_]{0,4}", any_value(), 0..4),
        quotes in any::<u8>(),
        space in "[ \n]{0,2}",
        cuts in prop::collection::vec(0_usize..300, 0..6),
    ) {
        let written: Vec<_> = members.iter().map(|(name, value)| format!("{name}{space}={space}{}", python(value, quotes, &space))).collect();
        let output = format!("[{space}f({})]", written.join(&format!("{space},{space}")));
        let read = parse(&pythonic(), pieces(&output, &cuts));
        let [Read::Call(name, arguments)] = read.as_slice() else { panic!("{output}: {read:?}") };
        prop_assert_eq!(name, "f");
        let arguments: Value = serde_json::from_str(arguments).expect(arguments);
        prop_assert_eq!(arguments, json!(members), "{}", output);
    }
}

/// Deep arguments take no stack, and time in proportion to their length.
#[test]
fn brackets_without_ends_are_read() {
    for bracket in ["(", "[", "{", "((1,", "f("] {
        let output = format!("[f(a={}", bracket.repeat(100_000));
        let cuts: Vec<_> = (0..output.len()).step_by(1000).collect();
        let read = parse(&pythonic(), pieces(&output, &cuts));
        assert!(matches!(read.as_slice(), [Read::Call(..)]), "{bracket}");
    }
}
