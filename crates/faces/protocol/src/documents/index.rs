//! The repository's index.

use nereid_backend_api::Result;
use nereid_core::{FetchStatus, ModelId, ModelStatus, Server};
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

/// Every known version with its state, and the names of models that were never loaded, of the models that are visible.
///
/// # Errors
/// The repositories cannot be read.
pub async fn repository_index(
    server: &Server,
    only_ready: bool,
    is_visible: impl Fn(&ModelId) -> bool,
) -> Result<Vec<IndexEntry>> {
    let mut index = server.index().await?;
    index.retain(|(id, _)| is_visible(id));
    Ok(entries(index, &server.fetches(), only_ready))
}

/// [`repository_index`] of all models, for threads that may block.
///
/// # Errors
/// See there.
pub fn blocking_repository_index(server: &Server, only_ready: bool) -> Result<Vec<IndexEntry>> {
    Ok(entries(server.blocking_index()?, &server.fetches(), only_ready))
}

fn entries(
    index: Vec<(ModelId, Option<ModelStatus>)>,
    fetches: &[FetchStatus],
    only_ready: bool,
) -> Vec<IndexEntry> {
    let fetching = |id: &ModelId| fetches.iter().find(|fetch| fetch.id == *id).map(FetchStatus::describe);
    let entries = index.into_iter().map(|(id, status)| match status {
        // The versions are known once the files have been fetched.
        None => match fetching(&id) {
            Some(reason) => IndexEntry {
                name: id.name,
                state: Some("LOADING"),
                reason: Some(reason),
                ..IndexEntry::default()
            },
            None => IndexEntry { name: id.name, ..IndexEntry::default() },
        },
        Some(status) => {
            let version = status.version.map(|version| version.to_string());
            // A model that is loaded on demand, and fetched now.
            let fetching = fetching(&id);
            let name = id.name;
            match fetching.clone().filter(|_| status.state.is_evicted()) {
                Some(reason) => IndexEntry { name, version, state: Some("LOADING"), reason: Some(reason) },
                None => IndexEntry {
                    name,
                    version,
                    state: Some(status.state.name()),
                    reason: status.reason().or(fetching),
                },
            }
        }
    });
    entries.filter(|entry| !only_ready || entry.state == Some("READY")).collect()
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
            (status(Some(1), VersionState::Loading), (Some("LOADING"), None), (Some("LOADING"), true)),
            (status(Some(1), broken), (Some("UNAVAILABLE"), Some("broken")), (Some("UNAVAILABLE"), false)),
        ] {
            let line = |fetches: &[FetchStatus]| {
                let found = entries(vec![(id.clone(), status.clone())], fetches, false).remove(0);
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
