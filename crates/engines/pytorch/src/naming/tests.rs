//! The rules on a table of cases, in Rust and in Python.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::*;
use crate::package::CallSpec;

const TABLE: &str = include_str!("../../tests/naming.json");

/// Runs the rules in Python on the table, and prints every case that differs from it.
const IN_PYTHON: &str = r#"
import json, sys
namespace = {}
exec(sys.argv[1], namespace)
table = json.load(sys.stdin)

def outcome(function, *arguments):
    try:
        return {"places": function(*arguments)}
    except namespace["Misfit"] as error:
        return {"error": str(error)}

def check(case, found):
    if any(case.get(key) != value for key, value in found.items()):
        print("expected", case, "found", found)

for case in table["calls"]:
    check(case, outcome(namespace["call"], case["inputs"], case["arguments"]))
for case in table["results"]:
    check(case, outcome(namespace["results"], case["outputs"], case["names"]))
for case in table["specifications"]:
    check(case, dict(zip(("arguments", "results"), namespace["call_spec"](case["inputs"], case["outputs"]))))
"#;

#[derive(Deserialize)]
struct Table {
    calls: Vec<CallCase>,
    results: Vec<ResultCase>,
    specifications: Vec<Specification>,
}

#[derive(Debug, Deserialize)]
struct CallCase {
    inputs: Vec<(String, bool)>,
    arguments: Vec<(String, String, bool)>,
    /// `None` without an error is a dictionary.
    places: Option<Vec<Option<usize>>>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ResultCase {
    outputs: Vec<String>,
    names: Option<Vec<String>>,
    places: Option<Vec<usize>>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Specification {
    inputs: String,
    outputs: String,
    arguments: Vec<String>,
    results: Vec<String>,
}

fn table() -> Table {
    serde_json::from_str(TABLE).unwrap()
}

fn argument((name, kind, is_required): &(String, String, bool)) -> Argument {
    let kind = match kind.as_str() {
        "tensor" => Kind::Tensor,
        "tensors" => Kind::TensorsByName,
        "texts" => Kind::Texts,
        "number" => Kind::Number,
        _ => Kind::Unknown,
    };
    Argument { name: name.clone(), kind, is_required: *is_required, is_written: false }
}

#[test]
fn inputs_match_arguments_by_name_number_or_position() {
    for case in table().calls {
        let inputs: Vec<_> = case.inputs.iter().map(|(name, is_text)| (name.as_str(), *is_text)).collect();
        let found = call(&inputs, &case.arguments.iter().map(argument).collect::<Vec<_>>());
        let found = found.map_err(|error| error.message().to_owned());
        let expected = match (&case.error, &case.places) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(places)) => Ok(Call::Arguments(places.clone())),
            (None, None) => Ok(Call::Dictionary),
        };
        assert_eq!(found, expected, "{case:?}");
    }
}

#[test]
fn outputs_match_results_by_name_number_or_position() {
    for case in table().results {
        let outputs: Vec<_> = case.outputs.iter().map(String::as_str).collect();
        let found = match &case.names {
            Some(names) => named_results(&outputs, names),
            None => results(&outputs),
        };
        let found = found.map_err(|error| error.message().to_owned());
        assert_eq!(found, case.places.clone().ok_or_else(|| case.error.clone().unwrap()), "{case:?}");
    }
}

#[test]
fn package_tensors_are_named_by_their_nesting() {
    for case in table().specifications {
        let found = CallSpec::read(&case.inputs, &case.outputs).unwrap();
        let names: Vec<_> = found.arguments.into_iter().map(|argument| argument.name).collect();
        assert_eq!(
            (names, found.results),
            (case.arguments, case.results),
            "{} {}",
            case.inputs,
            case.outputs
        );
    }
}

#[test]
fn python_rules_match_the_rust_rules() {
    let mut python = Command::new("python3")
        .args(["-I", "-c", IN_PYTHON, include_str!("../torch_naming.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed");
    python.stdin.take().unwrap().write_all(TABLE.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}
