//! The options of `nereid health`: which server, which check.
//!
//! Without a URL, the server is the one that the same sources of options describe: the environment and the file.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nereid_net::listener::Address;
use nereid_terminal::tls::{Identity, Trust};

use super::http::HttpOptions;
use super::values::whole_in;

/// The options of HTTP that locate the server. The others are accepted without effect.
pub(super) const HTTP_OPTIONS: [&str; 6] =
    ["allow-http", "http-address", "http-port", "http-use-ssl", "http-use-ssl-mutual", "http-server-cert"];

/// Check that a running server is ready to answer requests. Exits with 1 and one line with the reason if it is not. Sends the
/// API key in the variable NEREID_API_KEY, if set.
#[derive(Debug, Args)]
pub struct HealthOptions {
    /// URL of the server, such as https://models:8000, or unix:/path. Default: the server on this machine that the options,
    /// the environment and the file describe.
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Check only that the server is live, ignoring the state of its models.
    #[arg(long, conflicts_with = "model")]
    pub live: bool,

    /// Check that this model is ready, instead of the whole server.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// The version of the model. Default: the version that requests without a version reach.
    #[arg(long, value_name = "NUMBER", requires = "model", value_parser = whole_in::<u64>(1..=i64::MAX as u64))]
    pub model_version: Option<u64>,

    /// Seconds until a server that does not answer counts as not ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = whole_in::<u32>(1..=3600))]
    timeout: u32,

    /// PEM file of the certificate authorities to trust, in place of the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// PEM file of a certificate chain, for servers that require client certificates.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// PEM file of the private key of --client-cert.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,

    /// Send this header, for servers that restrict the API group health. May be given several times.
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    pub header: Vec<(String, String)>,

    /// TOML file of options. Its options of HTTP locate the server.
    #[arg(long, value_name = "FILE")]
    config_file: Option<PathBuf>,

    #[command(flatten)]
    http: HttpOptions,
}

