//! The `nereid` command. See [`nereid::command`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    nereid::command()
}
