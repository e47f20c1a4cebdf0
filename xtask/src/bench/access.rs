//! The cost of an access policy for a request, and what a client notices of another one that floods the same model. The
//! measurements are benchmarks of `nereid-access` and `nereid-core`; this starts them, and counts the instructions of shared queues.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::callgrind::Valgrind;
use crate::project::{Project, show};

/// The requests that wait in a queue together.
const IN_FLIGHT: [u32; 3] = [8, 64, 512];

/// The number of requests of a run.
const REQUESTS: u32 = 8192;

/// The clients that share a queue.
const CLIENTS: u32 = 8;

/// The most instructions that a request may take in addition in a shared queue, in percent.
const MOST: f64 = 3.0;

/// Builds them optimised, and fails if a row is over its target.
pub fn run(project: &Project) -> Result<()> {
    for (package, bench) in [("nereid-access", "requests"), ("nereid-core", "shares")] {
        show(&mut project.cargo(&["bench", "--package", package, "--bench", bench]))?;
    }
    shared_queues(project)
}

/// Prints what a request from the call of the server to its answer costs in a queue that clients share, by instructions: times differ
/// by more than the target from run to run.
fn shared_queues(project: &Project) -> Result<()> {
    show(&mut project.cargo(&[
        "build",
        "--release",
        "--package",
        "nereid-core",
        "--example",
        "shared_queue",
    ]))?;
    let program = project.target.join("release/examples/shared_queue");
    let valgrind = Valgrind::find(project)?;
    let folder = project.scratch("access");
    fs::create_dir_all(&folder)?;
    println!("\nInstructions of a request, in a queue that {CLIENTS} clients share:\n");
    println!("| scheduler | in flight | shared | of one client | more, of {MOST} % |\n|---|---|---|---|---|");
    let mut is_over = false;
    for scheduler in ["default", "dynamic"] {
        for in_flight in IN_FLIGHT {
            let count = |clients| instructions(&valgrind, &program, &folder, scheduler, in_flight, clients);
            let (shared, one) = (count(CLIENTS)?, count(1)?);
            let more = (shared / one - 1.0) * 100.0;
            println!("| {scheduler} | {in_flight} | {shared:.0} | {one:.0} | {more:.1} % |");
            is_over |= more > MOST;
        }
    }
    ensure!(!is_over, "a shared queue is over its target");
    Ok(())
}

/// Counts the instructions of a request. The difference between a long and a short run leaves out the start.
fn instructions(
    valgrind: &Valgrind,
    program: &Path,
    folder: &Path,
    scheduler: &str,
    in_flight: u32,
    clients: u32,
) -> Result<f64> {
    let rounds = [REQUESTS / in_flight / 8, REQUESTS / in_flight];
    let counts = rounds.map(|rounds| {
        let mut command = Command::new(program);
        command.arg(scheduler).args([in_flight, clients, rounds].map(|number| number.to_string()));
        valgrind.count_all(&command, &folder.join("shared_queue.out"))
    });
    let [short, long] = counts;
    Ok((long? as f64 - short? as f64) / f64::from((rounds[1] - rounds[0]) * in_flight))
}
