//! Limits of processor time and memory, by version 2 of Linux's control groups, where the system has delegated a group to the server.
//!
//! A group has processes or groups, not both, once a controller is enabled for the groups in it. A server whose own group is
//! the delegated one therefore moves to a group in it first.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{Mode, OFlags, getxattr, open};

use crate::policy::ParseError;

/// The period of the limit, in microseconds: the kernel's default.
const PERIOD: u32 = 100_000;

/// The group that a server moves to if its own group is the delegated one.
const LEAF: &str = "nereid";

/// Attempts to move the server's earlier processes, too: it may start more while they are moved.
const MOVES: usize = 20;

/// The controllers of the limits.
const CONTROLLERS: [&str; 2] = ["cpu", "memory"];

/// Attributes by which systemd marks delegated groups.
const MARKS: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// A number of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus {
    /// Microseconds of processor time in a period.
    quota: u32,
}

impl FromStr for Cpus {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match text.parse::<f64>() {
            Ok(count) if is_decimal && (0.01..=10_000.0).contains(&count) => {
                Ok(Self { quota: (count * f64::from(PERIOD)).round() as u32 })
            }
            _ => Err(ParseError { known: "a number of processors from 0.01 to 10000, such as 2 or 0.5" }),
        }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.quota) / f64::from(PERIOD))
    }
}

/// The group in which the server makes others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    folder: PathBuf,
    /// Whether the groups in it can limit processors.
    limits_cpus: bool,
    /// Whether the groups in it can limit memory.
    limits_memory: bool,
}

/// The limits of a group. Processes in it have them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The number of processors.
    pub cpus: Option<Cpus>,
    /// The memory in bytes, files in the system's cache included: the system frees these first.
    pub memory: Option<u64>,
}

impl Groups {
    /// The server's groups. The first call may move the server to another group.
    ///
    /// # Errors
    /// Why the server can make no groups.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static GROUPS: OnceLock<Result<Groups, String>> = OnceLock::new();
        let found = || {
            let read =
                |file| fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"));
            let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
            let (mounted, own) =
                own_group(&mounts, &own).ok_or("control groups of version 2 are not mounted")?;
            let is_delegated = |folder: &Path| is_marked(folder) || is_root_of_container(&mounted, folder);
            Self::open(&mounted, &own, std::process::id(), is_delegated)
        };
        GROUPS.get_or_init(found).as_ref().map_err(String::as_str)
    }

    /// Finds the delegated group of a process, whose own group is below the mounted root.
    fn open(
        mounted: &Path,
        own: &Path,
        process: u32,
        is_delegated: impl Fn(&Path) -> bool,
    ) -> Result<Self, String> {
        let parent = own.parent().filter(|parent| own != mounted && is_delegated(parent));
        if let Some(parent) = parent {
            return enable(parent);
        }
        if !is_delegated(own) {
            return Err("the system has delegated no control group to the server".to_owned());
        }
        let leaf = own.join(LEAF);
        let moved = fs::create_dir(&leaf).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        let moved = moved.and_then(|()| fs::write(leaf.join("cgroup.procs"), process.to_string()));
        moved.map_err(|error| {
            format!("cannot move the server to the control group '{}': {error}", leaf.display())
        })?;
        let mut enabled = enable(own);
        for _ in 0..MOVES {
            let started = descendants(own, process);
            if enabled.is_ok() || started.is_empty() {
                break;
            }
            for process in started {
                // It may have ended.
                let _ = fs::write(leaf.join("cgroup.procs"), process.to_string());
            }
            enabled = enable(own);
        }
        enabled.inspect_err(|_| {
            // Best effort: the server works in either group.
            let _ = fs::write(own.join("cgroup.procs"), process.to_string());
            let _ = fs::remove_dir(&leaf);
        })
    }

    /// Why processors cannot be limited; `None` if they can.
    pub(crate) fn missing_cpus(&self) -> Option<String> {
        (!self.limits_cpus).then(|| lacking(&self.folder, "the controller 'cpu'"))
    }

    /// Makes a group with the limits whose controllers are enabled; `None` if no limit is left.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn create(&self, limits: Limits) -> io::Result<Option<Group>> {
        let cpus = limits.cpus.filter(|_| self.limits_cpus);
        let memory = limits.memory.filter(|_| self.limits_memory);
        if cpus.is_none() && memory.is_none() {
            return Ok(None);
        }
        remove_ended(None);
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let group =
            Group { folder: self.folder.join(format!("nereid-model-{}-{number}", std::process::id())) };
        fs::create_dir(&group.folder)?;
        if let Some(cpus) = cpus {
            fs::write(group.folder.join("cpu.max"), format!("{} {PERIOD}", cpus.quota))?;
        }
        if let Some(memory) = memory {
            fs::write(group.folder.join("memory.max"), memory.to_string())?;
            // Otherwise the system would move what exceeds the limit to the disk. The file is missing without swap.
            let _ = fs::write(group.folder.join("memory.swap.max"), "0");
            // Otherwise a model without one of its processes would wait for it. The file is missing before Linux 4.19.
            let _ = fs::write(group.folder.join("memory.oom.group"), "1");
        }
        Ok(Some(group))
    }
}

