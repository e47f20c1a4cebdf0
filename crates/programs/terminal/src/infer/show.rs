//! Answers as texts for people.

use std::io::Write;

use serde_json::Value;
use tensor_types::DataType;

use super::answer::Answer;
use super::tensor::{Element, Tensor};
use super::written;
use crate::text::{columns, harmless, shortened, single_line};

/// The most rows and columns of a table.
const ROWS: usize = 20;
const COLUMNS: usize = 10;

/// The most characters of a cell.
const CELL: usize = 40;

/// The most classes that are drawn.
const CLASSES: usize = 10;

/// The output with the text, in the tensors of Triton's language models.
const TEXT: &str = "text_output";

/// The characters of the longest bar.
const BAR: f64 = 30.0;

/// An answer, output by output. `is_classified` is whether outputs are classes.
pub(super) fn answer(answer: &Answer, is_classified: bool) -> String {
    let outputs = answer.outputs.iter().map(|tensor| output(tensor, is_classified));
    outputs.collect::<Vec<_>>().join("\n")
}

fn output(tensor: &Tensor, is_classified: bool) -> String {
    let sizes = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let head = format!("{}  {} [{sizes}]\n", single_line(&tensor.name), tensor.data_type.protocol_name());
    let body = match tensor.elements.as_slice() {
        [] => "no values\n".to_owned(),
        [Element::Bytes(bytes)] if !is_classified => {
            format!("{}\n", harmless(&String::from_utf8_lossy(bytes)))
        }
        _ => classes(tensor, is_classified).unwrap_or_else(|| table(tensor)),
    };
    head + &body
}

/// A class: its score, its number, and its name if the model has one.
type Class = (f64, String, String);

/// Scores of classes with bars, the highest first; `None` if the tensor has none.
fn classes(tensor: &Tensor, is_classified: bool) -> Option<String> {
    let mut found: Vec<Class> = match is_classified {
        true => tensor.elements.iter().map(class).collect::<Option<_>>()?,
        false => scores(tensor)?,
    };
    found.sort_by(|(one, ..), (other, ..)| other.total_cmp(one));
    let hidden = found.len().saturating_sub(CLASSES);
    found.truncate(CLASSES);
    let (highest, lowest) =
        (found.first()?.0, found.iter().fold(0.0_f64, |lowest, (score, ..)| lowest.min(*score)));
    let rows: Vec<_> = found
        .iter()
        .map(|(score, number, name)| {
            let share = (score - lowest) / (highest - lowest);
            let bar = "█".repeat((share.clamp(0.0, 1.0) * BAR).round() as usize);
            vec![number.clone(), shortened(&single_line(name), CELL), format!("{score:.4}"), bar]
        })
        .collect();
    Some(columns(&rows, &[true, false, true, false]) + &left(hidden, "classes"))
}

/// The class in an element of the classification extension: `score:number`, and perhaps `:name`.
fn class(element: &Element) -> Option<Class> {
    let text = element.text();
    let mut parts = text.splitn(3, ':');
    let score = parts.next()?.parse().ok()?;
    Some((score, parts.next()?.to_owned(), parts.next().unwrap_or_default().to_owned()))
}

/// The scores of a single distribution over several classes.
fn scores(tensor: &Tensor) -> Option<Vec<Class>> {
    let is_float =
        matches!(tensor.data_type, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64);
    let is_single = tensor.shape.last().copied() == Some(tensor.elements.len() as u64);
    let scores: Option<Vec<_>> = tensor.elements.iter().map(Element::number).collect();
    let scores = scores.filter(|scores| is_float && is_single && scores.len() > 2)?;
    let is_distribution =
        scores.iter().all(|score| *score >= 0.0) && (scores.iter().sum::<f64>() - 1.0).abs() < 0.01;
    let class = |(number, score): (usize, f64)| (score, number.to_string(), String::new());
    is_distribution.then(|| scores.into_iter().enumerate().map(class).collect())
}

