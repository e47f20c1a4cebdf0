//! Chooses the proxy and its headers: from the agent's parameters, and from a file in the form of the Dragonfly
//! project's agent.

use std::collections::BTreeMap;
use std::path::Path;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use nereid_core::backend_api::{Error, Result};
use nereid_model_files as model_files;
use serde::Deserialize;

/// The default path of the Dragonfly project's file.
const DEFAULT_FILE: &str = "/home/triton/dragonfly_config.json";

/// The variable that names another file.
const VARIABLE: &str = "TRITON_DRAGONFLY_CONFIG_PATH";

/// The longest file that is read.
const LIMIT: u64 = 1 << 20;

/// Query parameters that sign URLs of S3, Google Cloud Storage and Azure.
const SIGNATURES: [&str; 30] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
    "X-Amz-Security-Token",
    "X-Amz-User-Agent",
    "X-Goog-Algorithm",
    "X-Goog-Credential",
    "X-Goog-Date",
    "X-Goog-Expires",
    "X-Goog-SignedHeaders",
    "X-Goog-Signature",
    "sv",
    "ss",
    "sr",
    "st",
    "se",
    "sp",
    "sip",
    "spr",
    "sig",
    "skoid",
    "sktid",
    "skt",
    "ske",
    "sks",
    "skv",
    "x-id",
];

/// How to reach Dragonfly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DragonflySettings {
    /// The proxy's address, such as `http://127.0.0.1:4001`.
    pub(super) proxy: String,
    /// Additional headers to send.
    pub(super) headers: BTreeMap<String, String>,
    /// Query parameters that do not distinguish objects.
    pub(super) filter: Vec<String>,
    /// Whether the bucket may replace a failed proxy.
    pub(super) fallback: bool,
}

/// The file. Other members are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    proxy: Option<String>,
    header: BTreeMap<String, String>,
    filter: Option<Vec<String>>,
    fallback: Option<bool>,
}

impl DragonflySettings {
    /// Reads an agent's parameters, and the file that they or the environment name.
    ///
    /// # Errors
    /// The invalid setting, and where it is.
    pub fn read(parameters: &[(String, String)], variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let invalid =
            |problem: String| Error::invalid_arg(format!("repository agent 'dragonfly': {problem}"));
        let mut given = BTreeMap::new();
        for (name, value) in parameters {
            if !["config_path", "fallback", "filter", "proxy"].contains(&name.as_str()) {
                let known = "config_path, fallback, filter, proxy";
                return Err(invalid(format!("unknown parameter '{name}' (known: {known})")));
            }
            given.insert(name.as_str(), value.as_str());
        }
        let named = given.get("config_path").map(|path| (*path).to_owned());
        let named = named.or_else(|| variable(VARIABLE).filter(|path| !path.is_empty()));
        let file = match named {
            Some(path) => read_file(Path::new(&path)).map_err(invalid)?,
            None if !given.contains_key("proxy") && Path::new(DEFAULT_FILE).exists() => {
                read_file(Path::new(DEFAULT_FILE)).map_err(invalid)?
            }
            None => File::default(),
        };
        let proxy = given.get("proxy").map(|proxy| (*proxy).to_owned()).or(file.proxy);
        let proxy = proxy.filter(|proxy| !proxy.is_empty()).ok_or_else(|| {
            invalid(format!("no proxy is named: set the parameter 'proxy', or name a file in {VARIABLE}"))
        })?;
        check_proxy(&proxy).map_err(invalid)?;
        for (name, value) in &file.header {
            let is_valid = name.parse::<HeaderName>().is_ok() && value.parse::<HeaderValue>().is_ok();
            if !is_valid {
                return Err(invalid(format!("'{name}' and its value are not a header")));
            }
        }
        let listed = |text: &str| text.split(',').map(|name| name.trim().to_owned()).collect();
        let filter = given.get("filter").map(|text| listed(text)).or(file.filter);
        let filter = filter.unwrap_or_else(|| SIGNATURES.map(str::to_owned).to_vec());
        if filter.iter().any(|name| name.contains(['&', ',']) || name.parse::<HeaderValue>().is_err()) {
            return Err(invalid("'filter' must list names of query parameters".into()));
        }
        let fallback = match given.get("fallback") {
            Some(&"true") => Some(true),
            Some(&"false") => Some(false),
            Some(other) => return Err(invalid(format!("'fallback' must be true or false, not '{other}'"))),
            None => file.fallback,
        };
        Ok(Self { proxy, headers: file.header, filter, fallback: fallback.unwrap_or(true) })
    }
}

