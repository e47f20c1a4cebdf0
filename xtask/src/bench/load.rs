//! Drives a server with wrk and reads wrk's results.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::client::Request;
use super::programs::on_core;

const SCRIPT: &str = include_str!("infer.lua");

/// The script for loads with some new requests: it receives their share and the number of the run.
const CHANGING: &str = include_str!("cache.lua");

/// One request, ready to be sent by wrk.
pub struct Load {
    script: PathBuf,
    body: PathBuf,
    path: String,
    header_length: usize,
    core: Option<u32>,
}

/// The results of one run of wrk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadResults {
    /// Answers that came in.
    pub requests: u64,
    /// Answers a second.
    pub rate: f64,
    /// Half of the answers took no longer, in microseconds.
    pub p50_us: u64,
    /// 99 of 100 answers took no longer, in microseconds.
    pub p99_us: u64,
}

impl Load {
    /// Writes what wrk needs into a folder.
    pub fn new(folder: &Path, request: &Request) -> Result<Self> {
        Self::with_script(folder, request, SCRIPT)
    }

    /// Like `new`, for a load that varies its requests in each run.
    pub fn changing(folder: &Path, request: &Request) -> Result<Self> {
        Self::with_script(folder, request, CHANGING)
    }

    fn with_script(folder: &Path, request: &Request, script: &str) -> Result<Self> {
        let load = Self {
            script: folder.join("infer.lua"),
            body: folder.join("body.bin"),
            path: request.path.clone(),
            header_length: request.header_length,
            core: None,
        };
        fs::write(&load.script, script)?;
        fs::write(&load.body, &request.body)?;
        Ok(load)
    }

    /// Limits the load to one processor.
    pub fn on_core(self, core: impl Into<Option<u32>>) -> Self {
        Self { core: core.into(), ..self }
    }

    /// Sends for some seconds over some connections from one thread. Any error of any request fails the run.
    pub fn run(&self, address: SocketAddr, connections: u32, seconds: u32) -> Result<LoadResults> {
        self.run_with(address, connections, seconds, &[])
    }

    /// Like `run`, with additional arguments for the script.
    pub fn run_with(
        &self,
        address: SocketAddr,
        connections: u32,
        seconds: u32,
        more: &[String],
    ) -> Result<LoadResults> {
        let mut wrk = Command::new("wrk");
        wrk.args(["--threads", "1", "--latency", "--timeout", "10s"])
            .args(["--connections", &connections.to_string(), "--duration", &format!("{seconds}s")])
            .arg("--script")
            .arg(&self.script)
            .arg(format!("http://{address}{}", self.path))
            .arg("--")
            .arg(&self.body)
            .arg(self.header_length.to_string())
            .args(more);
        let output = on_core(wrk, self.core).output().context("cannot start wrk")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "wrk failed ({}): {text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        parse_results(&text)
    }
}

/// Reads the line that the script prints; other loads print the same.
pub(super) fn parse_results(text: &str) -> Result<LoadResults> {
    let line = text.lines().find_map(|line| line.strip_prefix("seen "));
    let line = line.with_context(|| format!("wrk printed no results: {text}"))?;
    let value = |name: &str| -> Result<u64> {
        line.split(' ')
            .filter_map(|field| field.split_once('='))
            .find(|(found, _)| *found == name)
            .and_then(|(_, value)| value.parse().ok())
            .with_context(|| format!("wrk printed no `{name}`: {line}"))
    };
    for kind in ["connect", "read", "write", "status", "timeout"] {
        let count = value(kind)?;
        if count > 0 {
            bail!("{count} requests failed ({kind}): {line}");
        }
    }
    let (requests, duration_us) = (value("requests")?, value("duration_us")?);
    ensure!(requests > 0 && duration_us > 0, "no request was answered: {line}");
    Ok(LoadResults {
        requests,
        rate: requests as f64 / (duration_us as f64 / 1e6),
        p50_us: value("p50_us")?,
        p99_us: value("p99_us")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Running 1s test\nseen requests=500 duration_us=2000000 p50_us=90 p99_us=300 connect=0 \
                        read=0 write=0 status=0 timeout=0\n";

    #[test]
    fn a_good_run_is_read() {
        assert_eq!(
            parse_results(GOOD).unwrap(),
            LoadResults { requests: 500, rate: 250.0, p50_us: 90, p99_us: 300 }
        );
    }

    #[test]
    fn any_failed_request_fails_the_run() {
        for kind in ["connect", "read", "write", "status", "timeout"] {
            let text = GOOD.replace(&format!("{kind}=0"), &format!("{kind}=2"));
            let error = parse_results(&text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("2 requests failed ({kind})")), "{error}");
        }
    }

    #[test]
    fn incomplete_wrk_output_fails() {
        assert!(parse_results("Running 1s test\n").is_err());
        assert!(parse_results(&GOOD.replace(" p99_us=300", "")).is_err());
        assert!(parse_results(&GOOD.replace("requests=500", "requests=0")).is_err());
        assert!(parse_results(&GOOD.replace("requests=500", "requests=many")).is_err());
    }
}
