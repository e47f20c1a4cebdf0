//! The repository's index.

use nereid_backend_api::Result;
use nereid_core::{FetchStatus, ModelStatus, Server};
use serde::Serialize;

/// A model of the repository, or one of its versions. Absent fields are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// The version; `None` for a model whose versions are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The state's name; `None` for a model that was never loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// The reason for the state, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Every known version with its state, and the names of models that were never loaded.
///
/// # Errors
/// The repositories cannot be read.
pub async fn repository_index(server: &Server, only_ready: bool) -> Result<Vec<IndexEntry>> {
    Ok(entries(server.index().await?, &server.fetches(), only_ready))
}

/// [`repository_index`], for threads that may block.
///
/// # Errors
/// See there.
pub fn blocking_repository_index(server: &Server, only_ready: bool) -> Result<Vec<IndexEntry>> {
    Ok(entries(server.blocking_index()?, &server.fetches(), only_ready))
}

fn entries(
    index: Vec<(String, Option<ModelStatus>)>,
    fetches: &[FetchStatus],
    only_ready: bool,
) -> Vec<IndexEntry> {
    let fetching = |name: &str| fetches.iter().find(|fetch| fetch.id.name == name).map(FetchStatus::describe);
    let entries = index.into_iter().map(|(name, status)| match status {
        // The versions are known once the files have been fetched.
        None => match fetching(&name) {
            Some(reason) => {
                IndexEntry { name, state: Some("LOADING"), reason: Some(reason), ..IndexEntry::default() }
            }
            None => IndexEntry { name, ..IndexEntry::default() },
        },
        Some(status) => IndexEntry {
            name,
            version: status.version.map(|version| version.to_string()),
            state: Some(status.state.name()),
            reason: status.reason().or_else(|| fetching(&status.id.name)),
        },
    });
    entries.filter(|entry| !only_ready || entry.state == Some("READY")).collect()
}
