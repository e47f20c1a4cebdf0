//! URLs whose text form has no secrets.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;

/// Replaces a secret in a text.
const HIDDEN: &str = "***";

/// A URL, or the address of a repository, whose text form has no secrets: neither a user nor a password, nor the values
/// of its query.
#[derive(Clone, PartialEq, Eq)]
pub struct SafeUrl {
    written: String,
    shown: String,
}

impl SafeUrl {
    /// The URL as it was written.
    pub fn new(written: impl Into<String>) -> Self {
        let written = written.into();
        Self { shown: redacted(&written), written }
    }

    /// The text form without secrets.
    pub fn as_str(&self) -> &str {
        &self.shown
    }

    /// The URL as it was written, with its secrets.
    pub fn with_secrets(&self) -> &str {
        &self.written
    }

    /// The URL to request, without user and password. `None` if it is not one of HTTP.
    pub fn uri(&self) -> Option<Uri> {
        without_user(self.written.parse().ok()?)
    }

    /// The header with the URL's user and password, if it has them.
    pub fn authorization(&self) -> Option<HeaderValue> {
        let user = self.user()?;
        let user = percent_decode_str(user).collect::<Vec<u8>>();
        let separator: &[u8] = if user.contains(&b':') { b"" } else { b":" };
        let encoded = STANDARD.encode([&user, separator].concat());
        let mut header = HeaderValue::from_str(&format!("Basic {encoded}")).ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    /// Secrets of the URL, as they may appear in messages of servers.
    pub fn secrets(&self) -> Vec<String> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let mut secrets = Vec::new();
        if let Some(user) = self.user() {
            let password = user.split_once(':').map_or(user, |(_, password)| password);
            secrets.extend([password.to_owned(), decoded(password)]);
        }
        let query = self.written.split_once('?').map_or("", |(_, query)| query);
        for pair in query.split(['&', '#']) {
            let value = pair.split_once('=').map_or(pair, |(_, value)| value);
            secrets.extend([value.to_owned(), decoded(value)]);
        }
        secrets.retain(|secret| !secret.is_empty());
        secrets
    }

    /// The user, with the password.
    fn user(&self) -> Option<&str> {
        let (_, mut rest) = split_scheme(&self.written)?;
        // The endpoint of a bucket.
        if let Some((_, inner)) = split_scheme(rest) {
            rest = inner;
        }
        let authority = rest.split(['/', '?', '#']).next()?;
        authority.rsplit_once('@').map(|(user, _)| user)
    }
}

impl fmt::Display for SafeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for SafeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown, f)
    }
}

/// The text form of an address without secrets. Other texts, such as paths, stay as they are.
pub fn redacted(address: &str) -> String {
    let Some((scheme, rest)) = split_scheme(address) else { return address.to_owned() };
    // The endpoint of a bucket: s3://https://host:port/bucket.
    if split_scheme(rest).is_some_and(|(inner, _)| ["http", "https"].contains(&scheme_name(inner))) {
        return format!("{scheme}{}", redacted(rest));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if !is_host(host_of(authority)) && rest[authority.len()..].contains('@') {
        // Not the end of the authority, but a character of a password that should have been escaped.
        return format!("{scheme}{HIDDEN}");
    }
    let rest = &rest[authority.len() - host_of(authority).len()..];
    let (rest, fragment) = rest.split_once('#').map_or((rest, ""), |(rest, fragment)| (rest, fragment));
    let (path, query) = rest.split_once('?').map_or((rest, ""), |(path, query)| (path, query));
    let mut shown = format!("{scheme}{path}");
    if !query.is_empty() {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) if !value.trim_matches('=').is_empty() => format!("{name}={HIDDEN}"),
            _ => HIDDEN.to_owned(),
        });
        shown.push('?');
        shown.push_str(&pairs.collect::<Vec<_>>().join("&"));
    }
    if !fragment.is_empty() {
        shown.push('#');
        shown.push_str(HIDDEN);
    }
    shown
}

/// Splits an address behind its scheme and slashes, of which a mistyped address may have another number than two.
fn split_scheme(address: &str) -> Option<(&str, &str)> {
    let (name, rest) = address.split_once(":/")?;
    let is_scheme = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let rest = rest.trim_start_matches('/');
    is_scheme.then(|| address.split_at(address.len() - rest.len()))
}

fn scheme_name(scheme: &str) -> &str {
    scheme.trim_end_matches(['/', ':'])
}