impl HealthOptions {
    /// The server's URL, and which certificate it may have.
    ///
    /// # Errors
    /// The options do not determine the server's port.
    pub fn server(&self) -> Result<(String, Trust), String> {
        let given = self.ca.clone().map(Trust::Authorities);
        if let Some(url) = &self.url {
            return Ok((url.clone(), given.unwrap_or(Trust::System)));
        }
        if !self.http.allow_http {
            return Err(
                "--allow-http is false, so the server has no port of HTTP; name another server by --url"
                    .into(),
            );
        }
        let address = match self.http.address() {
            Address::Unix(socket) => {
                return Ok((format!("unix:{}", socket.path.display()), given.unwrap_or(Trust::System)));
            }
            Address::Tcp(address) => address,
        };
        if address.port == 0 {
            return Err("--http-port is 0, so the system chose the port; name the server by --url".into());
        }
        let host = match address.host.as_str() {
            "0.0.0.0" => "localhost".to_owned(),
            "::" | "[::]" => "[::1]".to_owned(),
            host if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let certificate = self.http.tls_certificate();
        let scheme = if certificate.is_some() { "https" } else { "http" };
        let own = certificate.flatten().map_or(Trust::System, |file| Trust::Certificate(file.to_owned()));
        Ok((format!("{scheme}://{host}:{}", address.port), given.unwrap_or(own)))
    }

    /// The files of the client's certificate chain and of its key.
    pub fn client_identity(&self) -> Option<Identity> {
        self.client_cert.clone().zip(self.client_key.clone())
    }

    /// The time limit of the check.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }
}

/// A header as in HTTP: its name, a colon, and its value.
pub(super) fn header(text: &str) -> Result<(String, String), &'static str> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let (name, value) = text.split_once(':').ok_or("must be NAME: VALUE")?;
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err("must be NAME: VALUE, with a name of letters, digits and dashes");
    }
    if value.chars().any(char::is_control) {
        return Err("must have a value without control characters");
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{Command, parse};
    use super::*;

    fn options(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Box<HealthOptions>, String> {
        let line = ["nereid", "health"].iter().chain(arguments).map(Into::into).collect();
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        match parse(line, variable).map_err(|error| error.to_string())?.command {
            Some(Command::Health(options)) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn server_is_the_one_that_the_sources_describe() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nereid.toml");
        fs::write(&file, "http-port = 9100\nmodel-repository = [\"models\"]\nhttp-address = \"10.0.0.7\"\n")
            .unwrap();
        let file = file.to_str().unwrap();
        let in_file = format!("--config-file={file}");
        type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
        let cases: [Case<'_>; 15] = [
            (&[], &[], "http://localhost:8000"),
            (&["--http-port=9000"], &[], "http://localhost:9000"),
            (&[], &[("NEREID_HTTP_PORT", "9001")], "http://localhost:9001"),
            (&["--http-port", "9000"], &[("NEREID_HTTP_PORT", "9001")], "http://localhost:9000"),
            (&[&in_file], &[], "http://10.0.0.7:9100"),
            (&[], &[("NEREID_CONFIG_FILE", file)], "http://10.0.0.7:9100"),
            (&[], &[("NEREID_CONFIG_FILE", file), ("NEREID_HTTP_PORT", "1")], "http://10.0.0.7:1"),
            (&["--http-address=::"], &[], "http://[::1]:8000"),
            (&["--http-address=fe80::1"], &[], "http://[fe80::1]:8000"),
            (&["--http-address=127.0.0.1", "--http-use-ssl=1"], &[], "https://127.0.0.1:8000"),
            (&["--http-use-ssl-mutual=1"], &[], "https://localhost:8000"),
            (&["--http-address=unix:///run/n.sock?mode=0666"], &[], "unix:/run/n.sock"),
            (&["--url=https://h/base", "--http-port=9"], &[], "https://h/base"),
            (&[], &[("NEREID_URL", "h:9")], "h:9"),
            (&["--url=h", "--allow-http=false"], &[], "h"),
        ];
        for (arguments, variables, expected) in cases {
            let options = options(arguments, variables).unwrap();
            assert_eq!(options.server().unwrap().0, expected, "{arguments:?} {variables:?}");
        }
    }

    #[test]
    fn server_without_a_known_port_must_be_named() {
        for (argument, expected) in
            [("--http-port=0", "--http-port is 0"), ("--allow-http=0", "--allow-http is false")]
        {
            let error = options(&[argument], &[]).unwrap().server().unwrap_err();
            assert!(error.starts_with(expected) && error.ends_with("by --url"), "{error}");
        }
    }

    #[test]
    fn server_on_this_machine_is_trusted_by_its_own_certificate() {
        let certificate = Trust::Certificate("c.pem".into());
        let authorities = Trust::Authorities("ca.pem".into());
        for (arguments, expected) in [
            (&["--http-use-ssl=1", "--http-server-cert=c.pem"][..], certificate.clone()),
            (&["--http-use-ssl-mutual=1", "--http-server-cert=c.pem"], certificate),
            (&["--http-use-ssl=1", "--http-server-cert=c.pem", "--ca=ca.pem"], authorities.clone()),
            (&["--http-use-ssl=1"], Trust::System),
            (&["--url=https://h", "--http-use-ssl=1", "--http-server-cert=c.pem"], Trust::System),
            (&["--url=https://h", "--ca=ca.pem"], authorities),
        ] {
            assert_eq!(options(arguments, &[]).unwrap().server().unwrap().1, expected, "{arguments:?}");
        }
    }

    #[test]
    fn wrong_options_are_refused() {
        for (arguments, expected) in [
            (&["--live", "--model=m"][..], "cannot be used with"),
            (&["--model-version=1"], "--model"),
            (&["--model=m", "--model-version=0"], "from 1 to"),
            (&["--timeout=0"], "from 1 to 3600"),
            (&["--timeout=soon"], "from 1 to 3600"),
            (&["--client-cert=c"], "--client-key"),
            (&["--header=a"], "NAME: VALUE"),
            (&["--header=a b: c"], "NAME: VALUE"),
            (&["--header=: c"], "NAME: VALUE"),
            (&["--header=a: b\r\nc: d"], "control characters"),
            (&["--http-port=x"], "must be a port"),
            (&["--no-such-option"], "unexpected argument"),
        ] {
            let error = options(arguments, &[]).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
        let headers = options(&["--header=a: b : c", "--header", "D:e"], &[]).unwrap().header;
        assert_eq!(headers, [("a".into(), "b : c".into()), ("D".into(), "e".into())]);
    }
}
