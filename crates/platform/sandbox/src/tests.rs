//! Real processes under each level.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use landlock::ABI;

use super::{Level, Network, Policy, Sandbox, Support, inherit, remove_left_over_folders};

const CONFINED: [Level; 2] = [Level::On, Level::Required];

/// Runs a program of the shell under a policy.
fn run(policy: &Policy, script: &str) -> Output {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    run_command(policy, command)
}

fn run_command(policy: &Policy, mut command: Command) -> Output {
    let confinement = Sandbox::prepare(policy).unwrap().confine(&mut command);
    let output = command.output().unwrap();
    drop(confinement);
    output
}

fn succeeds(policy: &Policy, script: &str) -> bool {
    run(policy, script).status.success()
}

fn at(level: Level) -> Policy {
    Policy { level, ..Policy::default() }
}

/// A folder with a file of secrets.
fn secret() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "secret").unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

#[test]
fn this_machine_enforces_every_level() {
    let support = Support::detect();
    for level in [Level::Off, Level::Basic, Level::On, Level::Required] {
        assert_eq!(support.missing(level), None, "{support:?}");
    }
}

#[test]
fn files_are_refused_unless_the_policy_names_them() {
    let (folder, file) = secret();
    let read = format!("cat {file}");
    let write = format!("echo x >> {file}");
    let truncate = format!(": > {file}");
    let create = format!("mkdir {}/new", folder.path().display());
    for level in [Level::Off, Level::Basic] {
        for script in [&read, &write, &create] {
            assert!(succeeds(&at(level), script), "{level:?} {script}");
        }
        fs::remove_dir(folder.path().join("new")).unwrap();
    }
    let path = |path: &Path| vec![path.to_owned()];
    for level in CONFINED {
        let readable = Policy { readable: path(folder.path()), ..at(level) };
        let one_file = Policy { readable: path(Path::new(&file)), ..at(level) };
        let writable = Policy { writable: path(folder.path()), ..at(level) };
        for (policy, reads, writes) in [
            (at(level), false, false),
            (readable, true, false),
            (one_file, true, false),
            (writable, true, true),
        ] {
            assert_eq!(succeeds(&policy, &read), reads, "{policy:?}");
            for script in [&write, &create, &truncate] {
                assert_eq!(succeeds(&policy, script), writes, "{policy:?} {script}");
            }
        }
        fs::remove_dir(folder.path().join("new")).unwrap();
        fs::write(&file, "secret").unwrap();
    }
}

#[test]
fn programs_of_the_system_run_at_every_level() {
    for level in [Level::Off, Level::Basic, Level::On, Level::Required] {
        for script in [
            "ls /usr >/dev/null",
            "exec cat /proc/self/status",
            "cat /proc/cpuinfo | head -1",
            "getent passwd root",
        ] {
            let output = run(&at(level), script);
            assert!(output.status.success(), "{level:?} {script}: {output:?}");
        }
    }
}

#[test]
fn user_s_folder_is_the_temporary_one_unless_the_policy_names_it() {
    let home = std::env::var("HOME").unwrap_or_default();
    for (level, variables, moved) in [
        (Level::Basic, vec![], false),
        (Level::On, vec![], true),
        (Level::On, vec!["HOME".to_owned()], false),
    ] {
        let policy = Policy { variables, ..at(level) };
        let output = run(&policy, r#"test "$HOME" = "$TMPDIR" && exit 3; echo "$HOME""#);
        assert_eq!(output.status.code() == Some(3), moved, "{policy:?}");
        assert!(moved || String::from_utf8_lossy(&output.stdout).trim() == home, "{policy:?} {output:?}");
    }
}

#[test]
fn temporary_folder_is_the_process_s_own_and_goes_with_it() {
    for level in CONFINED {
        let mut command = Command::new("/bin/sh");
        command.args([
            "-c",
            r#"echo x > "$TMPDIR/a" && mv "$TMPDIR/a" "$TMPDIR/b" && cat "$TMPDIR/b" && echo "$TMPDIR""#,
        ]);
        let confinement = Sandbox::prepare(&at(level)).unwrap().confine(&mut command);
        let folder = confinement.temporary().unwrap().to_owned();
        let output = command.output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("x\n{}\n", folder.display()),
            "{output:?}"
        );
        assert!(folder.join("b").exists());
        // The start of another server does not remove it.
        remove_left_over_folders();
        assert!(folder.join("b").exists());
        drop(confinement);
        assert!(!folder.parent().unwrap().exists());
    }
    let mut command = Command::new("true");
    assert_eq!(Sandbox::prepare(&at(Level::Basic)).unwrap().confine(&mut command).temporary(), None);
}

