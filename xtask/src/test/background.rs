//! Background commands of a test run.
//!
//! Each command's output goes to a file, which is shown if the command fails.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::project::{Project, line_of};

/// A command in progress. It is killed when this is dropped before its end.
pub struct Background {
    name: &'static str,
    line: String,
    log: PathBuf,
    child: Child,
    start: Instant,
}

impl Background {
    /// Starts a command with its output in `xtask/NAME.log` of the target folder.
    pub fn start(project: &Project, name: &'static str, command: &mut Command) -> Result<Self> {
        let (log, line) = (project.scratch(&format!("{name}.log")), line_of(command));
        fs::create_dir_all(project.scratch(""))?;
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        println!("$ {line} &  # in the background, see {}", log.display());
        let child = command
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        Ok(Self { name, line, log, child, start: Instant::now() })
    }

    /// Fails if the command has failed by now.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => self.outcome(status),
            None => Ok(()),
        }
    }

    /// Waits for the end, and returns the command's name and for how long this waited.
    pub fn finish(mut self) -> Result<(&'static str, Duration)> {
        if self.child.try_wait()?.is_none() {
            println!(
                "waiting for {}, which started {:.0} s ago",
                self.name,
                self.start.elapsed().as_secs_f64()
            );
        }
        let start = Instant::now();
        let status = self.child.wait()?;
        self.outcome(status)?;
        Ok((self.name, start.elapsed()))
    }

    fn outcome(&self, status: ExitStatus) -> Result<()> {
        if !status.success() {
            print!("{}", fs::read_to_string(&self.log).unwrap_or_default());
            bail!("`{}` failed ({status}); its output is above and in {}", self.line, self.log.display());
        }
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // No effect if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Background) {
        let folder = tempfile::tempdir().unwrap();
        let project = Project { root: folder.path().to_owned(), target: folder.path().to_owned() };
        let work = Background::start(&project, "work", Command::new("/bin/sh").args(["-c", script])).unwrap();
        (folder, work)
    }

    #[test]
    fn background_output_goes_to_a_file() {
        let (folder, work) = shell("echo out; echo err >&2");
        assert_eq!(work.finish().unwrap().0, "work");
        assert_eq!(fs::read_to_string(folder.path().join("xtask/work.log")).unwrap(), "out\nerr\n");
    }

    #[test]
    fn background_failure_is_noticed_early_and_at_the_end() {
        for wait in [false, true] {
            let (_folder, mut work) = shell("exit 3");
            let error = if wait {
                work.finish().unwrap_err()
            } else {
                loop {
                    if let Err(error) = work.check() {
                        break error;
                    }
                    std::thread::yield_now();
                }
            };
            assert!(error.to_string().starts_with("`sh -c exit 3` failed (exit status: 3)"), "{error}");
        }
    }

    #[test]
    fn background_command_ends_with_the_run() {
        let (folder, mut work) = shell("echo $$; exec sleep 600");
        work.check().unwrap();
        let log = folder.path().join("xtask/work.log");
        let pid = loop {
            if let Ok(pid) = fs::read_to_string(&log).unwrap().trim().parse::<u32>() {
                break pid;
            }
            std::thread::yield_now();
        };
        assert!(PathBuf::from(format!("/proc/{pid}")).exists());
        drop(work);
        assert!(!PathBuf::from(format!("/proc/{pid}")).exists());
    }
}