/// The elements in rows of the last dimension, each with the place of the row.
fn table(tensor: &Tensor) -> String {
    let width = tensor.shape.last().and_then(|width| usize::try_from(*width).ok()).unwrap_or(1).max(1);
    let is_numeric = tensor.data_type != DataType::Bytes;
    let shown = width.min(COLUMNS);
    let leading = &tensor.shape[..tensor.shape.len().saturating_sub(1)];
    let all = tensor.elements.chunks(width);
    let hidden = all.len().saturating_sub(ROWS);
    let mut rows = Vec::new();
    for (number, row) in all.take(ROWS).enumerate() {
        let mut cells = vec![place(leading, number)];
        cells.extend(row.iter().take(shown).map(cell));
        if width > shown {
            cells.push(format!("… {} more", width - shown));
        }
        rows.push(cells);
    }
    let numeric: Vec<_> = [false].into_iter().chain(vec![is_numeric; shown]).chain([false]).collect();
    columns(&rows, &numeric) + &left(hidden, "rows")
}

fn left(hidden: usize, what: &str) -> String {
    if hidden == 0 { String::new() } else { format!("… {hidden} more {what}; --json prints all\n") }
}

/// The indices of a row: `1,0` is the first row of the second matrix.
fn place(leading: &[u64], mut number: usize) -> String {
    let mut indices = Vec::new();
    for size in leading.iter().rev().map(|size| usize::try_from(*size).unwrap_or(usize::MAX).max(1)) {
        indices.push((number % size).to_string());
        number /= size;
    }
    indices.reverse();
    indices.join(",")
}

