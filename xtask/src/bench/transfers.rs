//! Cache lines that pass between threads for a request, over the number of I/O threads: what a machine with many processors would
//! have to move from core to core.
//!
//! The server runs in QEMU's user emulation, whose plugin (`transfers/plugin.c`) follows each access to memory by each thread. So the
//! number of processors of this machine does not matter, and what is counted is the server itself, not a model of it. The kernel's
//! accesses are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::client::{Connection, encoded};
use super::http::{SMALL, check, request, require, write_repository};
use super::programs;
use super::server::{Server, nereid_command};
use crate::project::{Project, show};

/// Requests on each connection before any is counted. A model's first executions are always measured.
const WARM_UP: u32 = 30;

/// How long the plugin may take to write what it counted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Numbers of I/O threads, each measured on its own
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// Connections for each I/O thread
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// Requests that are counted, over all connections
    #[arg(long, default_value_t = 3200, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    requests: u32,
    /// Instances of the model; without it, as many as threads
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    instances: Option<u32>,
    /// For the last number of threads, shows these many of the lines that pass most often, and which functions touch them
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    lines: usize,
    /// Count this server, which needs its symbols, instead of the example of `cargo xtask bench guard`
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Prints tables in Markdown.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    require("qemu-x86_64", "--version", "qemu-user")?;
    let folder = tempfile::tempdir()?;
    let emulation = Emulation::build(folder.path())?;
    let example = match options.binary {
        Some(_) => None,
        None => Some(programs::guarded(project)?.identity),
    };
    let counted = options.threads.iter().map(|threads| {
        let mut command = emulation.command();
        let instances = options.instances.unwrap_or(*threads);
        if let Some(binary) = options.binary.as_ref() {
            command.arg(binary);
            let repository = repository(folder.path(), instances)?;
            command = nereid_command(command, &repository, &[format!("--http-thread-count={threads}")]);
        } else {
            command.args(&example).args([*threads, instances].map(|number| number.to_string()));
        }
        let counts = emulation.count(command, *threads * options.connections, options.requests);
        counts.with_context(|| format!("cannot count with {threads} threads"))
    });
    let counted: Vec<Counts> = counted.collect::<Result<_>>()?;
    print!("{}", table(&options.threads, &counted));
    if let Some(last) = counted.last().filter(|_| options.lines > 0) {
        print!("\n{}", last.lines(options.lines));
    }
    Ok(())
}

/// The emulator's plugin and the slow clock, built.
struct Emulation {
    folder: PathBuf,
}

impl Emulation {
    fn build(folder: &Path) -> Result<Self> {
        for (name, source) in
            [("plugin", include_str!("transfers/plugin.c")), ("clock", include_str!("transfers/clock.c"))]
        {
            let file = folder.join(format!("{name}.c"));
            fs::write(&file, source)?;
            let library = folder.join(format!("{name}.so"));
            let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"];
            show(Command::new("cc").args(flags).arg(file).arg("-o").arg(library))?;
        }
        Ok(Self { folder: folder.to_owned() })
    }

    fn control(&self) -> PathBuf {
        self.folder.join("control")
    }

    fn output(&self) -> PathBuf {
        self.folder.join("lines")
    }

    /// The emulator, to be followed by a program and its arguments.
    fn command(&self) -> Command {
        let [plugin, clock] = ["plugin.so", "clock.so"].map(|name| self.folder.join(name));
        let [control, output] = [self.control(), self.output()];
        let mut command = Command::new("qemu-x86_64");
        command.args(["-cpu", "max", "-E"]).arg(format!("LD_PRELOAD={}", clock.display()));
        let plugin = plugin.display();
        let arguments = format!("{plugin},control={},lines={}", control.display(), output.display());
        command.arg("-plugin").arg(arguments);
        command
    }

