//! The options of HTTP: address, limits, and access.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use clap::{ArgAction, Args};
use nereid_assembly::{AnswerFolder, ConsolePort, Endpoint, Http, OpenAiPort, OpenAiPrefix, OpenAiSettings};
use nereid_http::{Origin, TransportOptions};
use nereid_kserve::{HttpOptions as FaceOptions, cors};
use nereid_net::listener::{Address, Host, TlsFiles};
use nereid_protocol::{HeaderPattern, Restriction, Restrictions};

use super::tls::TlsChoice;
use super::values::{boolean, int, non_zero, port, whole};

/// The options of HTTP.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpOptions {
    /// Serve HTTP.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub allow_http: bool,

    /// Serve the console, pages that show what the server does, to browsers at / of the HTTP port.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    console: bool,

    /// Port to serve the console on, instead of the HTTP port; 0 for any free one. The HTTP interface, which the pages use, is there,
    /// too, under the same rights. Default: the HTTP port.
    #[arg(long, value_name = "PORT", value_parser = port())]
    console_port: Option<u16>,

    /// Address or host name to serve the console on, with --console-port, or a Unix socket as for --http-address. Default: the value of
    /// --http-address, or 127.0.0.1 if that is a Unix socket.
    #[arg(long, value_name = "ADDRESS", value_parser = str::parse::<Host>)]
    console_address: Option<Host>,

    /// Serve OpenAI's interface at /v1 of the HTTP port, for models that take and return text.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    openai: bool,

    /// Port to serve OpenAI's interface on, instead of the HTTP port; 0 for any free one. Nothing else is there, and
    /// --allow-http=false does not close it. A console on a port of its own still has the interface, which its chats use. Default:
    /// the HTTP port.
    #[arg(long, value_name = "PORT", value_parser = port())]
    openai_port: Option<u16>,

    /// Address or host name to serve OpenAI's interface on, with --openai-port, or a Unix socket as for --http-address. Default: the
    /// value of --http-address, or 127.0.0.1 if that is a Unix socket.
    #[arg(long, value_name = "ADDRESS", value_parser = str::parse::<Host>)]
    openai_address: Option<Host>,

    /// Maximum number of tokens that a request through OpenAI's interface generates if it sets no limit. Models of the
    /// backend llamacpp need none.
    #[arg(long, value_name = "COUNT", default_value = "16", value_parser = non_zero())]
    openai_default_max_tokens: NonZeroUsize,

    /// Bytes of memory for the answers of /v1/responses that requests can continue by previous_response_id. If they are full, the
    /// answers that were not used for the longest time leave; 0 stores none.
    #[arg(long, value_name = "BYTES", default_value = "67108864", value_parser = whole::<usize>())]
    openai_stored_bytes: usize,

    /// Folder for the same answers as files, which outlive the server, and from which answers that left memory are read. It is
    /// created if it does not exist; one server uses it at a time. Default: memory alone.
    #[arg(long, value_name = "PATH")]
    openai_stored_directory: Option<PathBuf>,

    /// Maximum bytes of these files. If they are full, the answers that were not used for the longest time are removed. Default:
    /// 1073741824.
    #[arg(long, value_name = "BYTES", value_parser = whole::<u64>())]
    openai_stored_directory_byte_size: Option<u64>,

    /// A further path below which OpenAI's interface is served, such as /openai for clients of KServe's runtimes, which have it at
    /// /openai/v1.
    #[arg(long, value_name = "PATH", value_parser = str::parse::<OpenAiPrefix>)]
    openai_prefix: Option<OpenAiPrefix>,

    /// Address or host name to serve HTTP on, or a Unix socket, unix:/path, for programs of its owner and its group on this
    /// machine; unix:/path?mode=0666 for others, too. A Unix socket has no port.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0", value_parser = str::parse::<Host>)]
    http_address: Host,

    /// Port to serve HTTP on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000, value_parser = port())]
    pub http_port: u16,

    /// Share the HTTP port with other servers that set this option; the system spreads connections over them.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    reuse_http_port: bool,

    /// I/O threads, for all protocols. Default, and with 0: one per processor.
    #[arg(long, value_name = "COUNT", value_parser = int::<usize>())]
    http_thread_count: Option<usize>,

    /// Maximum size in bytes of the JSON part of a request, of a tensor in JSON or in a raw body, and of a decompressed
    /// body.
    #[arg(long, value_name = "BYTES", default_value = "67108864", value_parser = non_zero())]
    http_max_input_size: NonZeroUsize,

    /// Maximum size of a request body in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = i32::MAX as usize, value_parser = whole::<usize>())]
    http_max_body_size: usize,

    /// Forward HTTP headers whose names match this regular expression to models, as request parameters.
    #[arg(long, value_name = "REGEX", value_parser = HeaderPattern::new)]
    http_header_forward_pattern: Option<HeaderPattern>,

    /// Restrict API groups to requests with the header KEY: VALUE. The groups: health, metadata, inference,
    /// shared-memory, model-config, model-repository, statistics, trace, logging. May be given several times.
    #[arg(long, value_name = "API[,API]:KEY=VALUE", action = ArgAction::Append)]
    http_restricted_api: Vec<Restriction>,

    /// Allow web pages of this origin, such as https://example.com, to use the server from a browser (CORS); * for
    /// every origin. May be given several times. Default: none.
    #[arg(long, value_name = "ORIGIN", action = ArgAction::Append)]
    http_cors_origin: Vec<Origin>,

    /// Serve HTTP over TLS only.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    http_use_ssl: bool,

    /// Serve HTTP over TLS, only to clients with a certificate issued under --http-root-cert.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    http_use_ssl_mutual: bool,

    /// PEM file of the server's certificate chain. It is reloaded when it changes, as are the key and the roots.
    #[arg(long, value_name = "FILE")]
    http_server_cert: Option<PathBuf>,

    /// PEM file of the certificate's private key.
    #[arg(long, value_name = "FILE")]
    http_server_key: Option<PathBuf>,

    /// PEM file of the root certificates for clients.
    #[arg(long, value_name = "FILE")]
    http_root_cert: Option<PathBuf>,
}

