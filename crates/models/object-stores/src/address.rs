//! Addresses of repositories in clouds, in Triton's forms.

use std::fmt;

use nereid_http_client::{SafeUrl, redacted};
use nereid_hubs::HubAddress;
use thiserror::Error;

/// The address of a repository. Its text form has no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    url: SafeUrl,
    pub(crate) cloud: Cloud,
    /// The bucket, the container, or the hub's repository.
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
        endpoint: Option<SafeUrl>,
    },
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
    },
    /// A hub, a registry or a web server, which is always read as a whole: it has no folders to list.
    Hub(HubAddress),
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
            _ => HubAddress::parse(text)?.map(|hub| {
                let (name, path) = (hub.name.clone(), hub.path.clone());
                (Cloud::Hub(hub), name, path)
            }),
        };
        let error = |problem| AddressError { address: redacted(text), problem };
        Some(parsed.map_err(error).and_then(|(cloud, bucket, path)| {
            if bucket.is_empty() {
                return Err(error("the name of the bucket or container is missing"));
            }
            if path.split('/').any(|part| [".", ".."].contains(&part)) {
                return Err(error("'.' and '..' are not folders of a bucket"));
            }
            Ok(Self { url: SafeUrl::new(text), cloud, bucket, path })
        }))
    }

    /// The hub's address; `None` for buckets.
    pub(crate) fn hub(&self) -> Option<&HubAddress> {
        match &self.cloud {
            Cloud::Hub(hub) => Some(hub),
            Cloud::S3 { .. } | Cloud::Google | Cloud::Azure { .. } => None,
        }
    }

    /// The text form, without secrets.
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// As it was written. It selects the credentials, and may contain secrets itself.
    pub(crate) fn with_secrets(&self) -> &str {
        self.url.with_secrets()
    }

    /// Secrets in the address, which no message may contain.
    pub(crate) fn secrets(&self) -> Vec<String> {
        self.url.secrets()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type ParsedAddress = Result<(Cloud, String, String), &'static str>;

/// `bucket/path`, or with an endpoint: `host:port/bucket/path`, over `http://` by default.
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
    let endpoint = Some(SafeUrl::new(format!("{}://{first}", scheme.unwrap_or("http"))));
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
                    Cloud::S3 { endpoint: Some(endpoint) } => endpoint.to_string(),
                    Cloud::Google => "Google".into(),
                    Cloud::Azure { account } => format!("Azure {account}"),
                    Cloud::Hub(_) => "hub".to_owned(),
                };
                format!("{of} [{bucket}] [{path}]")
            }
        }
    }

    #[test]
    fn address_is_read_as_the_reference_reads_it() {
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
            ("hf://owner/model@v1.0/a/b/", "hub [owner/model] [a/b]"),
            ("oci://host:5000/team/model:v1", "hub [team/model] []"),
            ("https://h/m.zip?x=1", "hub [https://h/m.zip?x=1] []"),
            ("hf://model", "the owner or the name of the repository is missing: hf://owner/model"),
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
                prop_assert_eq!(address.with_secrets(), &text);
                prop_assert_eq!(address.as_str(), redacted(&text));
                prop_assert!(!address.bucket.is_empty());
                prop_assert!(address.hub().is_some() || !address.bucket.contains('/'));
                prop_assert!(!address.path.starts_with('/') && !address.path.ends_with('/'));
                prop_assert!(!address.path.contains("//"));
            }
        }
    }
}
