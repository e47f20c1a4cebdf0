//! The machine's CPU and memory, read from `/proc`.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::text::{Labels, Number, Text};

const UTILIZATION: &str = "nv_cpu_utilization";
const MEMORY_TOTAL: &str = "nv_cpu_memory_total_bytes";
const MEMORY_USED: &str = "nv_cpu_memory_used_bytes";

/// The names of all families here.
pub(crate) const NAMES: [&str; 3] = [UTILIZATION, MEMORY_TOTAL, MEMORY_USED];

/// Reads the machine on demand, but not more often than an interval.
pub(crate) struct Machine {
    interval: Duration,
    last: Mutex<Reading>,
}

/// The machine at one moment. The utilization is that since the previous reading.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    ticks: Ticks,
    utilization: f64,
    memory: Memory,
}

impl Machine {
    /// The first utilization reported starts here.
    pub(crate) fn new(interval: Duration) -> Self {
        let reading = Reading { at: Instant::now(), ticks: ticks(), utilization: 0.0, memory: memory() };
        Self { interval, last: Mutex::new(reading) }
    }

    fn read(&self) -> Reading {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.at.elapsed() >= self.interval {
            let ticks = ticks();
            let utilization = ticks.utilization_since(last.ticks);
            *last = Reading { at: Instant::now(), ticks, utilization, memory: memory() };
        }
        *last
    }

    pub(crate) fn write(&self, text: &mut Text) {
        let reading = self.read();
        text.family(UTILIZATION, "gauge", "CPU utilization, from 0 to 1");
        text.sample(UTILIZATION, "", &Labels::default(), Number(reading.utilization));
        text.family(MEMORY_TOTAL, "gauge", "System memory, in bytes");
        text.sample(MEMORY_TOTAL, "", &Labels::default(), reading.memory.total);
        text.family(MEMORY_USED, "gauge", "System memory in use, in bytes");
        text.sample(MEMORY_USED, "", &Labels::default(), reading.memory.used);
    }
}

/// The time of all processors together since the machine started, in the system's own unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    idle: u64,
}

impl Ticks {
    /// Parses `/proc/stat`, see proc_stat(5). Guest time is part of user time.
    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields: Vec<u64> =
            fields.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = *fields.as_slice() else {
            return None;
        };
        Some(Self { busy: user + nice + system + irq + softirq + steal, idle: idle + iowait })
    }

    /// Between 0 and 1; 0 if no time has passed.
    fn utilization_since(self, before: Self) -> f64 {
        // The counters may decrease, according to the manual.
        let busy = self.busy.saturating_sub(before.busy) as f64;
        let idle = self.idle.saturating_sub(before.idle) as f64;
        if busy + idle > 0.0 { busy / (busy + idle) } else { 0.0 }
    }
}

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    total: u64,
    used: u64,
}

impl Memory {
    /// Parses `/proc/meminfo`, see proc_meminfo(5). Memory that is available without swapping is not in use.
    fn parse(meminfo: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let (total, available) = (bytes("MemTotal")?, bytes("MemAvailable")?);
        Some(Self { total, used: total.saturating_sub(available) })
    }
}

fn ticks() -> Ticks {
    fs::read_to_string("/proc/stat").ok().and_then(|stat| Ticks::parse(&stat)).unwrap_or_default()
}

fn memory() -> Memory {
    fs::read_to_string("/proc/meminfo").ok().and_then(|meminfo| Memory::parse(&meminfo)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_the_share_of_the_time_that_was_not_idle() {
        let stat =
            |user, idle| format!("cpu  {user} 1 2 {idle} 4 5 6 7 8 9\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n");
        let before = Ticks::parse(&stat(10, 100)).unwrap();
        assert_eq!(before, Ticks { busy: 31, idle: 104 });
        let after = Ticks::parse(&stat(40, 190)).unwrap();
        assert_eq!(after.utilization_since(before), 0.25);
        assert_eq!(after.utilization_since(after), 0.0);
        assert_eq!(before.utilization_since(after), 0.0);
        for broken in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(Ticks::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn memory_is_in_use_unless_it_is_available() {
        let text = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:   600 kB\nBuffers: 3 kB\n";
        assert_eq!(Memory::parse(text), Some(Memory { total: 1_024_000, used: 409_600 }));
        for broken in [
            "",
            "MemTotal: 5 kB\n",
            "MemTotal: x kB\nMemAvailable: 1 kB",
            "MemTotalX: 1 kB\nMemAvailable: 1 kB",
        ] {
            assert_eq!(Memory::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn this_machine_is_read_but_not_too_often() {
        let machine = Machine::new(Duration::from_secs(3600));
        let first = machine.read();
        assert!(first.memory.total > first.memory.used && first.memory.used > 0);
        assert!(first.ticks.busy > 0);
        assert_eq!(machine.read().at, first.at);
        let eager = Machine::new(Duration::ZERO);
        let at = eager.read().at;
        assert!(eager.read().at > at);
    }
}
