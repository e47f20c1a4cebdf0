//! Guides over a vocabulary of single characters: which texts they accept, that outputs have their form, and that the time to compile
//! forms and to follow them has a bound.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::{Alphabet, END};

/// The longest that a form may take, compiled without optimisation on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

fn structure(form: Form) -> Structure {
    Structure { form, whitespace: Whitespace::Any }
}

fn guide(structure: Structure) -> Result<Guide> {
    Compiler::new(Arc::new(Alphabet)).begin(structure).unwrap().poll(BOUND).unwrap()
}

/// Whether a guide lets a model write exactly this text.
fn accepts(form: &Form, text: &str) -> bool {
    let mut guide = guide(structure(form.clone())).unwrap();
    for (token, left) in text.bytes().map(Token::from).zip((0..text.len()).rev()) {
        guide.prepare().unwrap();
        if !guide.allows(token) {
            return false;
        }
        if guide.accept(token).unwrap() {
            return left == 0;
        }
    }
    guide.prepare().unwrap();
    guide.allows(END) && guide.accept(END).unwrap()
}

#[test]
fn outputs_have_the_form_that_is_demanded() {
    let person = json!({
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/name"}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["name"],
        "additionalProperties": false,
        "$defs": {"name": {"type": "string", "maxLength": 3}},
    });
    let list = "root ::= item (\",\" item)*\nitem ::= [a-c]{2} | \"-\"";
    let nested = "start: value\nvalue: \"(\" value* \")\" | /[0-9]/";
    for (form, accepted, refused) in [
        (Form::Json(json!(true)), &["1", "[ ]", "\"a\"", "null"][..], &["", "a", "[1"][..]),
        (
            Form::Json(person),
            &["{\"name\":\"abc\"}", "{ \"name\": \"\", \"age\": 7 }"],
            &["{}", "{\"name\":\"abcd\"}", "{\"age\":7}"],
        ),
        (Form::Json(json!({"enum": [1, "a"]})), &["1", "\"a\""], &["2", "\"b\""]),
        (Form::Regex("a+b?".to_owned()), &["a", "aab"], &["", "b", "ba"]),
        (
            Form::Choice(vec!["yes".to_owned(), "yes\"\n".to_owned(), "no".to_owned()]),
            &["yes", "yes\"\n", "no"],
            &["", "y", "maybe"],
        ),
        (Form::Grammar(list.to_owned()), &["ab", "-,ab", "cc,-,aa"], &["", "a", "ab,", "d"]),
        (Form::Grammar(nested.to_owned()), &["1", "(1(2)())"], &["", "(", "())"]),
    ] {
        for (texts, expected) in [(accepted, true), (refused, false)] {
            for text in texts {
                assert_eq!(accepts(&form, text), expected, "{form:?}: {text:?}");
            }
        }
    }
}

#[test]
fn whitespace_is_what_the_request_allows() {
    let form = Form::Json(json!({"type": "array", "items": {"type": "integer"}}));
    let indented = format!("[{}1]", " ".repeat(64));
    for (whitespace, text, expected) in [
        (Whitespace::Any, &*indented, true),
        (Whitespace::Any, &*indented.replace('[', "[ "), false),
        (Whitespace::None, "[1,2]", true),
        (Whitespace::None, "[1, 2]", false),
        (Whitespace::Pattern(" ".to_owned()), "[ 1]", true),
        (Whitespace::Pattern(" ".to_owned()), "[\n1]", false),
    ] {
        let mut guide = guide(Structure { form: form.clone(), whitespace: whitespace.clone() }).unwrap();
        let is_accepted = text.bytes().map(Token::from).all(|token| {
            guide.prepare().unwrap();
            guide.allows(token) && guide.accept(token).is_ok()
        });
        assert_eq!(is_accepted, expected, "{whitespace:?}: {text:?}");
    }
}

#[test]
fn invalid_forms_are_refused_with_the_reason() {
    for (form, expected) in [
        (Form::Json(json!({"type": "thing"})), "structured output: "),
        (Form::Json(json!({"$ref": "#/$defs/missing"})), "structured output: "),
        (Form::Json(json!({"$ref": "https://localhost/schema"})), "structured output: "),
        (Form::Json(json!(false)), "structured output: "),
        (Form::Regex("a(".to_owned()), "structured output: "),
        (Form::Grammar("start: missing".to_owned()), "structured output: "),
        (Form::Grammar("root ::= (".to_owned()), "structured output: grammar: ')' is missing"),
    ] {
        let error = guide(structure(form.clone())).err().unwrap_or_else(|| panic!("{form:?}"));
        assert!(error.message().starts_with(expected), "{form:?}: {error}");
    }
}

/// Follows a form for some tokens, by the allowed token that `choose` prefers. Returns whether it stays within its limits.
fn follow(structure: Structure, tokens: usize, mut choose: impl FnMut(usize) -> usize) -> Result<String> {
    let mut guide = guide(structure)?;
    let mut text = String::new();
    for _ in 0..tokens {
        guide.prepare()?;
        let allowed: Vec<Token> = (0..128).filter(|token| guide.allows(*token)).collect();
        let token = allowed[choose(allowed.len())];
        if token != END {
            text.push(char::from(u8::try_from(token).unwrap()));
        }
        if guide.accept(token)? {
            return Ok(text);
        }
    }
    Err(Error::internal("the output has no end"))
}

