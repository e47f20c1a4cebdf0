//! Runs a program to its end, with limits on its time and output.
//!
//! The program runs in its own process group, which is killed when the time is up or the program has ended, so that no
//! process it started survives.

use std::os::fd::AsFd as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::Error;

/// Bytes kept of each stream: the beginning of stdout, the end of stderr.
const KEPT: usize = 1 << 20;

/// The interval between reports of a program that is still running.
const REPORT: Duration = Duration::from_secs(60);

/// Limits of the lines and characters quoted in an error message.
const WORDS: (usize, usize) = (12, 2000);

/// The output and exit status of a program.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    pub status: ExitStatus,
    pub output: Vec<u8>,
    pub errors: Vec<u8>,
}

/// Runs the command, with empty standard input unless it is set. `line` receives each line of both streams as it is
/// written, and each minute how long the program has been running.
///
/// # Errors
/// The program does not start, or exceeds the limit. The caller checks the exit status.
pub(crate) fn run(
    command: &mut Command,
    what: &str,
    limit: Duration,
    input: Option<Stdio>,
    line: &mut dyn FnMut(&str),
) -> Result<ProgramOutput, Error> {
    run_reporting(command, what, limit, input, line, REPORT)
}

fn run_reporting(
    command: &mut Command,
    what: &str,
    limit: Duration,
    input: Option<Stdio>,
    line: &mut dyn FnMut(&str),
    interval: Duration,
) -> Result<ProgramOutput, Error> {
    use std::os::unix::process::CommandExt as _;
    let failed = |cause| Error::Io { what: format!("cannot run {what}"), cause };
    let child = command
        .stdin(input.unwrap_or_else(Stdio::null))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let mut group = Group { child, is_over: false };
    let mut streams = [Stream::default(), Stream::default()];
    let started = Instant::now();
    let mut reports = Reports { what, started, limit, interval, next: started + interval };
    let ended = group.watch(&mut streams, &mut reports, line).map_err(failed)?;
    let [output, errors] = streams.map(|stream| stream.kept);
    if !ended {
        return Err(Error::Slow { what: what.to_owned(), words: last_words(&errors), limit });
    }
    let status = group.end().map_err(failed)?;
    Ok(ProgramOutput { status, output, errors })
}

impl ProgramOutput {
    /// The program's stdout, if it succeeded.
    pub(crate) fn success(self, what: &str) -> Result<Vec<u8>, Error> {
        if self.status.success() {
            return Ok(self.output);
        }
        Err(Error::Failed { what: what.to_owned(), words: self.words() })
    }

    /// The end of the program's stderr, else of its stdout, else its exit status.
    pub(crate) fn words(&self) -> String {
        [&self.errors, &self.output]
            .into_iter()
            .map(|stream| last_words(stream))
            .find(|words| !words.is_empty())
            .unwrap_or_else(|| self.status.to_string())
    }
}

/// Reports, at an interval, that a program is still running.
struct Reports<'a> {
    what: &'a str,
    started: Instant,
    limit: Duration,
    interval: Duration,
    next: Instant,
}

impl Reports<'_> {
    fn report(&mut self, now: Instant, line: &mut dyn FnMut(&str)) {
        if now < self.next {
            return;
        }
        self.next = now + self.interval;
        let (elapsed, limit) = (now.duration_since(self.started).as_secs(), self.limit.as_secs());
        line(&format!("{} has been running for {elapsed} s (limit: {limit} s)", self.what));
    }
}

/// A running program and what it started.
struct Group {
    child: Child,
    is_over: bool,
}

/// One output stream of the program.
#[derive(Default)]
struct Stream {
    kept: Vec<u8>,
    /// The beginning of a line whose end has not been read.
    open: Vec<u8>,
    is_over: bool,
}

impl Group {
    /// Reads what the program writes until it ends; false if it does not within the limit.
    fn watch(
        &mut self,
        streams: &mut [Stream; 2],
        reports: &mut Reports<'_>,
        line: &mut dyn FnMut(&str),
    ) -> std::io::Result<bool> {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        let (Some(mut output), Some(mut errors)) = (self.child.stdout.take(), self.child.stderr.take())
        else {
            return Err(std::io::Error::other("the program has no output"));
        };
        let mut is_running = true;
        let deadline = reports.started + reports.limit;
        loop {
            let now = Instant::now();
            reports.report(now, line);
            // What is in the pipes when the program has ended is read; what others keep them open for is not waited for.
            let next = deadline.min(reports.next);
            let left = if is_running { next.saturating_duration_since(now) } else { Duration::ZERO };
            let read = |stream: &Stream| if stream.is_over { PollFlags::empty() } else { PollFlags::IN };
            let mut waits = [
                PollFd::from_borrowed_fd(output.as_fd(), read(&streams[0])),
                PollFd::from_borrowed_fd(errors.as_fd(), read(&streams[1])),
                PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN),
            ];
            let limit = Timespec::try_from(left).map_err(std::io::Error::other)?;
            match poll(&mut waits, Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [from_output, from_errors, ended] = waits.map(|wait| !wait.revents().is_empty());
            let mut progressed = false;
            if from_output && !streams[0].is_over {
                progressed = true;
                streams[0].read(&mut output, Keep::First, line)?;
            }
            if from_errors && !streams[1].is_over {
                progressed = true;
                streams[1].read(&mut errors, Keep::Last, line)?;
            }
            if ended && !progressed {
                return Ok(true);
            }
            is_running = !ended;
            if is_running && Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}

impl Group {
    /// Kills the process group and returns the program's exit status.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        self.is_over = true;
        // The program is not waited for yet, so the number is still its own, and no other group's.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.child.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.end();
        }
    }
}