#[test]
fn folder_of_a_killed_server_is_removed_and_its_lock_is_out_of_the_process_s_reach() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"echo x > "$TMPDIR/a" && rm -f "$TMPDIR/../lock""#]);
    let confinement = Sandbox::prepare(&at(Level::On)).unwrap().confine(&mut command);
    let folder = confinement.temporary().unwrap().to_owned();
    assert!(!command.output().unwrap().status.success());
    let killed = folder.parent().unwrap();
    assert!(folder.join("a").exists() && killed.join("lock").exists());
    // As the end of the server leaves it: the lock is open, and nothing was removed.
    let lock = killed.join("lock");
    fs::copy(&lock, killed.join("copy")).unwrap();
    fs::rename(killed.join("copy"), &lock).unwrap();
    remove_left_over_folders();
    assert!(!killed.exists());
    drop(confinement);
}

#[test]
fn process_enters_its_control_group_before_its_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    for level in [Level::Basic, Level::On] {
        let entrance = folder.path().join("cgroup.procs");
        let mut sandbox = Sandbox::prepare(&at(level)).unwrap();
        sandbox.entrance = Some(fs::File::create(&entrance).unwrap().into());
        let mut command = Command::new("true");
        let confinement = sandbox.confine(&mut command);
        assert!(command.status().unwrap().success());
        drop(confinement);
        assert_eq!(fs::read_to_string(&entrance).unwrap(), "0", "{level:?}");
    }
}

#[test]
fn limit_of_processors_is_enforced_or_reported() {
    let cpus = Some("0.5".parse().unwrap());
    for level in [Level::Off, Level::Basic, Level::On, Level::Required] {
        let limited = Policy { cpus, ..at(level) };
        let missing = Support::missing_limit(&limited);
        match Sandbox::prepare(&limited) {
            Err(error) => {
                assert!(level == Level::Required && missing.is_some(), "{level:?} {error}");
                assert!(error.to_string().contains("more than 0.5 processors"), "{error}");
            }
            Ok(sandbox) => {
                let is_limited = level > Level::Off && missing.is_none();
                assert_eq!(sandbox.entrance.is_some(), is_limited, "{level:?} {missing:?}");
            }
        }
        assert!(level > Level::Off || missing.is_none());
    }
}

#[test]
fn memory_and_descriptors_of_the_server_are_refused_from_the_default_level_on() {
    let (_folder, file) = secret();
    let open = fs::File::open(&file).unwrap();
    use std::os::fd::AsRawFd;
    let server = std::process::id();
    let memory = format!("exec 3< /proc/{server}/mem");
    let descriptor = format!("cat /proc/{server}/fd/{}", open.as_raw_fd());
    for (level, expected) in
        [(Level::Off, true), (Level::Basic, false), (Level::On, false), (Level::Required, false)]
    {
        for script in [&memory, &descriptor] {
            assert_eq!(succeeds(&at(level), script), expected, "{level:?} {script}");
        }
    }
    for (file, refused_at) in [
        ("cmdline", &CONFINED[..]),
        ("root", &CONFINED),
        ("environ", &[Level::Basic, Level::On, Level::Required]),
        ("auxv", &[Level::Basic, Level::On, Level::Required]),
        ("maps", &[Level::Basic, Level::On, Level::Required]),
    ] {
        let read = format!("ls -L /proc/{server}/{file}/ || cat /proc/{server}/{file}");
        assert!(succeeds(&at(Level::Off), &read), "{file}");
        for level in refused_at {
            assert!(!succeeds(&at(*level), &read), "{level:?} {file}");
        }
    }
}

