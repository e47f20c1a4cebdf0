//! The identity of what a load puts into memory: a record of an earlier run counts only for the same content.

use std::fmt;

use blake3::Hasher;
use nereid_core::{ModelSpec, Origin};

/// Hexadecimal digits of an identity.
const DIGITS: usize = 32;

/// Identifies a model by what its memory depends on: the files of its versions and of its folder, its instances and its
/// parameters, and the release of this server. Other parts of its configuration, such as queue settings, do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Content(String);

impl Content {
    /// The content that a load of this specification puts into memory.
    pub(crate) fn of(spec: &ModelSpec) -> Self {
        let mut hasher = Hasher::new();
        let mut add = |part: &dyn fmt::Display| {
            let part = part.to_string();
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        };
        add(&env!("CARGO_PKG_VERSION"));
        add(&spec.id);
        let config = &spec.config;
        add(&config.backend);
        add(&config.platform);
        add(&config.default_model_filename);
        add(&config.max_batch_size);
        add(&config.instance_group.len());
        for group in &config.instance_group {
            add(&group.kind);
            add(&group.count);
            add(&format_args!("{:?}", group.gpus));
        }
        add(&config.parameters.len());
        for (key, value) in &config.parameters {
            add(key);
            add(&value.string_value);
        }
        match spec.origin {
            Origin::Source => add(&"source"),
            Origin::Request(digest) => add(&digest),
        }
        add(&spec.fingerprint.whole);
        for version in &spec.versions {
            add(version);
            add(&spec.fingerprint.versions.get(version).copied().unwrap_or_default());
        }
        let mut text = hasher.finalize().to_hex().to_string();
        text.truncate(DIGITS);
        Self(text)
    }

    /// Reads an identity as [`as_str`](Self::as_str) writes it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        (text.len() == DIGITS && text.as_bytes().iter().all(is_digit)).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nereid_core::{Fingerprint, ModelId};

    use super::*;

    fn spec(config: &str) -> ModelSpec {
        let tensors = "backend: 'b' output { name: 'Y' data_type: TYPE_UINT8 dims: [ 1 ] }";
        let config = nereid_testkit::normalised("m", &format!("{tensors} {config}"));
        let fingerprint = Fingerprint { whole: 1, config: 2, versions: [(1, 3), (2, 4)].into() };
        ModelSpec { fingerprint, ..ModelSpec::new(ModelId::plain("m"), "folder", config, [1]) }
    }

    #[test]
    fn content_changes_with_what_takes_memory_and_with_nothing_else() {
        let base = spec("");
        let with = |change: &dyn Fn(&mut ModelSpec)| {
            let mut spec = base.clone();
            change(&mut spec);
            Content::of(&spec)
        };
        let same: [&dyn Fn(&mut ModelSpec); 4] = [
            &|spec| spec.directory = "elsewhere".into(),
            &|spec| spec.fingerprint.config = 9,
            // Not served.
            &|spec| spec.fingerprint.versions = [(1, 3), (2, 9)].into(),
            &|spec| spec.config.version_policy = None,
        ];
        for change in same {
            assert_eq!(with(change), Content::of(&base));
        }
        let other: [&dyn Fn(&mut ModelSpec); 9] = [
            &|spec| spec.id.name = "other".into(),
            &|spec| spec.id.namespace = "other".into(),
            &|spec| spec.versions = vec![1, 2],
            &|spec| spec.fingerprint.versions = [(1, 9), (2, 4)].into(),
            &|spec| spec.fingerprint.whole = 9,
            &|spec| spec.origin = Origin::Request(1),
            &|spec| spec.config = self::spec("instance_group { count: 7 }").config,
            &|spec| spec.config = self::spec("parameters { key: 'a' value { string_value: 'b' } }").config,
            &|spec| spec.config = self::spec("max_batch_size: 8").config,
        ];
        let contents: BTreeSet<_> = other.iter().map(|change| with(change)).collect();
        assert_eq!(contents.len(), other.len());
        assert!(!contents.contains(&Content::of(&base)));
    }

    #[test]
    fn identities_are_read_as_they_are_written() {
        let content = Content::of(&spec(""));
        assert_eq!(Content::parse(content.as_str()), Some(content.clone()));
        let upper = content.as_str().to_uppercase();
        for text in ["", "0", &upper, &format!("{}0", content.as_str()), "g0000000000000000000000000000000"] {
            assert_eq!(Content::parse(text), None, "{text}");
        }
    }
}
