//! The functions and filters that Hugging Face's transformers adds to Jinja.

use std::borrow::Cow;

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use time::UtcDateTime;

/// The beginning of the message of an error that a template raises itself.
pub(super) const RAISED: &str = "raised: ";

/// Adds the functions and filters.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime(UtcDateTime::now(), format));
    environment.add_filter("tojson", to_json);
}

fn raise_exception(message: Cow<'_, str>) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

/// JSON as Python's `json.dumps` writes it with `ensure_ascii=False`.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // What else transformers accepts changes nothing for the values of a request.
    for accepted in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(accepted)?;
    }
    options.assert_all_used()?;
    let mut json = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut json, PythonFormatter)),
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, formatter))
        }
    };
    let text = written.map_err(|error| error.to_string());
    let text = text.and_then(|()| String::from_utf8(json).map_err(|error| error.to_string()));
    text.map(Value::from).map_err(|error| Error::new(ErrorKind::BadSerialization, error))
}

/// A space after each comma and colon.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A point in time in the form of C's `strftime`, in English. Directives that no known template uses are left as they are.
fn strftime(now: UtcDateTime, format: &str) -> String {
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let (month, weekday) = (now.month().to_string(), now.weekday().to_string());
        let short = |name: &str| name.get(..3).unwrap_or_default().to_owned();
        match characters.next() {
            Some('Y') => text.push_str(&now.year().to_string()),
            Some('y') => text.push_str(&format!("{:02}", now.year().rem_euclid(100))),
            Some('m') => text.push_str(&format!("{:02}", u8::from(now.month()))),
            Some('d') => text.push_str(&format!("{:02}", now.day())),
            Some('j') => text.push_str(&format!("{:03}", now.ordinal())),
            Some('H') => text.push_str(&format!("{:02}", now.hour())),
            Some('M') => text.push_str(&format!("{:02}", now.minute())),
            Some('S') => text.push_str(&format!("{:02}", now.second())),
            Some('B') => text.push_str(&month),
            Some('b') => text.push_str(&short(&month)),
            Some('A') => text.push_str(&weekday),
            Some('a') => text.push_str(&short(&weekday)),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// The template without the marks around generated text, which exist for training and render as nothing: each becomes a block
/// without a condition, so that whitespace is trimmed as before.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, block)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        let Some((inside, after)) = block.split_once("%}") else {
            rest = block;
            break;
        };
        let name = inside.trim_matches(['-', '+']).trim();
        text.push_str(&match name {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => inside.to_owned(),
        });
        text.push_str("%}");
        rest = after;
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use time::{Date, Month, Time};

    use super::*;

    #[test]
    fn dates_have_the_form_of_strftime() {
        let date = Date::from_calendar_date(2026, Month::March, 7).unwrap();
        let now = UtcDateTime::new(date, Time::from_hms(4, 5, 6).unwrap());
        for (format, expected) in [
            ("%d %b %Y", "07 Mar 2026"),
            ("%Y-%m-%d %H:%M:%S", "2026-03-07 04:05:06"),
            ("%A, %B %d, %y (%j)", "Saturday, March 07, 26 (066)"),
            ("%a 100%% %q é %", "Sat 100% %q é %"),
        ] {
            assert_eq!(strftime(now, format), expected);
        }
    }

    #[test]
    fn json_has_the_form_of_pythons() {
        let environment = {
            let mut environment = Environment::new();
            add(&mut environment);
            environment
        };
        let value: Value =
            serde_json::from_str(r#"{"b": [1, 2.5, "é<&'\""], "a": {"y": null, "x": true}, "e": []}"#)
                .unwrap();
        for (filter, expected) in [
            ("tojson", r#"{"b": [1, 2.5, "é<&'\""], "a": {"y": null, "x": true}, "e": []}"#),
            (
                "tojson(ensure_ascii=False)",
                r#"{"b": [1, 2.5, "é<&'\""], "a": {"y": null, "x": true}, "e": []}"#,
            ),
            (
                "tojson(indent=2)",
                "{\n  \"b\": [\n    1,\n    2.5,\n    \"é<&'\\\"\"\n  ],\n  \"a\": {\n    \"y\": null,\n    \"x\": true\n  },\n  \"e\": []\n}",
            ),
        ] {
            let rendered = environment
                .render_str(&format!("{{{{ v|{filter} }}}}"), minijinja::context!(v => value.clone()));
            assert_eq!(rendered.unwrap(), expected);
        }
        assert!(environment.render_str("{{ 1|tojson(unknown=1) }}", ()).is_err());
    }

    #[test]
    fn generation_marks_vanish_with_their_whitespace_control() {
        for (source, expected) in [
            ("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c"),
            ("a {%- generation -%} b {%-endgeneration+%} c", "a {%- if true -%} b {%-endif+%} c"),
            ("{% if generation %}x{% endif %}", "{% if generation %}x{% endif %}"),
            ("{{ generation }} {% unclosed", "{{ generation }} {% unclosed"),
        ] {
            assert_eq!(without_generation_marks(source), expected);
        }
    }
}
