//! Configures an embedded server with the options of the command line, under the same names.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use clap::CommandFactory;
use nereid_assembly::Process;
use nereid_core::backend_api::{Error, Result};
use nereid_protocol::LogControl;

use crate::options::{self, Options};
use crate::server::Server;

/// Configures a [`Server`]. Defaults match the command line.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    /// Names without their dashes, and values.
    options: Vec<(String, OsString)>,
    listens: bool,
    log: Option<Arc<LogControl>>,
}

/// The names of all options that [`Builder::option`] takes, in the order of `nereid --help`.
pub fn option_names() -> Vec<String> {
    let command = Options::command();
    options::declared(&command).flat_map(|option| options::names(option).map(str::to_owned)).collect()
}

impl Builder {
    /// Serves the models in this repository: a folder, or an address such as `s3://bucket/models`. Further calls add
    /// further repositories.
    pub fn model_repository(mut self, path: impl AsRef<Path>) -> Self {
        self.options.push(("model-repository".to_owned(), path.as_ref().into()));
        self
    }

    /// Sets an option of the command line, named without leading dashes: `option("model-load-thread-count", 8)`.
    /// Options that accept several values accumulate. [`start`](Self::start) reports invalid ones.
    pub fn option(mut self, name: impl Into<String>, value: impl Display) -> Self {
        self.options.push((name.into(), value.to_string().into()));
        self
    }

    /// Serves clients as the command does: HTTP, gRPC and metrics, on the configured ports. Without this call no port
    /// is opened.
    pub fn listen(mut self) -> Self {
        self.listens = true;
        self
    }

    /// Lets clients read and change the settings of this log.
    pub(crate) fn log(mut self, log: Arc<LogControl>) -> Self {
        self.log = Some(log);
        self
    }

    /// Uses this log control, which the C library shares with the log of the process.
    #[doc(hidden)]
    pub fn with_log(self, log: &Arc<LogControl>) -> Self {
        self.log(Arc::clone(log))
    }

    /// Starts the server and waits until the initial models are loaded or have failed.
    ///
    /// # Errors
    /// An option is invalid, a port cannot be opened, or a model failed to load and `exit-on-error` is not false.
    pub async fn start(self) -> Result<Server> {
        let options = self.parse()?;
        if let Some(reason) = options.contradiction() {
            return Err(Error::invalid_arg(reason));
        }
        let mut config = options.config().map_err(Error::invalid_arg)?;
        let threads = if self.listens { options.http.threads() } else { 1 };
        if !self.listens {
            config.faces.clear();
        }
        for advice in options.advice() {
            tracing::debug!("{advice}");
        }
        let process = Process {
            log: self.log.unwrap_or_default(),
            backend_metrics: nereid_triton_host::metric_registry(),
            ..Process::default()
        };
        Server::start(&options, config, process, threads).await
    }

    /// The options as the command line has them.
    fn parse(&self) -> Result<Options> {
        let command = Options::command();
        let is_switch = |name: &str| {
            let mut declared = options::declared(&command);
            declared.find(|option| options::names(option).any(|known| known == name)).map(options::is_switch)
        };
        let mut arguments = vec![OsString::from("nereid")];
        for (name, value) in &self.options {
            let mut argument = OsString::from(format!("--{name}"));
            match is_switch(name) {
                None => return Err(Error::invalid_arg(format!("unknown option '{name}'"))),
                Some(true) if value == "true" => {}
                Some(true) if value == "false" => continue,
                Some(true) => {
                    let value = value.display();
                    return Err(Error::invalid_arg(format!("{name} must be true or false, not '{value}'")));
                }
                Some(false) => {
                    argument.push("=");
                    argument.push(value);
                }
            }
            arguments.push(argument);
        }
        // Variables of the environment are the command's.
        options::parse(arguments, |_| None).map_err(|error| Error::invalid_arg(options::reason(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[(&str, &str)]) -> Result<Options> {
        let builder = Builder::default().model_repository("models");
        options.iter().fold(builder, |builder, (name, value)| builder.option(*name, value)).parse()
    }

    #[test]
    fn builder_options_match_the_command_line() {
        let options =
            parsed(&[("exit-timeout-secs", "7"), ("disable-auto-complete-config", "true")]).unwrap();
        assert_eq!(options.exit_timeout().as_secs(), 7);
        assert!(!options.configurations.read_options().complete);
        assert!(
            parsed(&[("disable-auto-complete-config", "false")])
                .unwrap()
                .configurations
                .read_options()
                .complete
        );
        for (name, value, expected) in [
            ("no-such-option", "1", "unknown option 'no-such-option'"),
            ("help", "true", "unknown option 'help'"),
            ("disable-auto-complete-config", "maybe", "must be true or false, not 'maybe'"),
            ("exit-timeout-secs", "soon", "invalid value 'soon' for '--exit-timeout-secs <SECONDS>'"),
            ("id", "", ""),
        ] {
            match parsed(&[(name, value)]) {
                Ok(_) => assert!(expected.is_empty(), "{name}={value}"),
                Err(error) => assert!(error.message().contains(expected), "{error}"),
            }
        }
        let error = Builder::default().parse().unwrap_err();
        assert!(error.message().contains("--model-repository"), "{error}");
    }

    #[test]
    fn builder_accepts_every_option_and_alias() {
        let names = option_names();
        assert!(names.len() > 90 && names.contains(&"model-store".to_owned()), "{names:?}");
        for name in &names {
            // Whether the value is right or not, the option is known.
            if let Err(error) = parsed(&[(name, "-")]) {
                assert!(!error.message().contains("unexpected argument"), "{name}: {error}");
                assert!(!error.message().contains("unknown option"), "{name}: {error}");
            }
        }
    }
}
