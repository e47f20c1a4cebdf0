//! Abbreviated options. `getopt_long` accepts any unambiguous prefix of a long option, and command lines made for
//! Triton rely on it.
//!
//! An abbreviation of a Triton option keeps its meaning: options that Triton does not have count only if the prefix
//! matches none of Triton's. The environment and files require full names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

use super::sources::names;

/// Options that Triton does not have.
pub(super) const OWN: [&str; 41] = [
    "access",
    "audit-log",
    "config-file",
    "console",
    "console-address",
    "console-port",
    "cuda-driver-library",
    "http-cors-origin",
    "http-max-body-size",
    "http-root-cert",
    "http-server-cert",
    "http-server-key",
    "http-use-ssl",
    "http-use-ssl-mutual",
    "load-reports",
    "log-requests",
    "max-inflight-bytes",
    "max-inflight-requests",
    "max-unread-response-bytes",
    "model-gpu-memory-budget",
    "model-idle-timeout",
    "model-max-evictions-per-minute",
    "model-memory-budget",
    "model-memory-directory",
    "on-demand-retry-secs",
    "on-demand-wait-secs",
    "openai",
    "openai-address",
    "openai-default-max-tokens",
    "openai-port",
    "openai-prefix",
    "openai-stored-bytes",
    "openai-stored-directory",
    "openai-stored-directory-byte-size",
    "repository-agent",
    "repository-cache-byte-size",
    "repository-cache-directory",
    "repository-watch",
    "shed-load",
    "trust-network",
    "version",
];

/// Expands the options of a command line to their full names. Unknown names stay unchanged.
///
/// # Errors
/// An ambiguous abbreviation, with its candidates.
pub(super) fn expand(arguments: Vec<OsString>, command: &Command) -> Result<Vec<OsString>, String> {
    let mut command = command.clone();
    // Declares those for help and version.
    command.build();
    let mut arguments = arguments.into_iter().peekable();
    let mut expanded = Vec::from_iter(arguments.next());
    let subcommand = arguments.peek().and_then(|name| command.find_subcommand(name));
    let options: Vec<_> = subcommand.unwrap_or(&command).get_arguments().collect();
    while let Some(argument) = arguments.next() {
        let Some(given) = LongOption::of(&argument) else {
            expanded.push(argument);
            if expanded.last().is_some_and(|last| last == "--") {
                break;
            }
            continue;
        };
        let Some((option, name)) = find(given.name, &options)? else {
            expanded.push(argument);
            continue;
        };
        let is_followed_by_value = option.get_action().takes_values() && given.value.is_none();
        expanded.push(given.with_name(name));
        if is_followed_by_value {
            expanded.extend(arguments.next());
        }
    }
    expanded.extend(arguments);
    Ok(expanded)
}

/// The option of this name, or else the only one with this prefix.
fn find<'a>(given: &str, options: &[&'a Arg]) -> Result<Option<(&'a Arg, &'a str)>, String> {
    let all = || options.iter().flat_map(|option| names(option).map(move |name| (*option, name)));
    if let Some(exact) = all().find(|(_, name)| *name == given) {
        return Ok(Some(exact));
    }
    let mut candidates: Vec<_> = all().filter(|(_, name)| name.starts_with(given)).collect();
    if candidates.iter().any(|(_, name)| !OWN.contains(name)) {
        candidates.retain(|(_, name)| !OWN.contains(name));
    }
    match candidates[..] {
        [] => Ok(None),
        [(first, name), ref others @ ..]
            if others.iter().all(|(other, _)| other.get_id() == first.get_id()) =>
        {
            Ok(Some((first, name)))
        }
        _ => {
            let candidates: Vec<_> = candidates.iter().map(|(_, name)| format!("--{name}")).collect();
            Err(format!("'--{given}' is ambiguous: it matches {}", candidates.join(", ")))
        }
    }
}

/// A long option on a command line.
struct LongOption<'a> {
    name: &'a str,
    /// Text after the equals sign, if any.
    value: Option<&'a OsStr>,
}

impl<'a> LongOption<'a> {
    fn of(argument: &'a OsStr) -> Option<Self> {
        let rest = argument.as_bytes().strip_prefix(b"--").filter(|rest| !rest.is_empty())?;
        let equals = rest.iter().position(|byte| *byte == b'=');
        let (name, value) = match equals {
            Some(at) => (&rest[..at], Some(OsStr::from_bytes(&rest[at + 1..]))),
            None => (rest, None),
        };
        Some(Self { name: str::from_utf8(name).ok()?, value })
    }

