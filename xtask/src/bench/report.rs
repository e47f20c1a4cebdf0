//! Tables that compare Nereid with NVIDIA's server, in Markdown: medians of both, and the ratios within each pair. A ratio over 1
//! is in favour of Nereid.

use std::fmt::Write as _;

use super::summary::{Pair, Run, median};

/// The rows of loads, each with its title.
pub fn loads(measured: &[(&str, &[Pair])]) -> String {
    let mut text = "| load | CPU per request: Nereid | tritonserver | ratio | requests/s: Nereid | tritonserver | ratio |\n\
                    |---|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (title, pairs) in measured {
        let both = |figure: fn(&Run) -> f64| -> Vec<(f64, f64)> {
            pairs.iter().map(|pair| (figure(&pair.nereid), figure(&pair.yardstick))).collect()
        };
        let (cpu, rate) = (both(Run::cpu_us_per_request), both(|run| run.results.rate));
        let _ = writeln!(
            text,
            "| {title} | {} µs | {} µs | {} | {} | {} | {} |",
            number(median(cpu.iter().map(|pair| pair.0))),
            number(median(cpu.iter().map(|pair| pair.1))),
            ratio(cpu.iter().map(|(nereid, reference)| reference / nereid)),
            number(median(rate.iter().map(|pair| pair.0))),
            number(median(rate.iter().map(|pair| pair.1))),
            ratio(rate.iter().map(|(nereid, reference)| nereid / reference)),
        );
    }
    text
}

/// The heading of figures where less is better.
pub fn heading() -> String {
    "| | Nereid | tritonserver | ratio |\n|---|--:|--:|--:|\n".to_owned()
}

/// The row of one such figure: a pair of values, or several pairs.
pub fn row(text: &mut String, title: &str, unit: &str, both: &[(f64, f64)]) {
    let _ = writeln!(
        text,
        "| {title} | {} {unit} | {} {unit} | {} |",
        number(median(both.iter().map(|(nereid, _)| *nereid))),
        number(median(both.iter().map(|(_, reference)| *reference))),
        ratio(both.iter().map(|(nereid, reference)| reference / nereid)),
    );
}

/// The median of ratios, and the lowest and highest of several.
fn ratio(ratios: impl Iterator<Item = f64> + Clone) -> String {
    let lowest = ratios.clone().fold(f64::INFINITY, f64::min);
    let highest = ratios.clone().fold(f64::NEG_INFINITY, f64::max);
    let middle = median(ratios.clone());
    if ratios.count() == 1 {
        format!("{middle:.1}×")
    } else {
        format!("{middle:.1}× ({lowest:.1}–{highest:.1})")
    }
}

/// A number without digits that the measurement does not support.
fn number(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.1}");
    }
    let step = if value < 1000.0 { 1.0 } else { 100.0 };
    let digits = format!("{:.0}", (value / step).round() * step);
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::load::LoadResults;

    fn run(rate: f64, cpu_us: u64) -> Run {
        let results = LoadResults { requests: 1000, rate, p50_us: 1, p99_us: 1 };
        Run { results, cpu: Duration::from_micros(cpu_us * 1000) }
    }

    #[test]
    fn a_load_is_a_row_of_medians_and_ratios_within_pairs() {
        let pairs = vec![
            Pair { nereid: run(40_000.0, 20), yardstick: run(10_000.0, 80) },
            Pair { nereid: run(4_000.0, 30), yardstick: run(1_000.0, 120) },
            Pair { nereid: run(41_049.0, 20), yardstick: run(10_000.0, 90) },
        ];
        let text = loads(&[("gRPC, 64 bytes", &pairs)]);
        let row = text.lines().last().unwrap();
        assert_eq!(
            row,
            "| gRPC, 64 bytes | 20 µs | 90 µs | 4.0× (4.0–4.5) | 40,000 | 10,000 | 4.0× (4.0–4.1) |"
        );
    }

    #[test]
    fn lower_is_better_figure_is_a_row() {
        let mut text = String::new();
        row(&mut text, "start", "ms", &[(25.0, 250.0), (20.0, 260.0), (30.0, 240.0)]);
        row(&mut text, "memory", "MiB", &[(30.0, 1100.0)]);
        assert_eq!(
            text,
            "| start | 25 ms | 250 ms | 10.0× (8.0–13.0) |\n| memory | 30 MiB | 1,100 MiB | 36.7× |\n"
        );
    }
}
