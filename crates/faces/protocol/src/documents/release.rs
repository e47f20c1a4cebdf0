//! The state of a model's release.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nereid_backend_api::{Error, Result};
use nereid_core::{AnswerDifference, Model, ReleasedVersion};
use serde::Serialize;

/// The release of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReleaseDocument {
    /// The model's name.
    pub name: String,
    /// The versions that take part.
    pub versions: Vec<ReleasedVersionDocument>,
    /// The latest answers to copies that differed; absent if the client may not see the contents of answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<DifferenceDocument>>,
}

/// See [`ReleasedVersion`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields of the converted type describe them")]
pub struct ReleasedVersionDocument {
    pub version: String,
    pub part: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub share: f64,
    pub requests: u64,
    pub results: u64,
    pub errors: u64,
    pub median_latency_us: u64,
    pub p95_latency_us: u64,
    pub copies: u64,
    pub copies_skipped: u64,
    pub answers_equal: u64,
    pub answers_different: u64,
}

/// See [`AnswerDifference`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields of the converted type describe them")]
pub struct DifferenceDocument {
    /// Milliseconds since the Unix epoch.
    pub time_ms: u64,
    pub request_id: String,
    pub established: String,
    pub candidate: String,
    pub output: String,
    pub difference: String,
}

impl ReleaseDocument {
    /// The release of a model. `shows_answers`: whether the client may see the contents of answers.
    ///
    /// # Errors
    /// The model has no release.
    pub fn of(model: &Model, shows_answers: bool) -> Result<Self> {
        let name = model.name();
        let release =
            model.release().ok_or_else(|| Error::not_found(format!("model '{name}' has no release")))?;
        let status = release.status();
        let differences = status.differences.into_iter().map(DifferenceDocument::from);
        Ok(Self {
            name: name.to_owned(),
            versions: status.versions.into_iter().map(ReleasedVersionDocument::from).collect(),
            differences: shows_answers.then(|| differences.collect()),
        })
    }
}

impl From<ReleasedVersion> for ReleasedVersionDocument {
    fn from(version: ReleasedVersion) -> Self {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let (median, p95) = version.latencies;
        Self {
            version: version.version.to_string(),
            part: version.part,
            reason: version.reason,
            share: version.share,
            requests: version.requests,
            results: version.results,
            errors: version.errors,
            median_latency_us: micros(median),
            p95_latency_us: micros(p95),
            copies: version.copies,
            copies_skipped: version.skipped,
            answers_equal: version.equal,
            answers_different: version.different,
        }
    }
}

impl From<AnswerDifference> for DifferenceDocument {
    fn from(difference: AnswerDifference) -> Self {
        let AnswerDifference { at, request_id, established, candidate, output, difference } = difference;
        let millis = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self {
            time_ms: u64::try_from(millis(at)).unwrap_or(u64::MAX),
            request_id,
            established: established.to_string(),
            candidate: candidate.to_string(),
            output,
            difference,
        }
    }
}
