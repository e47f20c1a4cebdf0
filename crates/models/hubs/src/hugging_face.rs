//! Hugging Face's hub, by its HTTP API: a revision's commit, the tree of files in it, and the files.

use std::fs;
use std::path::PathBuf;

use async_trait::async_trait;
use hyper::Uri;
use hyper::header::{HeaderMap, LINK};
use nereid_http_client::{Client, Environment, SafeUrl, bearer, problem, resolve, text};
use object_store::path::Path;
use object_store::{ObjectMeta, Result};
use serde::Deserialize;

use crate::store::{Hub, Place, encoded};

/// The public hub.
const ENDPOINT: &str = "https://huggingface.co";

/// The most pages of a tree.
const PAGES: usize = 1000;

/// A repository of the hub.
#[derive(Debug)]
pub(crate) struct HuggingFace {
    client: Client,
    endpoint: String,
    /// `owner/name`.
    repository: String,
    revision: String,
    headers: HeaderMap,
}

/// The hub's answer about a revision.
#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// An entry of a tree.
#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

/// A large file, stored in LFS.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl HuggingFace {
    /// The repository, and the token for it.
    pub(crate) fn new(
        client: Client,
        environment: &Environment,
        repository: &str,
        revision: &str,
    ) -> (Self, Option<String>) {
        let endpoint = environment.get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let token = token(environment);
        let hub = Self {
            client,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            headers: token.as_deref().map(bearer).unwrap_or_default(),
        };
        (hub, token)
    }

    async fn commit(&self) -> Result<String> {
        let Self { endpoint, repository, revision, .. } = self;
        // A revision is one component of the path.
        let revision = encoded(revision).replace('/', "%2F");
        let url = SafeUrl::new(format!("{endpoint}/api/models/{}/revision/{revision}", encoded(repository)));
        let (_, document) = self.client.document(&url, &self.headers).await?;
        let revision: Revision = serde_json::from_slice(&document).map_err(problem)?;
        Ok(revision.sha)
    }
}

/// Searches in the order of the hub's own tools.
fn token(environment: &Environment) -> Option<String> {
    let in_file = || {
        let path = environment.get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| {
            let home = environment.get("HF_HOME").map(PathBuf::from);
            Some(home.or_else(|| environment.at_home(".cache/huggingface"))?.join("token"))
        })?;
        fs::read_to_string(path).ok()
    };
    let token = environment.first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).or_else(in_file)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

#[async_trait]
impl Hub for HuggingFace {
    async fn objects(&self) -> Result<Vec<ObjectMeta>> {
        let commit = self.commit().await?;
        let (endpoint, repository) = (&self.endpoint, encoded(&self.repository));
        let mut next =
            Some(format!("{endpoint}/api/models/{repository}/tree/{}?recursive=true", encoded(&commit)));
        let (mut objects, mut pages) = (Vec::new(), 0);
        while let Some(url) = next {
            let (headers, document) =
                self.client.document(&SafeUrl::new(url.as_str()), &self.headers).await?;
            let items: Vec<Item> = serde_json::from_slice(&document).map_err(problem)?;
            for item in items.into_iter().filter(|item| item.kind == "file") {
                let (size, e_tag) = match item.lfs {
                    Some(lfs) => (lfs.size, format!("sha256:{}", lfs.oid)),
                    None => (item.size, format!("git:{}", item.oid)),
                };
                objects.push(ObjectMeta {
                    location: Path::parse(&item.path)?,
                    last_modified: Default::default(),
                    size,
                    e_tag: Some(e_tag),
                    version: Some(commit.clone()),
                });
            }
            next = text(&headers, &LINK).and_then(|link| next_page(&url, &link));
            pages += 1;
            if pages > PAGES {
                return Err(problem(format!("the tree has more than {PAGES} pages")));
            }
        }
        Ok(objects)
    }

    async fn place(&self, object: &Path, version: Option<&str>) -> Result<Place> {
        let commit = encoded(version.unwrap_or(&self.revision));
        let (endpoint, repository) = (&self.endpoint, encoded(&self.repository));
        let url = format!("{endpoint}/{repository}/resolve/{commit}/{}", encoded(object.as_ref()));
        Ok(Place { url: SafeUrl::new(url), headers: self.headers.clone(), is_pinned: true })
    }
}

/// The URL of the next page, on the same host.
fn next_page(url: &str, link: &str) -> Option<String> {
    let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
    let (_, rest) = next.split_once('<')?;
    let (reference, _) = rest.split_once('>')?;
    let url: Uri = url.parse().ok()?;
    // The token is sent along.
    let next = resolve(&url, reference)
        .filter(|next| (next.scheme(), next.authority()) == (url.scheme(), url.authority()))?;
    Some(next.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_on_the_same_host() {
        let url = "https://h/api/models/a/b/tree/c?recursive=true";
        for (link, expected) in [
            ("<https://h/x?cursor=1>; rel=\"next\"", Some("https://h/x?cursor=1")),
            ("</x?cursor=1>; rel=\"next\"", Some("https://h/x?cursor=1")),
            ("<https://h/p>; rel=\"prev\", <https://h/n>; rel=\"next\"", Some("https://h/n")),
            ("<https://evil/x>; rel=\"next\"", None),
            ("<http://h/x>; rel=\"next\"", None),
            ("<https://h/p>; rel=\"prev\"", None),
            ("rel=\"next\"", None),
            ("", None),
        ] {
            assert_eq!(next_page(url, link).as_deref(), expected, "{link}");
        }
    }

    #[test]
    fn the_token_is_where_other_programs_have_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), " of-the-file\n").unwrap();
        let home = folder.path().to_str().unwrap().to_owned();
        for (name, value, expected) in [
            ("HF_TOKEN", "a", Some("a")),
            ("HUGGING_FACE_HUB_TOKEN", "b", Some("b")),
            ("HF_HOME", home.as_str(), Some("of-the-file")),
            ("HF_HOME", "/no/such/folder", None),
            ("X", "", None),
        ] {
            let value = value.to_owned();
            let environment = Environment::new(move |asked| (asked == name).then(|| value.clone()));
            assert_eq!(token(&environment).as_deref(), expected, "{name}");
        }
    }
}
