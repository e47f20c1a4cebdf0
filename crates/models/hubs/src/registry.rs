//! Models as OCI artifacts in registries: files with titles, as ORAS writes them, and images with a folder `models`, as KServe's
//! modelcars have it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use async_trait::async_trait;
use hyper::Method;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use nereid_http_client::{Client, Origin, SafeUrl, bearer, problem, successful, text};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, Result};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::docker::Login;
use crate::store::{Hub, Place};

/// The annotation with a file's name.
const TITLE: &str = "org.opencontainers.image.title";

/// The annotation of a layer that is the archive of a folder.
const UNPACK: &str = "io.deis.oras.content.unpack";

/// The supported types of manifests.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";

/// The prefix of the names of objects that are archives, in the order of their layers.
const LAYERS: &str = "layers/";

/// The prefix of the names of objects that are files, followed by the file's path.
pub const FILES: &str = "files/";

/// The prefix of layers that belong to an image, of which only the folder `models` is used.
pub const IMAGE: &str = "layers/image-";

/// An artifact in a registry.
#[derive(Debug)]
pub(crate) struct Registry {
    client: Client,
    /// Such as `https://registry.example`.
    base: String,
    /// Such as `team/model`.
    name: String,
    /// A tag or a digest.
    reference: String,
    login: Option<Login>,
    /// The login, once it is known.
    headers: Mutex<Option<HeaderMap>>,
}

#[derive(Deserialize)]
struct Manifest {
    /// The manifests of an index.
    #[serde(default)]
    manifests: Vec<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Clone, Deserialize)]
struct Descriptor {
    #[serde(default, rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    platform: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// The artifact, and the login for its registry.
    pub(crate) fn new(client: Client, host: &str, name: &str, reference: &str, login: Option<Login>) -> Self {
        // As in other tools, a registry on this machine is for tests and uses no TLS.
        let local = ["localhost", "127.0.0.1", "[::1]"];
        let is_local = local.iter().any(|local| {
            host.strip_prefix(local).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        });
        let scheme = if is_local { "http" } else { "https" };
        // The actual host of the registry with that name.
        let host = if host == "docker.io" { "registry-1.docker.io" } else { host };
        let headers = Mutex::default();
        let (name, reference) = (name.to_owned(), reference.to_owned());
        Self { client, base: format!("{scheme}://{host}"), name, reference, login, headers }
    }

    /// The credentials for requests: none, a token for this artifact, or the password itself.
    async fn headers(&self) -> Result<HeaderMap> {
        let mut known = self.headers.lock().await;
        if let Some(headers) = &*known {
            return Ok(headers.clone());
        }
        let url = SafeUrl::new(format!("{}/v2/", self.base));
        let answer = self.client.send(Method::GET, &url, &HeaderMap::new()).await?;
        let headers = match text(answer.headers(), &WWW_AUTHENTICATE) {
            Some(challenge) if answer.status().as_u16() == 401 => {
                self.open(&challenge, answer.extensions().get()).await?
            }
            _ => {
                successful(answer, &url).await?;
                HeaderMap::new()
            }
        };
        Ok(known.insert(headers).clone())
    }

    /// The headers for a challenge of the registry, which may name another server for tokens.
    async fn open(&self, challenge: &str, registry: Option<&Origin>) -> Result<HeaderMap> {
        let basic = match &self.login {
            Some(Login::Basic(basic)) => basic_header(basic),
            Some(Login::Identity(_)) | None => HeaderMap::new(),
        };
        let Some(settings) = challenge.strip_prefix("Bearer ").map(settings) else { return Ok(basic) };
        let realm =
            settings.get("realm").ok_or_else(|| problem("the registry does not say where tokens are"))?;
        let mut form = format!("scope=repository%3A{}%3Apull", encoded(&self.name));
        if let Some(service) = settings.get("service") {
            // Writing to text does not fail.
            let _ = write!(form, "&service={}", encoded(service));
        }
        let document = if let Some(Login::Identity(token)) = &self.login {
            let token = encoded(token);
            form = format!("grant_type=refresh_token&client_id=nereid&refresh_token={token}&{form}");
            self.client.post_form(registry, &SafeUrl::new(*realm), form).await?
        } else {
            let url = format!("{realm}{}{form}", if realm.contains('?') { '&' } else { '?' });
            self.client.linked_document(registry, &SafeUrl::new(url), &basic).await?
        };
        let token: Token = serde_json::from_slice(&document).map_err(problem)?;
        let token = token.token.or(token.access_token);
        Ok(bearer(&token.ok_or_else(|| problem("the registry gives no token"))?))
    }

