//! Repositories that are not on this machine, and the fetches of models from them.

use nereid_core::Server;

use crate::text::{Labels, Text};

const REACHABLE: &str = "nereid_repository_reachable";
const FETCHED: &str = "nereid_repository_fetched_bytes";
const ARCHIVE_FETCHED: &str = "nereid_repository_fetch_bytes";
const ARCHIVE_TOTAL: &str = "nereid_repository_fetch_total_bytes";
const MODEL_FETCHED: &str = "nereid_model_fetch_bytes";
const MODEL_TOTAL: &str = "nereid_model_fetch_total_bytes";

/// The names of all families here.
pub(crate) const NAMES: [&str; 6] =
    [REACHABLE, FETCHED, ARCHIVE_FETCHED, ARCHIVE_TOTAL, MODEL_FETCHED, MODEL_TOTAL];

/// A remote repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRepository {
    /// The repository's address.
    pub location: String,
    /// Whether the last listing succeeded.
    pub is_reachable: bool,
    /// Bytes of files fetched since the server's start.
    pub fetched: u64,
    /// Bytes present and total bytes of a repository that is fetched as a whole, such as an archive, while the fetch
    /// runs.
    pub fetching: Option<(u64, u64)>,
}

impl RemoteRepository {
    fn labels(&self) -> Labels {
        Labels::default().and("repository", &self.location)
    }
}

pub(crate) fn write_counters(text: &mut Text, repositories: &[RemoteRepository]) {
    if repositories.is_empty() {
        return;
    }
    text.family(FETCHED, "counter", "Bytes of files fetched from a repository");
    for repository in repositories {
        text.sample(FETCHED, "", &repository.labels(), repository.fetched);
    }
}

pub(crate) fn write_gauges(text: &mut Text, repositories: &[RemoteRepository], server: &Server) {
    if repositories.is_empty() {
        return;
    }
    text.family(REACHABLE, "gauge", "Whether a repository could be listed the last time, 1 or 0");
    for repository in repositories {
        text.sample(REACHABLE, "", &repository.labels(), u8::from(repository.is_reachable));
    }
    let fetching: Vec<_> = repositories.iter().filter_map(|of| Some((of.labels(), of.fetching?))).collect();
    if !fetching.is_empty() {
        text.family(
            ARCHIVE_FETCHED,
            "gauge",
            "Bytes fetched so far of a repository that is being fetched as a whole",
        );
        fetching.iter().for_each(|(labels, (fetched, _))| text.sample(ARCHIVE_FETCHED, "", labels, *fetched));
        text.family(ARCHIVE_TOTAL, "gauge", "Bytes of a repository that is being fetched as a whole");
        fetching.iter().for_each(|(labels, (_, total))| text.sample(ARCHIVE_TOTAL, "", labels, *total));
    }
    let fetches = server.fetches();
    for (name, help, is_total) in [
        (MODEL_FETCHED, "Bytes fetched so far of a model that is being fetched", false),
        (MODEL_TOTAL, "Bytes of a model that is being fetched", true),
    ] {
        if !fetches.is_empty() {
            text.family(name, "gauge", help);
        }
        for fetch in &fetches {
            let bytes = if is_total { fetch.total } else { fetch.fetched };
            text.sample(name, "", &Labels::default().and("model", &fetch.id), bytes);
        }
    }
}
