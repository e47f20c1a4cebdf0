//! The memory of this process and of those that it started, as Linux counts it.
//!
//! Anonymous memory only: pages of mapped files can be dropped and read again, so they hold back no other model.

use std::fs;
use std::iter::successors;
use std::path::Path;

/// How many processes start one another at most. The system's list may change while it is followed.
const GENERATIONS: usize = 64;

/// Bytes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryBytes {
    /// Memory of the server's process.
    pub server: u64,
    /// Memory of child processes, such as those of models in Python.
    pub processes: u64,
}

impl MemoryBytes {
    /// All of it.
    pub(crate) fn total(self) -> u64 {
        self.server.saturating_add(self.processes)
    }

    /// How much has been added since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            server: self.server.saturating_sub(before.server),
            processes: self.processes.saturating_sub(before.processes),
        }
    }

    /// Halfway to `other`.
    pub(crate) fn mean(self, other: Self) -> Self {
        Self {
            server: self.server.midpoint(other.server),
            processes: self.processes.midpoint(other.processes),
        }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            server: self.server.saturating_add(other.server),
            processes: self.processes.saturating_add(other.processes),
        }
    }
}

/// A part of some bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The size in bytes, if known.
    pub known: Option<u64>,
    /// The expected size in bytes.
    pub expected: u64,
}

/// Divides bytes among parts. Parts of unknown size share the rest in proportion to their expected sizes.
pub(crate) fn divide(bytes: u64, parts: &[Part]) -> Vec<u64> {
    let known = parts.iter().filter_map(|part| part.known).fold(0, u64::saturating_add);
    let others = parts.iter().filter(|part| part.known.is_none());
    let expected: u128 = others.map(|part| u128::from(part.expected)).sum();
    let rest = u128::from(bytes.saturating_sub(known));
    let share = |expected_of_one: u64| (rest * u128::from(expected_of_one) / expected.max(1)) as u64;
    parts.iter().map(|part| part.known.unwrap_or_else(|| share(part.expected))).collect()
}

/// The memory of these processes. Those that have ended count nothing.
pub(crate) fn of_processes(processes: &[u32]) -> u64 {
    processes.iter().map(|process| anonymous(&Path::new("/proc").join(process.to_string())).1).sum()
}

/// The memory in use now; zero where the system does not report it. Processes are found among all of the machine, which takes
/// milliseconds.
pub(crate) fn in_use(with_processes: bool) -> MemoryBytes {
    read(Path::new("/proc"), std::process::id(), with_processes)
}

fn read(proc: &Path, own: u32, with_processes: bool) -> MemoryBytes {
    let mut memory = MemoryBytes { server: anonymous(&proc.join(own.to_string())).1, processes: 0 };
    if !with_processes {
        return memory;
    }
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        if let (true, (parent, bytes)) = (is_process, anonymous(&entry.path())) {
            memory.processes += if parent == Some(own) { bytes } else { 0 };
        }
    }
    memory
}

/// Whether a process is one of these, or was started by one of them or by one that they started.
pub(crate) fn descends(process: u32, from: &[u32]) -> bool {
    descends_in(Path::new("/proc"), process, from)
}

fn descends_in(proc: &Path, process: u32, from: &[u32]) -> bool {
    let parent = |process: &u32| anonymous(&proc.join(process.to_string())).0.filter(|parent| *parent > 0);
    successors(Some(process), parent).take(GENERATIONS).any(|process| from.contains(&process))
}

/// The parent of a process, and its anonymous memory.
fn anonymous(process: &Path) -> (Option<u32>, u64) {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let kib = |text: &str| text.strip_suffix("kB")?.trim().parse::<u64>().ok();
    let bytes = ["RssAnon:", "RssShmem:"].into_iter().filter_map(|name| kib(field(name)?)).sum::<u64>();
    (field("PPid:").and_then(|text| text.parse().ok()), bytes * 1024)
}

