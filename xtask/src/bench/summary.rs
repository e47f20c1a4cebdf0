//! Summary of paired runs: medians and ratios, as a table.

use std::fmt::Write as _;
use std::time::Duration;

use super::load::LoadResults;

/// One run against one server.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The results of the load.
    pub results: LoadResults,
    /// The processor time that the server used during the run.
    pub cpu: Duration,
}

impl Run {
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.results.requests as f64
    }
}

/// Two consecutive runs, under equal conditions.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// Ours.
    pub nereid: Run,
    /// The yardstick's.
    pub yardstick: Run,
}

/// A figure of a run, by which the servers are compared.
struct Figure {
    title: &'static str,
    of: fn(&Run) -> f64,
}

const FIGURES: &[Figure] = &[
    Figure { title: "requests/s", of: |run| run.results.rate },
    Figure { title: "p50 us", of: |run| run.results.p50_us as f64 },
    Figure { title: "p99 us", of: |run| run.results.p99_us as f64 },
    Figure { title: "CPU us/request", of: Run::cpu_us_per_request },
];

const COLUMN: usize = 16;

/// The heading of the table; `load` names its first column.
pub fn heading(load: &str) -> String {
    let mut line = format!("{load:<14} {:<18}", "server");
    for figure in FIGURES {
        let _ = write!(line, "{:>COLUMN$}", figure.title);
    }
    line
}

/// Formats the table's rows for one load: each pair, the medians, the ratio with its spread. `yardstick` names the other
/// server.
pub fn rows(load: &str, yardstick: &str, pairs: &[Pair]) -> String {
    let mut text = String::new();
    for (index, pair) in pairs.iter().enumerate() {
        row(&mut text, load, &format!("nereid, run {}", index + 1), |figure| {
            number((figure.of)(&pair.nereid))
        });
        row(&mut text, load, &format!("{yardstick}, run {}", index + 1), |figure| {
            number((figure.of)(&pair.yardstick))
        });
    }
    row(&mut text, load, "nereid, median", |figure| {
        number(median(pairs.iter().map(|pair| (figure.of)(&pair.nereid))))
    });
    row(&mut text, load, &format!("{yardstick}, median"), |figure| {
        number(median(pairs.iter().map(|pair| (figure.of)(&pair.yardstick))))
    });
    let ratios = |figure: &Figure| -> Vec<f64> {
        pairs.iter().map(|pair| (figure.of)(&pair.nereid) / (figure.of)(&pair.yardstick)).collect()
    };
    row(&mut text, load, &format!("nereid / {yardstick}"), |figure| {
        format!("{:.2}", median(ratios(figure).into_iter()))
    });
    row(&mut text, load, "  (lowest-highest)", |figure| {
        let ratios = ratios(figure);
        let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        format!("{lowest:.2}-{highest:.2}")
    });
    text
}

fn row(text: &mut String, load: &str, name: &str, cell: impl Fn(&Figure) -> String) {
    let _ = write!(text, "{load:<14} {name:<18}");
    for figure in FIGURES {
        let _ = write!(text, "{:>COLUMN$}", cell(figure));
    }
    text.push('\n');
}

fn number(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// The middle value, or the mean of the two in the middle. Requires at least one value.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rate: f64, cpu_us: u64) -> Run {
        let results = LoadResults { requests: 1000, rate, p50_us: 80, p99_us: 400 };
        Run { results, cpu: Duration::from_micros(cpu_us * 1000) }
    }

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median([7.0].into_iter()), 7.0);
    }

    #[test]
    fn ratios_are_taken_within_each_pair() {
        // A machine that slows down to a tenth between the pairs changes no ratio.
        let pairs = [
            Pair { nereid: run(50_000.0, 20), yardstick: run(100_000.0, 10) },
            Pair { nereid: run(5_000.0, 30), yardstick: run(10_000.0, 10) },
            Pair { nereid: run(6_000.0, 40), yardstick: run(10_000.0, 10) },
        ];
        let text = rows("8", "nginx", &pairs);
        let cells = |name: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split(name).nth(1).unwrap().split_whitespace().collect()
        };
        assert_eq!(cells("nereid / nginx"), ["0.50", "1.00", "1.00", "3.00"]);
        assert_eq!(cells("(lowest-highest)"), ["0.50-0.60", "1.00-1.00", "1.00-1.00", "2.00-4.00"]);
        assert_eq!(cells("nereid, median"), ["6000", "80.0", "400", "30.0"]);
        assert_eq!(cells("nginx, run 1"), ["100000", "80.0", "400", "10.0"]);
        assert_eq!(text.lines().count(), 10);
    }

    #[test]
    fn the_heading_is_as_wide_as_the_rows() {
        let pair = Pair { nereid: run(1.0, 1), yardstick: run(1.0, 1) };
        assert!(rows("64", "nginx", &[pair]).lines().all(|line| line.len() == heading("connections").len()));
    }
}
