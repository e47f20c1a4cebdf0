//! Detects changes of a model by the stamps that its store reports for each file.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use nereid_core::Fingerprint;

use crate::model_folder::{CONFIG, CONFIGS, version_number};
use crate::store::{Object, ObjectKind};

/// Python's cache of compiled modules, written next to a model's code when the model is loaded.
const PYTHON_CACHE: &str = "__pycache__";

/// The fingerprint of a model with these files. Its configuration and its version folders go apart from the rest.
pub(crate) fn of_model(objects: &[Object]) -> Fingerprint {
    let mut config = DefaultHasher::new();
    let mut whole = DefaultHasher::new();
    let mut versions = BTreeMap::<u64, DefaultHasher>::new();
    for Object { path, kind } in objects {
        if path.split('/').any(|part| part == PYTHON_CACHE) {
            continue;
        }
        let (top, is_below) = path.split_once('/').map_or((path.as_str(), false), |(top, _)| (top, true));
        let is_in_folder = is_below || *kind == ObjectKind::Folder;
        let version = version_number(top).and_then(|version| u64::try_from(version).ok());
        let hasher = match version.filter(|_| is_in_folder) {
            Some(version) => versions.entry(version).or_default(),
            None if [CONFIG, CONFIGS].contains(&top) => &mut config,
            None => &mut whole,
        };
        path.hash(hasher);
        if let ObjectKind::File { size, stamp } = kind {
            (size, stamp).hash(hasher);
        }
    }
    let versions = versions.into_iter().map(|(version, hasher)| (version, hasher.finish())).collect();
    Fingerprint { config: config.finish(), whole: whole.finish(), versions }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(files: &[(&str, &str)]) -> Vec<Object> {
        let object = |(path, stamp): &(&str, &str)| {
            let file = ObjectKind::File { size: 1, stamp: (*stamp).to_owned() };
            let kind = if stamp.is_empty() { ObjectKind::Folder } else { file };
            Object { path: (*path).to_owned(), kind }
        };
        files.iter().map(object).collect()
    }

    #[test]
    fn changes_of_versions_configuration_and_other_files_are_distinct() {
        let files =
            [("1", ""), ("1/a", "x"), ("2", ""), ("2/deep", ""), ("2/deep/b", "x"), ("config.pbtxt", "x")];
        let before = of_model(&model(&files));
        assert_eq!(before.versions.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(of_model(&model(&files)), before);
        let changed = |at: &str| {
            let files = files.map(|(path, stamp)| (path, if path == at { "y" } else { stamp }));
            of_model(&model(&files))
        };
        let deep = changed("2/deep/b");
        assert_eq!(
            (deep.config, deep.whole, deep.versions[&1]),
            (before.config, before.whole, before.versions[&1])
        );
        assert_ne!(deep.versions[&2], before.versions[&2]);
        let config = changed("config.pbtxt");
        assert_ne!(config.config, before.config);
        assert_eq!((config.whole, &config.versions), (before.whole, &before.versions));
        let labelled = of_model(&model(&[&files[..], &[("labels.txt", "x")]].concat()));
        assert_ne!(labelled.whole, before.whole);
        assert_eq!((labelled.config, &labelled.versions), (before.config, &before.versions));
        let configs =
            of_model(&model(&[&files[..], &[("configs", ""), ("configs/big.pbtxt", "x")]].concat()));
        assert_ne!(configs.config, before.config);
        assert_eq!(configs.whole, before.whole);
    }

    #[test]
    fn python_cache_does_not_change_the_fingerprint() {
        let files = [("1", ""), ("1/model.py", "x"), ("config.pbtxt", "x")];
        let before = of_model(&model(&files));
        for folder in ["__pycache__", "1/__pycache__", "1/own/__pycache__", "configs/__pycache__"] {
            let compiled = format!("{folder}/model.cpython-312.pyc");
            let after = of_model(&model(&[&files[..], &[(folder, ""), (&compiled, "x")]].concat()));
            assert_eq!(after, before, "{folder}");
        }
        let other = of_model(&model(&[&files[..], &[("1/__pycache__.txt", "x")]].concat()));
        assert_ne!(other, before);
    }

    #[test]
    fn version_is_a_folder_even_if_empty_and_never_a_file() {
        assert_eq!(of_model(&model(&[("3", "")])).versions.len(), 1);
        assert_eq!(of_model(&model(&[("3", "x")])).versions.len(), 0);
    }
}
