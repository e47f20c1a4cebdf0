//! Cost and benefit of the response cache: requests to a cached model against the same requests to the same model
//! without the cache, and cached requests against NVIDIA's server with its local cache.
//!
//! Runs alternate, and ratios are taken within each pair. In the comparison with NVIDIA's server, each server has one
//! processor and the load another, so that requests per second measure the server's cost.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::client::{Request, get, post};
use super::load::{Load, LoadResults};
use super::nvidia::Nvidia;
use super::programs::{LOAD_CORE, SERVER_CORE};
use super::reference::setup::request;
use super::server::Server;
use super::summary::{Pair, Run, heading, median, rows};
use super::{grpc, programs};
use crate::project::Project;

/// Requests to NVIDIA's server and to ours: how they are sent, bytes in the tensor, and the title.
const REFERENCE_CASES: &[(Protocol, usize, &str)] = &[
    (Protocol::Http, SMALL, "HTTP, 64 B"),
    (Protocol::Http, 4 << 10, "HTTP, 4 KiB"),
    (Protocol::Http, 64 << 10, "HTTP, 64 KiB"),
    (Protocol::Http, LARGE, "HTTP, 1 MiB"),
    (Protocol::Grpc, SMALL, "gRPC, 64 B"),
    (Protocol::Grpc, 4 << 10, "gRPC, 4 KiB"),
    (Protocol::Grpc, 64 << 10, "gRPC, 64 KiB"),
    (Protocol::Grpc, LARGE, "gRPC, 1 MiB"),
];

#[derive(Clone, Copy)]
enum Protocol {
    Http,
    Grpc,
}

/// Bytes in the tensor of a small request, and of a large one.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;

/// Small enough to be full after [`FILLING`] misses of a small request.
const CACHE: &str = "--cache-config=local,size=33554432";
const FILLING: u64 = 100_000;

/// Large enough for every answer.
const ROOMY_CACHE: &str = "--cache-config=local,size=17179869184";

const WARM_UP_SECONDS: u32 = 1;

const TENSORS: &str = r#"max_batch_size: 8
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
"#;

const CACHED: &str = "response_cache { enable: true }\n";

const PYTHON_MODEL: &str = r#"import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = (pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests)
        outputs = (pb_utils.Tensor("OUTPUT0", tensor.as_numpy()) for tensor in inputs)
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"#;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Length of each run
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Pairs of runs for each load
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Interpreter of an environment with the requirements of the end-to-end tests, instead of making one
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Leave out NVIDIA's server
    #[arg(long)]
    without_reference: bool,
}

/// Requests of one kind.
enum Requests<'a> {
    /// Requests to one model, with a share of new ones.
    Http { load: Load, connections: u32, every: u32 },
    /// Calls of one model.
    Grpc(grpc::Load<'a>),
}

impl Requests<'_> {
    fn on_core(self, core: u32) -> Self {
        match self {
            Self::Http { load, connections, every } => {
                Self::Http { load: load.on_core(core), connections, every }
            }
            Self::Grpc(load) => Self::Grpc(load),
        }
    }

    /// Sends for some seconds; `run` is the number of the run.
    fn send(&self, server: &Server, seconds: u32, run: u32) -> Result<LoadResults> {
        match self {
            Self::Http { load, connections, every } => {
                load.run_with(server.address, *connections, seconds, &[every.to_string(), run.to_string()])
            }
            Self::Grpc(load) => load.run(server, seconds),
        }
    }
}

/// A comparison, and the ratio that it should reach.
struct Comparison<'a> {
    title: &'static str,
    yardstick: &'static str,
    target: Target,
    /// The least number of requests to send before measuring.
    warm_up: u64,
    ours: Requests<'a>,
    theirs: Requests<'a>,
}

/// The limit on a ratio.
#[derive(Clone, Copy)]
enum Target {
    /// CPU time per request, at most this many times the yardstick's.
    Cpu(f64),
    /// Requests per second, at least this many times the yardstick's.
    Rate(f64),
}

impl Target {
    /// The measured ratio, and the target.
    fn verdict(self, pairs: &[Pair]) -> String {
        let ratio = |figure: fn(&Run) -> f64| {
            median(pairs.iter().map(|it| figure(&it.nereid) / figure(&it.yardstick)))
        };
        let (what, found, bound, most) = match self {
            Self::Cpu(most) => ("CPU", ratio(Run::cpu_us_per_request), most, true),
            Self::Rate(least) => ("requests/s", ratio(|run| run.results.rate), least, false),
        };
        let met = if most { found <= bound } else { found >= bound };
        let (sign, verdict) = (if most { "at most" } else { "at least" }, if met { "met" } else { "MISSED" });
        format!("{what}: {found:.2} times the yardstick's, {sign} {bound:.2} wanted: {verdict}")
    }
}

