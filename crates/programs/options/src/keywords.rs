//! The types of the options as keyword arguments in Python, generated from the declarations.
//!
//! `UPDATE_OPTIONS=1 cargo test -p nereid-options` regenerates them.

use std::any::TypeId;
use std::fmt::Write as _;
use std::fs;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Arg, CommandFactory as _};

use super::Options;
use super::sources::{is_list, is_switch, names, options};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wheel/nereid/_options.py");

const HEAD: &str = r#""""Options of a server as keyword arguments.

Generated from the declarations in crates/programs/options: UPDATE_OPTIONS=1 cargo test -p nereid-options.
"""

from __future__ import annotations

import os
from typing import Any, Literal, Mapping, Sequence, TypedDict, Union

_Path = Union[str, "os.PathLike[str]"]
_Settings = Mapping[str, Any]


class Options(TypedDict, total=False):
    """Options of the command line, with underscores."""
"#;

/// Options that are arguments of their own, or belong to the process.
const LEFT_OUT: [&str; 2] = ["model-repository", "model-store"];

/// The type of an option's values, as members of a union.
fn members(option: &Arg) -> Vec<String> {
    let id = option.get_value_parser().type_id();
    let is_one_of = |ids: &[TypeId]| ids.iter().any(|other| id == *other);
    let whole = [
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i64>(),
        TypeId::of::<NonZeroU32>(),
        TypeId::of::<NonZeroUsize>(),
    ];
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    if is_switch(option) || is_one_of(&[TypeId::of::<bool>()]) {
        return names(&["bool"]);
    } else if is_one_of(&whole) {
        return names(&["int"]);
    } else if is_one_of(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
        return names(&["float"]);
    } else if is_one_of(&[TypeId::of::<PathBuf>()]) {
        return names(&["_Path"]);
    }
    let possible: Vec<_> =
        option.get_possible_values().iter().map(|value| format!("\"{}\"", value.get_name())).collect();
    if !possible.is_empty() {
        return vec![format!("Literal[{}]", possible.join(", "))];
    }
    let value = option.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    if value.contains('=') {
        return names(&["str", "_Settings"]);
    }
    let may_be_number = ["BYTES", "FRACTION", "NUMBER"].iter().any(|number| value.contains(number));
    names(if may_be_number { &["str", "int", "float"] } else { &["str"] })
}

fn python_type(option: &Arg) -> String {
    let union = |members: &[String]| match members {
        [only] => only.clone(),
        several => format!("Union[{}]", several.join(", ")),
    };
    let mut members = members(option);
    if is_list(option) {
        members.push(format!("Sequence[{}]", union(&members)));
    }
    union(&members)
}

fn module() -> String {
    let command = Options::command();
    let mut text = HEAD.to_owned();
    for option in options(&command) {
        for name in names(option).filter(|name| !LEFT_OUT.contains(name) && !name.starts_with("log-")) {
            let help = option.get_help().map(ToString::to_string).unwrap_or_default();
            let help = if help.ends_with('.') { help } else { format!("{help}.") };
            let help = help.replace('\\', "\\\\").replace('"', "'");
            write!(
                text,
                "\n    {}: {}\n    \"\"\"{help}\"\"\"\n",
                name.replace('-', "_"),
                python_type(option)
            )
            .unwrap();
        }
    }
    text
}

#[test]
fn the_keyword_arguments_of_python_are_up_to_date() {
    let made = module();
    if std::env::var_os("UPDATE_OPTIONS").is_some() {
        fs::write(MODULE, &made).unwrap();
    }
    let found = fs::read_to_string(MODULE).unwrap_or_default();
    assert!(found == made, "{MODULE} differs from the declarations; UPDATE_OPTIONS=1 regenerates it");
}
