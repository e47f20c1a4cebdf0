//! Addresses of repositories in clouds, in Triton's forms.

use std::fmt;

use thiserror::Error;

use crate::hubs::web::WebKind;

/// The address of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// As written: it names the repository in messages, and selects its credentials.
    text: String,
    pub(crate) cloud: Cloud,
    /// The bucket, or the container.
    pub(crate) bucket: String,
    /// The folder in the bucket, without slashes at its ends; empty for the whole bucket.
    pub(crate) path: String,
}

/// The kind of store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cloud {
    /// S3, or a compatible server at an endpoint such as `http://localhost:9000`.
    S3 {
        /// `None` for Amazon's own, or the endpoint that the environment names.
        endpoint: Option<String>,
    },
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
    },
    /// Hugging Face's hub. The bucket is the repository, `owner/name`.
    HuggingFace {
        /// A branch, tag or commit.
        revision: String,
    },
    /// A file of the web. The bucket is its URL.
    Web(WebKind),
    /// A registry of OCI artifacts. The bucket is the artifact's name.
    Registry {
        /// Its host, with a port if it has one.
        host: String,
        /// A tag or a digest.
        reference: String,
    },
}

impl Cloud {
    /// Whether the store is always read as a whole: it has no folders to list.
    pub(crate) fn is_hub(&self) -> bool {
        matches!(self, Self::HuggingFace { .. } | Self::Web(_) | Self::Registry { .. })
    }
}

/// Why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("model repository '{address}': {problem}")]
pub struct AddressError {
    address: String,
    problem: &'static str,
}

impl Address {
    /// Parses an address; `None` if it is not in a cloud.
    ///
    /// # Errors
    /// Names the missing part.
    pub fn parse(text: &str) -> Option<Result<Self, AddressError>> {
        let (scheme, rest) = text.split_once("://")?;
        let parsed = match scheme {
            "s3" => s3(rest),
            "gs" => {
                let (bucket, path) = first_part(rest);
                Ok((Cloud::Google, bucket, path))
            }
            "as" => azure(rest),
            "hf" => hugging_face(rest),
            "oci" => registry(rest),
            "http" | "https" => web(text),
            _ => return None,
        };
        let error = |problem| AddressError { address: text.to_owned(), problem };
        Some(parsed.map_err(error).and_then(|(cloud, bucket, path)| {
            if bucket.is_empty() {
                return Err(error("the name of the bucket or container is missing"));
            }
            if path.split('/').any(|part| [".", ".."].contains(&part)) {
                return Err(error("'.' and '..' are not folders of a bucket"));
            }
            Ok(Self { text: text.to_owned(), cloud, bucket, path })
        }))
    }

