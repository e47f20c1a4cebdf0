//! The help of the command line: `-h` shows the options that most servers set, `--help` shows all.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use super::Options;
use super::health::HTTP_OPTIONS;

/// The options that most servers set.
const FREQUENT: [&str; 10] = [
    "model-repository",
    "model-control-mode",
    "load-model",
    "backend-config",
    "exit-on-error",
    "http-port",
    "grpc-port",
    "metrics-port",
    "cache-config",
    "log-verbose",
];

const EXAMPLES: &str = "\
Examples:
  nereid --model-repository=models                  serve the models in the folder 'models' on ports 8000, 8001 and 8002
  nereid --model-repository=s3://bucket/models      the same from a bucket
  nereid --model-repository=models --model-control-mode=explicit --load-model=digits
                                                    serve one model; clients load others
  nereid add model.onnx                             put a model into the folder 'models', which 'nereid' alone serves
  nereid check models                               list what is wrong in a repository
  nereid pull hf://owner/name models                download models into a folder
  nereid infer localhost:8000 digits image=@7.png   send a request and print the answer
  nereid top                                        show what a server does, live
  nereid tune digits                                find the best settings of a model in the folder 'models'";

/// The command line, as declared, without the options of `nereid health` that are accepted without effect.
pub(super) fn shown() -> Command {
    Options::command().mut_subcommand("health", |health| {
        health.mut_args(|option| {
            let is_of_http = option.get_help_heading() == Some("HTTP");
            let has_no_effect =
                option.get_long().is_some_and(|name| is_of_http && !HTTP_OPTIONS.contains(&name));
            option.hide(has_no_effect)
        })
    })
}

/// The command line, as declared, with its help.
pub(super) fn command() -> Command {
    let command = shown().mut_args(|option| {
        let is_rare = option.get_long().is_some_and(|name| !FREQUENT.contains(&name));
        option.hide_short_help(is_rare)
    });
    let count = super::sources::options(&command).count();
    command
        .after_help(format!("{EXAMPLES}\n\n'nereid --help' describes all {count} options."))
        .after_long_help(EXAMPLES)
}

/// Adds what was probably meant to an error: a path alone is a model repository.
pub(super) fn with_hint(mut error: clap::Error) -> clap::Error {
    if !matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument)
        || error.get(ContextKind::SuggestedSubcommand).is_some()
    {
        return error;
    }
    let given = error.get(ContextKind::InvalidSubcommand).or_else(|| error.get(ContextKind::InvalidArg));
    if let Some(ContextValue::String(given)) = given
        && !given.starts_with('-')
    {
        let hint = format!("to serve the models in '{given}': nereid --model-repository={given}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::super::sources::options;
    use super::*;

    fn printed(line: &[&str]) -> String {
        let error = parse(line.iter().map(Into::into).collect(), |_| None).unwrap_err();
        error.to_string()
    }

    #[test]
    fn short_help_shows_frequent_options_and_long_help_all() {
        let (short, long) = (printed(&["nereid", "-h"]), printed(&["nereid", "--help"]));
        for option in options(&Options::command()) {
            let name = option.get_long().unwrap();
            let shown = |help: &str| help.split_whitespace().any(|word| word == format!("--{name}"));
            assert!(shown(&long), "--{name}");
            assert_eq!(shown(&short), FREQUENT.contains(&name), "--{name}");
        }
        assert!(3 * short.lines().count() < long.lines().count(), "{short}");
        for help in [short, long] {
            assert!(
                help.contains("nereid --model-repository=models") && help.contains("nereid check models")
            );
        }
    }

    #[test]
    fn path_alone_is_explained_as_a_model_repository() {
        for path in ["models", "/srv/models", "./a b", "s3://bucket/models", "examples/model_repository/"] {
            for line in [&["nereid", path][..], &["nereid", path, "--http-port=1"]] {
                let error = printed(line);
                let hint = format!("nereid --model-repository={path}");
                assert!(error.contains(&hint), "{line:?}: {error}");
            }
        }
        for (line, expected) in
            [(["nereid", "chek"], "'check'"), (["nereid", "--http-prt=1"], "'--http-port'")]
        {
            let error = printed(&line);
            assert!(error.contains(expected) && !error.contains("--model-repository="), "{line:?}: {error}");
        }
    }

    #[test]
    fn wrong_value_of_any_option_is_explained_in_words() {
        for option in options(&Options::command()) {
            let name = option.get_long().unwrap();
            for wrong in ["abc", "-1", "1.5", "", "99999999999999999999999999"] {
                let line = ["nereid", "--model-repository=m", &format!("--{name}={wrong}")];
                let Err(error) = parse(line.iter().map(Into::into).collect(), |_| None) else { continue };
                let error = error.to_string();
                for jargon in
                    ["invalid digit", "cannot parse", "invalid float", "too large to fit", "not in 0.."]
                {
                    assert!(!error.contains(jargon), "{line:?}: {error}");
                }
            }
        }
        for (option, expected) in [
            ("--http-port=abc", "must be a port: a whole number from 0 to 65535"),
            ("--grpc-port=70000", "must be a port: a whole number from 0 to 65535"),
            ("--exit-timeout-secs=soon", "must be a whole number from 0 to 2147483647"),
            ("--grpc-keepalive-time=-1", "must be a whole number from 1 to 2147483647"),
        ] {
            let error = printed(&["nereid", "--model-repository=m", option]);
            assert!(error.contains(expected), "{option}: {error}");
        }
    }
}
