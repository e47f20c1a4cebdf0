//! The tables of options in `COMPATIBILITY.md` have every option of this program once, and say which ones are missing.

use std::collections::{BTreeMap, BTreeSet};

use clap::CommandFactory as _;

use super::Options;

const PAGE: &str = include_str!("../../../../COMPATIBILITY.md");

/// What the tables say of each option: the first column of its row, or "differs" where the row is about options alone.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let (_, section) = PAGE.split_once("\n## Options\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut states = BTreeMap::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| ")) {
        let (first, rest) = row.split_once(" | ").unwrap();
        let (state, cell) = if first.starts_with("`--") { ("differs", first) } else { (first, rest) };
        for option in cell.split('`').filter_map(|code| code.strip_prefix("--")) {
            assert!(states.insert(option, state).is_none(), "--{option} is in the tables twice");
        }
    }
    states
}

#[test]
fn every_option_has_its_state() {
    let command = Options::command();
    let mut declared = BTreeSet::new();
    for argument in command.get_arguments() {
        declared.extend(argument.get_long());
        declared.extend(argument.get_visible_aliases().unwrap_or_default());
    }
    declared.retain(|option| !["help", "version"].contains(option));

    let documented = documented();
    for option in &declared {
        let state = documented.get(option).copied();
        assert!(
            matches!(state, Some("same" | "differs" | "ours")),
            "--{option} is declared; in COMPATIBILITY.md its state is {state:?}"
        );
    }
    for (option, state) in documented {
        assert_eq!(declared.contains(option), state != "not yet", "--{option} is documented as '{state}'");
    }
}