    /// What passes for these many requests over these many connections.
    fn count(&self, command: Command, connections: u32, requests: u32) -> Result<Counts> {
        fs::write(self.control(), [0])?;
        let server = Server::serving("the emulated server", command)?;

        let each = (requests / connections).max(1);
        let requests = each * connections;
        let opened = (0..connections).map(|_| Connection::open(server.address));
        let mut connections: Vec<Connection> = opened.collect::<Result<_>>()?;
        exchange(&server, &mut connections, WARM_UP)?;
        let control = fs::OpenOptions::new().read(true).write(true).open(self.control())?;
        control.write_all_at(&[1], 0)?;
        exchange(&server, &mut connections, each)?;
        control.write_all_at(&[2], 0)?;
        let deadline = Instant::now() + PATIENCE;
        let mut state = [2];
        while state != [0] {
            ensure!(Instant::now() < deadline, "the plugin does not write its counts");
            thread::sleep(Duration::from_millis(10));
            control.read_exact_at(&mut state, 0)?;
        }
        Counts::parse(&fs::read_to_string(self.output())?, requests)
    }
}

/// A repository with the model `identity` in these many instances.
fn repository(folder: &Path, instances: u32) -> Result<PathBuf> {
    let repository = write_repository(folder)?;
    let file = repository.join("identity/config.pbtxt");
    let config = fs::read_to_string(&file)?;
    fs::write(&file, format!("{config}\ninstance_group {{ kind: KIND_CPU count: {instances} }}\n"))?;
    Ok(repository)
}

/// Sends a number of requests on each connection at the same time, and checks the answers.
fn exchange(server: &Server, connections: &mut [Connection], count: u32) -> Result<()> {
    let request = request(SMALL);
    let bytes = encoded(server.address, &request);
    thread::scope(|scope| {
        let senders = connections.iter_mut().map(|connection| {
            let (bytes, request) = (&bytes, &request);
            scope.spawn(move || (0..count).try_for_each(|_| check(request, &connection.exchange(bytes)?)))
        });
        let senders: Vec<_> = senders.collect();
        senders.into_iter().try_for_each(|sender| sender.join().expect("a sender does not panic"))
    })
}

/// What passed between threads.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    requests: u32,
    /// Passages by the part of the program that caused them.
    parts: BTreeMap<String, u32>,
    /// The same by line: the threads, and how often each function read or wrote it.
    by_line: BTreeMap<String, (BTreeSet<u32>, BTreeMap<String, u32>)>,
}

impl Counts {
    /// Reads what the plugin writes.
    fn parse(text: &str, requests: u32) -> Result<Self> {
        let mut counts = Self { requests, ..Self::default() };
        for entry in text.lines() {
            let fields: Vec<&str> = entry.splitn(4, ' ').collect();
            let [line, thread, kind, symbol] = fields[..] else {
                anyhow::bail!("not a passage: {entry}");
            };
            *counts.parts.entry(part(symbol)).or_default() += 1;
            let (threads, functions) = counts.by_line.entry(line.to_owned()).or_default();
            threads.insert(thread.parse()?);
            *functions.entry(format!("{kind} {symbol}")).or_default() += 1;
        }
        Ok(counts)
    }

    fn per_request(&self, passages: u32) -> f64 {
        f64::from(passages) / f64::from(self.requests)
    }

    fn total(&self) -> f64 {
        self.per_request(self.parts.values().sum())
    }

    /// The lines that pass most often.
    fn lines(&self, most: usize) -> String {
        let mut lines: Vec<_> = self
            .by_line
            .iter()
            .map(|(line, (threads, functions))| (functions.values().sum::<u32>(), line, threads, functions))
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.0));
        let mut text = String::new();
        for (passages, line, threads, functions) in lines.into_iter().take(most) {
            let passages = self.per_request(passages);
            text += &format!("line {line}: {passages:.2} a request, {} threads\n", threads.len());
            let mut functions: Vec<_> = functions.iter().collect();
            functions.sort_by_key(|function| std::cmp::Reverse(function.1));
            for (function, passages) in functions.into_iter().take(6) {
                text += &format!("  {:.2} {function}\n", self.per_request(*passages));
            }
        }
        text
    }
}

