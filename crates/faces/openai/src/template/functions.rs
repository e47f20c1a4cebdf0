//! The functions and filters that Hugging Face's transformers adds to Jinja.

use std::borrow::Cow;

use minijinja::{Environment, Error, ErrorKind, Value};
use time::UtcDateTime;

use super::json;

/// The beginning of the message of an error that a template raises itself.
pub(super) const RAISED: &str = "raised: ";

/// Adds the functions and filters.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime(UtcDateTime::now(), format));
    environment.add_filter("tojson", json::to_json);
}

fn raise_exception(message: Cow<'_, str>) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
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
        match characters.next() {
            Some('-') => {
                // Without zeros in front.
                let directive = characters.next();
                let padded = directive.and_then(|directive| formatted(now, directive));
                match (padded, directive) {
                    (Some(padded), _) => {
                        let number = padded.trim_start_matches(['0', ' ']);
                        text.push_str(if number.is_empty() { "0" } else { number });
                    }
                    (None, directive) => text.extend(['%', '-'].into_iter().chain(directive)),
                }
            }
            Some('%') => text.push('%'),
            Some(directive) => match formatted(now, directive) {
                Some(part) => text.push_str(&part),
                None => text.extend(['%', directive]),
            },
            None => text.push('%'),
        }
    }
    text
}

/// A part of a point in time; `None` for an unknown directive.
fn formatted(now: UtcDateTime, directive: char) -> Option<String> {
    let (month, weekday) = (now.month().to_string(), now.weekday().to_string());
    let short = |name: &str| name.get(..3).unwrap_or_default().to_owned();
    let hour = match now.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    Some(match directive {
        'Y' => now.year().to_string(),
        'y' => format!("{:02}", now.year().rem_euclid(100)),
        'm' => format!("{:02}", u8::from(now.month())),
        'd' => format!("{:02}", now.day()),
        'e' => format!("{:2}", now.day()),
        'j' => format!("{:03}", now.ordinal()),
        'H' => format!("{:02}", now.hour()),
        'I' => format!("{hour:02}"),
        'p' => if now.hour() < 12 { "AM" } else { "PM" }.to_owned(),
        'M' => format!("{:02}", now.minute()),
        'S' => format!("{:02}", now.second()),
        'f' => format!("{:06}", now.microsecond()),
        'B' => month,
        'b' | 'h' => short(&month),
        'A' => weekday,
        'a' => short(&weekday),
        'F' => strftime(now, "%Y-%m-%d"),
        'T' => strftime(now, "%H:%M:%S"),
        'D' => strftime(now, "%m/%d/%y"),
        // As in transformers, the time has no zone.
        'Z' | 'z' => String::new(),
        _ => return None,
    })
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
            (
                "%-d|%e|%-m|%I:%-M %p|%F %T|%D|%Z|%f|%-S",
                "7| 7|3|04:5 AM|2026-03-07 04:05:06|03/07/26||000000|6",
            ),
            ("%-q %-", "%-q %-"),
        ] {
            assert_eq!(strftime(now, format), expected);
        }
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
