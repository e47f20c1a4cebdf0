//! Options from the environment and from a file, in addition to the command line.
//!
//! `--some-option` is also read from the variable `NEREID_SOME_OPTION`, and as `some-option` from the file named by
//! `--config-file`. The command line overrides the environment, which overrides the file, which overrides the defaults;
//! Vertex AI's variables change some defaults. Everything follows from the declarations: a value from another source
//! becomes an argument, so that it is parsed and checked like one.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::Options;
use super::abbreviations::expand;
use super::file::{File, Setting};
use super::help::{command, with_hint};
use super::values::as_boolean;

/// The option that names the file.
pub(super) const CONFIG_FILE: &str = "config-file";

/// Reads the options from a command line, from environment variables, and from the file that either names.
///
/// # Errors
/// The error, with its source unless that is the command line.
pub fn parse(
    arguments: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Options, clap::Error> {
    let command = command_line();
    let arguments = expand(arguments, &command)
        .map_err(|reason| command.clone().error(ErrorKind::UnknownArgument, reason))?;
    let optional = |command: Command| command.mut_args(|arg| arg.required(false));
    let lenient = optional(command.clone()).mut_subcommands(optional);
    let read = |arguments| {
        let matches = command.clone().try_get_matches_from(arguments).map_err(with_hint)?;
        Options::from_arg_matches(&matches)
    };
    // Errors of the command line itself are reported as if there were no other source.
    let Ok(matches) = lenient.clone().try_get_matches_from(&arguments) else {
        return read(arguments);
    };
    let (path, subcommand, given) = match matches.subcommand() {
        Some((name, given)) => (vec![OsString::from(name)], lenient.find_subcommand(name), given),
        None => (Vec::new(), None, &matches),
    };
    let scope = Scope { root: &lenient, path, command: subcommand.unwrap_or(&lenient), given };
    let added =
        scope.added(variable).map_err(|reason| command.clone().error(ErrorKind::ValueValidation, reason))?;
    // The program and the subcommand stay in front.
    let head = 1 + scope.path.len();
    let mut all = arguments;
    all.splice(head.min(all.len())..head.min(all.len()), added);
    read(all)
}

/// The declared options. A negative number may follow the name of any option with a value, as in the reference.
fn command_line() -> Command {
    let accept = |command: Command| {
        command.mut_args(|arg| {
            let takes_values = arg.get_action().takes_values();
            arg.allow_negative_numbers(takes_values)
        })
    };
    accept(command()).mut_subcommands(accept)
}

/// The command to run, with its parsed command line.
struct Scope<'a> {
    /// The whole program, with no argument required.
    root: &'a Command,
    /// The names of the subcommand, if it is one.
    path: Vec<OsString>,
    command: &'a Command,
    given: &'a ArgMatches,
}

impl Scope<'_> {
    /// The arguments that the environment and the file add to the command line.
    fn added(&self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Vec<OsString>, String> {
        // Kubernetes describes services in variables that may bear an option's name: NEREID_HTTP_PORT=tcp://10.0.0.1:80.
        let is_service = |value: &OsString| value.to_string_lossy().starts_with("tcp://");
        let variable = |name: &str| variable(name).filter(|value| !is_service(value));
        let file = self.file(variable)?;
        let mut added = Vec::new();
        for option in options(self.command) {
            if self.given.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine) {
                continue;
            }
            let from_environment = names(option).find_map(|name| {
                let name = variable_name(name);
                let values = lines(option, variable(&name)?);
                Some((format!("environment variable {name}"), values))
            });
            let from_file = || {
                let setting = names(option).find_map(|name| file.as_ref()?.get(name))?;
                Some((setting.place.clone(), setting.values.iter().map(OsString::from).collect()))
            };
            let of_cloud = || {
                let (name, value) = super::vertex_ai::default(option.get_long()?, variable)?;
                Some((format!("environment variable {name}"), vec![value]))
            };
            let found = from_environment.or_else(from_file).or_else(of_cloud);
            let Some((source, values)) = found else { continue };
            added.extend(self.arguments(option, &source, values)?);
        }
        Ok(added)
    }

    /// Converts these values to arguments; an error if the option does not accept them.
    fn arguments(&self, option: &Arg, source: &str, values: Vec<OsString>) -> Result<Vec<OsString>, String> {
        let mut arguments = Vec::new();
        for value in values {
            let mut argument = OsString::from(format!("--{}", option.get_long().unwrap_or_default()));
            if is_switch(option) {
                match value.to_str().and_then(as_boolean) {
                    Some(true) => {}
                    Some(false) => continue,
                    None => {
                        return Err(format!("{source}: must be true or false, not '{}'", value.display()));
                    }
                }
            } else {
                argument.push("=");
                argument.push(&value);
            }
            let line = [OsString::from("nereid")].into_iter().chain(self.path.iter().cloned());
            let checked = self.root.clone().try_get_matches_from(line.chain([argument.clone()]));
            checked.map_err(|error| format!("{source}: {}", reason(&error)))?;
            arguments.push(argument);
        }
        Ok(arguments)
    }

    /// The file that the command line or the environment names.
    fn file(&self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<File>, String> {
        let id = CONFIG_FILE.replace('-', "_");
        let given = self.given.get_one::<PathBuf>(&id).cloned();
        let path = given.or_else(|| variable(&variable_name(CONFIG_FILE)).map(PathBuf::from));
        let Some(path) = path else { return Ok(None) };
        let commands = [self.root].into_iter().chain(self.root.get_subcommands());
        let known =
            commands.flat_map(options).flat_map(|option| names(option).map(move |name| (name, option)));
        let file = File::read(&path, &known.collect())?;
        Ok(Some(file))
    }
}

/// A command's options that take a value or are switches.
pub(crate) fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let prints = |option: &Arg| matches!(option.get_action(), ArgAction::Help | ArgAction::Version);
    command.get_arguments().filter(move |option| option.get_long().is_some() && !prints(option))
}

/// The names of an option.
pub(crate) fn names(option: &Arg) -> impl Iterator<Item = &str> {
    option.get_long().into_iter().chain(option.get_visible_aliases().unwrap_or_default())
}

/// Whether an option is a switch without a value.
pub(crate) fn is_switch(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::SetTrue)
}

/// Whether an option may be given several times.
pub(super) fn is_list(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Append)
}

/// The environment variable of an option.
pub(super) fn variable_name(option: &str) -> String {
    format!("NEREID_{}", option.replace('-', "_").to_uppercase())
}

/// The values in a variable: of an option that may be given several times, one on each line.
fn lines(option: &Arg, value: OsString) -> Vec<OsString> {
    match value.to_str() {
        Some(text) if is_list(option) => {
            text.lines().filter(|line| !line.is_empty()).map(OsString::from).collect()
        }
        _ => vec![value],
    }
}

/// The message of a clap error, without its usage text.
pub(crate) fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).trim_end().to_owned()
}

impl Setting {
    /// Refuses a list for an option that takes one value.
    pub(super) fn check(self, option: &Arg) -> Result<Self, String> {
        match self.is_list && !is_list(option) {
            true => Err(format!("{}: expected one value, not a list", self.place)),
            false => Ok(self),
        }
    }
}