impl HttpOptions {
    /// Threads that read and write HTTP.
    pub(crate) fn threads(&self) -> usize {
        let count = self.http_thread_count.and_then(NonZeroUsize::new);
        count.or_else(|| available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }

    /// Address of the HTTP face.
    pub(crate) fn address(&self) -> Address {
        self.http_address.at(self.http_port, self.reuse_http_port)
    }

    /// Address of the console, if it has one of its own.
    pub(crate) fn console_address(&self) -> Option<Address> {
        let has_own = self.allow_http && self.console && self.console_port.is_some();
        let host = self.console_address.clone().unwrap_or_else(|| self.host());
        has_own.then(|| host.at(self.console_port.unwrap_or_default(), false))
    }

    /// Address of OpenAI's interface, if it has one of its own.
    pub(crate) fn openai_address(&self) -> Option<Address> {
        let port = self.openai_port.filter(|_| self.openai)?;
        let host = self.openai_address.clone().unwrap_or_else(|| self.host());
        Some(host.at(port, false))
    }

    /// A conflict between options.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let is_lost = |address: &Option<Host>, port: Option<u16>| address.is_some() && port.is_none();
        if is_lost(&self.openai_address, self.openai_port) {
            return Some("--openai-address needs --openai-port");
        }
        if self.openai_stored_directory_byte_size.is_some() && self.openai_stored_directory.is_none() {
            return Some("--openai-stored-directory-byte-size needs --openai-stored-directory");
        }
        is_lost(&self.console_address, self.console_port).then_some("--console-address needs --console-port")
    }

    /// The default host of other protocols: HTTP's host, or the loopback address if HTTP is served at a Unix socket.
    pub(crate) fn host(&self) -> Host {
        match &self.http_address {
            Host::Name(name) => Host::Name(name.clone()),
            Host::Unix(_) => Host::Name("127.0.0.1".to_owned()),
        }
    }

    /// The TLS files, if TLS is enabled.
    ///
    /// # Errors
    /// A missing option.
    pub(super) fn tls(&self) -> Result<Option<TlsFiles>, String> {
        TlsChoice {
            protocol: "http",
            on: self.http_use_ssl,
            mutual: self.http_use_ssl_mutual,
            certificate: self.http_server_cert.as_deref(),
            key: self.http_server_key.as_deref(),
            roots: self.http_root_cert.as_deref(),
        }
        .files()
    }

    /// The file of the server's certificate, if it is named, where TLS is enabled; `None` where it is not.
    pub(super) fn tls_certificate(&self) -> Option<Option<&Path>> {
        (self.http_use_ssl || self.http_use_ssl_mutual).then_some(self.http_server_cert.as_deref())
    }

