//! Determines the memory available to the process, and the default share for requests.

use std::fs;
use std::path::Path;

/// Requests may take at least this many bytes by default.
const LEAST: u64 = 1 << 30;

/// Half of the memory that the process may use, and at least 1 GiB.
pub(super) fn default_budget() -> usize {
    let usable = usable(Path::new("/proc"), Path::new("/sys/fs/cgroup"));
    usize::try_from((usable / 2).max(LEAST)).unwrap_or(usize::MAX)
}

/// The machine's memory, or what the process's control groups allow if that is less. 0 if neither can be read.
fn usable(proc: &Path, groups: &Path) -> u64 {
    let machine = fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| total(&text));
    machine.into_iter().chain(group_limits(proc, groups)).min().unwrap_or(0)
}

/// `MemTotal`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

/// The limits of the control groups that the process is in, of either version, up to their roots.
fn group_limits(proc: &Path, groups: &Path) -> Vec<u64> {
    let memberships = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => (groups.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (groups.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // A container may see its own group as the root, with the path from outside.
        let inside = root.join(group.trim_start_matches('/'));
        let candidates = inside.ancestors().take_while(|folder| folder.starts_with(&root));
        limits.extend(
            candidates
                .filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()),
        );
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_memory_limit_applies() {
        let mib = |count: u64| count << 20;
        for (what, memberships, files, expected) in [
            ("no groups", "", vec![], mib(4096)),
            ("no limit", "0::/a", vec![("a/memory.max", "max")], mib(4096)),
            (
                "version 2",
                "0::/a/b",
                vec![("a/b/memory.max", "max"), ("a/memory.max", "1073741824")],
                mib(1024),
            ),
            ("version 2, in a container", "0::/outside", vec![("memory.max", "536870912")], mib(512)),
            (
                "version 1",
                "3:cpu:/x\n4:hugetlb,memory:/docker/x",
                vec![("memory/docker/x/memory.limit_in_bytes", "268435456")],
                mib(256),
            ),
            (
                "version 1 without a limit",
                "4:memory:/",
                vec![("memory/memory.limit_in_bytes", "9223372036854771712")],
                mib(4096),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let put = |path: &str, text: &str| {
                let path = folder.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            put("proc/meminfo", "MemFree: 1 kB\nMemTotal:        4194304 kB\n");
            put("proc/self/cgroup", memberships);
            files.iter().for_each(|(path, text)| put(&format!("groups/{path}"), text));
            assert_eq!(
                usable(&folder.path().join("proc"), &folder.path().join("groups")),
                expected,
                "{what}"
            );
        }
        assert_eq!(usable(Path::new("/none"), Path::new("/none")), 0);
    }

    #[test]
    fn memory_of_this_machine_is_detected() {
        assert!(default_budget() as u64 >= LEAST);
    }
}
