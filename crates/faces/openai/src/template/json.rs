//! The filter `tojson`: JSON as Python's `json.dumps` writes it, which is what transformers has in place of Jinja's own filter.

use std::io::{Result as Written, Write};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The most spaces in front of a line, for each level.
const WIDEST: usize = 16;

/// Writes a value with the options of transformers' filter.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let separators = match separators.as_deref() {
        None if indent.is_some() => [",", ": "],
        None => [", ", ": "],
        Some([item, key]) => [item.as_str(), key.as_str()],
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: 'separators' has to have two texts",
            ));
        }
    };
    let value = if sorted.unwrap_or(false) { with_sorted_keys(value) } else { value.clone() };
    let mut json = Vec::new();
    let formatter = PythonFormatter {
        indent: indent.map(|width| " ".repeat(width.min(WIDEST))),
        separators,
        is_ascii: ascii.unwrap_or(false),
        depth: 0,
        is_empty: true,
    };
    let written = value.serialize(&mut Serializer::with_formatter(&mut json, formatter));
    let text = written.map_err(|error| error.to_string());
    let text = text.and_then(|()| String::from_utf8(json).map_err(|error| error.to_string()));
    text.map(Value::from).map_err(|error| Error::new(ErrorKind::BadSerialization, error))
}

/// The value with the members of its objects in the order of their keys.
fn with_sorted_keys(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Seq => {
            value.try_iter().into_iter().flatten().map(|item| with_sorted_keys(&item)).collect()
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            let mut pairs: Vec<(Value, Value)> = keys
                .filter_map(|key| Some((key.clone(), with_sorted_keys(&value.get_item(&key).ok()?))))
                .collect();
            pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
            Value::from_pairs(pairs)
        }
        _ => value.clone(),
    }
}

/// Python's form of JSON.
struct PythonFormatter<'a> {
    /// The spaces of each level; `None` for JSON on one line.
    indent: Option<String>,
    /// The texts between items, and between a key and its value.
    separators: [&'a str; 2],
    /// Whether other characters than ASCII's are escaped.
    is_ascii: bool,
    depth: usize,
    /// Whether the list or object that is being written has no item yet.
    is_empty: bool,
}

impl PythonFormatter<'_> {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> Written<()> {
        self.depth += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> Written<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.begin_line(writer)?;
        }
        self.is_empty = false;
        writer.write_all(bracket)
    }

    fn begin_item<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> Written<()> {
        if !is_first {
            writer.write_all(self.separators[0].as_bytes())?;
        }
        self.is_empty = false;
        self.begin_line(writer)
    }

    fn begin_line<W: ?Sized + Write>(&self, writer: &mut W) -> Written<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl Formatter for PythonFormatter<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Written<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Written<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Written<()> {
        self.begin_item(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Written<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Written<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Written<()> {
        self.begin_item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Written<()> {
        writer.write_all(self.separators[1].as_bytes())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> Written<()> {
        let text = format!("{value:?}");
        match text.split_once('e') {
            None => writer.write_all(text.as_bytes()),
            Some((digits, exponent)) => {
                let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
                write!(writer, "{digits}e{sign}{exponent:0>2}")
            }
        }
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> Written<()> {
        if !self.is_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            match character {
                ' '..='~' => write!(writer, "{character}")?,
                _ => {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        write!(writer, "\\u{unit:04x}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    use super::*;

    #[test]
    fn json_has_the_form_of_pythons() {
        let mut environment = Environment::new();
        environment.add_filter("tojson", to_json);
        let value: Value = serde_json::from_str(
            r#"{"b": [1, 2.5, 1e16, 1.5e-7, "é<&'\"😀"], "a": {"y": null, "x": true}, "e": [], "o": {}}"#,
        )
        .unwrap();
        for (filter, expected) in [
            (
                "tojson",
                r#"{"b": [1, 2.5, 1e+16, 1.5e-07, "é<&'\"😀"], "a": {"y": null, "x": true}, "e": [], "o": {}}"#,
            ),
            (
                "tojson(ensure_ascii=True)",
                r#"{"b": [1, 2.5, 1e+16, 1.5e-07, "\u00e9<&'\"\ud83d\ude00"], "a": {"y": null, "x": true}, "e": [], "o": {}}"#,
            ),
            (
                "tojson(indent=2)",
                "{\n  \"b\": [\n    1,\n    2.5,\n    1e+16,\n    1.5e-07,\n    \"é<&'\\\"😀\"\n  ],\n  \"a\": {\n    \"y\": null,\n    \"x\": true\n  },\n  \"e\": [],\n  \"o\": {}\n}",
            ),
            (
                "tojson(sort_keys=True, separators=(',', ':'))",
                r#"{"a":{"x":true,"y":null},"b":[1,2.5,1e+16,1.5e-07,"é<&'\"😀"],"e":[],"o":{}}"#,
            ),
        ] {
            let rendered = environment
                .render_str(&format!("{{{{ v|{filter} }}}}"), minijinja::context!(v => value.clone()));
            assert_eq!(rendered.unwrap(), expected);
        }
        for invalid in ["unknown=1", "separators=(',',)"] {
            assert!(
                environment.render_str(&format!("{{{{ 1|tojson({invalid}) }}}}"), ()).is_err(),
                "{invalid}"
            );
        }
    }
}
