//! The command line: each option is declared once, here. Names, defaults and meaning are the reference's where it has
//! the option.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, ValueEnum};
use nereid_core::{RateLimit, ResourceLimit};

use crate::logging::Logging;

/// Serves the models of a repository over HTTP.
#[derive(Debug, Parser)]
#[command(name = "nereid", version, disable_help_subcommand = true)]
pub(crate) struct Options {
    /// Folder of models to serve. May be given several times.
    #[arg(long, visible_alias = "model-store", value_name = "PATH", required = true, action = ArgAction::Append)]
    pub model_repository: Vec<PathBuf>,

    /// Name the server answers with.
    #[arg(long, value_name = "NAME", default_value = "nereid")]
    pub id: String,

    /// Exit when a model cannot be loaded at start. If false, the others are served.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub exit_on_error: bool,

    /// Seconds to wait for requests in progress when told to stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub exit_timeout_secs: u64,

    /// Report ready only when every model is.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub strict_readiness: bool,

    /// How many models are loaded side by side.
    #[arg(long, value_name = "COUNT", default_value = "4")]
    pub model_load_thread_count: NonZeroUsize,

    /// Limit executions over all models by the resources that instance groups need.
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub rate_limit: RateLimitMode,

    /// How much there is of a resource, on each device or on one, as NAME:COUNT or NAME:COUNT:DEVICE. May be given
    /// several times. If it is not given, there is of each as much as the neediest instance needs.
    #[arg(long, value_name = "RESOURCE", value_parser = resource, action = ArgAction::Append)]
    pub rate_limit_resource: Vec<ResourceLimit>,

    /// Requests in progress at a time, over all models, before further ones are refused; 0 for any number.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub max_inflight_requests: usize,

    /// Serve HTTP.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub allow_http: bool,

    /// Address to serve HTTP on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub http_address: IpAddr,

    /// Port to serve HTTP on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub http_port: u16,

    /// Threads that read and write HTTP. Default: one for each processor.
    #[arg(long, value_name = "COUNT")]
    pub http_thread_count: Option<NonZeroUsize>,

    /// Longest JSON part of a request, and longest tensor given in JSON or as a raw body, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub http_max_input_size: usize,

    /// Longest request body, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = i32::MAX as usize)]
    pub http_max_body_size: usize,

    /// Verbose messages: 0 for none; 1 and more for some and more.
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    pub log_verbose: u8,

    /// Log messages of level info.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub log_info: bool,

    /// Log messages of level warning.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub log_warning: bool,

    /// Log messages of level error.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub log_error: bool,
}

impl Options {
    /// How long to wait for requests in progress when told to stop.
    pub(crate) fn exit_timeout(&self) -> Duration {
        Duration::from_secs(self.exit_timeout_secs)
    }

    /// Threads that read and write HTTP.
    pub(crate) fn http_threads(&self) -> usize {
        self.http_thread_count.or_else(|| available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }

    /// How executions are limited.
    pub(crate) fn rate_limit(&self) -> RateLimit {
        match self.rate_limit {
            RateLimitMode::Off => RateLimit::Off,
            RateLimitMode::ExecutionCount => RateLimit::ExecutionCount(self.rate_limit_resource.clone()),
        }
    }

    /// What is logged.
    pub(crate) fn logging(&self) -> Logging {
        Logging {
            verbose: self.log_verbose,
            info: self.log_info,
            warning: self.log_warning,
            error: self.log_error,
        }
    }
}

/// How executions are limited over all models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum RateLimitMode {
    /// They are not
    #[default]
    Off,
    /// By resources; instances that executed less often go first
    ExecutionCount,
}

/// Reads `NAME:COUNT` or `NAME:COUNT:DEVICE`.
fn resource(text: &str) -> Result<ResourceLimit, String> {
    let mut parts = text.split(':');
    let name = parts.next().filter(|name| !name.is_empty()).ok_or("the name of the resource is missing")?;
    let count = parts.next().ok_or("the count is missing: NAME:COUNT or NAME:COUNT:DEVICE")?;
    let count = count.parse().map_err(|_| format!("the count '{count}' is not a whole number from 0 on"))?;
    let device = match parts.next() {
        None => None,
        Some(device) => match device.parse() {
            Ok(device) if device >= 0 => Some(device),
            _ => return Err(format!("the device '{device}' is not a number from 0 on")),
        },
    };
    match parts.next() {
        None => Ok(ResourceLimit { name: name.to_owned(), count, device }),
        Some(_) => Err("there are more than three parts: NAME:COUNT or NAME:COUNT:DEVICE".into()),
    }
}

/// `true` and `false`, and the other words the reference takes for them.
fn boolean() -> BoolishValueParser {
    BoolishValueParser::new()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["nereid", "--model-repository=models"], arguments].concat())
    }

    #[test]
    fn the_declaration_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn values_go_with_or_without_an_equals_sign() {
        for arguments in [
            ["--http-port=9000", "--exit-on-error=false"].as_slice(),
            &["--http-port", "9000", "--exit-on-error", "0"],
        ] {
            let options = parsed(arguments).unwrap();
            assert_eq!((options.http_port, options.exit_on_error), (9000, false));
        }
    }

    #[test]
    fn several_repositories_may_be_given_by_either_name() {
        let options = parsed(&["--model-store=more"]).unwrap();
        assert_eq!(options.model_repository, [PathBuf::from("models"), PathBuf::from("more")]);
    }

    #[test]
    fn resources_have_a_name_a_count_and_perhaps_a_device() {
        let options = parsed(&[
            "--rate-limit=execution_count",
            "--rate-limit-resource=A:4",
            "--rate-limit-resource=B:1:2",
        ]);
        let limit = |name: &str, count, device| ResourceLimit { name: name.into(), count, device };
        let expected = RateLimit::ExecutionCount(vec![limit("A", 4, None), limit("B", 1, Some(2))]);
        assert_eq!(options.unwrap().rate_limit(), expected);
        assert_eq!(parsed(&["--rate-limit-resource=A:4"]).unwrap().rate_limit(), RateLimit::Off);
        for wrong in ["A", ":1", "A:", "A:-1", "A:1:", "A:1:x", "A:1:-1", "A:1:2:3"] {
            assert!(resource(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for arguments in [
            ["--http-port=70000"],
            ["--strict-readiness=maybe"],
            ["--http-thread-count=0"],
            ["--rate-limit=sometimes"],
            ["--nope=1"],
        ] {
            assert!(parsed(&arguments).is_err(), "{arguments:?}");
        }
        assert!(Options::try_parse_from(["nereid"]).is_err());
    }
}
