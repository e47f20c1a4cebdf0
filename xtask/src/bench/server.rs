//! The servers under measurement: started on a free port, their CPU time read, always stopped.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::client::{Answer, get};
use super::processes;

/// Time limit for a server to start serving.
const STARTUP: Duration = Duration::from_secs(30);

/// Time limit for a server to stop.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Lines of a starting server that may wait to be read.
const LINES: usize = 1024;

/// The interval between checks of a state.
const PAUSE: Duration = Duration::from_millis(20);

/// Polling interval for states whose time is measured.
const SHORT_PAUSE: Duration = Duration::from_millis(2);

/// A running server; dropping it ends it.
pub struct Server {
    /// The server's name in the table.
    pub name: &'static str,
    /// HTTP address, if served.
    pub address: SocketAddr,
    /// gRPC address, if served.
    pub grpc: Option<SocketAddr>,
    child: Child,
}

impl Server {
    /// Starts Nereid on free ports and waits until the model is ready.
    pub fn nereid(binary: &Path, repository: &Path, extra: &[String]) -> Result<Self> {
        Self::serving("nereid", nereid_command(Command::new(binary), repository, extra))
    }

    /// Starts a server that logs its addresses as Nereid does, and waits until the model is ready.
    pub fn serving(name: &'static str, mut command: Command) -> Result<Self> {
        let (mut server, lines) = Self::spawned(name, &mut command)?;
        // In this order, as gRPC is served first.
        server.grpc = Some(announced(name, &lines, "Started GRPCInferenceService at ")?);
        server.address = announced(name, &lines, "Started HTTPService at ")?;
        // The lines are no longer needed, but the pipes are still drained.
        drop(lines);
        server.wait_for("/v2/models/identity/ready", PAUSE, |answer| answer.status == 200)?;
        Ok(server)
    }

    /// Starts the bare echo over HTTP of `crates/faces/kserve/examples/echo.rs`.
    pub fn http_echo(binary: &Path) -> Result<Self> {
        let (mut server, lines) = Self::spawned("echo", &mut Command::new(binary))?;
        server.address = announced("echo", &lines, "Started HTTPService at ")?;
        Ok(server)
    }

    /// Starts the bare service of `crates/faces/grpc/examples/traffic`, which echoes tensors over gRPC.
    pub fn grpc_echo(binary: &Path) -> Result<Self> {
        let mut command = Command::new(binary);
        command.arg("echo");
        let (mut server, lines) = Self::spawned("echo", &mut command)?;
        server.grpc = Some(announced("echo", &lines, "Started echo at ")?);
        Ok(server)
    }

    /// Starts a server that prints where it serves.
    fn spawned(name: &'static str, command: &mut Command) -> Result<(Self, Receiver<String>)> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let (sender, lines) = sync_channel(LINES);
        follow(child.stdout.take(), sender.clone());
        follow(child.stderr.take(), sender);
        // From now on a failure ends the server too; its address is not known yet.
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        Ok((Self { name, address, grpc: None, child }, lines))
    }

    /// Starts nginx with one worker per core and a fixed answer to every request.
    pub fn nginx(folder: &Path, cores: usize, answer: &FixedAnswer) -> Result<Self> {
        let address = free_address()?;
        let errors = folder.join("nginx-errors.log");
        let configuration = folder.join("nginx.conf");
        fs::write(&configuration, nginx_configuration(folder, address, cores, answer))?;
        let child = Command::new("nginx")
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(&configuration)
            .arg("-e")
            .arg(&errors)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start nginx")?;
        let mut server = Self { name: "nginx", address, grpc: None, child };
        server.wait_for("/", PAUSE, |_| true).with_context(|| {
            format!("nginx does not serve; its errors: {}", fs::read_to_string(&errors).unwrap_or_default())
        })?;
        Ok(server)
    }

