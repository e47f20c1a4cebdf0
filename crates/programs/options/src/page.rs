//! The page `docs/options.md`, generated from the declarations.
//!
//! `UPDATE_OPTIONS=1 cargo test -p nereid-options` regenerates it.

use std::fmt::Write as _;
use std::fs;

use clap::{Arg, CommandFactory as _};

use super::Options;
use super::sources::{is_switch, options, variable_name};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/options.md");

const HEAD: &str = "# Options

<!-- Generated from the declarations in crates/programs/options: UPDATE_OPTIONS=1 cargo test -p nereid-options. -->

Set an option

- on the command line: `--http-port=9000`, or `--http-port 9000`;
- in the environment: `NEREID_HTTP_PORT=9000`, one value per line if the option accepts several;
- in the TOML file named by `--config-file`: `http-port = 9000`, a list if the option accepts several values.

On the command line, a name may be abbreviated to a prefix that no other option of Triton shares (`--http-po=9000`). Booleans
are `true`, `on`, `1`, `false`, `off` and `0`. Case does not matter, except in the log's format.

The command line overrides the environment, which overrides the file, which overrides the default. An unknown option is an
error on the command line and in the file. In the environment and the file, set options without a value to `true` or
`false`. `nereid check`, `nereid add` and `nereid health` read their options from the same sources and ignore those of the server.

Variables that Kubernetes sets to describe a service, such as `NEREID_HTTP_PORT=tcp://...`, are ignored.
";

#[test]
fn the_page_of_options_is_up_to_date() {
    let made = page();
    if std::env::var_os("UPDATE_OPTIONS").is_some() {
        fs::write(PAGE, &made).unwrap();
    }
    let found = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(found == made, "docs/options.md differs from the declarations; UPDATE_OPTIONS=1 regenerates it");
}

fn page() -> String {
    let command = Options::command();
    let mut headings: Vec<&str> = Vec::new();
    for option in options(&command) {
        let heading = option.get_help_heading().expect("each option has a heading");
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    let mut page = HEAD.to_owned();
    for heading in headings {
        write!(page, "\n## {heading}\n\n| option | default | meaning |\n|---|---|---|\n").unwrap();
        for option in options(&command).filter(|option| option.get_help_heading() == Some(heading)) {
            writeln!(page, "| {} | {} | {} |", name(option), default(option), meaning(option)).unwrap();
        }
    }
    page
}

fn name(option: &Arg) -> String {
    let long = option.get_long().unwrap();
    let value = option.get_value_names().unwrap_or_default();
    let name = if is_switch(option) { format!("`--{long}`") } else { format!("`--{long}={}`", value[0]) };
    let aliases = option.get_visible_aliases().unwrap_or_default();
    aliases.iter().fold(name, |name, alias| format!("{name}, `--{alias}`")).replace('|', "\\|")
}

fn default(option: &Arg) -> String {
    let values = option.get_default_values();
    let shown = !option.is_hide_default_value_set() && !is_switch(option);
    values.first().filter(|_| shown).map_or_else(String::new, |value| format!("`{}`", value.display()))
}

fn meaning(option: &Arg) -> String {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let help = if help.ends_with('.') { help } else { format!("{help}.") };
    let values = option.get_possible_values();
    let named = values.iter().filter(|_| option.get_action().takes_values()).filter_map(|value| {
        let help = value.get_help()?;
        Some(format!("`{}`: {help}", value.get_name()))
    });
    let named: Vec<_> = named.collect();
    let all = if named.is_empty() { help } else { format!("{help} {}.", named.join("; ")) };
    all.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}

#[test]
fn variables_follow_from_names() {
    assert_eq!(variable_name("http-port"), "NEREID_HTTP_PORT");
}