/// The processes in a group that a process, or one of its processes, started.
fn descendants(group: &Path, ancestor: u32) -> Vec<u32> {
    let parent = |process: u32| -> Option<u32> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name in parentheses may have any characters.
        text.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let is_descendant = |process: &u32| {
        let mut ancestors = std::iter::successors(parent(*process), |process| parent(*process));
        ancestors.any(|process| process == ancestor)
    };
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    listed.lines().filter_map(|line| line.parse().ok()).filter(is_descendant).collect()
}

/// A group for one process and those that it starts, removed on drop, or later if processes are still in it.
#[derive(Debug)]
pub(crate) struct Group {
    folder: PathBuf,
}

impl Group {
    /// The file to which a process writes 0 to enter the group.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn entrance(&self) -> io::Result<OwnedFd> {
        Ok(open(self.folder.join("cgroup.procs"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove_ended(Some(std::mem::take(&mut self.folder)));
    }
}

/// Removes a group, and those that could not be removed before: processes that the system ends leave their group some time after
/// the first one is reaped, and others may go on running.
fn remove_ended(group: Option<PathBuf>) {
    static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.extend(group);
    left.retain(|folder| fs::remove_dir(folder).is_err_and(|error| error.kind() != io::ErrorKind::NotFound));
}

/// Lets the groups in a folder limit what its controllers can.
fn enable(folder: &Path) -> Result<Groups, String> {
    let cannot = |error: io::Error| format!("cannot use the control group '{}': {error}", folder.display());
    let words = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).map_err(cannot)?;
        Ok::<_, String>(text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let (offered, enabled) = (words("cgroup.controllers")?, words("cgroup.subtree_control")?);
    let has = |words: &[String], controller: &str| words.iter().any(|word| word == controller);
    let [limits_cpus, limits_memory] = CONTROLLERS.map(|controller| has(&offered, controller));
    if !limits_cpus && !limits_memory {
        return Err(lacking(folder, "the controllers 'cpu' and 'memory'"));
    }
    let wanted = CONTROLLERS.into_iter().filter(|name| has(&offered, name) && !has(&enabled, name));
    let wanted: Vec<_> = wanted.map(|name| format!("+{name}")).collect();
    if !wanted.is_empty() {
        fs::write(folder.join("cgroup.subtree_control"), wanted.join(" ")).map_err(cannot)?;
    }
    Ok(Groups { folder: folder.to_owned(), limits_cpus, limits_memory })
}

fn lacking(folder: &Path, what: &str) -> String {
    format!("the control group '{}' does not have {what}", folder.display())
}

/// The mount point of the groups and the folder of the process's own group, by the process's files in /proc.
fn own_group(mounts: &str, own: &str) -> Option<(PathBuf, PathBuf)> {
    let mounted = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, folder) = (place.next()?, place.next()?);
        (kind.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(folder))
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let own = if path.is_empty() { mounted.clone() } else { mounted.join(path) };
    Some((mounted, own))
}

fn is_marked(folder: &Path) -> bool {
    MARKS.into_iter().any(|mark| {
        let mut value = [0; 2];
        getxattr(folder, mark, &mut value).is_ok_and(|length| value.starts_with(b"1") && length == 1)
    })
}

/// Whether a folder is the root that a container sees. The machine's own root is not a group, and has no type.
fn is_root_of_container(mounted: &Path, folder: &Path) -> bool {
    folder == mounted && folder.join("cgroup.type").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of files like a group's.
    fn group(folder: &Path, controllers: &str, enabled: &str) {
        fs::create_dir_all(folder).unwrap();
        for (file, text) in
            [("cgroup.controllers", controllers), ("cgroup.subtree_control", enabled), ("cgroup.procs", "")]
        {
            fs::write(folder.join(file), text).unwrap();
        }
    }

    fn read(folder: &Path, file: &str) -> String {
        fs::read_to_string(folder.join(file)).unwrap()
    }

    #[test]
    fn processes_that_a_process_started_are_found_in_its_group() {
        use std::io::{BufRead as _, BufReader};
        let folder = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo $!; read line; kill $!"]).stdin(std::process::Stdio::piped());
        let mut shell = shell.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut started = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut started).unwrap();
        let started: u32 = started.trim().parse().unwrap();
        let own = std::process::id();
        let listed = format!("1\n{own}\n{}\n{started}\n4194304\n", shell.id());
        fs::write(folder.path().join("cgroup.procs"), listed).unwrap();
        assert_eq!(descendants(folder.path(), own), [shell.id(), started]);
        assert_eq!(descendants(folder.path(), shell.id()), [started]);
        assert_eq!(descendants(&folder.path().join("missing"), own), [0; 0]);
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }

