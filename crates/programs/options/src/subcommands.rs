//! The subcommands and their options.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::Shell;
use nereid_assembly::{AgentConfig, PlatformConfig};
use nereid_cuda::PoolSizes;
use nereid_repository::ReadOptions;

use super::agents::AgentOptions;
use super::backends::ConfigurationOptions;

/// The subcommands.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "documentation of a variant would replace the help of its options")]
pub enum Command {
    Check(Box<CheckOptions>),
    Pull(PullOptions),
    Completions(CompletionsOptions),
}

/// Prints a script that completes options in a shell. In bash: source <(nereid completions bash).
#[derive(Debug, Args)]
pub struct CompletionsOptions {
    /// The shell.
    pub shell: Shell,
}

/// Download the models of a repository into a folder: from s3://, gs://, as://, hf://, oci:// or https://. Resumes an
/// interrupted download.
#[derive(Debug, Args)]
pub struct PullOptions {
    /// Address of the models.
    pub address: String,

    /// The folder that they are put into.
    pub folder: PathBuf,
}

/// Checks model repositories, without loading a model unless --deep is given. Exits with 1 if a model would not load.
#[derive(Debug, Args)]
pub struct CheckOptions {
    /// Model repositories, checked together as one server would serve them: folders, or addresses (s3://, gs://, as://,
    /// hf://, oci://, https://), which are fetched and removed afterwards.
    #[arg(value_name = "REPOSITORY", required = true)]
    pub repositories: Vec<PathBuf>,

    /// Load the models without errors, one at a time, with one instance each, to find problems that only their backends
    /// detect.
    #[arg(long, conflicts_with = "complete")]
    pub deep: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,

    /// Print the completed configuration of this model instead. Reads the model's file, but creates no instance.
    #[arg(long, value_name = "MODEL", conflicts_with = "json")]
    pub complete: Option<String>,

    #[command(flatten)]
    agents: AgentOptions,

    #[command(flatten)]
    configurations: ConfigurationOptions,
}

impl CheckOptions {
    /// How to read model folders.
    pub fn reading(&self) -> ReadOptions {
        self.configurations.read_options()
    }

    /// The platform that the models would run on. No model is loaded, so no memory is reserved.
    pub fn platform(&self) -> PlatformConfig {
        self.configurations.platform(PoolSizes { pinned: 0, devices: [].into() })
    }

    /// The repository agents.
    pub fn agents(&self) -> AgentConfig {
        self.agents.agents()
    }
}