/// The part of an oversized stream to keep.
enum Keep {
    First,
    Last,
}

impl Stream {
    fn read(
        &mut self,
        from: &mut impl std::io::Read,
        keep: Keep,
        line: &mut dyn FnMut(&str),
    ) -> std::io::Result<()> {
        let mut chunk = [0; 8192];
        let count = from.by_ref().read(&mut chunk)?;
        self.is_over = count == 0;
        let chunk = &chunk[..count];
        match keep {
            Keep::First => self.kept.extend(&chunk[..count.min(KEPT.saturating_sub(self.kept.len()))]),
            Keep::Last => {
                self.kept.extend(chunk);
                let surplus = self.kept.len().saturating_sub(KEPT);
                self.kept.drain(..surplus);
            }
        }
        for byte in chunk {
            // Progress bars end their lines by a carriage return.
            if matches!(byte, b'\n' | b'\r') {
                self.end_line(line);
            } else if self.open.len() < WORDS.1 {
                self.open.push(*byte);
            }
        }
        if self.is_over {
            self.end_line(line);
        }
        Ok(())
    }

    fn end_line(&mut self, line: &mut dyn FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.open);
        if !text.trim().is_empty() {
            line(text.trim_end());
        }
        self.open.clear();
    }
}

/// The last lines of a stream.
fn last_words(stream: &[u8]) -> String {
    let text = String::from_utf8_lossy(stream);
    let lines: Vec<&str> = text.trim().lines().collect();
    let words = lines[lines.len().saturating_sub(WORDS.0)..].join("\n");
    let cut = words.char_indices().rev().nth(WORDS.1 - 1).map_or(0, |(at, _)| at);
    words[cut..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> (Result<ProgramOutput, Error>, Vec<String>) {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let ended = run(&mut command, "the script", limit, None, &mut |line| lines.push(line.to_owned()));
        (ended, lines)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn both_streams_and_the_end_are_reported() {
        let (ended, lines) = sh("echo one; echo two >&2; printf 'bar 1\\rbar 2\\n\\nlast'; exit 3", LONG);
        let ended = ended.unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!(ended.output, b"one\nbar 1\rbar 2\n\nlast");
        assert_eq!(ended.words(), "two");
        let mut lines = lines;
        lines.sort();
        assert_eq!(lines, ["bar 1", "bar 2", "last", "one", "two"]);
        let error = ended.success("the script").unwrap_err().to_string();
        assert_eq!(error, "the script failed: two");
    }

    #[test]
    fn a_silent_program_is_reported_by_its_exit_status() {
        assert_eq!(sh("kill -9 $$", LONG).0.unwrap().words(), "signal: 9 (SIGKILL)");
        assert_eq!(sh("echo out; exit 1", LONG).0.unwrap().words(), "out");
    }

    #[test]
    fn timed_out_program_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!(
            "sleep 1000 & echo $! > {0}; sleep 1000 & echo $! >> {0}; echo stuck >&2; wait",
            pids.display()
        );
        let (ended, _) = sh(&script, Duration::from_secs(2));
        let error = ended.unwrap_err();
        assert!(matches!(&error, Error::Slow { words, .. } if words == "stuck"), "{error}");
        for pid in std::fs::read_to_string(&pids).unwrap().lines() {
            // The signal is on its way when the call returns. A killed process may be a zombie, until it is waited for.
            let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let has_ended = |state: &str| state.is_empty() || state.contains(") Z") || state.contains(") X");
            let deadline = Instant::now() + LONG;
            while !has_ended(&state()) {
                assert!(Instant::now() < deadline, "{}", state());
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn silent_program_is_reported_until_it_ends() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.5"]);
        let mut line = |line: &str| lines.push(line.to_owned());
        let (start, interval) = (Instant::now(), Duration::from_millis(100));
        run_reporting(&mut command, "sleep", LONG, None, &mut line, interval).unwrap();
        let most = start.elapsed().as_millis() / interval.as_millis();
        assert!((1..=most).contains(&(lines.len() as u128)), "{lines:?}");
        let is_report = |line: &str| {
            line.starts_with("sleep has been running for ") && line.ends_with(" s (limit: 60 s)")
        };
        assert!(lines.iter().all(|line| is_report(line)), "{lines:?}");
    }

    #[test]
    fn program_inherits_the_lock_as_its_input() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = std::fs::File::create(&path).unwrap();
        let mut command = Command::new("readlink");
        command.arg("/proc/self/fd/0");
        let ended = run(&mut command, "readlink", LONG, Some(Stdio::from(lock)), &mut |_| {}).unwrap();
        assert_eq!(String::from_utf8(ended.output).unwrap().trim(), path.to_str().unwrap());
        let nothing = sh("readlink /proc/self/fd/0", LONG).0.unwrap().output;
        assert_eq!(nothing, b"/dev/null\n");
    }

    #[test]
    fn pipes_kept_open_by_children_do_not_block() {
        let start = Instant::now();
        let (ended, _) = sh("sleep 1000 & echo done", LONG);
        assert_eq!(ended.unwrap().output, b"done\n");
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn long_output_is_drained_and_truncated() {
        let (ended, _) = sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo end >&2", LONG);
        let ended = ended.unwrap();
        assert_eq!((ended.output.len(), ended.errors.len()), (KEPT, KEPT));
        assert!(ended.words().ends_with("end"));
        assert!(ended.words().chars().count() <= WORDS.1);
    }
}
