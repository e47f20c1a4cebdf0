//! Selects the files of a model that are needed: those outside version folders, and those of the versions that its
//! policy serves.

use std::collections::BTreeSet;
use std::path::Path;

use crate::model_folder::{ReadOptions, original_config, version_number};
use crate::store::{Object, ObjectKind};

/// The versions to be served.
pub(crate) struct Versions(BTreeSet<i64>);

impl Versions {
    /// Whether a file is needed to serve them.
    pub(crate) fn needs(&self, path: &str) -> bool {
        version_of(path).is_none_or(|version| self.0.contains(&version))
    }
}

/// Whether a file is in no version's folder.
pub(crate) fn is_outside_versions(path: &str) -> bool {
    version_of(path).is_none()
}

/// The versions served according to the configuration in `folder` or in a load request. An unreadable configuration
/// serves none: reading the model reports the error.
pub(crate) fn versions(
    objects: &[Object],
    folder: &Path,
    config: Option<&str>,
    options: &ReadOptions,
) -> Versions {
    let folders = objects.iter().filter(|object| object.kind == ObjectKind::Folder);
    let mut available: Vec<_> = folders.filter_map(|folder| version_number(&folder.path)).collect();
    available.sort_unstable();
    let policy = original_config(folder, config, options).map(|config| config.version_policy);
    let served =
        policy.map(|policy| nereid_model_config::served_versions(policy.as_ref(), &available).served);
    Versions(served.unwrap_or_default().into_iter().collect())
}

/// The version whose folder a file is in.
fn version_of(path: &str) -> Option<i64> {
    let (top, _) = path.split_once('/')?;
    version_number(top)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_policy_decides_which_versions_are_needed() {
        let folder = |version: &str| Object { path: version.into(), kind: ObjectKind::Folder };
        let objects = ["1", "10", "2", "assets"].map(folder);
        let needed = |config: Option<&str>, given: Option<&str>| {
            let model = tempfile::tempdir().unwrap();
            if let Some(config) = config {
                fs::write(model.path().join("config.pbtxt"), config).unwrap();
            }
            let versions = versions(&objects, model.path(), given, &ReadOptions::default());
            ["config.pbtxt", "assets/1/x", "1/m", "2/deep/m", "10/m", "10"].map(|path| versions.needs(path))
        };
        let newest = [true, true, false, false, true, true];
        assert_eq!(needed(None, None), newest);
        assert_eq!(needed(Some(r#"backend: "identity""#), None), newest);
        let two = r"version_policy { latest { num_versions: 2 } }";
        assert_eq!(needed(Some(two), None), [true, true, false, true, true, true]);
        let all = r#"{"version_policy": {"all": {}}}"#;
        assert_eq!(needed(Some(two), Some(all)), [true; 6]);
        let specific = r"version_policy { specific { versions: [1, 7] } }";
        assert_eq!(needed(Some(specific), None), [true, true, true, false, false, true]);
        assert_eq!(needed(Some("what?"), None), [true, true, false, false, false, true]);
    }

    #[test]
    fn files_outside_versions_come_first() {
        for (path, is_beside) in
            [("config.pbtxt", true), ("1", true), ("01/x", true), ("1/x", false), ("configs/1/x", true)]
        {
            assert_eq!(is_outside_versions(path), is_beside, "{path}");
        }
    }
}
