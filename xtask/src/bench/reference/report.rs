//! The tables, in Markdown: medians of both servers, and the ratios within each pair. A ratio over 1 is in favour of Nereid.

use std::fmt::Write as _;

use super::{Both, Footprint, Kind, Measured};
use crate::bench::summary::{Run, median};

/// The rows of loads.
pub(super) fn loads(measured: &[Measured]) -> String {
    let mut text = "| load | CPU per request: Nereid | tritonserver | ratio | requests/s: Nereid | tritonserver | ratio |\n\
                    |---|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for Measured { kind, pairs } in measured {
        let both = |figure: fn(&Run) -> f64| -> Vec<(f64, f64)> {
            pairs.iter().map(|pair| (figure(&pair.nereid), figure(&pair.yardstick))).collect()
        };
        let (cpu, rate) = (both(Run::cpu_us_per_request), both(|run| run.seen.rate));
        let _ = writeln!(
            text,
            "| {} | {} µs | {} µs | {} | {} | {} | {} |",
            title(*kind),
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

/// Start and memory.
pub(super) fn footprint(footprint: &Footprint) -> String {
    let mut text = "| | Nereid | tritonserver | ratio |\n|---|--:|--:|--:|\n".to_owned();
    let mebibytes =
        |bytes: Both<u64>| (bytes.nereid as f64 / 1_048_576.0, bytes.reference as f64 / 1_048_576.0);
    let starts = footprint.starts.iter();
    let starts = starts.map(|start| (start.nereid.as_secs_f64() * 1e3, start.reference.as_secs_f64() * 1e3));
    let at_rest = footprint.at_rest.iter().copied().map(mebibytes);
    row(&mut text, "start until ready, two small models", "ms", &starts.collect::<Vec<_>>());
    row(&mut text, "memory at rest, two small models", "MiB", &at_rest.collect::<Vec<_>>());
    row(&mut text, "memory after these loads", "MiB", &[mebibytes(footprint.after_load)]);
    text
}

fn row(text: &mut String, title: &str, unit: &str, both: &[(f64, f64)]) {
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

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Http => "HTTP, 64 bytes",
        Kind::HttpLarge => "HTTP, 1 MiB",
        Kind::SharedMemory => "HTTP, 1 MiB in shared memory",
        Kind::Grpc => "gRPC, 64 bytes",
        Kind::GrpcLarge => "gRPC, 1 MiB",
        Kind::Stream => "gRPC stream, 64 bytes",
        Kind::Ensemble => "ensemble of two models, HTTP, 64 bytes",
        Kind::Python => "Python model, HTTP, 64 bytes",
    }
}

/// A number without digits that no measurement supports.
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
    use crate::bench::load::Seen;
    use crate::bench::summary::Pair;

    fn run(rate: f64, cpu_us: u64) -> Run {
        let seen = Seen { requests: 1000, rate, p50_us: 1, p99_us: 1 };
        Run { seen, cpu: Duration::from_micros(cpu_us * 1000) }
    }

    #[test]
    fn a_load_is_a_row_of_medians_and_ratios_within_pairs() {
        let pairs = vec![
            Pair { nereid: run(40_000.0, 20), yardstick: run(10_000.0, 80) },
            Pair { nereid: run(4_000.0, 30), yardstick: run(1_000.0, 120) },
            Pair { nereid: run(41_049.0, 20), yardstick: run(10_000.0, 90) },
        ];
        let text = loads(&[Measured { kind: Kind::Grpc, pairs }]);
        let row = text.lines().last().unwrap();
        assert_eq!(
            row,
            "| gRPC, 64 bytes | 20 µs | 90 µs | 4.0× (4.0–4.5) | 40,000 | 10,000 | 4.0× (4.0–4.1) |"
        );
    }

    #[test]
    fn start_and_memory_are_rows_of_their_own() {
        fn both<T>(nereid: T, reference: T) -> Both<T> {
            Both { nereid, reference }
        }
        let text = footprint(&Footprint {
            starts: vec![both(Duration::from_millis(25), Duration::from_millis(250))],
            at_rest: vec![both(20 << 20, 100 << 20)],
            after_load: both(30 << 20, 1100 << 20),
        });
        let rows: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| start until ready, two small models | 25 ms | 250 ms | 10.0× |",
                "| memory at rest, two small models | 20 MiB | 100 MiB | 5.0× |",
                "| memory after these loads | 30 MiB | 1,100 MiB | 36.7× |",
            ]
        );
    }
}