/// The part of the program that a symbol belongs to: one of the project's crates, the runtime, the allocator, or the rest.
fn part(symbol: &str) -> String {
    if let Some((_, rest)) = symbol.split_once("nereid_") {
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphabetic() || *c == '_').collect();
        return format!("nereid-{}", name.trim_end_matches('_').replace('_', "-"));
    }
    let known = [("tokio", "tokio"), ("3mio", "tokio"), ("mi_", "mimalloc")];
    let found = known.iter().find(|(mark, _)| symbol.contains(mark));
    found.map_or("the rest", |(_, part)| part).to_owned()
}

/// A column for each number of threads, a row for each part. Parts that matter nowhere are summed.
fn table(threads: &[u32], counted: &[Counts]) -> String {
    const LITTLE: f64 = 0.5;
    let row = |title: &str, values: &mut dyn Iterator<Item = f64>| {
        let cells: Vec<String> = values.map(|value| format!("{value:.1}")).collect();
        format!("| {title} | {} |\n", cells.join(" | "))
    };
    let mut text = format!(
        "| cache lines that pass, a request | {} |\n|---|{}\n",
        threads.iter().map(|threads| format!("{threads} threads")).collect::<Vec<_>>().join(" | "),
        "--:|".repeat(threads.len())
    );
    let of = |counts: &Counts, part: &str| counts.per_request(counts.parts.get(part).copied().unwrap_or(0));
    let most = |part: &str| counted.iter().map(|counts| of(counts, part)).fold(0.0, f64::max);
    let parts: BTreeSet<&str> =
        counted.iter().flat_map(|counts| counts.parts.keys()).map(String::as_str).collect();
    let (mut shown, others): (Vec<&str>, Vec<&str>) =
        parts.into_iter().partition(|part| most(part) >= LITTLE && *part != "the rest");
    shown.sort_by(|one, other| most(other).total_cmp(&most(one)));
    for part in shown {
        text += &row(part, &mut counted.iter().map(|counts| of(counts, part)));
    }
    let rest = |counts: &Counts| others.iter().map(|part| of(counts, part)).sum::<f64>();
    text += &row("the rest", &mut counted.iter().map(rest));
    text + &row("all", &mut counted.iter().map(Counts::total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_counted_by_part_and_by_line() {
        let text = "a0 1 w _ZN10nereid_net10io_runtime5relay5Relay4wakeE\na0 2 r mi_free\nb0 2 r ?\na0 1 w mi_free\n";
        let counts = Counts::parse(text, 2).unwrap();
        let parts = [("mimalloc", 2), ("nereid-net", 1), ("the rest", 1)];
        assert!(counts.parts.iter().map(|(part, count)| (part.as_str(), *count)).eq(parts));
        assert_eq!(counts.total(), 2.0);
        let lines = counts.lines(1);
        assert!(lines.starts_with("line a0: 1.50 a request, 2 threads\n  0.50 "), "{lines}");
        let table = table(&[8], &[counts]);
        assert!(table.contains("| mimalloc | 1.0 |\n") && table.ends_with("| all | 2.0 |\n"), "{table}");
        for broken in ["a0 1 w", "a0 x w mi_free"] {
            assert!(Counts::parse(broken, 1).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_symbol_belongs_to_the_first_crate_in_it() {
        for (symbol, expected) in [
            ("_ZN83_$LT$nereid_scheduling..fifo..Fifo$LT$T$GT$4push17hE", "nereid-scheduling"),
            ("_ZN14nereid_backend_api10parameters10Parameters3setE", "nereid-backend-api"),
            ("_ZN5tokio7runtime2io6driver6Driver4turnE", "tokio"),
            ("_ZN3mio4poll4Poll4pollE", "tokio"),
            ("_mi_theap_malloc_zero", "mimalloc"),
            ("memcpy", "the rest"),
        ] {
            assert_eq!(part(symbol), expected, "{symbol}");
        }
    }
}
