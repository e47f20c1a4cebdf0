//! Reads TOML strictly: unknown names and wrong types are errors that name the line and what would be right.

use std::num::NonZeroU32;
use std::path::Path;

use nereid_core::model_config::nearest_name;
use toml_edit::{Document, Item, TableLike, Value};

use crate::policy::PolicyError;

/// A TOML file.
pub(crate) struct Toml<'t> {
    path: &'t Path,
    text: &'t str,
    document: Document<&'t str>,
}

impl<'t> Toml<'t> {
    /// Parses a file.
    ///
    /// # Errors
    /// The text is not TOML.
    pub(crate) fn parse(path: &'t Path, text: &'t str) -> Result<Self, PolicyError> {
        let document = Document::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let reason = error.message().trim_end().replace('\n', ", ");
            PolicyError::Line { path: path.to_owned(), line: line(text, at), reason }
        })?;
        Ok(Self { path, text, document })
    }

    /// The file as a table.
    pub(crate) fn root(&self) -> Table<'_> {
        Table { file: self, table: self.document.as_table(), at: 0, name: String::new() }
    }

    fn error(&self, at: usize, reason: String) -> PolicyError {
        PolicyError::Line { path: self.path.to_owned(), line: line(self.text, at), reason }
    }
}

/// The number of the line at this place.
fn line(text: &str, at: usize) -> usize {
    text.get(..at).map_or(1, |before| before.matches('\n').count() + 1)
}

/// A table of the file.
pub(crate) struct Table<'t> {
    file: &'t Toml<'t>,
    table: &'t dyn TableLike,
    /// The place of its name.
    at: usize,
    /// The name in messages; empty for the file.
    name: String,
}

impl<'t> Table<'t> {
    /// Checks that the table has only these members.
    ///
    /// # Errors
    /// The first unknown member.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), PolicyError> {
        let Some(name) = self.table.iter().map(|(name, _)| name).find(|name| !known.contains(name)) else {
            return Ok(());
        };
        let nearest = nearest_name(name, known.iter().copied());
        let hint = nearest.map_or_else(
            || format!(" (known: {})", known.join(", ")),
            |nearest| format!("; did you mean '{nearest}'?"),
        );
        Err(self.file.error(self.place_of(name), format!("{}unknown name '{name}'{hint}", self.prefix())))
    }

    /// A table within this one; `None` if it is missing.
    ///
    /// # Errors
    /// The member is not a table.
    pub(crate) fn table(&self, name: &str) -> Result<Option<Self>, PolicyError> {
        self.table.get(name).map(|item| self.as_table(name, item)).transpose()
    }

    /// The tables within this one, all of whose members must be tables.
    ///
    /// # Errors
    /// A member is not a table.
    pub(crate) fn tables(&self) -> Result<Vec<(&'t str, Self)>, PolicyError> {
        let tables = self.table.iter().map(|(name, item)| Ok((name, self.as_table(name, item)?)));
        tables.collect()
    }

    /// The names of its members.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'t str> {
        self.table.iter().map(|(name, _)| name)
    }

    fn as_table(&self, name: &str, item: &'t Item) -> Result<Self, PolicyError> {
        let at = self.place_of(name);
        let full = if self.name.is_empty() { name.to_owned() } else { format!("{}.{name}", self.name) };
        match item.as_table_like() {
            Some(table) => Ok(Self { file: self.file, table, at, name: full }),
            None => Err(self.file.error(at, format!("'{full}' must be a table, [{full}]"))),
        }
    }

    /// A text; `None` if it is missing.
    ///
    /// # Errors
    /// The member is not a string.
    pub(crate) fn text(&self, name: &str) -> Result<Option<Text<'t>>, PolicyError> {
        let Some(item) = self.table.get(name) else { return Ok(None) };
        let at = item.span().map_or_else(|| self.place_of(name), |span| span.start);
        match item.as_str() {
            Some(text) => Ok(Some(Text { file: self.file, at, text })),
            None => Err(self.file.error(at, format!("{}'{name}' must be a string", self.prefix()))),
        }
    }

    /// A positive number; `None` if it is missing.
    ///
    /// # Errors
    /// The member is not a positive number.
    pub(crate) fn count(&self, name: &str) -> Result<Option<NonZeroU32>, PolicyError> {
        let Some(item) = self.table.get(name) else { return Ok(None) };
        let count = item.as_integer().and_then(|count| u32::try_from(count).ok()).and_then(NonZeroU32::new);
        let wrong = || {
            self.file
                .error(self.place_of(name), format!("{}'{name}' must be a positive integer", self.prefix()))
        };
        count.map(Some).ok_or_else(wrong)
    }

    /// A list of texts; empty if it is missing.
    ///
    /// # Errors
    /// The member is not a list of strings.
    pub(crate) fn list(&self, name: &str) -> Result<Vec<Text<'t>>, PolicyError> {
        let Some(item) = self.table.get(name) else { return Ok(Vec::new()) };
        let wrong = |at| {
            let reason =
                format!("{}'{name}' must be a list of strings, such as [\"a\", \"b\"]", self.prefix());
            self.file.error(at, reason)
        };
        let place = self.place_of(name);
        let list = item.as_array().ok_or_else(|| wrong(place))?;
        let text = |value: &'t Value| {
            let at = value.span().map_or(place, |span| span.start);
            value.as_str().map(|text| Text { file: self.file, at, text }).ok_or_else(|| wrong(at))
        };
        list.iter().map(text).collect()
    }

    /// A list of numbers; empty if it is missing.
    ///
    /// # Errors
    /// The member is not a list of numbers from 0 to 4294967295.
    pub(crate) fn numbers(&self, name: &str) -> Result<Vec<u32>, PolicyError> {
        let Some(item) = self.table.get(name) else { return Ok(Vec::new()) };
        let wrong = || {
            let reason = format!("{}'{name}' must be a list of numbers, such as [1000, 1001]", self.prefix());
            self.file.error(self.place_of(name), reason)
        };
        let number = |value: &Value| u32::try_from(value.as_integer()?).ok();
        let list = item.as_array().ok_or_else(wrong)?;
        list.iter().map(|value| number(value).ok_or_else(wrong)).collect()
    }

    /// An error of the whole table.
    pub(crate) fn error(&self, reason: &str) -> PolicyError {
        self.file.error(self.at, format!("{}{reason}", self.prefix()))
    }

    /// The place of a member's name.
    fn place_of(&self, name: &str) -> usize {
        let key = self.table.key(name).and_then(|key| key.span());
        let value = || self.table.get(name).and_then(Item::span);
        key.or_else(value).map_or(self.at, |span| span.start)
    }

    fn prefix(&self) -> String {
        if self.name.is_empty() { String::new() } else { format!("{}: ", self.name) }
    }
}

/// A text of the file.
pub(crate) struct Text<'t> {
    file: &'t Toml<'t>,
    at: usize,
    /// The text.
    pub text: &'t str,
}

impl Text<'_> {
    /// An error of this text.
    pub(crate) fn error(&self, reason: String) -> PolicyError {
        self.file.error(self.at, reason)
    }
}
