//! The options of TLS, which each protocol has under its own name: which files they come to.

use std::path::Path;

use nereid_net::listener::TlsFiles;

/// What the options of one protocol say.
pub(super) struct TlsChoice<'a> {
    /// The protocol, as its options begin.
    pub protocol: &'static str,
    /// Whether TLS is asked for.
    pub on: bool,
    /// Whether clients need a certificate; with that, TLS is asked for.
    pub mutual: bool,
    pub certificate: Option<&'a Path>,
    pub key: Option<&'a Path>,
    pub roots: Option<&'a Path>,
}

impl TlsChoice<'_> {
    /// The files, if TLS is asked for. Without, none is looked at.
    ///
    /// # Errors
    /// Which option is missing.
    pub(super) fn files(&self) -> Result<Option<TlsFiles>, String> {
        if !self.on && !self.mutual {
            return Ok(None);
        }
        let asked = if self.mutual { "use-ssl-mutual" } else { "use-ssl" };
        let needed = |file: Option<&Path>, option| {
            let missing = || format!("--{0}-{asked} needs --{0}-{option}=FILE", self.protocol);
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

    fn given(on: bool, mutual: bool) -> TlsChoice<'static> {
        let file = |name| Some(Path::new(name));
        TlsChoice { on, mutual, certificate: file("c"), key: file("k"), roots: file("r"), ..NONE }
    }

    #[test]
    fn tls_is_there_if_it_is_asked_for() {
        assert_eq!(NONE.files(), Ok(None));
        assert_eq!(given(false, false).files(), Ok(None));
        let files = |roots: Option<&str>| TlsFiles {
            certificate: "c".into(),
            key: "k".into(),
            client_roots: roots.map(Into::into),
        };
        assert_eq!(given(true, false).files(), Ok(Some(files(None))));
        assert_eq!(given(true, true).files(), Ok(Some(files(Some("r")))));
        assert_eq!(given(false, true).files(), Ok(Some(files(Some("r")))));
    }

    #[test]
    fn a_missing_option_is_named() {
        for (choice, text) in [
            (TlsChoice { on: true, ..NONE }, "--http-use-ssl needs --http-server-cert=FILE"),
            (TlsChoice { key: None, ..given(true, false) }, "--http-use-ssl needs --http-server-key=FILE"),
            (
                TlsChoice { roots: None, ..given(true, true) },
                "--http-use-ssl-mutual needs --http-root-cert=FILE",
            ),
        ] {
            assert_eq!(choice.files(), Err(text.to_owned()));
        }
    }
}
