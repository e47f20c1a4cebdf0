//! Which versions of a model are served.

use crate::proto::ModelVersionPolicy;
use crate::proto::model_version_policy::PolicyChoice;

/// The result of applying a version policy to the existing versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedVersions {
    /// Versions to serve, ascending. If empty, the model cannot be loaded.
    pub served: Vec<i64>,
    /// Versions that the policy names but that do not exist, ascending. The others are served nevertheless.
    pub missing: Vec<i64>,
}

/// Applies `policy` to the existing version numbers, which may be unordered and repeated.
///
/// Without a policy, the highest version is served. A policy without a choice serves all versions, as in the
/// reference.
pub fn served_versions(policy: Option<&ModelVersionPolicy>, available: &[i64]) -> ServedVersions {
    let available = ascending(available);
    let Some(policy) = policy else {
        return ServedVersions { served: highest(available, 1), missing: Vec::new() };
    };
    match &policy.policy_choice {
        Some(PolicyChoice::Latest(latest)) => {
            let count = usize::try_from(latest.num_versions).unwrap_or(usize::MAX);
            ServedVersions { served: highest(available, count), missing: Vec::new() }
        }
        Some(PolicyChoice::Specific(specific)) => {
            let (served, missing) = ascending(&specific.versions)
                .into_iter()
                .partition(|version| available.binary_search(version).is_ok());
            ServedVersions { served, missing }
        }
        Some(PolicyChoice::All(_)) | None => ServedVersions { served: available, missing: Vec::new() },
    }
}

fn ascending(versions: &[i64]) -> Vec<i64> {
    let mut versions = versions.to_vec();
    versions.sort_unstable();
    versions.dedup();
    versions
}

fn highest(mut ascending: Vec<i64>, count: usize) -> Vec<i64> {
    ascending.split_off(ascending.len().saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::model_version_policy::{All, Latest, Specific};

    fn select(choice: Option<PolicyChoice>, available: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let result = served_versions(Some(&ModelVersionPolicy { policy_choice: choice }), available);
        (result.served, result.missing)
    }

    fn latest(num_versions: u32) -> Option<PolicyChoice> {
        Some(PolicyChoice::Latest(Latest { num_versions }))
    }

    #[test]
    fn highest_version_is_served_without_policy() {
        assert_eq!(served_versions(None, &[2, 10, 9]).served, [10]);
        assert_eq!(served_versions(None, &[]), ServedVersions::default());
    }

    #[test]
    fn latest_policy_serves_the_highest_versions_in_order() {
        assert_eq!(select(latest(2), &[10, 1, 9]), (vec![9, 10], vec![]));
        assert_eq!(select(latest(u32::MAX), &[3, 1]), (vec![1, 3], vec![]));
        assert_eq!(select(latest(0), &[1, 2]), (vec![], vec![]));
        assert_eq!(select(latest(2), &[5, 5, 4, 5]), (vec![4, 5], vec![]));
    }

    #[test]
    fn policy_all_and_empty_policy_serve_every_version() {
        assert_eq!(select(Some(PolicyChoice::All(All {})), &[3, 1, 2]), (vec![1, 2, 3], vec![]));
        assert_eq!(select(None, &[3, 1]), (vec![1, 3], vec![]));
    }

    #[test]
    fn specific_policy_reports_missing_versions() {
        let specific =
            |versions: &[i64]| Some(PolicyChoice::Specific(Specific { versions: versions.to_vec() }));
        assert_eq!(select(specific(&[7, 3, 1, 3]), &[1, 2, 3]), (vec![1, 3], vec![7]));
        assert_eq!(select(specific(&[9, 8]), &[1]), (vec![], vec![8, 9]));
        assert_eq!(select(specific(&[]), &[1]), (vec![], vec![]));
    }
}
