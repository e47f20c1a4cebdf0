//! Tests, filters and methods that templates know from Jinja and Python, and that differ in the engine or are missing there.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// The most characters that padding adds.
const WIDEST: usize = 1 << 16;

/// Adds the tests, filters and methods.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_filter("int", int);
    environment.add_filter("indent", indent);
    environment.set_unknown_method_callback(method);
}

/// A whole number; the default if the value is none.
fn int(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => {
            let text = text.trim();
            let whole = text.parse::<i128>().ok().map(Value::from);
            whole.or_else(|| text.parse::<f64>().ok().filter(|number| number.is_finite()).map(truncated))
        }
        None => match value.kind() {
            ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => Some(value.clone()),
            ValueKind::Number => {
                f64::try_from(value.clone()).ok().filter(|number| number.is_finite()).map(truncated)
            }
            _ => None,
        },
    };
    number.or(default).unwrap_or_else(|| Value::from(0))
}

#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn truncated(number: f64) -> Value {
    Value::from(number as i128)
}

/// A text with spaces in front of its lines, but for the first one unless `first`, and for blank ones unless `blank`.
fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.map_or_else(|| options.get::<Option<Value>>("width"), |width| Ok(Some(width)))?;
    let first = first.map_or_else(|| options.get("first"), |first| Ok(Some(first)))?.unwrap_or(false);
    let blank = blank.map_or_else(|| options.get("blank"), |blank| Ok(Some(blank)))?.unwrap_or(false);
    options.assert_all_used()?;
    let space = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(space) => space.to_owned(),
            None => " ".repeat(usize::try_from(width.clone())?.min(WIDEST)),
        },
    };
    // As many lines as line ends, and one more.
    let mut result = if first { space.clone() } else { String::new() };
    for (index, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if index > 0 {
            result.push('\n');
            if blank || !line.is_empty() {
                result.push_str(&space);
            }
        }
        result.push_str(line);
    }
    Ok(result)
}

/// Calls a method of Python's.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => text_method(value.as_str().unwrap_or_default(), name, arguments)?,
        ValueKind::Seq if name == "index" => {
            let (item,): (Value,) = from_args(arguments)?;
            let place = value.try_iter()?.position(|other| other == item);
            Some(
                place
                    .map(Value::from)
                    .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the value is not in the list"))?,
            )
        }
        ValueKind::Seq | ValueKind::Map if name == "copy" => {
            let () = from_args(arguments)?;
            Some(value.clone())
        }
        _ => None,
    };
    match found {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// The outcome of a method of a text. `None` if it is not one of these.
fn text_method(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "removeprefix" | "removesuffix" => {
            let (affix,): (&str,) = from_args(arguments)?;
            let rest =
                if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            Value::from(rest.unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let is_first = name == "partition";
            let found = if is_first { text.split_once(separator) } else { text.rsplit_once(separator) };
            Value::from(
                match found {
                    Some((before, after)) => [before, separator, after],
                    None if is_first => [text, "", ""],
                    None => ["", "", text],
                }
                .map(Value::from)
                .to_vec(),
            )
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(arguments)?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
            Value::from(rsplit(text, separator, limit))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(arguments)?;
            let found = if name == "index" { text.find(part) } else { text.rfind(part) };
            let before = found.and_then(|at| text.get(..at));
            let before =
                before.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the text is not found"))?;
            Value::from(before.chars().count())
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(arguments)?;
            let length = text.chars().count();
            let (width, fill) = (width.min(WIDEST), fill.unwrap_or(" "));
            let missing = width.saturating_sub(length);
            let left = match name {
                "ljust" => 0,
                "rjust" => missing,
                _ => missing / 2 + (missing & width & 1),
            };
            Value::from(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let (sign, digits) =
                text.split_at_checked(usize::from(text.starts_with(['+', '-']))).unwrap_or(("", text));
            let zeros = "0".repeat(width.min(WIDEST).saturating_sub(text.chars().count()));
            Value::from(format!("{sign}{zeros}{digits}"))
        }
        "casefold" => {
            let () = from_args(arguments)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "swapcase" => {
            let () = from_args(arguments)?;
            let swapped = text.chars().map(|character| match character.is_uppercase() {
                true => character.to_lowercase().to_string(),
                false => character.to_uppercase().to_string(),
            });
            Value::from(swapped.collect::<String>())
        }
        _ => return Ok(None),
    }))
}

/// Splits a text at its last `limit` separators, or at whitespace without a separator.
fn rsplit(text: &str, separator: Option<&str>, limit: usize) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = text;
    if separator.is_none() {
        rest = rest.trim();
    }
    while parts.len() < limit {
        let found = match separator {
            Some("") => None,
            Some(separator) => rest.rsplit_once(separator),
            None => rest.rsplit_once(char::is_whitespace).map(|(before, after)| (before.trim_end(), after)),
        };
        let Some((before, after)) = found else { break };
        parts.push(Value::from(after));
        rest = before;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(Value::from(rest));
    }
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_python_works_as_there() {
        let mut environment = Environment::new();
        add(&mut environment);
        for (expression, expected) in [
            ("none is iterable or 1 is iterable", "False"),
            ("[] is iterable and {} is iterable and '' is iterable", "True"),
            ("'a' is sequence and {} is sequence and [] is sequence", "True"),
            ("none is sequence or 1 is sequence", "False"),
            ("'x'|int", "0"),
            ("'x'|int(5)", "5"),
            ("' 3.7 '|int", "3"),
            ("-3.7|int", "-3"),
            ("true|int", "1"),
            ("'a\\nb\\r\\n\\nc\\n'|indent(2)", "a\n  b\n\n  c\n"),
            ("'a\\nb'|indent(1, first=true)", " a\n b"),
            ("'a\\n\\nb'|indent('>', blank=true)", "a\n>\n>b"),
            ("'a\\nb'|indent(width=1)", "a\n b"),
            ("'a\\nb'|indent(1, true)", " a\n b"),
            ("'abc'.removeprefix('a').removesuffix('c')", "b"),
            ("'a-b-c'.partition('-')|join('|')", "a|-|b-c"),
            ("'a-b-c'.rpartition('-')|join('|')", "a-b|-|c"),
            ("'abc'.rpartition('-')|join('|')", "||abc"),
            ("'a-b-c'.rsplit('-', 1)|join('|')", "a-b|c"),
            ("' a  b c '.rsplit(none, 1)|join('|')", "a  b|c"),
            ("' a  b c '.rsplit()|join('|')", "a|b|c"),
            ("'é-b'.index('b') + [3, 4].index(4)", "3"),
            ("'ab'.center(5, '*') ~ 'ab'.ljust(3, '*') ~ 'ab'.rjust(3, '*')", "**ab*ab**ab"),
            ("'-7'.zfill(4) ~ 'aB'.swapcase() ~ 'AB'.casefold()", "-007Abab"),
            ("[1].copy() == [1] and {'a': 1}.copy().a == 1", "True"),
            // The others.
            ("'a,b'.split(',')|join('|')", "a|b"),
        ] {
            let rendered = environment.render_str(&format!("{{{{ {expression} }}}}"), ());
            assert_eq!(rendered.unwrap(), expected, "{expression}");
        }
        for invalid in
            ["'a'.index('b')", "[].index(1)", "'a'.zfill()", "'a'.unknown()", "'a'|indent(unknown=1)"]
        {
            assert!(environment.render_str(&format!("{{{{ {invalid} }}}}"), ()).is_err(), "{invalid}");
        }
    }
}