    /// The model's name, if the address holds the files of one model and no folders of models; `None` for buckets,
    /// which always have folders.
    pub(crate) fn model(&self) -> Option<&str> {
        match &self.cloud {
            Cloud::S3 { .. } | Cloud::Google | Cloud::Azure { .. } => None,
            Cloud::Web(WebKind::Archive(name) | WebKind::Model(name, _)) => Some(name),
            Cloud::HuggingFace { .. } | Cloud::Registry { .. } => {
                let path = if self.path.is_empty() { &self.bucket } else { &self.path };
                Some(path.rsplit_once('/').map_or(path, |(_, name)| name))
            }
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

type ParsedAddress = Result<(Cloud, String, String), &'static str>;

/// `bucket/path`, or with an endpoint: `host:port/bucket/path`, over `http://` unless the address says `https://`.
fn s3(rest: &str) -> ParsedAddress {
    let (scheme, rest) = match rest.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (Some(scheme), rest),
        Some(_) => return Err("only http:// and https:// can stand before the host of S3"),
        None => (None, rest),
    };
    let (first, path) = first_part(rest);
    if scheme.is_none() && !has_port(&first) {
        return Ok((Cloud::S3 { endpoint: None }, first, path));
    }
    if first.is_empty() {
        return Err("the host of S3 is missing");
    }
    let endpoint = Some(format!("{}://{first}", scheme.unwrap_or("http")));
    let (bucket, path) = first_part(&path);
    Ok((Cloud::S3 { endpoint }, bucket, path))
}

/// `account/container/path`; the account may be a host name of Azure's. Everything after a `?` is ignored.
fn azure(rest: &str) -> ParsedAddress {
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    let (account, rest) = first_part(rest);
    let account = account.strip_suffix(".blob.core.windows.net").unwrap_or(&account).to_owned();
    if account.is_empty() {
        return Err("the name of the storage account is missing");
    }
    let (container, path) = first_part(&rest);
    Ok((Cloud::Azure { account }, container, path))
}

/// `owner/name[@revision][/folder]`.
fn hugging_face(rest: &str) -> ParsedAddress {
    let missing = "the owner or the name of the repository is missing: hf://owner/model";
    let (owner, rest) = first_part(rest);
    let (name, path) = first_part(&rest);
    let (name, revision) = name.split_once('@').unwrap_or((&name, "main"));
    if owner.is_empty() || name.is_empty() || revision.is_empty() {
        return Err(missing);
    }
    Ok((Cloud::HuggingFace { revision: revision.to_owned() }, format!("{owner}/{name}"), path))
}

/// `host/name[:tag]` or `host/name@digest`.
fn registry(rest: &str) -> ParsedAddress {
    let (host, name) = first_part(rest);
    let (name, reference) = match (name.split_once('@'), name.rsplit_once(':')) {
        (Some(parts), _) | (None, Some(parts)) => parts,
        (None, None) => (name.as_str(), "latest"),
    };
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:/".contains(&byte))
    };
    if host.is_empty() || !is_plain(name) || !is_plain(reference) || reference.contains('/') {
        return Err("an artifact's address is oci://registry/name:tag or oci://registry/name@sha256:...");
    }
    let cloud = Cloud::Registry { host, reference: reference.to_owned() };
    Ok((cloud, name.to_owned(), String::new()))
}

/// A URL of an archive, or of a model's only file.
fn web(url: &str) -> ParsedAddress {
    let kind = WebKind::of(url).ok_or(
        "not the address of an archive (.tar.gz, .tgz, .tar.zst, .tar, .zip) or of a model's file (.onnx, .pt, .plan)",
    )?;
    Ok((Cloud::Web(kind), url.to_owned(), String::new()))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// Splits off the first part of a path, and removes doubled slashes.
fn first_part(path: &str) -> (String, String) {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let first = parts.next().unwrap_or_default().to_owned();
    (first, parts.collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> String {
        match Address::parse(text) {
            None => "local".into(),
            Some(Err(error)) => error.problem.into(),
            Some(Ok(Address { cloud, bucket, path, .. })) => {
                let of = match cloud {
                    Cloud::S3 { endpoint: None } => "S3".into(),
                    Cloud::S3 { endpoint: Some(endpoint) } => endpoint,
                    Cloud::Google => "Google".into(),
                    Cloud::Azure { account } => format!("Azure {account}"),
                    Cloud::HuggingFace { revision } => format!("hub {revision}"),
                    Cloud::Web(kind) => format!("{kind:?}"),
                    Cloud::Registry { host, reference } => format!("registry {host} {reference}"),
                };
                format!("{of} [{bucket}] [{path}]")
            }
        }
    }

    #[test]
    fn addresses_are_read_as_the_reference_reads_them() {
        for (text, expected) in [
            ("s3://bucket", "S3 [bucket] []"),
            ("s3://bucket/", "S3 [bucket] []"),
            ("s3://bucket//a//b/", "S3 [bucket] [a/b]"),
            ("s3://bucket/with blank/ä", "S3 [bucket] [with blank/ä]"),
            ("s3://host:9000/bucket", "http://host:9000 [bucket] []"),
            ("s3://127.0.0.1:9000//bucket//a/", "http://127.0.0.1:9000 [bucket] [a]"),
            ("s3://http://host:80/bucket/a/b", "http://host:80 [bucket] [a/b]"),
            ("s3://https://host:443/bucket/a", "https://host:443 [bucket] [a]"),
            ("s3://https://host.example/bucket/a", "https://host.example [bucket] [a]"),
            ("gs://bucket/a//b", "Google [bucket] [a/b]"),
            ("as://account/container/a", "Azure account [container] [a]"),
            ("as://account.blob.core.windows.net/container", "Azure account [container] []"),
            ("as://account/container/a?sas=1", "Azure account [container] [a]"),
            ("hf://owner/model", "hub main [owner/model] []"),
            ("hf://owner/model@v1.0/a/b/", "hub v1.0 [owner/model] [a/b]"),
            ("hf://model", "the owner or the name of the repository is missing: hf://owner/model"),
            ("hf://owner/model@", "the owner or the name of the repository is missing: hf://owner/model"),
            ("oci://host:5000/team/model:v1", "registry host:5000 v1 [team/model] []"),
            ("oci://host/model", "registry host latest [model] []"),
            ("oci://host/model@sha256:ab", "registry host sha256:ab [model] []"),
            (
                "oci://host/model name",
                "an artifact's address is oci://registry/name:tag or oci://registry/name@sha256:...",
            ),
            (
                "oci://host",
                "an artifact's address is oci://registry/name:tag or oci://registry/name@sha256:...",
            ),
            ("https://h/m.zip?x=1", "Archive(\"m\") [https://h/m.zip?x=1] []"),
            ("http://h/m.onnx", "Model(\"m\", \"1/model.onnx\") [http://h/m.onnx] []"),
            (
                "https://h/models/",
                "not the address of an archive (.tar.gz, .tgz, .tar.zst, .tar, .zip) or of a model's file (.onnx, .pt, .plan)",
            ),
            ("/models", "local"),
            ("models/s3:/x", "local"),
            ("x://y", "local"),
            ("s3://", "the name of the bucket or container is missing"),
            ("s3://host:9000/", "the name of the bucket or container is missing"),
            ("s3://http:///bucket", "the name of the bucket or container is missing"),
            ("s3://ftp://host/bucket", "only http:// and https:// can stand before the host of S3"),
            ("as://account", "the name of the bucket or container is missing"),
            ("as:///", "the name of the storage account is missing"),
            ("gs://bucket/../x", "'.' and '..' are not folders of a bucket"),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_not(text in "(s3|gs|as|hf|oci|https|)(://)?[a-z0-9@:/?. -]{0,40}(\\.zip)?") {
            if let Some(Ok(address)) = Address::parse(&text) {
                prop_assert_eq!(address.as_str(), &text);
                prop_assert!(!address.bucket.is_empty());
                prop_assert!(address.cloud.is_hub() || !address.bucket.contains('/'));
                prop_assert!(!address.path.starts_with('/') && !address.path.ends_with('/'));
                prop_assert!(!address.path.contains("//"));
            }
        }
    }
}