    #[test]
    fn numbers_of_processors_are_decimal_and_positive() {
        for (text, expected) in [
            ("1", Some(100_000)),
            ("0.5", Some(50_000)),
            ("2.25", Some(225_000)),
            ("0.01", Some(1000)),
            ("10000", Some(1_000_000_000)),
            ("0.001", None),
            ("0", None),
            ("-1", None),
            ("10001", None),
            ("", None),
            ("1e2", None),
            ("inf", None),
            ("NaN", None),
            ("two", None),
        ] {
            assert_eq!(text.parse::<Cpus>().ok(), expected.map(|quota| Cpus { quota }), "{text}");
        }
        assert_eq!("2.25".parse::<Cpus>().unwrap().to_string(), "2.25");
    }

    #[test]
    fn own_group_is_below_the_mount_of_the_second_version() {
        let mounts = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 23 0:28 /docker/x /other rw - cgroup2 cgroup2 rw\n\
                      33 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        for (own, expected) in [
            ("0::/\n", Some("/sys/fs/cgroup")),
            (
                "4:memory:/x\n0::/system.slice/nereid.service\n",
                Some("/sys/fs/cgroup/system.slice/nereid.service"),
            ),
            ("4:memory:/x\n", None),
        ] {
            let found = own_group(mounts, own);
            assert_eq!(found.map(|(_, own)| own), expected.map(PathBuf::from), "{own}");
        }
        assert_eq!(own_group("31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "0::/\n"), None);
    }

    #[test]
    fn server_in_the_delegated_group_moves_to_one_below() {
        for (enabled, expected) in [("", "+cpu +memory"), ("memory", "+cpu"), ("cpu memory", "cpu memory")] {
            let root = tempfile::tempdir().unwrap();
            let own = root.path().join("nereid.service");
            group(&own, "cpu io memory\n", enabled);
            let groups = Groups::open(root.path(), &own, 77, |folder| folder == own).unwrap();
            assert_eq!(read(&own.join(LEAF), "cgroup.procs"), "77");
            assert_eq!(read(&own, "cgroup.subtree_control"), expected);
            let cpus = |text: &str| Limits { cpus: Some(text.parse().unwrap()), memory: None };
            let limited = groups.create(cpus("1.5")).unwrap().unwrap();
            assert_eq!(limited.folder.parent(), Some(own.as_path()));
            assert_eq!(read(&limited.folder, "cpu.max"), "150000 100000");
            assert_ne!(groups.create(cpus("1")).unwrap().unwrap().folder, limited.folder);
        }
    }

    #[test]
    fn groups_have_the_limits_that_the_controllers_allow() {
        let limits = |cpus: &str, memory| Limits { cpus: cpus.parse().ok(), memory };
        for (controllers, limits, expected) in [
            ("cpu memory", limits("2", Some(4096)), Some((Some("200000 100000"), Some("4096")))),
            ("cpu memory", limits("2", None), Some((Some("200000 100000"), None))),
            ("memory", limits("", Some(4096)), Some((None, Some("4096")))),
            ("memory", limits("2", Some(4096)), Some((None, Some("4096")))),
            ("memory", limits("2", None), None),
            ("cpu", limits("", Some(4096)), None),
            ("cpu", limits("2", Some(4096)), Some((Some("200000 100000"), None))),
            ("cpu memory", Limits::default(), None),
        ] {
            let root = tempfile::tempdir().unwrap();
            group(root.path(), controllers, "");
            let groups = enable(root.path()).unwrap();
            assert_eq!(groups.missing_cpus().is_none(), controllers.contains("cpu"));
            let made = groups.create(limits).unwrap();
            let found = made.map(|made| {
                let limit = |file: &str| fs::read_to_string(made.folder.join(file)).ok();
                assert_eq!(limit("memory.oom.group").is_some(), limit("memory.max").is_some());
                assert_eq!(limit("memory.swap.max").is_some(), limit("memory.max").is_some());
                (limit("cpu.max"), limit("memory.max"))
            });
            let expected =
                expected.map(|(cpus, memory)| (cpus.map(str::to_owned), memory.map(str::to_owned)));
            assert_eq!(found, expected, "{controllers}: {limits:?}");
        }
    }

    #[test]
    fn groups_with_processes_are_removed_after_these() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "cpu memory", "");
        let groups = enable(root.path()).unwrap();
        let create = || groups.create(Limits { cpus: None, memory: Some(4096) }).unwrap().unwrap();
        let empty = |folder: &Path| {
            for file in fs::read_dir(folder).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        };
        let made = [create(), create(), create()];
        let folders = [0, 1, 2].map(|at| made[at].folder.clone());
        // A folder with files cannot be removed, as little as a group with processes.
        drop(made);
        let exist = || [0, 1, 2].map(|at: usize| folders[at].exists());
        assert_eq!(exist(), [true; 3]);
        empty(&folders[1]);
        let next = create();
        assert_eq!(exist(), [true, false, true]);
        empty(&folders[0]);
        empty(&folders[2]);
        empty(&next.folder);
        let last = next.folder.clone();
        drop(next);
        assert_eq!((exist(), last.exists()), ([false; 3], false));
    }

