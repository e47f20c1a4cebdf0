//! Prometheus's text format, as far as the overview needs it.

use std::collections::BTreeMap;

/// A value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// The samples in a text. Lines of another form are left out.
pub(super) fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(behind) = rest.strip_prefix('}') {
                rest = behind;
                break;
            }
            let (label, behind) = rest.split_once("=\"")?;
            let (value, behind) = quoted(behind)?;
            labels.insert(label.to_owned(), value);
            rest = behind;
        }
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The text up to the closing quotes, and what is behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_names_labels_and_values() {
        let text = "# HELP a Text\n# TYPE a counter\na 1\nb{model=\"m, \\\"x\\\"}\\n\",version=\"1\"} 2.5 1700000000\nc{} +Inf\n\
                    broken\nd{model=\"m 3\ne{x=\"1\"} many\n";
        let found: Vec<_> = parse(text)
            .into_iter()
            .map(|sample| (sample.name, sample.labels.into_iter().collect::<Vec<_>>(), sample.value))
            .collect();
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            found,
            [
                ("a".into(), vec![], 1.0),
                ("b".into(), vec![label("model", "m, \"x\"}\n"), label("version", "1")], 2.5),
                ("c".into(), vec![], f64::INFINITY),
            ]
        );
    }
}