    /// Starts a server that serves HTTP and gRPC at these addresses, and waits until it and its models are ready.
    pub fn at(name: &'static str, mut command: Command, http: SocketAddr, grpc: SocketAddr) -> Result<Self> {
        let (mut server, lines) = Self::spawned(name, &mut command)?;
        server.address = http;
        server.grpc = Some(grpc);
        let started = server.wait_for("/v2/health/ready", SHORT_PAUSE, |answer| answer.status == 200);
        started.with_context(|| {
            format!("{name} printed:\n{}", lines.try_iter().collect::<Vec<_>>().join("\n"))
        })?;
        Ok(server)
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that the server and its children have used so far.
    pub fn cpu(&self) -> Result<Duration> {
        processes::cpu(self.child.id())?.with_context(|| format!("{} has ended", self.name))
    }

    /// Whether the server, or a descendant of it, runs the program with this file name.
    pub fn runs(&self, program: &str) -> Result<bool> {
        processes::run(self.child.id(), program)
    }

    /// Bytes of memory that the server has resident, without its children.
    pub fn resident_bytes(&self) -> Result<u64> {
        processes::resident_bytes(self.child.id())
    }

    /// Bytes of memory that each of the server's descendants has resident.
    pub fn resident_bytes_of_children(&self) -> Result<Vec<u64>> {
        processes::descendants(self.child.id())?.into_iter().map(processes::resident_bytes).collect()
    }

    fn wait_for(&mut self, path: &str, pause: Duration, good: impl Fn(&Answer) -> bool) -> Result<()> {
        let deadline = Instant::now() + STARTUP;
        loop {
            let answer = get(self.address, path);
            if answer.as_ref().is_ok_and(&good) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended early ({status})", self.name);
            }
            if Instant::now() > deadline {
                bail!("{} does not serve {path} within {STARTUP:?}; at last: {answer:?}", self.name);
            }
            thread::sleep(pause);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // SIGTERM rather than SIGKILL: nginx's workers outlive a killed master.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + SHUTDOWN;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                eprintln!("{} does not stop on SIGTERM; killing it", self.name);
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Completes a command that starts Nereid on free ports.
pub fn nereid_command(mut command: Command, repository: &Path, extra: &[String]) -> Command {
    command
        .arg(format!("--model-repository={}", repository.display()))
        .args(["--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0"])
        .arg("--metrics-port=0")
        .args(extra);
    command
}

/// The fixed answer of nginx.
pub struct FixedAnswer {
    /// The length of the body.
    pub body: usize,
    /// Headers in addition to nginx's own.
    pub headers: Vec<(String, String)>,
}

fn nginx_configuration(folder: &Path, address: SocketAddr, cores: usize, answer: &FixedAnswer) -> String {
    let folder = folder.display();
    let headers: String = answer
        .headers
        .iter()
        .map(|(name, value)| format!("      add_header {name} \"{value}\";\n"))
        .collect();
    let body = "x".repeat(answer.body);
    format!(
        "daemon off;
pid {folder}/nginx.pid;
worker_processes {cores};
events {{
  worker_connections 1024;
}}
http {{
  access_log off;
  server_tokens off;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_body_temp_path {folder}/client-body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  default_type application/octet-stream;
  server {{
    listen {address};
    location / {{
{headers}      return 200 \"{body}\";
    }}
  }}
}}
"
    )
}

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    let [address] = free_addresses()?;
    Ok(address)
}

/// Different ports that were free a moment ago.
pub fn free_addresses<const N: usize>() -> Result<[SocketAddr; N]> {
    // All ports are bound before the first is released.
    let listeners: Vec<_> =
        (0..N).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for (address, listener) in addresses.iter_mut().zip(&listeners) {
        *address = listener.local_addr()?;
    }
    Ok(addresses)
}

/// Sends every line of a pipe until it closes, and drains the pipe even after the receiver is dropped.
fn follow(pipe: Option<impl Read + Send + 'static>, sender: SyncSender<String>) {
    let Some(pipe) = pipe else { return };
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
}

/// Waits for the log line with the server's address.
fn announced(name: &str, lines: &Receiver<String>, words: &str) -> Result<SocketAddr> {
    let deadline = Instant::now() + STARTUP;
    let mut seen = String::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(address) = announcement(&line, words) {
                    return Ok(address);
                }
                seen += &line;
                seen.push('\n');
            }
            Err(RecvTimeoutError::Timeout) => {
                bail!("{name} printed no line with `{words}` within {STARTUP:?}; its output:\n{seen}")
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("{name} ended before it served; its output:\n{seen}")
            }
        }
    }
}

fn announcement(line: &str, words: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(words)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_in_a_log_line() {
        let line = "I1121 04:59:18.000001 12 http_server.cc:1] \"Started HTTPService at 127.0.0.1:41234\"";
        let words = "Started HTTPService at ";
        assert_eq!(announcement(line, words), Some(([127, 0, 0, 1], 41234).into()));
        assert_eq!(
            announcement("Started HTTPService at 127.0.0.1:8000", words),
            Some(([127, 0, 0, 1], 8000).into())
        );
        assert_eq!(announcement("Started HTTPService at nowhere", words), None);
        assert_eq!(announcement("Started Metrics Service at 127.0.0.1:8002", words), None);
    }

    #[test]
    fn a_server_that_ends_early_is_reported_with_its_output() {
        let folder = tempfile::tempdir().unwrap();
        let extra = ["unused".to_owned()];
        let error = Server::nereid(Path::new("/bin/echo"), folder.path(), &extra).err().unwrap().to_string();
        assert!(
            error.contains("ended before it served")
                && error.contains("--http-port=0")
                && error.contains(" unused"),
            "{error}"
        );
    }

    #[test]
    fn a_dropped_server_has_ended() {
        let child = Command::new("/bin/sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let server = Server { name: "sleep", address: ([127, 0, 0, 1], 1).into(), grpc: None, child };
        assert!(server.cpu().unwrap() < Duration::from_secs(1));
        drop(server);
        assert_eq!(processes::cpu(pid).unwrap(), None);
    }
}
