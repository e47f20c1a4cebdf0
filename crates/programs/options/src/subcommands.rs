//! The subcommands and their options.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::Shell;
use nereid_access::Expiry;
use nereid_assembly::{AgentConfig, PlatformConfig};
use nereid_cuda::PoolSizes;
use nereid_repository::ReadOptions;

use super::additions::{AddOptions, InitOptions};
use super::agents::AgentOptions;
use super::backends::ConfigurationOptions;
use super::client::{InferOptions, TopOptions};
use super::health::HealthOptions;
use super::tune::TuneOptions;

/// The subcommands.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "documentation of a variant would replace the help of its options")]
pub enum Command {
    Init(InitOptions),
    Add(Box<AddOptions>),
    Check(Box<CheckOptions>),
    Pull(PullOptions),
    Health(Box<HealthOptions>),
    Infer(Box<InferOptions>),
    Top(Box<TopOptions>),
    Tune(Box<TuneOptions>),
    Keys(KeysOptions),
    Access(AccessOptions),
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

/// Manage API keys: each proves that a client is a principal of the access policy.
#[derive(Debug, Args)]
pub struct KeysOptions {
    /// The subcommand.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// The subcommands of `nereid keys`.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key for a principal, and print it. It is shown only now.
    Add {
        /// File of the access policy, which names the file of keys.
        #[arg(value_name = "POLICY")]
        policy: PathBuf,

        /// The principal that the key proves.
        #[arg(value_name = "PRINCIPAL")]
        principal: String,

        /// Last day of the key in UTC, such as 2027-12-31, a number of days such as 90d, or never.
        #[arg(long, value_name = "WHEN", default_value = "365d")]
        expires: Expiry,

        /// A remark for the list of keys.
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
    },
    /// List the keys, by principal. The secret parts are stored nowhere.
    List {
        /// File of the access policy, which names the file of keys.
        #[arg(value_name = "POLICY")]
        policy: PathBuf,
    },
    /// Revoke keys. Running servers refuse them within seconds.
    Revoke {
        /// File of the access policy, which names the file of keys.
        #[arg(value_name = "POLICY")]
        policy: PathBuf,

        /// Ids of keys, as listed, or whole keys.
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
    },
}

/// Check an access policy.
#[derive(Debug, Args)]
pub struct AccessOptions {
    /// The subcommand.
    #[command(subcommand)]
    pub command: AccessCommand,
}

/// The subcommands of `nereid access`.
#[derive(Debug, Subcommand)]
pub enum AccessCommand {
    /// Print who may do what. With a principal and a model: which rights the principal has on the model, and why.
    Check {
        /// File of the access policy.
        #[arg(value_name = "POLICY")]
        policy: PathBuf,

        /// A principal, or anonymous for clients without credentials.
        #[arg(value_name = "PRINCIPAL", requires = "model")]
        principal: Option<String>,

        /// Name of a model, which need not exist.
        #[arg(value_name = "MODEL")]
        model: Option<String>,

        /// The model's namespace: its repository, as --model-repository names it. Without it, rights in any namespace count.
        #[arg(value_name = "NAMESPACE")]
        namespace: Option<String>,
    },
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