fn check_proxy(proxy: &str) -> std::result::Result<(), String> {
    let wrong = || format!("the proxy '{proxy}' is not of the form http://HOST:PORT");
    let address: Uri = proxy.parse().map_err(|_| wrong())?;
    let is_plain = address.scheme_str() == Some("http") && ["", "/"].contains(&address.path());
    let has_user = address.authority().is_some_and(|authority| authority.as_str().contains('@'));
    match is_plain && !has_user && address.host().is_some_and(|host| !host.is_empty()) {
        true => Ok(()),
        false => Err(wrong()),
    }
}

fn read_file(path: &Path) -> std::result::Result<File, String> {
    let problem = |problem: &dyn std::fmt::Display| format!("cannot read '{}': {problem}", path.display());
    let text = model_files::read(path, LIMIT).map_err(|error| problem(&error))?;
    serde_json::from_slice(&text).map_err(|error| problem(&error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(
        parameters: &[(&str, &str)],
        variable: Option<&str>,
    ) -> std::result::Result<DragonflySettings, String> {
        let parameters: Vec<_> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let settings = DragonflySettings::read(&parameters, |name| {
            variable.filter(|_| name == VARIABLE).map(str::to_owned)
        });
        settings.map_err(|error| error.message().to_owned())
    }

    #[test]
    fn parameters_go_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dragonfly.json");
        let path = path.to_str().unwrap();
        let text = r#"{"proxy": "http://file:1", "header": {"X-Own": "v"}, "filter": ["a", "b"], "fallback": false, "other": 1}"#;
        fs::write(path, text).unwrap();
        let summary = |settings: DragonflySettings| {
            let DragonflySettings { proxy, headers, filter, fallback } = settings;
            (proxy, headers.len(), filter.join("+"), fallback)
        };
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>, (&'a str, usize, Option<&'a str>, bool));
        let cases: [Case<'_>; 6] = [
            (&[("proxy", "http://p:2")], None, ("http://p:2", 0, None, true)),
            (&[("config_path", path)], None, ("http://file:1", 1, Some("a+b"), false)),
            (&[], Some(path), ("http://file:1", 1, Some("a+b"), false)),
            (&[("proxy", "http://p:2")], Some(path), ("http://p:2", 1, Some("a+b"), false)),
            (
                &[("fallback", "true"), ("filter", "x, y")],
                Some(path),
                ("http://file:1", 1, Some("x+y"), true),
            ),
            (&[("config_path", path)], Some("/no/such/file"), ("http://file:1", 1, Some("a+b"), false)),
        ];
        for (parameters, variable, (proxy, headers, filter, fallback)) in cases {
            let found = summary(read(parameters, variable).unwrap());
            let filter = filter.map_or_else(|| SIGNATURES.join("+"), str::to_owned);
            assert_eq!(found, (proxy.to_owned(), headers, filter, fallback), "{parameters:?}");
        }
    }

    #[test]
    fn invalid_settings_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dragonfly.json");
        let path = path.to_str().unwrap();
        for (text, expected) in [
            ("", "cannot read"),
            ("{", "cannot read"),
            (r#"{"proxy": 5}"#, "cannot read"),
            (r#"{"proxy": "http://a:1", "header": {"a b": "c"}}"#, "'a b' and its value are not a header"),
            (r#"{"proxy": "http://a:1", "header": {"a": "b\n"}}"#, "are not a header"),
            (r#"{"proxy": "http://a:1", "filter": ["a&b"]}"#, "'filter' must list names"),
            ("{}", "no proxy is named"),
        ] {
            fs::write(path, text).unwrap();
            let error = read(&[], Some(path)).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for (parameters, expected) in [
            (&[("proxi", "x")][..], "unknown parameter 'proxi'"),
            (&[("proxy", "https://a:1")], "not of the form http://HOST:PORT"),
            (&[("proxy", "a:1")], "not of the form"),
            (&[("proxy", "http://a:1/path")], "not of the form"),
            (&[("proxy", "http://user:secret@a:1")], "not of the form"),
            (&[("proxy", "http://a:1"), ("fallback", "perhaps")], "'fallback' must be true or false"),
            (&[("config_path", "/no/such/file")], "cannot read '/no/such/file'"),
            (&[("config_path", "/dev/zero")], "cannot read '/dev/zero'"),
        ] {
            let error = read(parameters, None).unwrap_err();
            assert!(error.contains(expected), "{parameters:?}: {error}");
        }
    }
}