#[test]
fn signals_reach_only_what_the_process_started() {
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let signal = format!("kill -0 {}", other.id());
    for (level, expected) in [(Level::Off, true), (Level::Basic, false), (Level::On, false)] {
        assert_eq!(succeeds(&at(level), &signal), expected, "{level:?}");
        assert!(succeeds(&at(level), "sleep 1000 & kill $!"), "{level:?}");
    }
    other.kill().unwrap();
    assert_eq!(other.wait().unwrap().signal(), Some(9));
}

#[test]
fn new_privileges_are_refused_from_the_default_level_on() {
    for (level, expected) in [(Level::Off, "0"), (Level::Basic, "1"), (Level::On, "1")] {
        let output = run(&at(level), "exec grep NoNewPrivs /proc/self/status");
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(found.ends_with(expected), "{level:?} {found}");
    }
}

#[test]
fn capabilities_are_dropped_by_level() {
    let effective = |level| {
        let output = run(&at(level), "exec grep CapEff /proc/self/status");
        u64::from_str_radix(String::from_utf8_lossy(&output.stdout).split_whitespace().last().unwrap(), 16)
            .unwrap()
    };
    // By their numbers in capabilities(7): SYS_MODULE, SYS_RAWIO, SYS_ADMIN, SYS_BOOT, PERFMON and BPF.
    let reaching = [16, 17, 21, 22, 38, 39].iter().fold(0, |all, number| all | 1_u64 << number);
    assert_eq!(effective(Level::Basic), effective(Level::Off) & !reaching);
    assert_eq!(effective(Level::On), 0b110 & effective(Level::Off));
}

/// Runs a program in Python under a policy.
fn python(policy: &Policy, program: &str) -> Output {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-I", "-c", program]);
    run_command(policy, command)
}

#[test]
fn sockets_reach_as_far_as_the_policy_allows() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let inet = format!("import socket; socket.create_connection(('127.0.0.1', {port}))");
    let unix = "import socket; socket.socket(socket.AF_UNIX)";
    let pair = "import socket; a, b = socket.socketpair(); a.send(b'x'); b.recv(1)";
    let vsock = "import socket; socket.socket(40, socket.SOCK_STREAM)";
    for level in CONFINED {
        for (network, gpus, connects, local) in [
            (Network::Off, false, false, false),
            (Network::Off, true, false, true),
            (Network::Local, false, false, true),
            (Network::On, false, true, true),
        ] {
            let policy = Policy { network, gpus, ..at(level) };
            for (program, expected) in [(&*inet, connects), (unix, local), (pair, true), (vsock, false)] {
                let output = python(&policy, program);
                assert_eq!(output.status.success(), expected, "{policy:?} {program}: {output:?}");
            }
        }
    }
    assert!(python(&at(Level::Basic), &inet).status.success());
}

#[test]
fn calls_that_reach_other_processes_or_the_machine_are_refused() {
    let call = |call: i64, arguments: &str, expected: &str| {
        format!(
            "import ctypes, errno; c = ctypes.CDLL(None, use_errno=True); \
             r = c.syscall({call}, {arguments}); e = errno.errorcode.get(ctypes.get_errno(), '') if r < 0 else 'OK'; \
             assert e == '{expected}', e"
        )
    };
    let server = std::process::id();
    let programs = [
        call(libc::SYS_ptrace, &format!("16, {server}, 0, 0"), "EPERM"),
        call(libc::SYS_unshare, "0x10000000", "EPERM"),
        call(libc::SYS_clone, "0x10000011, 0, 0, 0, 0", "EPERM"),
        call(libc::SYS_prlimit64, &format!("{server}, 7, b'0' * 16, 0"), "EPERM"),
        call(libc::SYS_prlimit64, "0, 7, 0, b'0' * 16", "OK"),
        call(libc::SYS_io_uring_setup, "8, 0", "ENOSYS"),
        call(libc::SYS_mount, "0, 0, 0, 0, 0", "EPERM"),
        call(libc::SYS_shmget, "0, 4096, 0o1600", "EPERM"),
        "import threading; t = threading.Thread(target=print); t.start(); t.join()".to_owned(),
        "import subprocess; subprocess.run(['true'], check=True)".to_owned(),
    ];
    for program in &programs {
        let output = python(&at(Level::On), program);
        assert!(output.status.success(), "{program}: {output:?}");
    }
}