    async fn manifest(&self, reference: &str) -> Result<Manifest> {
        let mut headers = self.headers().await?;
        headers.insert(ACCEPT, HeaderValue::from_static(MANIFESTS));
        let url = SafeUrl::new(format!("{}/v2/{}/manifests/{reference}", self.base, self.name));
        let (_, document) = self.client.document(&url, &headers).await?;
        if reference.contains(':') && sha256(&document) != reference {
            return Err(problem(format!("the manifest is not '{reference}'")));
        }
        serde_json::from_slice(&document).map_err(problem)
    }
}

#[async_trait]
impl Hub for Registry {
    async fn objects(&self) -> Result<Vec<ObjectMeta>> {
        let mut manifest = self.manifest(&self.reference).await?;
        if let Some(of_machine) = for_this_machine(&manifest.manifests) {
            manifest = self.manifest(&of_machine.digest).await?;
        }
        let mut objects = Vec::new();
        for (index, layer) in manifest.layers.iter().enumerate() {
            if !is_digest(&layer.digest) {
                return Err(problem(format!("the digest '{}' is not of the form sha256:...", layer.digest)));
            }
            let title = layer.annotations.get(TITLE);
            let is_packed = layer.annotations.get(UNPACK).is_some_and(|unpack| unpack == "true");
            let location = match title {
                Some(title) if !is_packed => format!("{FILES}{title}"),
                Some(_) => format!("{LAYERS}{index:04}"),
                None if layer.media_type.contains("tar") => format!("{IMAGE}{index:04}"),
                None => continue,
            };
            let location = Path::parse(location)?;
            let (e_tag, version) = (Some(layer.digest.clone()), Some(layer.digest.clone()));
            objects.push(ObjectMeta {
                location,
                last_modified: Default::default(),
                size: layer.size,
                e_tag,
                version,
            });
        }
        if objects.is_empty() {
            let source = "the artifact has no files".into();
            return Err(Error::NotFound { path: self.name.clone(), source });
        }
        Ok(objects)
    }

    async fn place(&self, _: &Path, version: Option<&str>) -> Result<Place> {
        let digest = version.filter(|digest| is_digest(digest)).ok_or_else(|| problem("no digest"))?;
        let url = SafeUrl::new(format!("{}/v2/{}/blobs/{digest}", self.base, self.name));
        Ok(Place { url, headers: self.headers().await?, is_pinned: true })
    }
}

/// Selects the manifest for this machine, or else the first.
fn for_this_machine(manifests: &[Descriptor]) -> Option<&Descriptor> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let says = |descriptor: &Descriptor, name: &str, value: &str| {
        descriptor.platform.get(name).and_then(|found| found.as_str()) == Some(value)
    };
    let fitting = manifests
        .iter()
        .find(|manifest| says(manifest, "os", "linux") && says(manifest, "architecture", architecture));
    fitting.or(manifests.first())
}

fn basic_header(basic: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(mut value) = HeaderValue::from_str(&format!("Basic {basic}")) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers
}

/// Parses the parameters of a challenge: `name="value"`, separated by commas.
fn settings(challenge: &str) -> BTreeMap<&str, &str> {
    let (mut settings, mut rest) = (BTreeMap::new(), challenge);
    while let Some((name, after)) = rest.split_once("=\"") {
        let Some((value, after)) = after.split_once('"') else { break };
        settings.insert(name.trim_matches([',', ' ']), value);
        rest = after;
    }
    settings
}

fn encoded(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}

fn is_digest(digest: &str) -> bool {
    let hex = digest.strip_prefix("sha256:");
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn sha256(document: &[u8]) -> String {
    let digest = digest(&SHA256, document);
    digest.as_ref().iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_says_where_tokens_are() {
        for (challenge, realm, service) in [
            (
                r#"realm="https://auth/token",service="registry",scope="a:b:pull,push""#,
                Some("https://auth/token"),
                Some("registry"),
            ),
            (r#"service="r", realm="http://h/t?x=y""#, Some("http://h/t?x=y"), Some("r")),
            (r#"realm="unfinished"#, None, None),
            ("", None, None),
        ] {
            let settings = settings(challenge);
            assert_eq!((settings.get("realm").copied(), settings.get("service").copied()), (realm, service));
        }
    }

    #[test]
    fn digests_are_sha_256() {
        let good = sha256(b"abc");
        assert_eq!(good, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(is_digest(&good));
        for bad in ["", "sha256:", "sha512:00", &good[7..], &good[..70], &format!("{}/", &good[..70])] {
            assert!(!is_digest(bad), "{bad}");
        }
    }
}
