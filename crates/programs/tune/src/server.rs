//! A server of its own for each candidate, with one model, at a Unix socket.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use hyper::{Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::connection::Connection;

/// Grace period of a server before it is killed.
const END: Duration = Duration::from_secs(2);
/// The time between two looks at whether a model is loaded.
const LOOK: Duration = Duration::from_millis(10);
const SOCKET: &str = "http.sock";
/// Paths of sockets have at most 107 bytes. With a longer path to the folder for temporary files, this one has the sockets.
const LONGEST_SOCKET: usize = 107;
const SHORT: &str = "/tmp";
const LOG: &str = "log";
pub(crate) const CONFIG: &str = "config.pbtxt";

/// The model whose settings are looked for.
#[derive(Clone, Debug)]
pub struct Model {
    /// The program `nereid`.
    pub program: PathBuf,
    /// Further options of the server.
    pub options: Vec<OsString>,
    /// The folder of the model's repository.
    pub repository: PathBuf,
    /// The model.
    pub name: String,
    /// Further models to load, for inner requests.
    pub others: Vec<String>,
}

/// A server with the model. Ends with this value.
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
    /// The folder of the socket, if it is another one.
    short: Option<TempDir>,
}

impl Model {
    /// Replaces the model's configuration, keeps a copy of the present one, and returns the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, config: &str) -> Result<PathBuf, String> {
        let folder = self.repository.join(&self.name);
        let (path, fresh) = (folder.join(CONFIG), folder.join(format!(".{CONFIG}.new")));
        let cannot = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        fs::write(&fresh, config).map_err(cannot)?;
        if path.exists() {
            fs::copy(&path, folder.join(format!("{CONFIG}.before-tuning"))).map_err(cannot)?;
        }
        // At once, for a server that polls the repository.
        fs::rename(&fresh, &path).map_err(cannot)?;
        Ok(path)
    }
}

impl Server {
    /// Starts a server, and waits until the model is loaded. `config` replaces the text of the model's configuration.
    ///
    /// # Errors
    /// The model cannot be loaded; the reason is from the server's log.
    pub(crate) async fn start(model: &Model, config: Option<&str>, options: &[&str]) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("cannot make a folder: {error}");
        let mut named = tempfile::Builder::new();
        named.prefix("nereid-tune-");
        let folder = named.tempdir().map_err(cannot)?;
        let is_long = folder.path().join(SOCKET).as_os_str().len() > LONGEST_SOCKET;
        let short = is_long.then(|| named.tempdir_in(SHORT)).transpose().map_err(cannot)?;
        let linked = linked(model, config, folder.path());
        linked.map_err(|error| format!("cannot make a repository with links to the model: {error}"))?;
        let log =
            File::create(folder.path().join(LOG)).map_err(|error| format!("cannot make a file: {error}"))?;
        let socket = short.as_ref().unwrap_or(&folder).path().join(SOCKET);
        let mut command = Command::new(&model.program);
        command.arg(argument("--model-repository=", &folder.path().join("models")));
        command.arg(argument("--http-address=unix:", &socket));
        command.args([
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--console=false",
            "--model-control-mode=explicit",
        ]);
        for name in [&model.name].into_iter().chain(&model.others) {
            command.arg(format!("--load-model={name}"));
        }
        command.args(options).args(&model.options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        let program = model.program.display();
        let child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let mut server = Self { child, folder, short };
        server.loaded().await?;
        Ok(server)
    }

