//! The place of the records of loads, which outlive the server.

use std::path::PathBuf;

use nereid_private_folders::cache_folder;

/// The folder in the user's cache.
const FOLDER: &str = "model-memory";

/// Whether what models took when they were loaded is kept across restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryRecords {
    /// Nothing is kept.
    #[default]
    Off,
    /// In the user's cache, if it can be used.
    UserCache,
    /// In this folder.
    Folder(PathBuf),
}

impl MemoryRecords {
    /// The folder, if there is one.
    pub(crate) fn folder(self) -> Option<PathBuf> {
        match self {
            Self::Off => None,
            Self::Folder(folder) => Some(folder),
            Self::UserCache => match cache_folder(FOLDER) {
                Ok(folder) => Some(folder),
                Err(error) => {
                    tracing::warn!("the memory that models take is not kept for the next start: {error}");
                    None
                }
            },
        }
    }
}
