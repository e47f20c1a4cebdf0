//! The file of credentials that `TRITON_CLOUD_CREDENTIAL_PATH` names, in the reference's form.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// The longest file that is read.
const LIMIT: u64 = 1 << 20;

/// The file's contents: for each cloud, credentials by address prefix.
#[derive(Clone, Default, Deserialize)]
pub(crate) struct CredentialFile {
    #[serde(default)]
    s3: BTreeMap<String, S3Credentials>,
    #[serde(default)]
    gs: BTreeMap<String, String>,
    #[serde(default, rename = "as")]
    azure: BTreeMap<String, AzureCredentials>,
}

/// Credentials for S3.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct S3Credentials {
    pub secret_key: String,
    pub key_id: String,
    pub region: String,
    pub session_token: String,
    pub profile: String,
}

/// Credentials for Azure.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct AzureCredentials {
    pub account_str: String,
    pub account_key: String,
    pub auth_type: String,
    pub client_id: String,
}

impl CredentialFile {
    /// Reads it.
    ///
    /// # Errors
    /// Why the file cannot be read, without its contents.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let problem =
            |problem: String| format!("cannot read the credentials in '{}': {problem}", path.display());
        let metadata = fs::metadata(path).map_err(|error| problem(error.to_string()))?;
        if !metadata.is_file() || metadata.len() > LIMIT {
            return Err(problem("not a file of at most 1 MiB".into()));
        }
        let text = fs::read(path).map_err(|error| problem(error.to_string()))?;
        // A parser's message may quote its input.
        serde_json::from_slice(&text).map_err(|error| {
            problem(format!("not the expected JSON (line {}, column {})", error.line(), error.column()))
        })
    }

    /// The credentials for an address.
    pub(crate) fn s3(&self, address: &str) -> Option<&S3Credentials> {
        longest(&self.s3, address)
    }

    /// The path of a file with credentials for an address.
    pub(crate) fn google(&self, address: &str) -> Option<&String> {
        longest(&self.gs, address)
    }

    /// The credentials for an address.
    pub(crate) fn azure(&self, address: &str) -> Option<&AzureCredentials> {
        longest(&self.azure, address)
    }
}

/// The entry whose key is the longest prefix of an address.
fn longest<'a, T>(entries: &'a BTreeMap<String, T>, address: &str) -> Option<&'a T> {
    let matching = entries.iter().filter(|(prefix, _)| address.starts_with(prefix.as_str()));
    matching.max_by_key(|(prefix, _)| prefix.len()).map(|(_, entry)| entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<CredentialFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        fs::write(&path, text).unwrap();
        CredentialFile::read(&path)
    }

    #[test]
    fn the_longest_beginning_counts() {
        let file = file(
            r#"{"s3": {"": {"key_id": "all"}, "s3://a": {"key_id": "a"}, "s3://a/models": {"key_id": "models"}},
                "gs": {"gs://b": "b.json"}, "as": {"": {"account_str": "me", "account_key": "key"}}}"#,
        )
        .unwrap();
        for (address, expected) in [
            ("s3://b", "all"),
            ("s3://a", "a"),
            // As plain text: a prefix need not end at a slash.
            ("s3://another/models", "a"),
            ("s3://a/models", "models"),
            ("s3://a/models/x", "models"),
            ("s3://http://a/models", "all"),
        ] {
            assert_eq!(file.s3(address).unwrap().key_id, expected, "{address}");
        }
        assert_eq!(file.google("gs://b/x").unwrap(), "b.json");
        assert_eq!(file.google("gs://c"), None);
        assert_eq!(file.azure("as://x/y").unwrap().account_str, "me");
    }

    #[test]
    fn malformed_file_is_reported_without_its_contents() {
        for text in [
            "",
            "{",
            r#"{"s3": {"": {"secret_key": 5, "key_id": "hidden"}}}"#,
            r#"{"s3": "hidden"}"#,
            "hidden",
        ] {
            let error = file(text).err().unwrap();
            assert!(error.contains("not the expected JSON") && !error.contains("hidden"), "{error}");
        }
        let error = CredentialFile::read(Path::new("/no/such/file")).err().unwrap();
        assert!(error.contains("No such file"), "{error}");
        assert!(CredentialFile::read(Path::new("/dev/zero")).is_err());
    }
}
