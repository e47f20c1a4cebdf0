//! Addresses of hubs.

use std::fmt;

use nereid_http_client::redacted;

use crate::web::WebKind;

/// The address of a repository of a hub, of an artifact, or of a file of the web.
#[derive(Clone, PartialEq, Eq)]
pub struct HubAddress {
    /// The kind of hub.
    pub kind: HubKind,
    /// The repository `owner/name`, the artifact's name, or the URL, which may contain secrets.
    pub name: String,
    /// The folder or the file in the repository, without slashes at its ends; empty for all of it.
    pub path: String,
}

/// The kind of hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubKind {
    /// Hugging Face's hub.
    HuggingFace {
        /// A branch, tag or commit.
        revision: String,
    },
    /// A file of the web.
    Web(WebKind),
    /// A registry of OCI artifacts.
    Registry {
        /// The host, with an optional port.
        host: String,
        /// A tag or a digest.
        reference: String,
    },
}

impl HubAddress {
    /// Parses an address; `None` for other schemes.
    ///
    /// # Errors
    /// Names the missing part.
    pub fn parse(address: &str) -> Option<Result<Self, &'static str>> {
        let (scheme, rest) = address.split_once("://")?;
        match scheme {
            "hf" => Some(hugging_face(rest)),
            "oci" => Some(registry(rest)),
            "http" | "https" => Some(web(address)),
            _ => None,
        }
    }

    /// The model's name, if the address has the files of one model and no folders of models.
    pub fn model(&self) -> &str {
        match &self.kind {
            HubKind::Web(WebKind::Archive(name) | WebKind::Model(name, _)) => name,
            HubKind::HuggingFace { .. } | HubKind::Registry { .. } => {
                last_part(if self.path.is_empty() { &self.name } else { &self.path })
            }
        }
    }

    /// The name of the repository without its owner.
    pub(crate) fn repository(&self) -> &str {
        last_part(&self.name)
    }
}

impl fmt::Debug for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, path } = self;
        write!(f, "{kind:?} [{}] [{path}]", redacted(name))
    }
}

fn last_part(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// `owner/name[@revision][/path]`.
fn hugging_face(rest: &str) -> Result<HubAddress, &'static str> {
    let missing = "the owner or the name of the repository is missing: hf://owner/model";
    let mut parts = rest.split('/').filter(|part| !part.is_empty());
    let (owner, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    if owner.is_empty() || name.is_empty() || revision.is_empty() {
        return Err(missing);
    }
    let path = parts.collect::<Vec<_>>().join("/");
    let kind = HubKind::HuggingFace { revision: revision.to_owned() };
    Ok(HubAddress { kind, name: format!("{owner}/{name}"), path })
}

/// `host/name[:tag]` or `host/name@digest`.
fn registry(rest: &str) -> Result<HubAddress, &'static str> {
    let mut parts = rest.split('/').filter(|part| !part.is_empty());
    let host = parts.next().unwrap_or_default();
    let name = parts.collect::<Vec<_>>().join("/");
    let (name, reference) = match (name.split_once('@'), name.rsplit_once(':')) {
        (Some(parts), _) | (None, Some(parts)) => parts,
        (None, None) => (name.as_str(), "latest"),
    };
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:/".contains(&byte))
    };
    let is_host = is_plain(host) || (host.starts_with('[') && !host.contains('@'));
    if !is_host || !is_plain(name) || !is_plain(reference) || reference.contains('/') {
        return Err("an artifact's address is oci://registry/name:tag or oci://registry/name@sha256:...");
    }
    let kind = HubKind::Registry { host: host.to_owned(), reference: reference.to_owned() };
    Ok(HubAddress { kind, name: name.to_owned(), path: String::new() })
}

/// A URL of an archive, or of a model's only file.
fn web(url: &str) -> Result<HubAddress, &'static str> {
    let kind = WebKind::of(url).ok_or(
        "not the address of an archive (.tar.gz, .tgz, .tar.zst, .tar, .zip) or of a model's file (.onnx, .pt, .plan)",
    )?;
    Ok(HubAddress { kind: HubKind::Web(kind), name: url.to_owned(), path: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_names_hub_repository_and_path() {
        let artifact = "an artifact's address is oci://registry/name:tag or oci://registry/name@sha256:...";
        let missing = "the owner or the name of the repository is missing: hf://owner/model";
        for (text, expected) in [
            ("hf://owner/model", "HuggingFace { revision: \"main\" } [owner/model] []"),
            ("hf://owner/model@v1.0/a/b/", "HuggingFace { revision: \"v1.0\" } [owner/model] [a/b]"),
            ("hf://model", missing),
            ("hf://owner/model@", missing),
            (
                "oci://host:5000/team/model:v1",
                "Registry { host: \"host:5000\", reference: \"v1\" } [team/model] []",
            ),
            ("oci://host/model", "Registry { host: \"host\", reference: \"latest\" } [model] []"),
            (
                "oci://host/model@sha256:ab",
                "Registry { host: \"host\", reference: \"sha256:ab\" } [model] []",
            ),
            ("oci://[::1]:5000/model", "Registry { host: \"[::1]:5000\", reference: \"latest\" } [model] []"),
            ("oci://user:pw@host/model", artifact),
            ("oci://host/model name", artifact),
            ("oci://host", artifact),
            ("https://user:pw@h/m.zip?x=1", "Web(Archive(\"m\")) [https://h/m.zip?x=***] []"),
            ("http://h/m.onnx", "Web(Model(\"m\", \"1/model.onnx\")) [http://h/m.onnx] []"),
            (
                "https://h/models/",
                "not the address of an archive (.tar.gz, .tgz, .tar.zst, .tar, .zip) or of a model's file (.onnx, .pt, .plan)",
            ),
        ] {
            let parsed = match HubAddress::parse(text).unwrap() {
                Ok(address) => format!("{address:?}"),
                Err(problem) => problem.to_owned(),
            };
            assert_eq!(parsed, expected, "{text}");
        }
        assert!(HubAddress::parse("s3://bucket").is_none());
    }
}