    /// Waits until all models are loaded.
    async fn loaded(&mut self) -> Result<(), String> {
        loop {
            let ended =
                self.child.try_wait().map_err(|error| format!("cannot wait for the server: {error}"))?;
            if let Some(status) = ended {
                return Err(self.reason().unwrap_or_else(|| format!("the server ended with {status}")));
            }
            if let Ok(mut connection) = Connection::open(&self.socket()).await
                && let Ok((StatusCode::OK, _)) = connection.ask(Method::GET, "/v2/health/ready").await
            {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    }

    /// The document at a path.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn document(&self, path: &str) -> Result<Value, String> {
        let mut connection = Connection::open(&self.socket()).await?;
        let (status, body) = connection.ask(Method::GET, path).await?;
        match (status, serde_json::from_slice(&body)) {
            (StatusCode::OK, Ok(document)) => Ok(document),
            _ => Err(format!("the server answers {status} to {path}: {}", String::from_utf8_lossy(&body))),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.short.as_ref().unwrap_or(&self.folder).path().join(SOCKET)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The first error in the log, without time and place. The last one only announces the end of the server.
    fn reason(&self) -> Option<String> {
        let log = fs::read(self.folder.path().join(LOG)).ok()?;
        let log = String::from_utf8_lossy(&log);
        let is_error = |line: &&str| line.starts_with('E') || line.starts_with("error");
        let line = log.lines().find(is_error).or_else(|| log.lines().last())?;
        let text = line.split_once("] ").map_or(line, |(_, text)| text);
        let text = serde_json::from_str(text).unwrap_or_else(|_| text.to_owned());
        Some(nereid_terminal::single_line(&text))
    }

    /// Ends the server.
    pub(crate) async fn end(mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(END, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

fn argument(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}

/// Makes a repository of links to the model, with another configuration, and to all other models.
fn linked(model: &Model, config: Option<&str>, folder: &Path) -> std::io::Result<()> {
    let models = folder.join("models");
    fs::create_dir(&models)?;
    let repository = model.repository.canonicalize()?;
    for entry in fs::read_dir(&repository)? {
        let entry = entry?;
        if entry.file_name() != *model.name {
            symlink(entry.path(), models.join(entry.file_name()))?;
        }
    }
    let (from, to) = (repository.join(&model.name), models.join(&model.name));
    fs::create_dir(&to)?;
    for entry in fs::read_dir(&from)? {
        let entry = entry?;
        if entry.file_name() != CONFIG || config.is_none() {
            symlink(entry.path(), to.join(entry.file_name()))?;
        }
    }
    config.map_or(Ok(()), |config| fs::write(to.join(CONFIG), config))
}

/// Memory in bytes, and processor time, of a process and all that it started.
pub(crate) fn usage(root: u32) -> (u64, Duration) {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| Some((pid, fields(pid)?.first()?.parse().ok()?)))
        .collect();
    let mut family = HashSet::from([root]);
    let mut is_growing = true;
    while is_growing {
        let before = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(pid, _)| *pid);
        let children: Vec<_> = children.collect();
        family.extend(children);
        is_growing = family.len() > before;
    }
    let memory = family.iter().filter_map(|pid| proportional_memory(*pid)).sum();
    let times = family.iter().filter_map(|pid| {
        let fields = fields(*pid)?;
        // User and system time.
        Some(fields.get(10)?.parse::<u64>().ok()? + fields.get(11)?.parse::<u64>().ok()?)
    });
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    (memory, Duration::from_secs_f64(times.sum::<u64>() as f64 / ticks as f64))
}

/// The fields of `/proc/<pid>/stat` from the parent's number on.
fn fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have any characters.
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().skip(1).map(str::to_owned).collect())
}

/// Memory of a process, in which pages that several processes share count in parts.
fn proportional_memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_of_links_has_another_configuration() {
        let repository = tempfile::tempdir().unwrap();
        for (path, text) in [("m/1/model.py", "code"), ("m/config.pbtxt", "old"), ("n/config.pbtxt", "n")] {
            let path = repository.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let model = Model {
            program: "nereid".into(),
            options: vec![],
            repository: repository.path().into(),
            name: "m".into(),
            others: vec![],
        };
        for (config, expected) in [(Some("new"), "new"), (None, "old")] {
            let folder = tempfile::tempdir().unwrap();
            linked(&model, config, folder.path()).unwrap();
            let read = |path: &str| fs::read_to_string(folder.path().join("models").join(path)).unwrap();
            assert_eq!(
                ["m/1/model.py", "m/config.pbtxt", "n/config.pbtxt"].map(read),
                ["code", expected, "n"]
            );
        }
        assert_eq!(fs::read_to_string(repository.path().join("m/config.pbtxt")).unwrap(), "old");
    }

    #[test]
    fn usage_includes_processes_that_a_process_started() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "while [ ! -e done ]; do :; done & wait"]).current_dir(folder.path());
        let mut shell = shell.spawn().unwrap();
        while usage(shell.id()).1 < Duration::from_millis(50) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The shell itself only waits.
        let own = proportional_memory(shell.id()).unwrap();
        assert!(usage(shell.id()).0 > own);
        fs::write(folder.path().join("done"), "").unwrap();
        shell.wait().unwrap();
        assert_eq!(usage(shell.id()), (0, Duration::ZERO));
    }
}