/// Measures, and prints a table for each comparison.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let folder = tempfile::tempdir()?;
    let bench = Bench { folder: folder.path(), options, runs: Cell::new(0) };
    bench.compare_with_uncached(&binary)?;
    if !options.without_reference {
        let nvidia = Nvidia::prepare(project, options.python.as_deref())?;
        bench.compare_with_reference(&nvidia.on_core(SERVER_CORE), &binary, &programs::traffic(project)?)?;
    }
    Ok(())
}

struct Bench<'a> {
    folder: &'a Path,
    options: &'a Options,
    /// Number of runs so far; each run sends requests that no earlier run has sent.
    runs: Cell<u32>,
}

impl Bench<'_> {
    fn compare_with_uncached(&self, binary: &Path) -> Result<()> {
        let repository = self.folder.join("identity");
        write_model(&repository, "identity", "backend: \"identity\"\n")?;
        write_model(&repository, "cached", &format!("backend: \"identity\"\n{CACHED}"))?;
        let server = Server::nereid(binary, &repository, &[CACHE.to_owned()])?;
        for model in ["identity", "cached"] {
            [SMALL, LARGE].iter().try_for_each(|bytes| check(&server, &request(model, *bytes)))?;
        }
        let of = |model, bytes, connections, every| self.requests(model, bytes, connections, every);
        let (hits, mix) = (of("cached", SMALL, 64, 0)?, of("cached", SMALL, 64, 100)?);
        for comparison in [
            Comparison {
                title: "hit, 64 B",
                yardstick: "no cache",
                target: Target::Cpu(1.1),
                warm_up: 0,
                ours: of("cached", SMALL, 8, 0)?,
                theirs: of("identity", SMALL, 8, 0)?,
            },
            Comparison {
                title: "hit, 1 MiB",
                yardstick: "no cache",
                target: Target::Cpu(1.2),
                warm_up: 0,
                ours: of("cached", LARGE, 8, 0)?,
                theirs: of("identity", LARGE, 8, 0)?,
            },
            Comparison {
                title: "miss, full",
                yardstick: "no cache",
                target: Target::Cpu(1.05),
                warm_up: FILLING,
                ours: of("cached", SMALL, 8, 1)?,
                theirs: of("identity", SMALL, 8, 1)?,
            },
            Comparison {
                title: "1 % misses",
                yardstick: "hits",
                target: Target::Rate(0.9),
                warm_up: 0,
                ours: mix,
                theirs: hits,
            },
        ] {
            self.compare(&comparison, &server, &server)?;
        }
        let roomy = Server::nereid(binary, &repository, &[ROOMY_CACHE.to_owned()])?;
        let stored = Comparison {
            title: "miss, stored",
            yardstick: "no cache",
            target: Target::Cpu(1.05),
            warm_up: 0,
            ours: of("cached", SMALL, 8, 1)?,
            theirs: of("identity", SMALL, 8, 1)?,
        };
        self.compare(&stored, &roomy, &roomy)?;
        let counts = get(server.address, "/v2/models/cached/stats")?;
        let counts = String::from_utf8_lossy(&counts.body).into_owned();
        ensure!(counts.contains("\"cache_hit\""), "the cache was not used: {counts}");
        Ok(())
    }

    fn compare_with_reference(&self, nvidia: &Nvidia, binary: &Path, traffic: &Path) -> Result<()> {
        let (repository, backends) = (self.folder.join("python"), self.folder.join("backends"));
        write_model(&repository, "identity", &format!("backend: \"python\"\n{CACHED}"))?;
        fs::write(repository.join("identity/1/model.py"), PYTHON_MODEL)?;
        fs::create_dir_all(&backends)?;
        symlink(nvidia.backends().join("python"), backends.join("python"))?;
        let (own, theirs) = (
            ["--backend-config=python,engine=builtin".to_owned(), CACHE.to_owned()],
            [
                format!("--backend-directory={}", backends.display()),
                format!("--cache-directory={}", nvidia.caches().display()),
                CACHE.to_owned(),
            ],
        );
        let nereid = nvidia.start("nereid", binary, &repository, &own)?;
        let reference = nvidia.start("tritonserver", &nvidia.program(), &repository, &theirs)?;
        for (protocol, bytes, title) in REFERENCE_CASES {
            for server in [&nereid, &reference] {
                check(server, &request("identity", *bytes))?;
            }
            let hits = || match protocol {
                Protocol::Http => self.requests("identity", *bytes, 8, 0).map(|it| it.on_core(LOAD_CORE)),
                Protocol::Grpc => {
                    Ok(Requests::Grpc(grpc::Load::calls(traffic, 8, u32::try_from(*bytes)?, LOAD_CORE)))
                }
            };
            let comparison = Comparison {
                title,
                yardstick: "tritonserver",
                target: Target::Rate(3.0),
                warm_up: 0,
                ours: hits()?,
                theirs: hits()?,
            };
            self.compare(&comparison, &nereid, &reference)?;
        }
        Ok(())
    }

    fn requests(&self, model: &str, bytes: usize, connections: u32, every: u32) -> Result<Requests<'static>> {
        let folder = self.folder.join(format!("{model}-{bytes}"));
        fs::create_dir_all(&folder)?;
        Ok(Requests::Http { load: Load::changing(&folder, &request(model, bytes))?, connections, every })
    }

    fn compare(&self, comparison: &Comparison<'_>, ours: &Server, theirs: &Server) -> Result<()> {
        let Comparison { title, yardstick, target, .. } = comparison;
        let once = |server: &Server, requests: &Requests<'_>, seconds| {
            let run = self.runs.replace(self.runs.get() + 1);
            let before = server.cpu()?;
            let results = requests.send(server, seconds, run)?;
            anyhow::Ok(Run { results, cpu: server.cpu()?.saturating_sub(before) })
        };
        let mut sent = 0;
        while sent <= comparison.warm_up {
            sent += once(ours, &comparison.ours, WARM_UP_SECONDS)?.results.requests;
        }
        once(theirs, &comparison.theirs, WARM_UP_SECONDS)?;
        let seconds = self.options.seconds;
        let pairs: Vec<_> = (0..self.options.pairs)
            .map(|_| {
                let nereid = once(ours, &comparison.ours, seconds)?;
                Ok(Pair { nereid, yardstick: once(theirs, &comparison.theirs, seconds)? })
            })
            .collect::<Result<_>>()
            .with_context(|| format!("'{title}' failed"))?;
        println!(
            "{}\n{}{title}: {}\n",
            heading("requests"),
            rows(title, yardstick, &pairs),
            target.verdict(&pairs)
        );
        Ok(())
    }
}

