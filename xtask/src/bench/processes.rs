//! Processor time and memory of processes, as Linux shows them in `/proc`.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// Time limit for all threads of a process to sleep, and the polling interval.
const REST_TIME: Duration = Duration::from_secs(10);
const REST_INTERVAL: Duration = Duration::from_micros(50);

/// One line of the process table.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    /// Processor time in clock ticks, including ended threads.
    ticks: u64,
}

/// Processor time used so far by a process and all its descendants; `None` if the process does not exist.
pub fn cpu(pid: u32) -> Result<Option<Duration>> {
    let processes = all()?;
    let family = family(&processes, pid);
    if family.is_empty() {
        return Ok(None);
    }
    let ticks: u64 = family.iter().map(|process| process.ticks).sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Some(Duration::from_secs_f64(ticks as f64 / per_second as f64)))
}

/// The descendants of a process.
pub fn descendants(pid: u32) -> Result<Vec<u32>> {
    Ok(family(&all()?, pid).iter().map(|process| process.pid).filter(|found| *found != pid).collect())
}

/// Whether a process, or a descendant of it, runs the program with this file name.
pub fn run(pid: u32, program: &str) -> Result<bool> {
    let all = all()?;
    let mut programs = family(&all, pid).into_iter().filter_map(|process| {
        // A process that has just ended has no `exe` link.
        fs::read_link(format!("/proc/{}/exe", process.pid)).ok()
    });
    Ok(programs.any(|path| path.file_name().is_some_and(|name| name == program)))
}

/// A process and all its descendants; empty if the process does not exist.
fn family(processes: &[Process], pid: u32) -> Vec<&Process> {
    let mut family: Vec<_> = processes.iter().filter(|process| process.pid == pid).collect();
    let mut next = 0;
    while let Some(parent) = family.get(next).map(|process| process.pid) {
        family.extend(processes.iter().filter(|process| process.parent == parent));
        next += 1;
    }
    family
}

/// Waits until all threads of a process sleep.
pub fn wait_for_rest(pid: u32) -> Result<()> {
    let deadline = Instant::now() + REST_TIME;
    // Two consecutive checks: a thread may wake another that was already checked.
    let mut seen = 0;
    while seen < 2 {
        seen = if sleeps(pid)? { seen + 1 } else { 0 };
        ensure!(Instant::now() < deadline, "process {pid} does not come to rest within {REST_TIME:?}");
        thread::sleep(REST_INTERVAL);
    }
    Ok(())
}

fn sleeps(pid: u32) -> Result<bool> {
    let threads = format!("/proc/{pid}/task");
    for thread in fs::read_dir(&threads).with_context(|| format!("cannot read {threads}"))? {
        // A thread that has just ended has no `stat`.
        let Ok(text) = fs::read_to_string(thread?.path().join("stat")) else { continue };
        if state(&text) != Some('S') {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The state in one `stat` of `/proc`, after the name, which may contain parentheses.
fn state(text: &str) -> Option<char> {
    text.rsplit_once(") ")?.1.chars().next()
}

/// Bytes of memory that a process has resident, without its descendants.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("cannot read the memory of process {pid}"))?;
    resident(&text).with_context(|| format!("no VmRSS in the status of process {pid}"))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn all() -> Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc").context("processor time is read from /proc, which only Linux has")? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().parse::<u32>().is_err() {
            continue;
        }
        // A process may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        processes.push(process(&text).with_context(|| format!("cannot read the process line {text:?}"))?);
    }
    Ok(processes)
}

/// Parses one `/proc/PID/stat`. The name in it may contain spaces and parentheses.
fn process(text: &str) -> Option<Process> {
    let (pid, rest) = text.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    // The fields from the state on, which is field 3 in the manual.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Process {
        pid: pid.parse().ok()?,
        parent: u32::try_from(field(4)?).ok()?,
        ticks: field(14)?.checked_add(field(15)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_line_parses_with_any_name() {
        let line = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 2 3 4 150 25 9 9 20 0 3 0 100 0 0\n";
        assert_eq!(process(line), Some(Process { pid: 42, parent: 7, ticks: 175 }));
        assert_eq!(process("42 (a) S 7"), None);
        assert_eq!(process(""), None);
    }

    #[test]
    fn family_contains_exactly_the_descendants() {
        let tree = [(1, 0), (2, 1), (5, 1), (3, 2), (4, 3), (6, 5), (7, 0)];
        let processes: Vec<_> = tree.map(|(pid, parent)| Process { pid, parent, ticks: 1 }).into();
        let pids = |pid| family(&processes, pid).iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!(pids(1), [1, 2, 5, 3, 6, 4]);
        assert_eq!(pids(7), [7]);
        assert!(pids(9).is_empty());
    }

    #[test]
    fn resident_memory_is_read_from_the_status() {
        assert_eq!(resident("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(resident("Name:\tx\n"), None);
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn programs_are_known_by_their_file_names() {
        let mut child = std::process::Command::new("/bin/sleep").arg("600").spawn().unwrap();
        let program = fs::canonicalize("/bin/sleep").unwrap();
        let name = program.file_name().unwrap().to_str().unwrap();
        // The child may not have started its program yet.
        while !run(child.id(), name).unwrap() {}
        assert!(run(std::process::id(), name).unwrap());
        assert!(!run(std::process::id(), "no such program").unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!run(std::process::id(), name).unwrap());
    }

    #[test]
    fn process_rests_while_all_its_threads_sleep() {
        for (line, expected) in
            [("42 (a) b (c)) S 7 42", Some('S')), ("42 (a) R 7", Some('R')), ("42 (a)", None), ("", None)]
        {
            assert_eq!(state(line), expected, "{line}");
        }
        let mut sleeping = std::process::Command::new("/bin/sleep").arg("600").spawn().unwrap();
        wait_for_rest(sleeping.id()).unwrap();
        sleeping.kill().unwrap();
        sleeping.wait().unwrap();
        assert!(wait_for_rest(sleeping.id()).is_err());
        let own = sleeps(std::process::id()).unwrap();
        assert!(!own, "this thread runs");
    }

    #[test]
    fn ended_process_has_no_processor_time() {
        assert_eq!(cpu(u32::MAX).unwrap(), None);
        assert!(cpu(std::process::id()).unwrap().is_some());
    }
}