    /// The HTTP face, if HTTP is served.
    ///
    /// # Errors
    /// Conflicting options, or a missing one.
    pub(crate) fn face(&self) -> Result<Option<Http>, String> {
        if !self.allow_http {
            return Ok(None);
        }
        let console = self.console && self.console_address().is_none();
        let http = self.at(self.address(), console)?;
        Ok(Some(Http { openai: http.openai.filter(|_| self.openai_port.is_none()), ..http }))
    }

    /// The own face of OpenAI's interface, if it has one.
    ///
    /// # Errors
    /// Conflicting options, or a missing one.
    pub(crate) fn openai_face(&self) -> Result<Option<OpenAiPort>, String> {
        self.openai_address().map(|address| Ok(OpenAiPort(self.at(address, false)?))).transpose()
    }

    /// The console's own face, if it has one.
    ///
    /// # Errors
    /// Conflicting options, or a missing one.
    pub(crate) fn console_face(&self) -> Result<Option<ConsolePort>, String> {
        self.console_address().map(|address| Ok(ConsolePort(self.at(address, true)?))).transpose()
    }

    fn at(&self, address: Address, console: bool) -> Result<Http, String> {
        Ok(Http {
            endpoint: Endpoint { address, tls: self.tls()? },
            options: self.face_options()?,
            console,
            openai: self.openai.then(|| OpenAiSettings {
                default_max_tokens: self.openai_default_max_tokens.get() as u64,
                stored_bytes: self.openai_stored_bytes,
                stored_folder: self.openai_stored_directory.clone().map(|path| AnswerFolder {
                    path,
                    bytes: self.openai_stored_directory_byte_size.unwrap_or(AnswerFolder::DEFAULT_BYTES),
                }),
                path_prefix: self.openai_prefix.clone(),
            }),
            transport: TransportOptions::default(),
        })
    }

