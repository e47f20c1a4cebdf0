//! The options of access.

use std::path::PathBuf;

use clap::Args;

/// The options of access.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessOptions {
    /// TOML file of the access policy: who may do what, over all protocols. The server follows it, and the file of API keys
    /// that it names. By default, every client may do everything. See docs/security.md.
    #[arg(long, value_name = "FILE")]
    pub access: Option<PathBuf>,
}
