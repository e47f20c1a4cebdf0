//! The options of access.

use std::path::PathBuf;

use clap::Args;
use nereid_assembly::AccessRules;

/// The options of access.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessOptions {
    /// TOML file of the access policy: who may do what, over all protocols. The server follows it, and the file of API keys
    /// that it names. By default, every client may do everything that --trust-network does not concern. See
    /// docs/security.md.
    #[arg(long, value_name = "FILE")]
    access: Option<PathBuf>,

    /// Let clients of other machines load models with files or configurations of their own, which can run code, and use
    /// shared memory. Triton always does. Has no effect with --access: the policy decides.
    #[arg(long)]
    trust_network: bool,

    /// File of the audit log: a line of JSON for each load, unload, change of settings, releases and shared memory, and
    /// for each refusal. SIGHUP reopens it. See docs/security.md.
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
}

impl AccessOptions {
    /// The file of the audit log.
    pub(crate) fn audit_log(&self) -> Option<PathBuf> {
        self.audit_log.clone()
    }

    /// The rights of clients.
    pub(crate) fn rules(&self) -> AccessRules {
        match (&self.access, self.trust_network) {
            (Some(file), _) => AccessRules::Policy(file.clone()),
            (None, true) => AccessRules::Trusting,
            (None, false) => AccessRules::Wary,
        }
    }
}