fn cell(element: &Element) -> String {
    match element {
        Element::Float(value) if value.is_finite() && *value != 0.0 => {
            let is_plain = (1e-4..1e7).contains(&value.abs());
            let text = if is_plain { format!("{value:.5}") } else { return format!("{value:.4e}") };
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        Element::Bytes(bytes) if str::from_utf8(bytes).is_err() => format!("{} bytes", bytes.len()),
        other => shortened(&single_line(&other.text()), CELL),
    }
}

/// A streamed answer, printed as it comes.
#[derive(Debug)]
pub(super) struct Streamed {
    is_json: bool,
    /// Whether the last character on the terminal is of a text, without a line break behind it.
    is_open: bool,
}

impl Streamed {
    pub(super) fn new(is_json: bool) -> Self {
        Self { is_json, is_open: false }
    }

    /// Prints an event: a response, or an error.
    ///
    /// # Errors
    /// The event is an error, or cannot be written.
    pub(super) fn event(&mut self, data: &str, out: &mut dyn Write) -> Result<(), String> {
        let Ok(Value::Object(mut response)) = serde_json::from_str(data) else {
            return self.line(&harmless(data), out);
        };
        if let Some(error) = response.get("error").and_then(Value::as_str) {
            self.close(out)?;
            return Err(single_line(error));
        }
        if self.is_json {
            return self.line(data, out);
        }
        for name in ["model_name", "model_version", "id", "parameters"] {
            response.remove(name);
        }
        let only = if response.len() == 1 { response.values().next() } else { None };
        match response.get(TEXT).or(only).and_then(Value::as_str) {
            // A piece of a text: a token of a language model.
            Some(text) => {
                let text = harmless(text);
                self.is_open = if text.is_empty() { self.is_open } else { !text.ends_with('\n') };
                written(write!(out, "{text}").and_then(|()| out.flush()))
            }
            None if response.is_empty() => Ok(()),
            None => self.line(&Value::from(response).to_string(), out),
        }
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// The end cannot be written.
    pub(super) fn end(mut self, out: &mut dyn Write) -> Result<(), String> {
        self.close(out)
    }

    fn line(&mut self, text: &str, out: &mut dyn Write) -> Result<(), String> {
        self.close(out)?;
        written(writeln!(out, "{text}").and_then(|()| out.flush()))
    }

    fn close(&mut self, out: &mut dyn Write) -> Result<(), String> {
        if std::mem::take(&mut self.is_open) { written(writeln!(out)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(data_type: DataType, shape: &[u64], elements: &[Element]) -> Tensor {
        Tensor { name: "y".into(), data_type, shape: shape.to_vec(), elements: elements.to_vec() }
    }

    fn floats(values: &[f64]) -> Vec<Element> {
        values.iter().map(|value| Element::Float(*value)).collect()
    }

    #[test]
    fn outputs_are_tables_texts_or_classes() {
        let text = |text: &str| Element::Bytes(text.into());
        for (tensor, is_classified, expected) in [
            (
                tensor(DataType::Fp32, &[2, 2], &floats(&[1.0, 2.5, -3.0, 1e-9])),
                false,
                "y  FP32 [2, 2]\n0   1        2.5\n1  -3  1.0000e-9\n",
            ),
            (
                tensor(DataType::Int64, &[2, 1, 2], &[1, 2, 3, 4].map(Element::Integer)),
                false,
                "y  INT64 [2, 1, 2]\n0,0  1  2\n1,0  3  4\n",
            ),
            (tensor(DataType::Fp32, &[], &floats(&[7.0])), false, "y  FP32 []\n  7\n"),
            (tensor(DataType::Fp32, &[0, 3], &[]), false, "y  FP32 [0, 3]\nno values\n"),
            (tensor(DataType::Bytes, &[1], &[text("a\x1b\nb")]), false, "y  BYTES [1]\na<U+001B>\nb\n"),
            (
                tensor(DataType::Bytes, &[2], &[text("a\nb"), Element::Bytes(vec![255])]),
                false,
                "y  BYTES [2]\n  a b  1 bytes\n",
            ),
            (
                tensor(DataType::Fp32, &[1, 3], &floats(&[0.25, 0.5, 0.25])),
                false,
                "y  FP32 [1, 3]\n1    0.5000  ██████████████████████████████\n0    0.2500  ███████████████\n2    0.2500  ███████████████\n",
            ),
            (
                tensor(DataType::Bytes, &[1, 2], &[text("0.5:7:cat"), text("2:1")]),
                true,
                "y  BYTES [1, 2]\n1       2.0000  ██████████████████████████████\n7  cat  0.5000  ████████\n",
            ),
            (tensor(DataType::Bytes, &[1], &[text("no class")]), true, "y  BYTES [1]\n  no class\n"),
        ] {
            assert_eq!(output(&tensor, is_classified), expected);
        }
    }

    #[test]
    fn large_outputs_are_cut() {
        for (shape, rows, expected) in [
            (&[3, 12][..], 3, "… 2 more"),
            (&[30, 2], 21, "… 10 more rows"),
            (&[2, 20, 1], 21, "… 20 more rows"),
        ] {
            let count = shape.iter().product::<u64>();
            let elements: Vec<_> = (0..count).map(|value| Element::Integer(value.into())).collect();
            let text = output(&tensor(DataType::Int32, shape, &elements), false);
            assert!(text.lines().count() == rows + 1 && text.contains(expected), "{text}");
        }
    }

    #[test]
    fn tokens_are_printed_as_they_come() {
        for (is_json, events, expected) in [
            (
                false,
                &[
                    r#"{"text_output":"Hel"}"#,
                    r#"{"model_name":"m","text_output":"lo\n"}"#,
                    r#"{"id":"","text_output":"x"}"#,
                ][..],
                "Hello\nx\n",
            ),
            (
                false,
                &[
                    r#"{"text_output":"a","finish_reason":"None"}"#,
                    r#"{"text_output":"b","finish_reason":"stop"}"#,
                ],
                "ab\n",
            ),
            (false, &[r#"{"text_output":"\u001b[2J"}"#], "<U+001B>[2J\n"),
            (
                false,
                &[r#"{"text_output":"a"}"#, r#"{"y":[1,2]}"#, r#"{"y":3}"#],
                "a\n{\"y\":[1,2]}\n{\"y\":3}\n",
            ),
            (false, &[r#"{"model_name":"m"}"#, "[DONE]"], "[DONE]\n"),
            (true, &[r#"{"text_output":"a"}"#], "{\"text_output\":\"a\"}\n"),
        ] {
            let mut out = Vec::new();
            let mut shown = Streamed::new(is_json);
            events.iter().for_each(|event| shown.event(event, &mut out).unwrap());
            shown.end(&mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        let mut shown = Streamed::new(false);
        shown.event(r#"{"text_output":"a"}"#, &mut out).unwrap();
        assert_eq!(shown.event(r#"{"error":"no\nmore"}"#, &mut out).unwrap_err(), "no more");
        assert_eq!(out, b"a\n");
    }
}