    /// The options of the face, which apply to the faces of clouds, too.
    ///
    /// # Errors
    /// Conflicting options.
    pub(super) fn face_options(&self) -> Result<FaceOptions, String> {
        Ok(FaceOptions {
            max_input_size: self.http_max_input_size.get(),
            max_body_size: self.http_max_body_size,
            forwarded_headers: self.http_header_forward_pattern.clone(),
            access: Restrictions::new(self.http_restricted_api.iter().cloned())
                .map_err(|error| format!("--http-restricted-api: {error}"))?
                .into(),
            cors: cors(self.http_cors_origin.clone()),
            ..FaceOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use nereid_protocol::{Action, Denied, Identity};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        http: HttpOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<HttpOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.http)
    }

    #[test]
    fn other_protocols_have_the_host_of_http_unless_it_is_a_socket() {
        for (argument, expected) in [
            ("--http-address=::1", "::1"),
            ("--http-address=unix:/n", "127.0.0.1"),
            ("--http-port=1", "0.0.0.0"),
        ] {
            let line = Line::try_parse_from(["nereid", argument]).unwrap();
            assert_eq!(line.http.host(), Host::Name(expected.into()), "{argument}");
        }
        assert!(Line::try_parse_from(["nereid", "--http-address=unix:/n?mod=0600"]).is_err());
    }

    #[test]
    fn console_is_on_the_port_of_http_or_on_its_own() {
        for (arguments, with_http, own) in [
            (&[][..], true, None),
            (&["--console=false"], false, None),
            (&["--console-port=9"], false, Some("0.0.0.0:9")),
            (&["--console-port=9", "--http-address=h"], false, Some("h:9")),
            (&["--console-port=9", "--http-address=unix:/n"], false, Some("127.0.0.1:9")),
            (&["--console-port=9", "--console-address=c", "--http-address=h"], false, Some("c:9")),
            (&["--console-port=9", "--console-address=unix:/c"], false, Some("unix:/c")),
            (&["--console-port=9", "--console=false"], false, None),
        ] {
            let options = parsed(arguments).unwrap();
            let face = options.console_face().unwrap();
            let address = face.as_ref().map(|ConsolePort(http)| http.endpoint.address.to_string());
            assert_eq!(address.as_deref(), own, "{arguments:?}");
            assert!(face.is_none_or(|ConsolePort(http)| http.console), "{arguments:?}");
            assert_eq!(options.face().unwrap().unwrap().console, with_http, "{arguments:?}");
            assert_eq!(options.contradiction(), None, "{arguments:?}");
        }
        assert!(parsed(&["--console-address=c"]).unwrap().contradiction().is_some());
        let off = parsed(&["--console-port=9", "--allow-http=false"]).unwrap();
        assert!(off.console_face().unwrap().is_none() && off.face().unwrap().is_none());
    }

    #[test]
    fn openais_interface_is_on_the_port_of_http_or_on_its_own() {
        for (arguments, with_http, own) in [
            (&[][..], Some(true), None),
            (&["--openai=false"], Some(false), None),
            (&["--openai-port=9"], Some(false), Some("0.0.0.0:9")),
            (&["--openai-port=9", "--http-address=unix:/n"], Some(false), Some("127.0.0.1:9")),
            (&["--openai-port=9", "--openai-address=o", "--http-address=h"], Some(false), Some("o:9")),
            (&["--openai-port=9", "--openai-address=unix:/o"], Some(false), Some("unix:/o")),
            (&["--openai-port=9", "--openai=false"], Some(false), None),
            (&["--openai-port=9", "--allow-http=false"], None, Some("0.0.0.0:9")),
            (&["--allow-http=false"], None, None),
        ] {
            let options = parsed(arguments).unwrap();
            let face = options.openai_face().unwrap();
            let address = face.as_ref().map(|OpenAiPort(http)| http.endpoint.address.to_string());
            assert_eq!(address.as_deref(), own, "{arguments:?}");
            assert!(face.is_none_or(|OpenAiPort(http)| http.openai.is_some()), "{arguments:?}");
            let found = options.face().unwrap().map(|http| http.openai.is_some());
            assert_eq!(found, with_http, "{arguments:?}");
            assert_eq!(options.contradiction(), None, "{arguments:?}");
        }
        let console = parsed(&["--openai-port=9", "--console-port=8"]).unwrap().console_face().unwrap();
        assert!(console.is_some_and(|ConsolePort(http)| http.openai.is_some()));
        assert!(parsed(&["--openai-address=o"]).unwrap().contradiction().is_some());
    }

    #[test]
    fn openais_interface_has_a_further_path_on_each_of_its_ports() {
        let prefix = |http: Http| http.openai.unwrap().path_prefix;
        let here = parsed(&["--openai-prefix=/openai", "--console-port=8"]).unwrap();
        let expected = Some("/openai".parse().unwrap());
        assert_eq!(prefix(here.face().unwrap().unwrap()), expected);
        assert_eq!(prefix(here.console_face().unwrap().unwrap().0), expected);
        let apart = parsed(&["--openai-prefix=/openai", "--openai-port=9"]).unwrap();
        assert_eq!(prefix(apart.openai_face().unwrap().unwrap().0), expected);
        assert_eq!(prefix(parsed(&[]).unwrap().face().unwrap().unwrap()), None);
        assert!(parsed(&["--openai-prefix=openai/"]).is_err());
    }

    #[test]
    fn restrictions_accumulate() {
        let options =
            parsed(&["--http-restricted-api=health:a=b", "--http-restricted-api=trace,logging:c=d"]).unwrap();
        let access = options.face().unwrap().unwrap().options.access;
        let refused = |action| match access.check(&Identity::default(), action, None) {
            Err(Denied::Restricted { header }) => Some(header),
            _ => None,
        };
        assert_eq!(refused(Action::Health).as_deref(), Some("a"));
        assert_eq!(refused(Action::ChangeLog).as_deref(), Some("c"));
        assert_eq!(refused(Action::Infer), None);
        let twice =
            parsed(&["--http-restricted-api=health:a=b", "--http-restricted-api=health:c=d"]).unwrap();
        assert!(twice.face().unwrap_err().starts_with("--http-restricted-api: API 'health'"));
    }

    #[test]
    fn invalid_values_are_refused() {
        for argument in [
            "--http-restricted-api=health",
            "--http-restricted-api=wealth:a=b",
            "--http-header-forward-pattern=x-(",
            "--http-max-input-size=0",
            "--http-max-input-size=-1",
            "--reuse-http-port=perhaps",
            "--http-thread-count=-1",
            "--http-port=70000",
        ] {
            assert!(parsed(&[argument]).is_err(), "{argument}");
        }
    }
}
