//! The manual pages in `docs/man`, generated from the declarations.
//!
//! `UPDATE_OPTIONS=1 cargo test -p nereid-options` regenerates them.

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use super::Options;
use super::help::shown;
use super::sources::options;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/man");

#[test]
fn the_manual_pages_are_up_to_date() {
    for (name, made) in pages() {
        let path = Path::new(FOLDER).join(format!("{name}.1"));
        if std::env::var_os("UPDATE_OPTIONS").is_some() {
            fs::create_dir_all(FOLDER).unwrap();
            fs::write(&path, &made).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        let name = path.display();
        assert!(found == made, "{name} differs from the declarations; UPDATE_OPTIONS=1 regenerates it");
    }
}

#[test]
fn manual_mentions_every_option() {
    let (_, page) = pages().remove(0);
    for option in options(&Options::command()) {
        // Dashes of options are escaped, so that they are not set as hyphens.
        let name = option.get_long().unwrap().replace('-', "\\-");
        assert!(page.contains(&format!("\\-\\-{name}\\fR")), "{name}");
    }
}

/// The pages of the server and its subcommands, with their names.
fn pages() -> Vec<(String, String)> {
    let mut command = shown().disable_help_subcommand(true);
    // Declares the options for help and version.
    command.build();
    let mut pages = Vec::new();
    add_pages("nereid".to_owned(), &command, &mut pages);
    pages
}

/// Adds the pages of a command and its subcommands.
fn add_pages(name: String, command: &Command, pages: &mut Vec<(String, String)>) {
    pages.push((name.clone(), page(name.clone(), command.clone())));
    for subcommand in command.get_subcommands() {
        add_pages(format!("{name}-{}", subcommand.get_name()), subcommand, pages);
    }
}

fn page(name: String, command: Command) -> String {
    // The generated synopsis lists a hundred options in one line.
    let synopsis = command.clone().render_usage().to_string();
    let synopsis = synopsis.trim_start_matches("Usage: ").replace('-', "\\-");
    let has_subcommands = command.has_subcommands();
    let page = Man::new(command.display_name(name));
    let mut text = Vec::new();
    page.render_title(&mut text).unwrap();
    page.render_name_section(&mut text).unwrap();
    text.extend_from_slice(format!(".SH SYNOPSIS\n.nf\n{synopsis}\n.fi\n").as_bytes());
    page.render_description_section(&mut text).unwrap();
    page.render_options_section(&mut text).unwrap();
    if has_subcommands {
        page.render_subcommands_section(&mut text).unwrap();
    }
    if page.get_filename() == "nereid.1" {
        page.render_version_section(&mut text).unwrap();
    }
    String::from_utf8(text).unwrap()
}
