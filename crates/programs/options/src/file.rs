//! The file of options: TOML, with one key for each option.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::Arg;
use nereid_core::model_config::nearest_name;
use toml_edit::{Document, Item, Value};

use super::sources::CONFIG_FILE;

/// The options in a file.
#[derive(Debug)]
pub(super) struct File(BTreeMap<String, Setting>);

/// The values of one option.
#[derive(Debug)]
pub(super) struct Setting {
    /// The file, the line and the option.
    pub place: String,
    pub values: Vec<String>,
    /// Whether they are a list.
    pub is_list: bool,
}

impl File {
    /// Reads a file of these options, by their names.
    ///
    /// # Errors
    /// The file cannot be read, or what is wrong on which line.
    pub(super) fn read(path: &Path, known: &BTreeMap<&str, &Arg>) -> Result<Self, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cannot read the configuration file '{}': {error}", path.display()))?;
        Self::parse(&path.display().to_string(), &text, known)
    }

    fn parse(path: &str, text: &str, known: &BTreeMap<&str, &Arg>) -> Result<Self, String> {
        let line = |at: usize| text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        let document = Document::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            format!("{path}:{}: {}", line(at), error.message().trim_end().replace('\n', ", "))
        })?;
        let table = document.as_table();
        let mut settings = BTreeMap::new();
        for (name, item) in table {
            let at = table.key(name).and_then(|key| key.span()).map_or(0, |span| span.start);
            let place = format!("{path}:{}", line(at));
            let option = known.get(name).filter(|_| name != CONFIG_FILE);
            let option = option.ok_or_else(|| format!("{place}: {}", unknown(name, known)))?;
            let (values, is_list) = values(item).map_err(|reason| format!("{place}: {name}: {reason}"))?;
            let setting = Setting { place: format!("{place}: {name}"), values, is_list };
            settings.insert(name.to_owned(), setting.check(option)?);
        }
        Ok(Self(settings))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }
}

fn unknown(name: &str, known: &BTreeMap<&str, &Arg>) -> String {
    if name == CONFIG_FILE {
        return format!("'{name}' is not allowed in a configuration file");
    }
    let nearest = nearest_name(name, known.keys().copied());
    let hint = nearest.map_or_else(String::new, |nearest| format!("; did you mean '{nearest}'?"));
    format!("unknown option '{name}'{hint}")
}

/// The values of an item, and whether they are a list.
fn values(item: &Item) -> Result<(Vec<String>, bool), String> {
    let Item::Value(value) = item else {
        return Err("must be a value or a list of values, not a table".to_owned());
    };
    match value.as_array() {
        Some(list) => Ok((list.iter().map(scalar).collect::<Result<_, _>>()?, true)),
        None => Ok((vec![scalar(value)?], false)),
    }
}

/// A value, as it would stand on the command line.
fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.value().clone()),
        Value::Integer(number) => Ok(number.value().to_string()),
        Value::Float(number) => Ok(number.value().to_string()),
        Value::Boolean(value) => Ok(value.value().to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::InlineTable(_) => Err(format!(
            "must be a string, a number or a boolean, not {} {}",
            article(value),
            value.type_name()
        )),
    }
}

fn article(value: &Value) -> &'static str {
    if value.type_name().starts_with(['a', 'i']) { "an" } else { "a" }
}
