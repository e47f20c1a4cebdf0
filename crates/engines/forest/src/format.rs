//! Finds a model's file and its format.

use std::fmt;
use std::path::{Path, PathBuf};

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_model_files as model_files;
use nereid_trees::FormatError;

use crate::precision::AnyForest;
use crate::{lightgbm, treelite, xgboost};

/// The largest file.
const LIMIT: u64 = model_files::DATA_LIMIT;

/// An unambiguous name for models of LightGBM: a folder with it needs no configuration.
const LIGHTGBM: &str = "lightgbm.txt";

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    XgboostJson,
    XgboostUbjson,
    XgboostBinary,
    LightGbm,
    Treelite,
}

impl Format {
    /// All formats, in the order of the search for files.
    const ALL: [Self; 5] =
        [Self::XgboostJson, Self::XgboostUbjson, Self::XgboostBinary, Self::LightGbm, Self::Treelite];

    /// The value of `model_type`.
    fn model_type(self) -> &'static str {
        match self {
            Self::XgboostJson => "xgboost_json",
            Self::XgboostUbjson => "xgboost_ubj",
            Self::XgboostBinary => "xgboost",
            Self::LightGbm => "lightgbm",
            Self::Treelite => "treelite_checkpoint",
        }
    }

    fn filename(self) -> &'static str {
        match self {
            Self::XgboostJson => "xgboost.json",
            Self::XgboostUbjson => "xgboost.ubj",
            Self::XgboostBinary => "xgboost.model",
            Self::LightGbm => "model.txt",
            Self::Treelite => "checkpoint.tl",
        }
    }

    /// # Errors
    /// The name is unknown.
    pub(crate) fn of_model_type(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.model_type() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::model_type).join(", ");
            Error::invalid_arg(format!("parameter 'model_type' is '{name}', but takes one of: {known}"))
        })
    }

    /// The format that a file's contents begin as.
    pub(crate) fn of_contents(contents: &[u8]) -> Option<Self> {
        let text = contents.trim_ascii_start();
        match (text.first(), text.get(1)) {
            _ if text.starts_with(b"tree\n") || text.starts_with(b"tree\r\n") => Some(Self::LightGbm),
            // In UBJSON, the length of the first key follows.
            (Some(b'{'), Some(b'L' | b'l' | b'I' | b'i' | b'U' | b'#' | b'$')) => Some(Self::XgboostUbjson),
            (Some(b'{'), _) => Some(Self::XgboostJson),
            _ if contents.starts_with(b"binf") => Some(Self::XgboostBinary),
            _ if matches!(contents.first_chunk(), Some([1..=9, 0, 0, 0])) => Some(Self::Treelite),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type())
    }
}

/// The file of a model, and its format if that is known.
///
/// # Errors
/// The file is missing.
pub(crate) fn find(
    version: &Path,
    config: &ModelConfig,
    model_type: Option<Format>,
) -> Result<(PathBuf, FoundFormat)> {
    let configured = Some(config.default_model_filename.as_str()).filter(|name| !name.is_empty());
    let name = match (configured, model_type) {
        (Some(name), _) => name,
        (None, Some(format)) => format.filename(),
        (None, None) => {
            let mut names = Format::ALL.into_iter().map(Format::filename).chain([LIGHTGBM]);
            names.find(|name| version.join(name).is_file()).ok_or_else(|| {
                let names = Format::ALL.map(Format::filename).join(", ");
                Error::not_found(format!(
                    "there is no model in '{}': a forest is in one of these files: {names}",
                    version.display()
                ))
            })?
        }
    };
    let expected = model_type.map(Format::filename).unwrap_or(name);
    let path = model_files::model_file(version, name, expected)
        .map_err(|error| Error::cannot_read(&version.join(name), &error))?;
    Ok((path, FoundFormat(model_type)))
}

/// The format that the configuration names, if it does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundFormat(Option<Format>);

impl fmt::Display for FoundFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(format) => format.fmt(f),
            None => f.write_str("format by its contents"),
        }
    }
}

/// Reads a forest, for features in double precision if the format has such thresholds.
///
/// # Errors
/// The file cannot be read, is damaged, or is of another format than `format`.
pub(crate) fn read(path: &Path, FoundFormat(format): FoundFormat, double: bool) -> Result<AnyForest> {
    let contents = model_files::read(path, LIMIT).map_err(|error| Error::cannot_read(path, &error))?;
    let seen = Format::of_contents(&contents);
    let damaged = |why: String| Error::invalid_arg(format!("cannot read '{}': {why}", path.display()));
    let format = format.or(seen).unwrap_or(Format::XgboostBinary);
    parse(&contents, format, double).map_err(|error| {
        let hint = match seen {
            Some(seen) if seen != format => format!("; the file looks like model_type '{seen}'"),
            _ => String::new(),
        };
        damaged(format!("{error}{hint}"))
    })
}

/// Parses a file's contents. Forests of XGBoost are in single precision: XGBoost rounds features to it.
pub(crate) fn parse(contents: &[u8], format: Format, double: bool) -> Result<AnyForest, FormatError> {
    Ok(match format {
        Format::XgboostJson => AnyForest::Single(xgboost::read_json(contents)?),
        Format::XgboostUbjson => AnyForest::Single(xgboost::read_ubjson(contents)?),
        Format::XgboostBinary => AnyForest::Single(xgboost::read_binary(contents)?),
        Format::LightGbm if double => AnyForest::Double(lightgbm::read(contents)?),
        Format::LightGbm => AnyForest::Single(lightgbm::read(contents)?),
        Format::Treelite if double && treelite::is_double(contents) => {
            AnyForest::Double(treelite::read(contents)?)
        }
        Format::Treelite => AnyForest::Single(treelite::read(contents)?),
    })
}
