//! The repository's index.

use nereid_backend_api::Result;
use nereid_core::{FetchStatus, ModelId, ModelStatus, Server};
use serde::Serialize;

use super::memory::MemoryDocument;

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

/// An entry with the memory of its model or version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexEntryWithMemory {
    /// The entry.
    #[serde(flatten)]
    pub entry: IndexEntry,
    /// The memory, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryDocument>,
}

/// Every known version with its state, and the names of models that were never loaded, of the models that are visible.
///
/// # Errors
/// The repositories cannot be read.
pub async fn repository_index(
    server: &Server,
    only_ready: bool,
    is_visible: impl Fn(&ModelId) -> bool,
) -> Result<Vec<IndexEntry>> {
    let index = visible(server, is_visible).await?;
    let fetches = server.fetches();
    let entries =
        index.into_iter().map(|(id, status)| entry(id, status, &fetches, |status| server.reason(status)));
    Ok(entries.filter(|entry| !only_ready || entry.is_ready()).collect())
}

/// [`repository_index`] with the memory of each entry.
///
/// # Errors
/// See there.
pub async fn repository_index_with_memory(
    server: &Server,
    only_ready: bool,
    is_visible: impl Fn(&ModelId) -> bool,
) -> Result<Vec<IndexEntryWithMemory>> {
    let index = visible(server, is_visible).await?;
    let (fetches, memory) = (server.fetches(), server.memory(&index));
    let entries = index.into_iter().zip(memory).map(|((id, status), memory)| IndexEntryWithMemory {
        entry: entry(id, status, &fetches, |status| server.reason(status)),
        memory: memory.map(MemoryDocument::from),
    });
    Ok(entries.filter(|entry| !only_ready || entry.entry.is_ready()).collect())
}

/// [`repository_index`] of all models, for threads that may block.
///
/// # Errors
/// See there.
pub fn blocking_repository_index(server: &Server, only_ready: bool) -> Result<Vec<IndexEntry>> {
    let (index, fetches) = (server.blocking_index()?, server.fetches());
    let entries =
        index.into_iter().map(|(id, status)| entry(id, status, &fetches, |status| server.reason(status)));
    Ok(entries.filter(|entry| !only_ready || entry.is_ready()).collect())
}

async fn visible(
    server: &Server,
    is_visible: impl Fn(&ModelId) -> bool,
) -> Result<Vec<(ModelId, Option<ModelStatus>)>> {
    let mut index = server.index().await?;
    index.retain(|(id, _)| is_visible(id));
    Ok(index)
}

impl IndexEntry {
    fn is_ready(&self) -> bool {
        self.state == Some("READY")
    }
}

/// `reason`: the reason for a state.
fn entry(
    id: ModelId,
    status: Option<ModelStatus>,
    fetches: &[FetchStatus],
    reason: impl Fn(&ModelStatus) -> Option<String>,
) -> IndexEntry {
    let fetching = fetches.iter().find(|fetch| fetch.id == id).map(FetchStatus::describe);
    let name = id.name;
    let Some(status) = status else {
        // The versions are known once the files have been fetched.
        let state = fetching.is_some().then_some("LOADING");
        return IndexEntry { name, state, reason: fetching, version: None };
    };
    let version = status.version.map(|version| version.to_string());
    // A model that is loaded on demand, and fetched now.
    match fetching.clone().filter(|_| status.state.is_evicted()) {
        Some(reason) => IndexEntry { name, version, state: Some("LOADING"), reason: Some(reason) },
        None => {
            let (state, reason) = (Some(status.state.name()), reason(&status).or(fetching));
            IndexEntry { name, version, state, reason }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nereid_backend_api::Error;
    use nereid_core::{ModelId, VersionState};

    use super::*;

    #[test]
    fn a_fetch_in_progress_is_the_state_of_models_that_are_not_loaded() {
        let id = ModelId::plain("m");
        let fetch =
            FetchStatus { id: id.clone(), fetched: 1024, total: 4096, elapsed: Duration::from_secs(1) };
        let status =
            |version, state| Some(ModelStatus { id: id.clone(), version, state, failed_reload: None });
        let broken = VersionState::Unavailable(Error::internal("broken"));
        for (status, without, with) in [
            (None, (None, None), (Some("LOADING"), true)),
            (
                status(None, VersionState::Evicted),
                (Some("UNLOADED"), Some("loaded on demand")),
                (Some("LOADING"), true),
            ),
            (
                status(Some(1), VersionState::Evicted),
                (Some("UNLOADED"), Some("loaded on demand")),
                (Some("LOADING"), true),
            ),
            (
                status(Some(1), VersionState::Loading { was_evicted: false }),
                (Some("LOADING"), None),
                (Some("LOADING"), true),
            ),
            (status(Some(1), broken), (Some("UNAVAILABLE"), Some("broken")), (Some("UNAVAILABLE"), false)),
        ] {
            let line = |fetches: &[FetchStatus]| {
                let found = entry(id.clone(), status.clone(), fetches, ModelStatus::reason);
                (found.state, found.reason)
            };
            let (state, reason) = line(&[]);
            assert_eq!((state, reason.as_deref()), without);
            let (state, reason) = line(std::slice::from_ref(&fetch));
            assert_eq!(
                (state, reason.is_some_and(|reason| reason.starts_with("fetching: 1 of 4 KiB"))),
                with
            );
        }
    }
}
