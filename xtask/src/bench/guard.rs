//! Instructions per request, compared with a committed baseline.
//!
//! Callgrind counts the instructions that the server executes in user space. Unlike times, the counts repeat on a busy
//! machine, so a test can notice that a change made the request path longer. They do not include the kernel's work or the
//! cost of cache misses.
//!
//! One request is in flight at a time, and each waits until the server sleeps. Otherwise, chance would decide which requests
//! share a wake-up. The load runs outside of Valgrind and checks every answer.

mod baseline;
mod requests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::baseline::{Baseline, Count};
use self::requests::Requests;
use super::callgrind::Valgrind;
use super::grpc::Way;
use super::http::{LARGE, SMALL, write_repository_with};
use super::programs;
use super::server::{Server, nereid_command};
use super::summary::median;
use crate::project::{Project, rustc};

/// The baseline's file.
const BASELINE: &str = "xtask/src/bench/guard.txt";

/// Gives the model of another server the delay of the example's, `crates/faces/kserve/examples/identity.rs`.
const DELAY: &str = r#"parameters { key: "execute_delay_ms" value { string_value: "3" } }
"#;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Write the counts to the baseline
    #[arg(long, conflicts_with = "binary")]
    update: bool,
    /// Count this server instead of the example that the baseline is about
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Runs, each with a new server; of several, the medians count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { update: false, binary: None, runs: 1 }
    }
}

/// A set of requests.
struct Case {
    name: &'static str,
    requests: Requests,
    /// Requests before those that are counted.
    warm_up: u32,
    /// Requests that are counted.
    counted: u32,
}

const CASES: &[Case] = &[
    small("http-binary", Requests::HttpBinary { elements: SMALL }),
    small("http-json", Requests::HttpJson { elements: SMALL }),
    large("http-1mib", Requests::HttpBinary { elements: LARGE }),
    small("grpc-unary", Requests::Grpc { way: Way::Unary, elements: SMALL }),
    small("grpc-stream", Requests::Grpc { way: Way::Stream, elements: SMALL }),
    large("grpc-1mib", Requests::Grpc { way: Way::Unary, elements: LARGE }),
];

const fn small(name: &'static str, requests: Requests) -> Case {
    Case { name, requests, warm_up: 200, counted: 300 }
}

const fn large(name: &'static str, requests: Requests) -> Case {
    Case { name, requests, warm_up: 50, counted: 50 }
}

/// Counts, and compares with the baseline or replaces it.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let programs = programs::guarded(project)?;
    let valgrind = Valgrind::find(project)?;
    let folder = project.scratch("guard");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let command = match &options.binary {
        Some(binary) => nereid_command(Command::new(binary), &write_repository_with(&folder, DELAY)?, &[]),
        None => Command::new(&programs.identity),
    };
    let runs: Vec<Vec<u64>> = (0..options.runs)
        .map(|_| count(&valgrind, &command, &programs.traffic, &folder))
        .collect::<Result<_>>()?;
    let counts: Vec<Count<'_>> = CASES
        .iter()
        .enumerate()
        .map(|(index, case)| {
            let all: Vec<u64> = runs.iter().map(|run| run[index]).collect();
            if all.len() > 1 {
                println!("{}", spread(case.name, &all));
            }
            Count { name: case.name, instructions: median(all.iter().map(|count| *count as f64)) as u64 }
        })
        .collect();
    let counted_on = counted_on(&valgrind)?;
    let file = project.root.join(BASELINE);
    if options.update {
        fs::write(&file, Baseline::text(&counted_on, &counts))?;
        println!("{BASELINE} is updated");
        return Ok(());
    }
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {BASELINE}"))?;
    let baseline = Baseline::parse(&text).with_context(|| format!("cannot read {BASELINE}"))?;
    let comparison = baseline.compare(&counts);
    print!("{}", comparison.table());
    if options.binary.is_some() {
        println!("The baseline is about another program, so no limit applies.");
        return Ok(());
    }
    if !baseline.counted_on.starts_with(std::env::consts::ARCH) {
        println!("The baseline is about another architecture, so no limit applies.");
        return Ok(());
    }
    comparison.verdict(baseline.counted_on, &counted_on, &folder)
}

/// Instructions per request of each case, by one server.
fn count(valgrind: &Valgrind, server: &Command, traffic: &Path, folder: &Path) -> Result<Vec<u64>> {
    let server = Server::serving("the counted server", valgrind.callgrind(server, folder))?;
    let counts = CASES.iter().map(|case| {
        let mut sender = case.requests.prepare(&server, traffic)?;
        sender.send(case.warm_up)?;
        let output = folder.join(format!("{}.out", case.name));
        let total = valgrind.count(server.pid(), folder, &output, || sender.send(case.counted))?;
        Ok(total / u64::from(case.counted))
    });
    let counts = counts.zip(CASES).map(|(count, case): (Result<u64>, _)| {
        count.with_context(|| format!("cannot count the instructions of {}", case.name))
    });
    counts.collect()
}

/// The lowest and the highest of several counts.
fn spread(name: &str, counts: &[u64]) -> String {
    let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
    let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
    let percent = (most - least) as f64 / least.max(1) as f64 * 100.0;
    format!("{name}: {least} to {most} instructions in {} runs, {percent:.2} % apart", counts.len())
}

/// The architecture, and the programs that decide about the count.
fn counted_on(valgrind: &Valgrind) -> Result<String> {
    let version = |mut command: Command| {
        let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
        ensure!(output.status.success(), "{command:?} failed ({})", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let mut rustc = Command::new(rustc());
    rustc.arg("--version");
    let mut libc = Command::new("getconf");
    libc.arg("GNU_LIBC_VERSION");
    let versions = [version(rustc)?, version(valgrind.version())?, version(libc)?];
    Ok(format!("{}, {}", std::env::consts::ARCH, versions.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_baseline_and_every_baseline_a_case() {
        let baseline = Baseline::parse(include_str!("guard.txt")).unwrap();
        let cases: Vec<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(baseline.names().collect::<Vec<_>>(), cases);
    }

    #[test]
    fn spread_is_relative_to_the_lowest_count() {
        for (counts, expected) in [
            (&[200, 203, 201][..], "x: 200 to 203 instructions in 3 runs, 1.50 % apart"),
            (&[7, 7], "x: 7 to 7 instructions in 2 runs, 0.00 % apart"),
        ] {
            assert_eq!(spread("x", counts), expected);
        }
    }
}