/// The host of an authority, with its port.
fn host_of(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Whether a text may be a host with or without a port.
fn is_host(text: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    text.starts_with('[') || text.split_once(':').is_none_or(|(_, port)| is_port(port))
}

/// A URL without its user and password.
fn without_user(uri: Uri) -> Option<Uri> {
    let authority = uri.authority()?.as_str();
    let Some((_, host)) = authority.rsplit_once('@') else { return Some(uri) };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("{}://{host}{path}", uri.scheme_str()?).parse().ok()
}

/// Resolves a reference relative to a URL. User and password in it are dropped.
pub fn resolve(from: &Uri, to: &str) -> Option<Uri> {
    let scheme = from.scheme_str()?;
    let absolute = if to.starts_with("//") {
        format!("{scheme}:{to}")
    } else if to.starts_with('/') {
        format!("{scheme}://{}{to}", from.authority()?)
    } else if split_scheme(to).is_some() {
        to.to_owned()
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{}{folder}/{to}", from.authority()?)
    };
    let uri: Uri = absolute.parse().ok()?;
    without_user(uri).filter(|uri| ["http", "https"].contains(&uri.scheme_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_form_has_neither_user_nor_values_of_the_query() {
        for (written, expected) in [
            ("https://h/m.zip", "https://h/m.zip"),
            ("https://user:pw@h:8443/m.zip", "https://h:8443/m.zip"),
            ("https://token@h/m.zip", "https://h/m.zip"),
            ("https://us@er:p@w@h/m@v1.zip", "https://h/m@v1.zip"),
            ("https://user:p/w@h/m.zip", "https://***"),
            ("https://user:p?w@h/m.zip", "https://***"),
            ("https://user:p#w@h/m.zip", "https://***"),
            ("https://user:p:1/w@h/m.zip", "https://***"),
            ("s3://https://user:p/w@h/b", "s3://https://***"),
            (
                "https://h/m.zip?X-Amz-Date=1&X-Amz-Signature=s",
                "https://h/m.zip?X-Amz-Date=***&X-Amz-Signature=***",
            ),
            ("https://h/m.zip?dG9rZW4=", "https://h/m.zip?***"),
            ("https://h/m.zip?dG9rZW4==", "https://h/m.zip?***"),
            ("https://h/m.zip?token", "https://h/m.zip?***"),
            ("https://h/m.zip?", "https://h/m.zip"),
            ("https://h/m.zip#token", "https://h/m.zip#***"),
            ("https://[::1]:8443/m@x.zip", "https://[::1]:8443/m@x.zip"),
            ("https://[::1]/m@x.zip", "https://[::1]/m@x.zip"),
            ("s3://https://user:pw@h:443/b/a", "s3://https://h:443/b/a"),
            ("s3://user:pw@h:443/b/a", "s3://h:443/b/a"),
            ("as://account/container/a?sig=x", "as://account/container/a?sig=***"),
            ("hf://owner/model@main/folder", "hf://owner/model@main/folder"),
            ("oci://h:5000/name@sha256:ab", "oci://h:5000/name@sha256:ab"),
            ("https:/user:pw@h/m.zip", "https:/h/m.zip"),
            ("ftp://user:pw@h/m.zip", "ftp://h/m.zip"),
            ("/models?x=y", "/models?x=y"),
            ("models/a@b", "models/a@b"),
        ] {
            assert_eq!(redacted(written), expected, "{written}");
        }
    }

    #[test]
    fn password_is_sent_and_not_requested() {
        for (written, uri, login) in [
            ("https://user:p%40w@h:1/m.zip?a=b#c", "https://h:1/m.zip?a=b", Some("user:p@w")),
            ("https://user@h/m.zip", "https://h/m.zip", Some("user:")),
            ("https://h/m.zip", "https://h/m.zip", None),
        ] {
            let url = SafeUrl::new(written);
            assert_eq!(url.uri().unwrap().to_string(), uri);
            let expected = login.map(|login| format!("Basic {}", STANDARD.encode(login)));
            let header = url.authorization();
            assert_eq!(header.as_ref().map(|header| header.to_str().unwrap()), expected.as_deref());
        }
        assert_eq!(SafeUrl::new("https://u:p%40w@h/m?a=s%20t").secrets(), ["p%40w", "p@w", "s%20t", "s t"]);
        assert_eq!(SafeUrl::new("s3://https://u:pw@h:443/bucket").secrets(), ["pw", "pw"]);
        assert!(SafeUrl::new("hf://owner/model@main").secrets().is_empty());
    }

    #[test]
    fn references_lead_where_browsers_go() {
        let from: Uri = "https://host:1/a/b?c=d".parse().unwrap();
        for (to, expected) in [
            ("https://other/x", Some("https://other/x")),
            ("https://user:pw@other/x", Some("https://other/x")),
            ("//other/x", Some("https://other/x")),
            ("/x?y=z", Some("https://host:1/x?y=z")),
            ("/x?y=https://z/", Some("https://host:1/x?y=https://z/")),
            ("x", Some("https://host:1/a/x")),
            ("ftp://other/x", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(resolve(&from, to).map(|uri| uri.to_string()).as_deref(), expected, "{to}");
        }
    }

    proptest! {
        /// Whatever characters a secret has, no part of it is shown.
        #[test]
        fn no_secret_is_shown(
            user in "[a-z]{1,8}",
            password in prop_oneof!["SECRET[!-~&&[^/?#]]{0,12}SECRET", "SECRET[!-~&&[^@]]{0,12}SECRET"],
            value in "HIDDEN[!-~&&[^&]]{0,12}HIDDEN",
            scheme in "(https://|http://|s3://https://|s3://|ftp://|https:/)",
            port in "(|:8443)",
        ) {
            let address = format!("{scheme}{user}:{password}@host{port}/bucket/m.zip?a=1&sig={value}");
            let url = SafeUrl::new(address.clone());
            for shown in [redacted(&address), url.to_string(), format!("{url:?}")] {
                prop_assert!(!shown.contains("SECRET") && !shown.contains("HIDDEN"), "{}", shown);
            }
        }
    }
}
