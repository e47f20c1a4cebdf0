//! The seam for releases: requests that name no version are split among the versions of a model.

use std::any::Any;
use std::time::{Duration, SystemTime};

use nereid_backend_api::{Error, InferRequest, Result};

use crate::request_head::RequestHead;

/// Splits the requests to a model that name no version. All versions of a model share one.
pub trait Release: Any + Send + Sync {
    /// The version that describes the model: its metadata, its configuration, its readiness.
    fn established(&self) -> u64;

    /// Whether heads of requests can have [keys](Self::key). Others are not read.
    fn has_keys(&self) -> bool;

    /// The key of a request, from its head: requests with equal keys go to the same version.
    fn key(&self, head: &RequestHead) -> Option<u64>;

    /// Chooses among the versions that are served now, ascending and at least one. Called once for each request that names no
    /// version, except those that continue a sequence: these stay with the version that has the sequence.
    fn choose(&self, request: &InferRequest, key: Option<u64>, served: &[u64]) -> u64;

    /// The text for a version in the repository index: its part in the release, and the reason. `None` without a part.
    fn note(&self, version: u64) -> Option<String>;

    /// The state of the release.
    fn status(&self) -> ReleaseStatus;

    /// Promotes or withdraws a candidate by hand. Does nothing if that was decided before.
    ///
    /// # Errors
    /// `InvalidArg` if the version is not a candidate, or if it was decided otherwise; `Unsupported` if nothing is decided by hand.
    fn decide(&self, _version: u64, verdict: Verdict, _reason: &str) -> Result<()> {
        let verdict = verdict.name();
        Err(Error::unsupported(format!("versions of this release cannot be {verdict} by hand")))
    }
}

/// A decision about a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The candidate gets all requests.
    Promoted,
    /// The candidate gets no requests.
    Withdrawn,
}

impl Verdict {
    /// The name for clients.
    pub fn name(self) -> &'static str {
        match self {
            Self::Promoted => "promoted",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// The state of a release.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReleaseStatus {
    /// The versions that take part, the first one as configured first.
    pub versions: Vec<ReleasedVersion>,
    /// The latest answers to copies that differed, the oldest first.
    pub differences: Vec<AnswerDifference>,
}

/// A version that takes part in a release. Counts begin with the release.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReleasedVersion {
    /// The version.
    pub version: u64,
    /// `established`, `candidate`, `promoted`, `withdrawn` or `replaced`.
    pub part: &'static str,
    /// The reason for the decision about the version, if there was one.
    pub reason: Option<String>,
    /// Share of the requests without a version, from 0 to 1.
    pub share: f64,
    /// Requests without a version that were sent to it.
    pub requests: u64,
    /// Requests that it answered or failed, copies and requests that name it included.
    pub results: u64,
    /// Failed requests among the results.
    pub errors: u64,
    /// The median of its latencies, and the 95th percentile.
    pub latencies: (Duration, Duration),
    /// Copies of requests that it got.
    pub copies: u64,
    /// Copies that were not made because too many were in progress.
    pub skipped: u64,
    /// Copies with the same answers as the established version.
    pub equal: u64,
    /// Copies with other answers.
    pub different: u64,
}

/// An answer to a copy of a request that differs from the established version's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerDifference {
    /// When it was found.
    pub at: SystemTime,
    /// The client's id of the request; may be empty.
    pub request_id: String,
    /// The version that answered the client.
    pub established: u64,
    /// The version that answered the copy.
    pub candidate: u64,
    /// The first output that differs.
    pub output: String,
    /// Where and how it differs.
    pub difference: String,
}
