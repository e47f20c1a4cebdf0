//! The options of `nereid tune`.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nereid_tune::search::{Goal, Objective};
use nereid_tune::{Model, Tune};

use super::DEFAULT_REPOSITORY;
use super::values::whole_in;

/// Clients with the objective latency, and with the others.
const ONE: NonZeroUsize = NonZeroUsize::MIN;
const SEVERAL: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// Find the best instances, threads, batches and engine for a model, by measuring it on this machine. Prints the configuration, and writes
/// a page with pictures. No server may be running that needs the processors, too.
#[derive(Debug, Args)]
pub struct TuneOptions {
    /// Name of the model.
    #[arg(value_name = "MODEL")]
    model: String,

    /// The repository, a folder.
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_REPOSITORY)]
    repository: PathBuf,

    /// The objective: the most requests a second, the shortest p99, or the least memory with four fifths of the most requests a second.
    #[arg(long, value_name = "WHAT", default_value = "throughput")]
    objective: ObjectiveName,

    /// The longest p99 in milliseconds: settings with a longer one lose against those within it.
    #[arg(long, value_name = "MILLISECONDS", value_parser = whole_in::<u32>(1..=3_600_000))]
    p99: Option<u32>,

    /// Requests at the same time. Default: 16, and 1 for latency.
    #[arg(long, value_name = "COUNT", value_parser = whole_in::<u32>(1..=10_000))]
    clients: Option<u32>,

    /// Time limit of the search, loads of the model included.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = whole_in::<u32>(5..=86_400))]
    seconds: u32,

    /// An input, as for nereid infer: INPUT=value or INPUT=@file. Others are random. May be given several times.
    #[arg(long, value_name = "INPUT=VALUE")]
    input: Vec<String>,

    /// The shape of a random input, such as x=1,3,224,224. Without it, dimensions of any size are 1. May be given several times.
    #[arg(long, value_name = "INPUT=SIZES")]
    shape: Vec<String>,

    /// A further model to load, for inner requests of the model. May be given several times.
    #[arg(long, value_name = "MODEL")]
    load: Vec<String>,

    /// File of the page. Default: nereid-tune-MODEL.html in the current folder.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write the configuration into the repository; the present one is kept as config.pbtxt.before-tuning.
    #[arg(long)]
    write: bool,

    /// Further options of the server, such as -- --backend-config=onnxruntime,engine=ort.
    #[arg(last = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ObjectiveName {
    Throughput,
    Latency,
    Memory,
}

impl TuneOptions {
    /// The search, in servers that `program` runs.
    pub fn tune(&self, program: PathBuf) -> Tune {
        let goal = match self.objective {
            ObjectiveName::Throughput => Goal::Throughput,
            ObjectiveName::Latency => Goal::Latency,
            ObjectiveName::Memory => Goal::Memory,
        };
        let usual = if goal == Goal::Latency { ONE } else { SEVERAL };
        let clients = self.clients.and_then(|count| NonZeroUsize::new(usize::try_from(count).ok()?));
        Tune {
            model: Model {
                program,
                options: self.options.clone(),
                repository: self.repository.clone(),
                name: self.model.clone(),
                others: self.load.clone(),
            },
            objective: Objective { goal, p99: self.p99.map(f64::from) },
            clients: clients.unwrap_or(usual),
            budget: Duration::from_secs(self.seconds.into()),
            inputs: self.input.clone(),
            shapes: self.shape.clone(),
        }
    }

    /// File of the page.
    pub fn report(&self) -> PathBuf {
        let name = || format!("nereid-tune-{}.html", self.model.replace('/', "_")).into();
        self.report.clone().unwrap_or_else(name)
    }

    /// Whether the configuration is written into the repository.
    pub fn is_written(&self) -> bool {
        self.write
    }
}

#[cfg(test)]
mod tests {
    use crate::{Command, parse};

    fn tune(arguments: &[&str]) -> super::TuneOptions {
        let arguments = ["nereid", "tune"].iter().chain(arguments).map(Into::into).collect();
        match parse(arguments, |_| None).unwrap().command {
            Some(Command::Tune(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clients_follow_from_the_objective() {
        for (arguments, clients, p99) in [
            (&["m"][..], 16, None),
            (&["m", "--objective=latency"], 1, None),
            (&["m", "--objective", "memory", "--p99=20"], 16, Some(20.0)),
            (&["m", "--objective=latency", "--clients=7"], 7, None),
        ] {
            let found = tune(arguments).tune("nereid".into());
            assert_eq!((found.clients.get(), found.objective.p99), (clients, p99), "{arguments:?}");
        }
    }

    #[test]
    fn options_of_the_server_follow_two_dashes() {
        let options =
            tune(&["a/b", "--load=x", "--", "--backend-config=python,y=z", "--strict-readiness=false"]);
        let found = options.tune("p".into());
        assert_eq!(found.model.options, ["--backend-config=python,y=z", "--strict-readiness=false"]);
        assert_eq!((found.model.others, found.model.repository), (vec!["x".to_owned()], "models".into()));
        assert_eq!(options.report().to_str(), Some("nereid-tune-a_b.html"));
    }
}
