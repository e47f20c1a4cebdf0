//! `nereid completions`: scripts by which shells complete the options, made from their declarations.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};
use nereid_options::Options;

/// Prints the script of a shell.
pub(crate) fn print(shell: Shell) -> ExitCode {
    match io::stdout().write_all(&script(shell)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot print the script: {error}");
            ExitCode::FAILURE
        }
    }
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut Options::command(), "nereid", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_scripts_contain_every_option() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            let command = Options::command();
            let options: Vec<_> = command.get_arguments().filter_map(|option| option.get_long()).collect();
            assert!(options.len() > 80);
            for option in options {
                // fish: `-l NAME`.
                assert!(
                    script.contains(&format!("--{option}")) || script.contains(&format!("-l {option} ")),
                    "{shell}: {option}"
                );
            }
        }
    }
}
