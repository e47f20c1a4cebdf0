//! Processor time and memory of this process and of those that it started, read from `/proc`.

use std::fs;
use std::time::Duration;

/// Ticks of the processor times in `/proc`. Linux reports them at this rate on every architecture.
const TICKS_PER_SECOND: u64 = 100;

/// A reading of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Processor time since their start, of all threads.
    pub processor: Duration,
    /// Resident memory in bytes.
    pub memory: u64,
}

impl Usage {
    /// Reads this process; zeros without `/proc`.
    pub(crate) fn read() -> Self {
        Self::of_folder("self")
    }

    /// Reads processes by their ids, together. Those that have ended count nothing.
    pub(crate) fn of(processes: &[u32]) -> Self {
        let readings = processes.iter().map(|process| Self::of_folder(&process.to_string()));
        readings.fold(Self::default(), |sum, usage| Self {
            processor: sum.processor + usage.processor,
            memory: sum.memory + usage.memory,
        })
    }

    fn of_folder(process: &str) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).ok();
        let processor = read("stat").and_then(|stat| processor_time(&stat));
        let memory = read("status").and_then(|status| resident(&status));
        Self { processor: processor.unwrap_or_default(), memory: memory.unwrap_or_default() }
    }
}

/// Parses user and system time, see proc_pid_stat(5). The name of the program, in parentheses, may contain anything.
fn processor_time(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    let ticks = fields.next()?.checked_add(fields.next()?)?;
    Some(Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND)))
}

/// Parses the resident set size, see proc_pid_status(5).
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_user_and_system_time() {
        let stat = |name: &str, user: u64, system: u64| {
            format!("7 ({name}) S 1 7 7 0 -1 4194560 1 2 3 4 {user} {system} 5 6 20 0 3")
        };
        for name in ["nereid", "a b", "x) S 1 (y", ""] {
            for (user, system, millis) in [(0, 0, 0), (12, 3, 150), (100, 0, 1000)] {
                let time = processor_time(&stat(name, user, system));
                assert_eq!(time, Some(Duration::from_millis(millis)), "{name}");
            }
        }
        for wrong in ["", "7 (x", "7 (x) S 1 2", "7 (x) S 1 7 7 0 -1 4194560 1 2 3 4 a b"] {
            assert_eq!(processor_time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1024 kB\nVmData: 5 kB"), Some(1 << 20));
        for wrong in ["", "VmRSS: x kB", "VmRSS: 5 MB", "RSS: 5 kB"] {
            assert_eq!(resident(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(Usage::read().memory > 1 << 20);
    }

    #[test]
    fn processes_are_read_together_and_those_that_ended_count_nothing() {
        let own = std::process::id();
        let (one, two) = (Usage::of(&[own]), Usage::of(&[own, own, u32::MAX]));
        // Other tests may allocate in between.
        assert!(one.memory > 1 << 20 && two.memory > one.memory + one.memory / 2, "{one:?} {two:?}");
        assert_eq!(Usage::of(&[u32::MAX]), Usage::default());
    }
}