/// Checks that a request is answered correctly, also when it is repeated.
fn check(server: &Server, request: &Request) -> Result<()> {
    for _ in 0..2 {
        let answer = post(server.address, request)?;
        let text = || String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(answer.status == 200, "{} refuses {}: {}", server.name, request.path, text());
        let tensor = &request.body[request.header_length..];
        ensure!(
            answer.body.ends_with(tensor),
            "{}: {} does not return the tensor",
            server.name,
            request.path
        );
    }
    Ok(())
}

fn write_model(repository: &Path, name: &str, kind: &str) -> Result<()> {
    fs::create_dir_all(repository.join(name).join("1"))?;
    fs::write(repository.join(name).join("config.pbtxt"), format!("name: \"{name}\"\n{kind}{TENSORS}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::load::LoadResults;

    fn pair(ours: (u64, f64), theirs: (u64, f64)) -> Pair {
        let run = |(cpu_us, rate): (u64, f64)| Run {
            results: LoadResults { requests: 1000, rate, p50_us: 1, p99_us: 1 },
            cpu: Duration::from_micros(cpu_us * 1000),
        };
        Pair { nereid: run(ours), yardstick: run(theirs) }
    }

    #[test]
    fn a_verdict_compares_medians_of_ratios_with_the_target() {
        let pairs =
            [pair((11, 80.0), (10, 100.0)), pair((24, 40.0), (20, 50.0)), pair((12, 9.5), (10, 10.0))];
        for (target, expected) in [
            (Target::Cpu(1.2), "CPU: 1.20 times the yardstick's, at most 1.20 wanted: met"),
            (Target::Cpu(1.1), "CPU: 1.20 times the yardstick's, at most 1.10 wanted: MISSED"),
            (Target::Rate(0.8), "requests/s: 0.80 times the yardstick's, at least 0.80 wanted: met"),
            (Target::Rate(0.9), "requests/s: 0.80 times the yardstick's, at least 0.90 wanted: MISSED"),
        ] {
            assert_eq!(target.verdict(&pairs), expected);
        }
    }
}
