//! The cost of a request over the number of connections, beside nginx with a fixed answer, and over the size of its tensor, beside a bare
//! server that echoes the body. Prints a table, and draws a chart of each.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::http::{SMALL, checked_answer, matching_nginx, request, require, write_repository};
use super::load::Load;
use super::server::Server;
use super::summary::{Pair, Run, median};
use super::{pairs, programs};
use crate::project::{Project, show};
use crate::test::operations_environment;

/// Numbers of connections.
const CONNECTIONS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Elements of four bytes in the tensors: 64 bytes to 4 MiB.
const ELEMENTS: [usize; 9] = [16, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20];

/// Connections that carry the tensors.
const CARRIERS: u32 = 8;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Length of each run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Pairs of runs for each point
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// The pairs of runs at each point.
type Curve = Vec<(u64, Vec<Pair>)>;

/// Measures, prints and draws.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    require("wrk", "-v", "wrk")?;
    require("nginx", "-v", "nginx-light")?;
    let binary = programs::nereid(project, options.binary.as_deref())?;
    show(&mut project.cargo(&["build", "--release", "-p", "nereid-kserve", "--example", "echo"]))?;
    let folder = tempfile::tempdir()?;
    let nereid = Server::nereid(&binary, &write_repository(folder.path())?, &[])?;
    let measured = |yardstick: &Server, elements: usize, connections: u32| {
        let load = Load::new(folder.path(), &request(elements))?;
        let run = |server: &Server, seconds| load.run(server.address, connections, seconds);
        pairs::measure(&nereid, yardstick, options.pairs, options.seconds, run)
    };

    let small = request(SMALL);
    let (nginx, _) = matching_nginx(folder.path(), 1, &small, &checked_answer(nereid.address, &small)?)?;
    let mut by_connections = Curve::new();
    for connections in CONNECTIONS {
        by_connections.push((connections.into(), measured(&nginx, SMALL, connections)?));
    }
    drop(nginx);
    let echo = Server::http_echo(&project.target.join("release/examples/echo"))?;
    let mut by_size = Curve::new();
    for elements in ELEMENTS {
        checked_answer(nereid.address, &request(elements))?;
        by_size.push((elements as u64 * 4, measured(&echo, elements, CARRIERS)?));
    }
    print!(
        "{}\n{}",
        table("connections", "nginx, one worker", &by_connections),
        table("bytes", "bare echo", &by_size)
    );

    let rate = |run: &Run| run.results.rate;
    let cpu = Run::cpu_us_per_request;
    let panels = |across: &str, yardstick: &str, curve: &Curve, is_log: bool| {
        json!([
            panel(across, "requests/s", yardstick, curve, is_log, rate),
            panel(across, "µs of CPU per request", yardstick, curve, is_log, cpu),
        ])
    };
    draw(
        project,
        "scaling-connections",
        "Cost of a request and connections",
        panels("connections", "nginx, one worker", &by_connections, false),
    )?;
    draw(
        project,
        "scaling-size",
        "Cost of a request and its size",
        panels("KiB of the tensor", "bare echo", &by_size, true),
    )
}

/// The medians at each point, in Markdown.
fn table(across: &str, yardstick: &str, curve: &Curve) -> String {
    let mut text = format!(
        "\n| {across} | requests/s: Nereid | {yardstick} | CPU: Nereid | {yardstick} | ratio |\n|--:|--:|--:|--:|--:|--:|\n"
    );
    for (at, pairs) in curve {
        let of = |value: &dyn Fn(&Pair) -> f64| median(pairs.iter().map(value));
        text += &format!(
            "| {at} | {:.0} | {:.0} | {:.1} µs | {:.1} µs | {:.2} |\n",
            of(&|pair| pair.nereid.results.rate),
            of(&|pair| pair.yardstick.results.rate),
            of(&|pair| pair.nereid.cpu_us_per_request()),
            of(&|pair| pair.yardstick.cpu_us_per_request()),
            of(&|pair| pair.nereid.cpu_us_per_request() / pair.yardstick.cpu_us_per_request()),
        );
    }
    text
}

/// A panel of a chart, as `docs/pictures/plots.py` reads it. `is_log` is for sizes.
fn panel(
    across: &str,
    up: &str,
    yardstick: &str,
    curve: &Curve,
    is_log: bool,
    of: impl Fn(&Run) -> f64,
) -> Value {
    let points = |which: fn(&Pair) -> &Run| -> Vec<_> {
        let unit = if is_log { 1024.0 } else { 1.0 };
        curve
            .iter()
            .map(|(at, pairs)| (*at as f64 / unit, median(pairs.iter().map(|pair| of(which(pair))))))
            .collect()
    };
    let series =
        json!([["Nereid", points(|pair| &pair.nereid)], [yardstick, points(|pair| &pair.yardstick)]]);
    json!({"x": across, "y": up, "log_x": if is_log { 4 } else { 2 }, "log_y": is_log, "series": series})
}

/// Draws a chart into `docs/pictures`.
fn draw(project: &Project, name: &str, title: &str, panels: Value) -> Result<()> {
    let folder = Path::new("docs/pictures");
    let mut python = operations_environment(project)?.command(project, &["docs/pictures/plots.py"]);
    let mut child =
        python.arg(folder.join(name)).stdin(Stdio::piped()).spawn().context("cannot start Python")?;
    let input = child.stdin.take().context("the chart's program has no input")?;
    (&input).write_all(json!({"title": title, "panels": panels}).to_string().as_bytes())?;
    drop(input);
    ensure!(child.wait()?.success(), "the chart {name} was not drawn");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::load::LoadResults;
    use super::*;

    fn run(rate: f64, cpu_us: u64) -> Run {
        let results = LoadResults { requests: 1000, rate, p50_us: 80, p99_us: 400 };
        Run { results, cpu: Duration::from_millis(cpu_us) }
    }

    #[test]
    fn points_are_medians() {
        let pairs = [(100.0, 10), (300.0, 30), (200.0, 20)]
            .map(|(rate, cpu)| Pair { nereid: run(rate, cpu), yardstick: run(2.0 * rate, cpu / 2) });
        let curve = vec![(8, pairs.to_vec())];
        let found = panel("connections", "requests/s", "nginx", &curve, false, |run| run.results.rate);
        assert_eq!(found["series"], json!([["Nereid", [[8.0, 200.0]]], ["nginx", [[8.0, 400.0]]]]));
        let text = table("connections", "nginx", &curve);
        assert!(text.ends_with("| 8 | 200 | 400 | 20.0 µs | 10.0 µs | 2.00 |\n"), "{text}");
    }
}
