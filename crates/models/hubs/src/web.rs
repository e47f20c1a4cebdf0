//! A file of the web: an archive of models, or a model's only file.

use async_trait::async_trait;
use hyper::Method;
use hyper::header::{CONTENT_LENGTH, ETAG, HeaderMap, LAST_MODIFIED};
use nereid_http_client::{Client, SafeUrl, number, problem, successful, text};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, Result};

use crate::store::{Hub, Place, file_name};

/// The suffixes of archives.
const ARCHIVES: [&str; 5] = [".tar.gz", ".tgz", ".tar.zst", ".tar", ".zip"];

/// The suffixes of files of models that need no configuration.
const MODELS: [&str; 3] = [".onnx", ".pt", ".plan"];

/// The object name of an archive.
const ARCHIVE: &str = "layers/0";

/// A file at a URL.
#[derive(Debug)]
pub(crate) struct WebFile {
    pub client: Client,
    pub url: SafeUrl,
}

/// The kind of file at a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebKind {
    /// An archive, with the name of a model in it.
    Archive(String),
    /// A model's only file: the model's name, and the file's path in it.
    Model(String, String),
}

impl WebKind {
    /// Determines the kind by the file's suffix.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let name = file_name(url);
        let stem = |endings: &[&str]| {
            let ending = endings.iter().find(|ending| name.to_ascii_lowercase().ends_with(*ending))?;
            let stem = name[..name.len() - ending.len()].to_owned();
            Some((stem, (*ending).to_owned())).filter(|(stem, _)| !stem.is_empty() && !stem.starts_with('.'))
        };
        if let Some((name, _)) = stem(&ARCHIVES) {
            return Some(Self::Archive(name));
        }
        stem(&MODELS).map(|(name, ending)| Self::Model(name, format!("1/model{ending}")))
    }
}

impl WebFile {
    /// The file's name as an object.
    fn location(&self) -> Result<Path> {
        match WebKind::of(self.url.with_secrets()) {
            Some(WebKind::Model(_, path)) => Ok(Path::parse(path)?),
            _ => Ok(Path::parse(ARCHIVE)?),
        }
    }
}

#[async_trait]
impl Hub for WebFile {
    async fn objects(&self) -> Result<Vec<ObjectMeta>> {
        let answer = self.client.send(Method::HEAD, &self.url, &HeaderMap::new()).await?;
        let answer = successful(answer, &self.url).await?;
        let headers = answer.headers();
        let size =
            number(headers, &CONTENT_LENGTH).ok_or_else(|| problem("it does not say how long it is"))?;
        let location = self.location()?;
        // Only a strong ETag proves that two files are equal.
        let e_tag = text(headers, &ETAG).filter(|etag| !etag.starts_with("W/"));
        let version = text(headers, &LAST_MODIFIED);
        Ok(vec![ObjectMeta { location, last_modified: Default::default(), size, e_tag, version }])
    }

    async fn place(&self, object: &Path, _: Option<&str>) -> Result<Place> {
        if *object != self.location()? {
            let source = "there is one file only".into();
            return Err(Error::NotFound { path: object.to_string(), source });
        }
        Ok(Place { url: self.url.clone(), headers: HeaderMap::new(), is_pinned: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_what_it_is_the_address_of() {
        let archive = |name: &str| Some(WebKind::Archive(name.into()));
        let model = |name: &str, path: &str| Some(WebKind::Model(name.into(), path.into()));
        for (url, expected) in [
            ("https://h/m.tar.gz", archive("m")),
            ("https://h/a/my-model.v2.TGZ?sig=x.onnx", archive("my-model.v2")),
            ("https://h/m.tar", archive("m")),
            ("https://h/m.tar.zst", archive("m")),
            ("http://h:1/m%20n.zip", archive("m n")),
            ("https://h/resnet.onnx", model("resnet", "1/model.onnx")),
            ("https://h/x/net.pt", model("net", "1/model.pt")),
            ("https://h/.tar.gz", None),
            ("https://h/m/", None),
            ("https://h", None),
            ("https://h/m.py", None),
        ] {
            assert_eq!(WebKind::of(url), expected, "{url}");
        }
    }
}
