//! The state of repositories, for metrics.

/// The state of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryStatus {
    /// The repository's address, without secrets.
    pub location: String,
    /// Whether the last listing succeeded.
    pub is_reachable: bool,
    /// How many bytes of files were fetched from it.
    pub fetched: u64,
    /// For stores that are fetched as a whole, such as archives: bytes received and total, while a fetch is in
    /// progress.
    pub fetching: Option<(u64, u64)>,
}