    fn with_name(&self, name: &str) -> OsString {
        let mut argument = OsString::from(format!("--{name}"));
        if let Some(value) = self.value {
            argument.push("=");
            argument.push(value);
        }
        argument
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use proptest::prelude::*;

    use super::super::Options;
    use super::*;

    fn expanded(line: &str) -> Result<String, String> {
        let arguments = line.split(' ').map(OsString::from).collect();
        let expanded = expand(arguments, &Options::command())?;
        let expanded: Vec<_> = expanded.iter().map(|argument| argument.to_str().unwrap()).collect();
        Ok(expanded.join(" "))
    }

    #[test]
    fn abbreviated_option_resolves_to_full_name() {
        for (line, expected) in [
            ("nereid --log-warn=false", "nereid --log-warning=false"),
            ("nereid --model-repo=a --model-s=b", "nereid --model-repository=a --model-store=b"),
            ("nereid --model-repo a --http-po 1", "nereid --model-repository a --http-port 1"),
            ("nereid --disable", "nereid --disable-auto-complete-config"),
            ("nereid --i=--http-po=1", "nereid --id=--http-po=1"),
            // Full names that are prefixes of other options, and Triton's options before ours.
            (
                "nereid --grpc-use-ssl=1 --grpc-max-connection-age=1",
                "nereid --grpc-use-ssl=1 --grpc-max-connection-age=1",
            ),
            ("nereid --http-r=health:a=b", "nereid --http-restricted-api=health:a=b"),
            ("nereid --repository=3 --he", "nereid --repository-poll-secs=3 --help"),
            ("nereid --http-ma=1", "nereid --http-max-input-size=1"),
            ("nereid --conf=a --vers=1", "nereid --config-file=a --version=1"),
            // Values and arguments after `--` stay unchanged; clap reports unknown options.
            ("nereid --id --http-po --log-warn=0", "nereid --id --http-po --log-warning=0"),
            ("nereid --nope=1 -id=1 - x", "nereid --nope=1 -id=1 - x"),
            ("nereid -- --log-warn=0 --log", "nereid -- --log-warn=0 --log"),
            ("nereid check --js --model-c=h100 a", "nereid check --json --model-config-name=h100 a"),
            ("nereid check --http-po=1 a", "nereid check --http-po=1 a"),
            ("nereid", "nereid"),
        ] {
            assert_eq!(expanded(line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn ambiguous_abbreviation_lists_candidates() {
        for (option, candidates) in [
            ("--exit=3", "--exit-on-error, --exit-timeout-secs"),
            ("--log-f=x", "--log-format, --log-file"),
            ("--http-s=x", "--http-server-cert, --http-server-key"),
            ("--http-use", "--http-use-ssl, --http-use-ssl-mutual"),
            ("--allow-c=1", "--allow-client-shm, --allow-cpu-metrics"),
        ] {
            let name = option.split('=').next().unwrap();
            let expected = format!("'{name}' is ambiguous: it matches {candidates}");
            assert_eq!(expanded(&format!("nereid {option}")), Err(expected));
        }
    }

    proptest! {
        /// Any prefix of an option resolves to that option, or is refused as ambiguous.
        #[test]
        fn abbreviation_never_resolves_to_another_option(which in any::<prop::sample::Index>(), cut in 1_usize..40) {
            let command = Options::command();
            let all: Vec<_> = command.get_arguments().flat_map(names).collect();
            let full = all[which.index(all.len())];
            let short = &full[..cut.min(full.len())];
            let beginning: Vec<_> = all.iter().filter(|name| name.starts_with(short)).collect();
            match expanded(&format!("nereid --{short}=x")) {
                Ok(line) => {
                    let name = line.strip_prefix("nereid --").and_then(|it| it.strip_suffix("=x")).unwrap();
                    let foreign = beginning.iter().filter(|name| !OWN.contains(**name)).count();
                    prop_assert!(name == short || beginning.len() == 1 || foreign == 1, "{short}: {name}");
                    prop_assert!(name.starts_with(short));
                }
                Err(refused) => {
                    prop_assert!(beginning.len() > 1);
                    prop_assert!(refused.contains(&format!("--{full}")) || OWN.contains(&full), "{refused}");
                }
            }
        }
    }
}
