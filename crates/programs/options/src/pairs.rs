//! Options that a program sets for the server within it: names and values, without a command line.

use std::ffi::OsString;

use clap::CommandFactory;

use super::Options;
use super::sources::{is_switch, names, options, parse, reason};

/// The names of all options of a server and their aliases, without dashes, in the order of `nereid --help`.
pub fn option_names() -> Vec<String> {
    options(&Options::command()).flat_map(names).map(str::to_owned).collect()
}

/// Reads options from names without dashes, and values. Variables of the environment, which are the command's, do not
/// count.
///
/// # Errors
/// An unknown name, an invalid value, or no model repository.
pub fn from_pairs(pairs: &[(String, OsString)]) -> Result<Options, String> {
    let command = Options::command();
    let mut arguments = vec![OsString::from("nereid")];
    for (name, value) in pairs {
        let declared = options(&command).find(|option| names(option).any(|known| known == name));
        let mut argument = OsString::from(format!("--{name}"));
        match declared.map(is_switch) {
            None => return Err(format!("unknown option '{name}'")),
            Some(true) if value == "true" => {}
            Some(true) if value == "false" => continue,
            Some(true) => return Err(format!("{name} must be true or false, not '{}'", value.display())),
            Some(false) => {
                argument.push("=");
                argument.push(value);
            }
        }
        arguments.push(argument);
    }
    let options = parse(arguments, |_| None).map_err(|error| reason(&error))?;
    match options.has_repository() {
        true => Ok(options),
        // The default is the command's: a program's current folder may be any.
        false => Err("--model-repository must be specified".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(pairs: &[(&str, &str)]) -> Result<Options, String> {
        let all = [("model-repository", "models")].into_iter().chain(pairs.iter().copied());
        from_pairs(&all.map(|(name, value)| (name.to_owned(), value.into())).collect::<Vec<_>>())
    }

    #[test]
    fn pairs_match_the_command_line() {
        let options =
            parsed(&[("exit-timeout-secs", "7"), ("disable-auto-complete-config", "true")]).unwrap();
        assert_eq!(options.exit_timeout().as_secs(), 7);
        assert!(!options.configurations.read_options().complete);
        let options = parsed(&[("disable-auto-complete-config", "false")]).unwrap();
        assert!(options.configurations.read_options().complete);
        for (name, value, expected) in [
            ("no-such-option", "1", "unknown option 'no-such-option'"),
            ("help", "true", "unknown option 'help'"),
            ("disable-auto-complete-config", "maybe", "must be true or false, not 'maybe'"),
            ("exit-timeout-secs", "soon", "invalid value 'soon' for '--exit-timeout-secs <SECONDS>'"),
            ("id", "", ""),
        ] {
            match parsed(&[(name, value)]) {
                Ok(_) => assert!(expected.is_empty(), "{name}={value}"),
                Err(error) => assert!(error.contains(expected), "{error}"),
            }
        }
        let error = from_pairs(&[]).unwrap_err();
        assert!(error.contains("--model-repository"), "{error}");
    }

    #[test]
    fn every_option_and_alias_is_known() {
        let names = option_names();
        assert!(names.len() > 90 && names.contains(&"model-store".to_owned()), "{names:?}");
        for name in &names {
            // Whether the value is right or not, the option is known.
            if let Err(error) = parsed(&[(name, "-")]) {
                assert!(!error.contains("unexpected argument"), "{name}: {error}");
                assert!(!error.contains("unknown option"), "{name}: {error}");
            }
        }
    }
}