/// The bytes of the files below a folder, links included. A few levels are enough for any model, and end circles of links.
pub(crate) fn file_bytes(folder: &Path) -> u64 {
    fn below(folder: &Path, levels: usize) -> u64 {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let size = |entry: fs::DirEntry| match fs::metadata(entry.path()) {
            Ok(data) if data.is_dir() && levels > 0 => below(&entry.path(), levels - 1),
            Ok(data) if data.is_file() => data.len(),
            _ => 0,
        };
        entries.map(size).sum()
    }
    below(folder, 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: impl AsRef<Path>, text: &str) {
        fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn anonymous_memory_of_the_server_and_its_children_counts() {
        let folder = tempfile::tempdir().unwrap();
        let status = |pid: u32, parent: u32, anon: u64, shared: u64| {
            let text = format!(
                "Name:\tx\nPPid:\t{parent}\nRssAnon:\t{anon} kB\nRssFile:\t999 kB\nRssShmem:\t{shared} kB\n"
            );
            put(folder.path().join(pid.to_string()).join("status"), &text);
        };
        status(10, 1, 100, 0);
        status(11, 10, 20, 3);
        status(12, 10, 7, 0);
        status(13, 11, 5000, 0);
        status(14, 1, 5000, 0);
        put(folder.path().join("meminfo"), "RssAnon: 5 kB");
        let expected = MemoryBytes { server: 100 << 10, processes: 30 << 10 };
        assert_eq!(read(folder.path(), 10, true), expected);
        assert_eq!(read(folder.path(), 10, false), MemoryBytes { processes: 0, ..expected });
        assert_eq!(read(Path::new("/none"), 10, true), MemoryBytes::default());
        assert_eq!(expected.total(), 130 << 10);
    }

    #[test]
    fn memory_that_a_test_takes_is_seen() {
        let before = in_use(true);
        let taken = vec![7_u8; 64 << 20];
        let grown = in_use(true).since(before);
        assert!(grown.server >= 32 << 20, "{grown:?} for {} bytes", taken.len());
    }

    #[test]
    fn shares_add_up_to_no_more_than_the_whole() {
        let expected = |expected| Part { known: None, expected };
        for bytes in [0, 1001, u64::MAX / 2, u64::MAX] {
            for parts in [&[1, 1, 1][..], &[5, 0, 2], &[1 << 40, 3], &[u64::MAX, u64::MAX], &[0, 0], &[]] {
                let shares = divide(bytes, &parts.iter().copied().map(expected).collect::<Vec<_>>());
                let shares: u64 = shares.iter().sum();
                let is_divided = parts.iter().any(|part| *part > 0);
                assert!(shares <= bytes && bytes - shares <= if is_divided { 3 } else { bytes });
            }
        }
    }

    #[test]
    fn what_is_known_of_a_part_is_not_divided() {
        let parts = |parts: &[(Option<u64>, u64)]| {
            let part = |(known, expected): &(Option<u64>, u64)| Part { known: *known, expected: *expected };
            parts.iter().map(part).collect::<Vec<_>>()
        };
        for (bytes, of, expected) in [
            (100, &[(Some(60), 10), (Some(0), 10), (None, 10)][..], &[60, 0, 40][..]),
            (100, &[(Some(10), 0), (None, 10), (None, 20)], &[10, 30, 60]),
            // The rest of the memory was there before.
            (50, &[(Some(60), 10), (None, 10)], &[60, 0]),
            (50, &[(Some(u64::MAX), 10), (Some(1), 1), (None, 10)], &[u64::MAX, 1, 0]),
        ] {
            assert_eq!(divide(bytes, &parts(of)), expected, "{of:?}");
        }
    }

    #[test]
    fn processes_descend_from_those_that_started_them() {
        let folder = tempfile::tempdir().unwrap();
        // The last two are each other's parents, as if numbers were used again while they are read.
        for (process, parent) in [(1, 0), (10, 1), (20, 10), (30, 20), (40, 1), (50, 60), (60, 50)] {
            let text = format!("PPid:\t{parent}\n");
            put(folder.path().join(process.to_string()).join("status"), &text);
        }
        for (process, from, expected) in [
            (10, &[10][..], true),
            (30, &[10], true),
            (30, &[40, 20], true),
            (10, &[20], false),
            (40, &[10], false),
            (50, &[10], false),
            (99, &[10], false),
            (99, &[99], true),
            (30, &[], false),
        ] {
            assert_eq!(descends_in(folder.path(), process, from), expected, "{process} from {from:?}");
        }
    }

    #[test]
    fn files_of_all_versions_count() {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path().join("config.pbtxt"), "12345");
        put(folder.path().join("1/model.onnx"), "123");
        put(folder.path().join("2/a/b/weights"), "1234567");
        assert_eq!(file_bytes(folder.path()), 15);
        assert_eq!(file_bytes(Path::new("/none")), 0);
    }
}