#[test]
fn memory_has_a_limit_at_every_level() {
    let program = |mebibytes: u32| format!("x = bytearray({mebibytes} << 20)");
    for level in [Level::Basic, Level::On] {
        let policy = Policy { memory: Some(256 << 20), ..at(level) };
        for (mebibytes, expected) in [(16, true), (128, true), (512, false)] {
            assert_eq!(
                python(&policy, &program(mebibytes)).status.success(),
                expected,
                "{level:?} {mebibytes}"
            );
        }
    }
    assert!(python(&at(Level::On), &program(512)).status.success());
}

#[test]
fn kernels_without_support_refuse_only_what_is_required() {
    let seccomp = Support { landlock: ABI::V6, seccomp: true };
    for (support, level, missing) in [
        (seccomp, Level::Required, None),
        (Support { seccomp: false, ..seccomp }, Level::Basic, None),
        (Support { seccomp: false, ..seccomp }, Level::On, Some("seccomp")),
        (Support { landlock: ABI::V5, ..seccomp }, Level::Basic, Some("signal")),
        (Support { landlock: ABI::V2, ..seccomp }, Level::On, Some("truncate")),
        (Support { landlock: ABI::V1, ..seccomp }, Level::Basic, Some("memory")),
        (Support { landlock: ABI::Unsupported, ..seccomp }, Level::Required, Some("no Landlock")),
        (Support { landlock: ABI::Unsupported, seccomp: false }, Level::Off, None),
    ] {
        let found = support.missing(level);
        assert_eq!(found.is_some(), missing.is_some(), "{support:?} {level:?} {found:?}");
        if let (Some(found), Some(expected)) = (found, missing) {
            assert!(found.contains(expected), "{found}");
        }
        let prepared = Sandbox::prepare_on(&at(level), support);
        assert_eq!(prepared.is_err(), level == Level::Required && missing.is_some(), "{support:?} {level:?}");
    }
}

#[test]
fn processes_run_without_landlock_and_filters_where_the_level_allows_that() {
    for level in [Level::Basic, Level::On] {
        let mut command = Command::new("true");
        let without = Support { landlock: ABI::Unsupported, seccomp: false };
        let _confinement = Sandbox::prepare_on(&at(level), without).unwrap().confine(&mut command);
        assert!(command.status().unwrap().success(), "{level:?}");
    }
}

#[test]
fn older_landlock_keeps_the_server_s_memory_closed_by_default() {
    let memory = format!("exec 3< /proc/{}/mem", std::process::id());
    let (folder, file) = secret();
    let moves = format!("mkdir {0}/sub && mv {file} {0}/sub/key", folder.path().display());
    for script in [(&memory, false), (&moves, true)] {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script.0]);
        let older = Support { landlock: ABI::V3, seccomp: true };
        let _confinement = Sandbox::prepare_on(&at(Level::Basic), older).unwrap().confine(&mut command);
        assert_eq!(command.output().unwrap().status.success(), script.1, "{}", script.0);
    }
}

#[test]
fn inherited_descriptor_keeps_its_number() {
    use std::io::{Seek, Write};
    use std::os::fd::AsRawFd;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"inherited").unwrap();
    file.rewind().unwrap();
    let file = std::sync::Arc::new(std::os::fd::OwnedFd::from(file));
    let script = format!("cat <&{}", file.as_raw_fd());
    for (inherits, expected) in [(false, ""), (true, "inherited")] {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]);
        if inherits {
            inherit(&mut command, std::sync::Arc::clone(&file));
        }
        assert_eq!(String::from_utf8_lossy(&command.output().unwrap().stdout), expected);
    }
}
