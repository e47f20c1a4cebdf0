//! NVIDIA's server and Python backend, as the end-to-end tests fetch them, and servers started in their environment.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::programs::on_core;
use super::server::{Server, free_addresses};
use crate::project::Project;
use crate::test::end_to_end_environment;

/// Prepares both as the end-to-end tests do, and prints their folder.
const PREPARE: &str = "import sys; sys.path.insert(0, 'tests/end_to_end/support'); import python_backend; \
                       python_backend.prepare(); python_backend.prepare_caches(); print(python_backend.HOME)";

/// The folder with NVIDIA's server, its Python backend and what they need.
pub struct Nvidia {
    home: PathBuf,
    core: Option<u32>,
}

impl Nvidia {
    /// Fetches the servers unless they are present, into an environment with the end-to-end tests' requirements: that
    /// of this interpreter, or a new one.
    pub fn prepare(project: &Project, python: Option<&Path>) -> Result<Self> {
        let python = match python {
            Some(python) => python.to_owned(),
            None => end_to_end_environment(project)?.program("python"),
        };
        let output = project.command(python).args(["-c", PREPARE]).output().context("cannot start Python")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Self { home: PathBuf::from(String::from_utf8(output.stdout)?.trim()), core: None })
    }

    /// Limits the servers to one processor.
    pub fn on_core(self, core: impl Into<Option<u32>>) -> Self {
        Self { core: core.into(), ..self }
    }

    /// The server's program.
    pub fn program(&self) -> PathBuf {
        self.home.join("server/bin/tritonserver")
    }

    /// The folder of backends.
    pub fn backends(&self) -> PathBuf {
        self.home.join("backends")
    }

    /// The folder of response caches.
    pub fn caches(&self) -> PathBuf {
        self.home.join("caches")
    }

    /// The virtual environment of the models.
    pub fn python(&self) -> PathBuf {
        self.home.join("python")
    }

    /// Starts a server, NVIDIA's or ours: both receive the same flags and the same environment.
    pub fn start(
        &self,
        name: &'static str,
        program: &Path,
        repository: &Path,
        flags: &[String],
    ) -> Result<Server> {
        let [http, grpc, metrics] = free_addresses()?;
        let mut command = Command::new(program);
        command
            .arg(format!("--model-repository={}", repository.display()))
            .args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"])
            .arg(format!("--http-port={}", http.port()))
            .arg(format!("--grpc-port={}", grpc.port()))
            .arg(format!("--metrics-port={}", metrics.port()))
            .args(flags);
        // The Python backend's stub finds its libraries and its interpreter by these.
        let python = self.python();
        command.env("VIRTUAL_ENV", &python);
        command.env("LD_LIBRARY_PATH", self.home.join("libraries"));
        let path = env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", python.join("bin").display()));
        Server::at(name, on_core(command, self.core), http, grpc)
    }
}
