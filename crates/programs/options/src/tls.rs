//! The TLS options, which each protocol declares under its own names, resolved to files.

use std::path::Path;

use nereid_net::listener::TlsFiles;

/// The TLS options of one protocol.
pub(super) struct TlsChoice<'a> {
    /// The protocol's prefix of the option names.
    pub protocol: &'static str,
    /// Whether TLS is enabled.
    pub on: bool,
    /// Whether clients need a certificate, which implies TLS.
    pub mutual: bool,
    pub certificate: Option<&'a Path>,
    pub key: Option<&'a Path>,
    pub roots: Option<&'a Path>,
}

impl TlsChoice<'_> {
    /// The files, if TLS is enabled; otherwise they are not checked.
    ///
    /// # Errors
    /// A missing option.
    pub(super) fn files(&self) -> Result<Option<TlsFiles>, String> {
        if !self.on && !self.mutual {
            return Ok(None);
        }
        let option_in_use = if self.mutual { "use-ssl-mutual" } else { "use-ssl" };
        let needed = |file: Option<&Path>, option| {
            let missing = || format!("--{0}-{option_in_use} needs --{0}-{option}=FILE", self.protocol);
            file.map(Path::to_owned).ok_or_else(missing)
        };
        Ok(Some(TlsFiles {
            certificate: needed(self.certificate, "server-cert")?,
            key: needed(self.key, "server-key")?,
            client_roots: self.mutual.then(|| needed(self.roots, "root-cert")).transpose()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: TlsChoice<'_> =
        TlsChoice { protocol: "http", on: false, mutual: false, certificate: None, key: None, roots: None };

    fn choice(on: bool, mutual: bool) -> TlsChoice<'static> {
        let file = |name| Some(Path::new(name));
        TlsChoice { on, mutual, certificate: file("c"), key: file("k"), roots: file("r"), ..NONE }
    }

    #[test]
    fn tls_is_enabled_by_option() {
        assert_eq!(NONE.files(), Ok(None));
        assert_eq!(choice(false, false).files(), Ok(None));
        let files = |roots: Option<&str>| TlsFiles {
            certificate: "c".into(),
            key: "k".into(),
            client_roots: roots.map(Into::into),
        };
        assert_eq!(choice(true, false).files(), Ok(Some(files(None))));
        assert_eq!(choice(true, true).files(), Ok(Some(files(Some("r")))));
        assert_eq!(choice(false, true).files(), Ok(Some(files(Some("r")))));
    }

    #[test]
    fn missing_tls_option_is_named() {
        for (choice, text) in [
            (TlsChoice { on: true, ..NONE }, "--http-use-ssl needs --http-server-cert=FILE"),
            (TlsChoice { key: None, ..choice(true, false) }, "--http-use-ssl needs --http-server-key=FILE"),
            (
                TlsChoice { roots: None, ..choice(true, true) },
                "--http-use-ssl-mutual needs --http-root-cert=FILE",
            ),
        ] {
            assert_eq!(choice.files(), Err(text.to_owned()));
        }
    }
}
