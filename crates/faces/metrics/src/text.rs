//! Prometheus's text format, version 0.0.4: families, samples, labels and numbers.
//!
//! Written here because available libraries sort families and samples, or rename counters as OpenMetrics requires, and
//! readers expect Triton's names and order.

use std::fmt::{self, Display, Write};

use nereid_core::MetricLabels;

/// The text being written.
#[derive(Default)]
pub(crate) struct Text(String);

impl Text {
    /// The text so far.
    pub(crate) fn into_string(self) -> String {
        self.0
    }

    /// Begins a family: its samples follow. Without a description, it has no line for one, as in the reference.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        if !help.is_empty() {
            self.write(format_args!("# HELP {name} {}\n", Escaped { text: help, quotes: false }));
        }
        self.write(format_args!("# TYPE {name} {kind}\n"));
    }

    /// Writes a sample of the current family. `suffix` follows the family's name.
    pub(crate) fn sample(&mut self, name: &str, suffix: &str, labels: &Labels, value: impl Display) {
        if labels.0.is_empty() {
            self.write(format_args!("{name}{suffix} {value}\n"));
        } else {
            self.write(format_args!("{name}{suffix}{{{}}} {value}\n", labels.0));
        }
    }

    /// Writes the samples of a histogram: `counts` has one element more than `bounds`.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &Labels,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        self.sample(name, "_count", labels, counts.iter().sum::<u64>());
        self.sample(name, "_sum", labels, Number(sum));
        let mut total = 0;
        // The last bucket counts everything, whether or not it has a bound.
        let finite = bounds.iter().copied().filter(|bound| *bound < f64::INFINITY);
        for (bound, count) in finite.zip(counts) {
            total += count;
            self.sample(name, "_bucket", &labels.and("le", &Number(bound)), total);
        }
        self.sample(name, "_bucket", &labels.and("le", &Number(f64::INFINITY)), counts.iter().sum::<u64>());
    }

    fn write(&mut self, what: fmt::Arguments<'_>) {
        // Writing to memory does not fail.
        let _ = self.0.write_fmt(what);
    }
}

/// The labels of a sample, written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels(String);

impl Labels {
    /// In the order of their names.
    pub(crate) fn new(labels: &MetricLabels) -> Self {
        let none = Self::default();
        labels.iter().fold(none, |labels, (name, value)| labels.and(name, value))
    }

    /// These labels with another one at the end.
    pub(crate) fn and(&self, name: &str, value: &(impl Display + ?Sized)) -> Self {
        let mut text = self.0.clone();
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.to_string();
        // Writing to memory does not fail.
        let _ = write!(text, "{comma}{name}=\"{}\"", Escaped { text: &value, quotes: true });
        Self(text)
    }
}

/// Text with line breaks, backslashes and quotes escaped.
struct Escaped<'a> {
    text: &'a str,
    /// Whether the value is quoted.
    quotes: bool,
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.text;
        while let Some(at) = rest.find(['\\', '\n', '"']) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'\n' => "\\n",
                b'"' if self.quotes => "\\\"",
                b'"' => "\"",
                _ => "\\\\",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

/// A number as Prometheus reads it: exact, and as short as possible.
pub(crate) struct Number(pub f64);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number if number.is_nan() => f.write_str("NaN"),
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number if number.fract() == 0.0 && number.abs() < 1e17 => write!(f, "{number}"),
            // Very large and very small numbers have an exponent.
            number => write!(f, "{number:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(labels: &[(&str, &str)]) -> Labels {
        Labels::new(&labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_family_has_help_type_and_samples() {
        let mut text = Text::default();
        text.family("up", "gauge", "whether it is up");
        text.sample("up", "", &labels(&[]), 1);
        text.sample("up", "", &labels(&[("version", "1"), ("model", "a")]), Number(0.5));
        let expected =
            "# HELP up whether it is up\n# TYPE up gauge\nup 1\nup{model=\"a\",version=\"1\"} 0.5\n";
        assert_eq!(text.into_string(), expected);
    }

    #[test]
    fn only_a_family_with_a_description_has_a_line_for_it() {
        for (help, expected) in [
            ("", "# TYPE a gauge\n"),
            (" ", "# HELP a  \n# TYPE a gauge\n"),
            ("\n", "# HELP a \\n\n# TYPE a gauge\n"),
            ("x", "# HELP a x\n# TYPE a gauge\n"),
        ] {
            let mut text = Text::default();
            text.family("a", "gauge", help);
            assert_eq!(text.into_string(), expected, "{help:?}");
        }
    }

    #[test]
    fn special_characters_are_escaped() {
        let mut text = Text::default();
        text.family("a", "counter", "say \"a\\b\"\nand no more");
        text.sample("a", "", &labels(&[("l", "\"\\\n}é")]), 1);
        let expected = "# HELP a say \"a\\\\b\"\\nand no more\n# TYPE a counter\na{l=\"\\\"\\\\\\n}é\"} 1\n";
        assert_eq!(text.into_string(), expected);
    }

    #[test]
    fn a_histogram_has_one_bucket_for_everything() {
        for bounds in [vec![0.5, 10.0], vec![0.5, 10.0, f64::INFINITY]] {
            let mut counts = vec![1, 2, 4];
            counts.resize(bounds.len() + 1, 0);
            let mut text = Text::default();
            text.histogram("h", &labels(&[("m", "x")]), &bounds, &counts, 1.25);
            let expected = "h_count{m=\"x\"} 7\nh_sum{m=\"x\"} 1.25\nh_bucket{m=\"x\",le=\"0.5\"} 1\n\
                            h_bucket{m=\"x\",le=\"10\"} 3\nh_bucket{m=\"x\",le=\"+Inf\"} 7\n";
            assert_eq!(text.into_string(), expected, "{bounds:?}");
        }
    }

    #[test]
    fn numbers_are_short_and_exact() {
        for (number, expected) in [
            (0.0, "0"),
            (10_000_000.0, "10000000"),
            (25_276_502_016.0, "25276502016"),
            (-1.5, "-1.5"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e300, "1e300"),
            (1e-9, "1e-9"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(Number(number).to_string(), expected);
        }
    }
}