    #[test]
    fn server_below_the_delegated_group_stays_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let unit = root.path().join("nereid.service");
        let own = unit.join("main");
        group(&unit, "cpu", "");
        group(&own, "", "");
        let groups = Groups::open(root.path(), &own, 77, |folder| folder == unit).unwrap();
        assert_eq!(groups, Groups { folder: unit.clone(), limits_cpus: true, limits_memory: false });
        assert!(groups.missing_cpus().is_none());
        assert_eq!(
            (read(&unit, "cgroup.subtree_control"), read(&own, "cgroup.procs")),
            ("+cpu".into(), "".into())
        );
    }

    #[test]
    fn without_delegation_or_controller_the_reason_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("session.scope");
        group(&own, "memory pids", "");
        let refused = |is_delegated| Groups::open(root.path(), &own, 77, |_| is_delegated).unwrap_err();
        assert!(refused(false).contains("has delegated no control group"));
        assert_eq!(read(&own, "cgroup.procs"), "");
        group(root.path(), "io", "");
        group(&own, "pids", "");
        assert!(
            refused(true).contains("does not have the controllers 'cpu' and 'memory'"),
            "{}",
            refused(true)
        );
        group(root.path(), "memory", "");
        let groups = Groups::open(root.path(), &own, 77, |_| true).unwrap();
        assert!(groups.missing_cpus().unwrap().contains("does not have the controller 'cpu'"));
    }
}