#[test]
fn time_has_a_bound_whatever_the_form() {
    let properties = |count: usize| -> Value {
        (0..count)
            .map(|number| (format!("p{number}"), json!({"type": "string"})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let chain = |length: u32| {
        let rules: String =
            (0..length).map(|rule| format!("r{rule}: r{next} r{next}\n", next = rule + 1)).collect();
        format!("{rules}r{length}: \"a\"\nstart: r0")
    };
    let nested = (0..12).fold(
        json!({"type": "string"}),
        |inner, _| json!({"anyOf": [inner, {"type": "array", "items": inner}]}),
    );
    for (name, form) in [
        (
            "many properties",
            Form::Json(
                json!({"type": "object", "properties": properties(5000), "additionalProperties": false}),
            ),
        ),
        ("deep", Form::Json(nested)),
        (
            "long array",
            Form::Json(json!({"type": "array", "minItems": 100_000_000, "items": {"type": "integer"}})),
        ),
        ("long text", Form::Json(json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000}))),
        ("pattern", Form::Json(json!({"type": "string", "pattern": "^((a|b|ab){1,500}){1,500}$"}))),
        ("power", Form::Regex("((((a{1,99}){1,99}){1,99}){1,99}){1,99}".to_owned())),
        ("late difference", Form::Regex("(a|b)*a(a|b){60}".to_owned())),
        ("many choices", Form::Choice((0..10_000).map(|number| format!("choice {number}")).collect())),
        ("ambiguous", Form::Grammar("start: start start | \"a\" | \"\"".to_owned())),
        ("left recursion", Form::Grammar("start: start \"a\" | start start start | \"a\"".to_owned())),
        ("many rules", Form::Grammar(chain(3000))),
        ("chained rules", Form::Grammar(chain(1000))),
        (
            "nested groups",
            Form::Grammar(format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        ),
        (
            "nested groups of llama.cpp",
            Form::Grammar(format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        ),
        ("nested expression", Form::Regex(format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000)))),
        ("long expression", Form::Regex("ab".repeat(100_000))),
        ("long optional expression", Form::Regex("a?b?".repeat(20_000))),
        ("optional expression", Form::Regex("a?b?".repeat(1000))),
        ("pattern of optional parts", Form::Json(json!({"type": "string", "pattern": "a?b?".repeat(1000)}))),
        ("long choice", Form::Choice(vec!["ab".repeat(100_000), "x".to_owned()])),
        ("long constant", Form::Json(json!({"enum": ["ab".repeat(100_000)]}))),
        ("many constants", Form::Json(json!({"enum": (0..20_000).collect::<Vec<_>>()}))),
        (
            "many alternatives",
            Form::Json(
                json!({"anyOf": (0..3000).map(|n| json!({"type": "object", "properties": properties(n % 3 + 1)})).collect::<Vec<_>>()}),
            ),
        ),
        ("repeated", Form::Grammar("start: ((\"a\" | \"b\" start){1,3000}){1,3000}".to_owned())),
    ] {
        let begun = Instant::now();
        let outcome = follow(structure(form), 200, |_| 0);
        let taken = begun.elapsed();
        assert!(taken < BOUND, "{name}: {taken:?} {outcome:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_choice_of_allowed_tokens_is_json(seed in any::<u64>(), depth in 0_u32..3) {
        let mut random = fastrand::Rng::with_seed(seed);
        let schema = schema(&mut random, depth);
        let mut written = 0;
        let outcome = follow(structure(Form::Json(schema.clone())), 4000, |count| {
            written += 1;
            // Texts end sooner or later: quotation marks and brackets are among the first and the last.
            if written > 100 { (written * 7) % count } else { random.usize(..count) }
        });
        match outcome {
            Ok(text) => {
                let value: Value = serde_json::from_str(&text).unwrap();
                prop_assert!(matches(&schema, &value), "{schema}: {text}");
            }
            Err(error) => prop_assert_eq!(error.message(), "the output has no end", "{}", schema),
        }
    }
}

/// A random schema without alternatives.
fn schema(random: &mut fastrand::Rng, depth: u32) -> Value {
    match random.u32(..if depth == 0 { 4 } else { 6 }) {
        0 => json!({"type": "integer", "minimum": -5, "maximum": random.u32(0..1000)}),
        1 => json!({"type": "string", "maxLength": random.u32(0..5)}),
        2 => json!({"type": "boolean"}),
        3 => json!({"enum": ["a", 1, null, "b\n"]}),
        4 => json!({"type": "array", "minItems": 1, "maxItems": 3, "items": schema(random, depth - 1)}),
        _ => json!({
            "type": "object",
            "properties": {"x": schema(random, depth - 1), "y": schema(random, depth - 1)},
            "required": if random.bool() { vec!["x"] } else { vec!["x", "y"] },
            "additionalProperties": false,
        }),
    }
}

/// Whether a value matches one of these schemas, by rules that are written plainly.
fn matches(schema: &Value, value: &Value) -> bool {
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    match schema["type"].as_str().unwrap() {
        "integer" => value.as_f64().is_some_and(|value| {
            value.fract() == 0.0 && (-5.0..=schema["maximum"].as_f64().unwrap()).contains(&value)
        }),
        "string" => value.as_str().is_some_and(|text| {
            text.chars().count() <= usize::try_from(schema["maxLength"].as_u64().unwrap()).unwrap()
        }),
        "boolean" => value.is_boolean(),
        "array" => value.as_array().is_some_and(|items| {
            (1..=3).contains(&items.len()) && items.iter().all(|item| matches(&schema["items"], item))
        }),
        _ => value.as_object().is_some_and(|fields| {
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                && fields.iter().all(|(name, value)| {
                    schema["properties"].get(name).is_some_and(|schema| matches(schema, value))
                })
        }),
    }
}
