//! The options of gRPC: address, transport, and access.

use std::env;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{ArgAction, Args, ValueEnum};
use nereid_assembly::{Endpoint, Grpc};
use nereid_grpc::{Compression, GrpcOptions as FaceOptions, PingRules, TransportOptions};
use nereid_net::listener::{Address, Host, TlsFiles};
use nereid_protocol::{HeaderPattern, Restriction, Restrictions};

use super::tls::TlsChoice;
use super::values::{INT_MAX, boolean, int, port, whole_in};

/// The longest time in gRPC, which means no limit.
const FOR_EVER: u32 = i32::MAX as u32;

/// Triton's hook for tests of clients: seconds by which answers to calls other than inference are delayed.
const DELAY: &str = "TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC";

/// The options of gRPC.
#[derive(Debug, Args)]
#[command(next_help_heading = "gRPC")]
pub(crate) struct GrpcOptions {
    /// Serve gRPC.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub allow_grpc: bool,

    /// Address or host name to serve gRPC on, or a Unix socket, unix:/path, for programs of its owner and its group on this
    /// machine; unix:/path?mode=0666 for others, too. A Unix socket has no port.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0", value_parser = str::parse::<Host>)]
    grpc_address: Host,

    /// Port to serve gRPC on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8001, value_parser = port())]
    grpc_port: u16,

    /// Share the gRPC port with other servers that set this option; the system spreads connections over them.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    reuse_grpc_port: bool,

    /// Forward call metadata whose names match this regular expression to models, as request parameters.
    #[arg(long, value_name = "REGEX", value_parser = HeaderPattern::new)]
    grpc_header_forward_pattern: Option<HeaderPattern>,

    /// Restrict API groups to calls with the header triton-grpc-protocol-KEY: VALUE. The groups: health, metadata,
    /// inference, shared-memory, model-config, model-repository, statistics, trace, logging. May be given several times.
    #[arg(long, value_name = "PROTOCOL[,PROTOCOL]:KEY=VALUE", action = ArgAction::Append)]
    grpc_restricted_protocol: Vec<Restriction>,

    /// Serve gRPC over TLS only.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    grpc_use_ssl: bool,

    /// Serve gRPC over TLS, only to clients with a certificate issued under --grpc-root-cert.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    grpc_use_ssl_mutual: bool,

    /// PEM file of the server's certificate chain. It is reloaded when it changes, as are the key and the roots.
    #[arg(long, value_name = "FILE")]
    grpc_server_cert: Option<PathBuf>,

    /// PEM file of the certificate's private key.
    #[arg(long, value_name = "FILE")]
    grpc_server_key: Option<PathBuf>,

    /// PEM file of the root certificates for clients.
    #[arg(long, value_name = "FILE")]
    grpc_root_cert: Option<PathBuf>,

    /// Compress responses to inference requests, for clients that accept it.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t, ignore_case = true)]
    grpc_infer_response_compression_level: CompressionLevel,

    /// Idle milliseconds until the server pings a client; 2147483647 for never.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 7_200_000, value_parser = time_from(1))]
    grpc_keepalive_time: u32,

    /// Milliseconds that a client has to answer a ping before its connection is closed.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20_000, value_parser = time_from(1))]
    grpc_keepalive_timeout: u32,

    /// Limit client pings. If true, clients without calls in progress may ping as often as others; otherwise, every two
    /// hours.
    #[arg(long, value_name = "BOOL", value_parser = boolean(), action = ArgAction::Set)]
    grpc_keepalive_permit_without_calls: Option<bool>,

    /// Accepted, without effect: the server's pings are not counted.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = int::<u32>())]
    grpc_http2_max_pings_without_data: u32,

    /// Limit client pings: minimum milliseconds between two pings while the server sends no data. 300000 if another
    /// option limits them.
    #[arg(long, value_name = "MILLISECONDS", value_parser = time_from(0))]
    grpc_http2_min_recv_ping_interval_without_data: Option<u32>,

    /// Limit client pings: close the connection when more than this many come too soon; 0 for no limit. 2 if another
    /// option limits them.
    #[arg(long, value_name = "COUNT", value_parser = int::<u32>())]
    grpc_http2_max_ping_strikes: Option<u32>,

    /// Milliseconds (±10 %) after which a connection accepts no further calls; 0 for no limit.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0, value_parser = time_from(0))]
    grpc_max_connection_age: u32,

    /// Grace period in milliseconds after which such a connection is closed, even with calls in progress; 0 for no
    /// limit.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0, value_parser = time_from(0))]
    grpc_max_connection_age_grace: u32,

    /// Accepted, without effect: calls run on the threads of --http-thread-count.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = whole_in::<u32>(2..=128))]
    grpc_infer_thread_count: u32,

    /// Accepted, without effect: requests are not pooled.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = int::<u32>())]
    grpc_infer_allocation_pool_size: u32,

    /// Accepted, without effect: responses are not pooled.
    #[arg(
        long,
        value_name = "COUNT",
        hide_default_value = true,
        value_parser = whole_in::<u32>(1..=INT_MAX).try_map(NonZeroU32::try_from)
    )]
    grpc_max_response_pool_size: Option<NonZeroU32>,
}

/// A duration in seconds from an environment variable, if set.
fn seconds(variable: &str) -> Option<Duration> {
    let seconds = env::var(variable).ok()?.parse().ok().filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs)
}

/// A time in milliseconds.
fn time_from(least: u64) -> impl TypedValueParser<Value = u32> {
    whole_in(least..=u64::from(FOR_EVER))
}

/// Levels of compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum CompressionLevel {
    /// None
    #[default]
    None,
    /// gzip
    Low,
    /// deflate or gzip, in the client's order of preference
    Medium,
    /// Same as medium
    High,
}

impl GrpcOptions {
    /// Address of the gRPC face.
    pub(crate) fn address(&self) -> Address {
        self.grpc_address.at(self.grpc_port, self.reuse_grpc_port)
    }

    /// The TLS files, if TLS is enabled.
    ///
    /// # Errors
    /// A missing option.
    fn tls(&self) -> Result<Option<TlsFiles>, String> {
        TlsChoice {
            protocol: "grpc",
            on: self.grpc_use_ssl,
            mutual: self.grpc_use_ssl_mutual,
            certificate: self.grpc_server_cert.as_deref(),
            key: self.grpc_server_key.as_deref(),
            roots: self.grpc_root_cert.as_deref(),
        }
        .files()
    }

    /// The gRPC face, if gRPC is served.
    ///
    /// # Errors
    /// Conflicting options, or a missing one.
    pub(crate) fn face(&self) -> Result<Option<Grpc>, String> {
        if !self.allow_grpc {
            return Ok(None);
        }
        let options = FaceOptions {
            forwarded_headers: self.grpc_header_forward_pattern.clone(),
            access: Restrictions::new(self.grpc_restricted_protocol.iter().cloned())
                .map_err(|error| format!("--grpc-restricted-protocol: {error}"))?
                .prefixed(nereid_grpc::RESTRICTED_PREFIX)
                .into(),
            compression: match self.grpc_infer_response_compression_level {
                CompressionLevel::None => Compression::None,
                CompressionLevel::Low => Compression::Gzip,
                CompressionLevel::Medium | CompressionLevel::High => Compression::Any,
            },
            ..FaceOptions::default()
        };
        let transport = TransportOptions { delay: seconds(DELAY), ..self.transport() };
        Ok(Some(Grpc {
            endpoint: Endpoint { address: self.address(), tls: self.tls()? },
            options,
            transport,
        }))
    }

    /// Keepalive and lifetime settings of connections.
    fn transport(&self) -> TransportOptions {
        let time = |milliseconds: u32| Duration::from_millis(milliseconds.into());
        let limit =
            |milliseconds| (milliseconds != 0 && milliseconds != FOR_EVER).then(|| time(milliseconds));
        TransportOptions {
            keepalive_time: limit(self.grpc_keepalive_time),
            keepalive_timeout: time(self.grpc_keepalive_timeout),
            pings: self.ping_rules(),
            max_age: limit(self.grpc_max_connection_age),
            max_age_grace: limit(self.grpc_max_connection_age_grace),
            delay: None,
        }
    }

    /// Limits on client pings, if an option enables them.
    fn ping_rules(&self) -> Option<PingRules> {
        let interval = self.grpc_http2_min_recv_ping_interval_without_data;
        let max_strikes = self.grpc_http2_max_ping_strikes;
        let without_calls = self.grpc_keepalive_permit_without_calls;
        if (interval, max_strikes, without_calls) == (None, None, None) || max_strikes == Some(0) {
            return None;
        }
        let default = PingRules::default();
        let milliseconds = |interval: u32| Duration::from_millis(interval.into());
        Some(PingRules {
            interval: interval.map_or(default.interval, milliseconds),
            max_strikes: max_strikes.unwrap_or(default.max_strikes),
            without_calls: without_calls.unwrap_or(default.without_calls),
        })
    }

    /// Options that were given and have no effect.
    pub(crate) fn advice(&self) -> impl Iterator<Item = String> {
        let unused = self.unused().into_iter().filter(|_| self.allow_grpc);
        unused.map(|name| format!("{name} has no effect in this server"))
    }

    fn unused(&self) -> Vec<&'static str> {
        [
            (self.grpc_infer_thread_count != 2, "--grpc-infer-thread-count"),
            (self.grpc_infer_allocation_pool_size != 8, "--grpc-infer-allocation-pool-size"),
            (self.grpc_max_response_pool_size.is_some(), "--grpc-max-response-pool-size"),
            (self.grpc_http2_max_pings_without_data != 2, "--grpc-http2-max-pings-without-data"),
        ]
        .into_iter()
        .filter_map(|(given, name)| given.then_some(name))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        grpc: GrpcOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<GrpcOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.grpc)
    }

    #[test]
    fn defaults_match_the_transport() {
        let options = parsed(&[]).unwrap();
        assert_eq!(options.transport(), TransportOptions::default());
        assert_eq!(options.tls(), Ok(None));
        assert_eq!(options.unused(), [""; 0]);
    }

    #[test]
    fn times_are_milliseconds_with_sentinels_for_never() {
        let transport = parsed(&[
            "--grpc-keepalive-time=2147483647",
            "--grpc-keepalive-timeout=1500",
            "--grpc-http2-min-recv-ping-interval-without-data=0",
            "--grpc-http2-max-ping-strikes=1",
            "--grpc-keepalive-permit-without-calls=1",
            "--grpc-max-connection-age=60000",
            "--grpc-max-connection-age-grace=1",
        ])
        .unwrap()
        .transport();
        assert_eq!(transport.keepalive_time, None);
        assert_eq!(transport.keepalive_timeout, Duration::from_millis(1500));
        let pings = PingRules { interval: Duration::ZERO, max_strikes: 1, without_calls: true };
        assert_eq!(transport.pings, Some(pings));
        assert_eq!(transport.max_age, Some(Duration::from_secs(60)));
        assert_eq!(transport.max_age_grace, Some(Duration::from_millis(1)));
    }

    #[test]
    fn pings_are_limited_only_by_option() {
        let pings = |arguments: &[&str]| parsed(arguments).unwrap().transport().pings;
        assert_eq!(pings(&[]), None);
        assert_eq!(pings(&["--grpc-http2-max-ping-strikes=2"]), Some(PingRules::default()));
        assert_eq!(pings(&["--grpc-keepalive-permit-without-calls=false"]), Some(PingRules::default()));
        let interval = "--grpc-http2-min-recv-ping-interval-without-data=300000";
        assert_eq!(pings(&[interval]), Some(PingRules::default()));
        assert_eq!(pings(&[interval, "--grpc-http2-max-ping-strikes=0"]), None);
    }

    #[test]
    fn options_without_effect_are_reported() {
        let options =
            parsed(&["--grpc-infer-allocation-pool-size=16", "--grpc-infer-thread-count=4"]).unwrap();
        assert_eq!(options.unused(), ["--grpc-infer-thread-count", "--grpc-infer-allocation-pool-size"]);
    }

    #[test]
    fn compression_levels_have_names() {
        for (level, compression) in [
            ("none", Compression::None),
            ("low", Compression::Gzip),
            ("medium", Compression::Any),
            ("high", Compression::Any),
            ("High", Compression::Any),
            ("LOW", Compression::Gzip),
        ] {
            let options = parsed(&["--grpc-infer-response-compression-level", level]).unwrap();
            assert_eq!(options.face().unwrap().unwrap().options.compression, compression);
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for argument in [
            "--grpc-port=70000",
            "--grpc-restricted-protocol=health",
            "--grpc-restricted-protocol=wealth:a=b",
            "--grpc-infer-response-compression-level=extreme",
            "--grpc-keepalive-time=0",
            "--grpc-keepalive-timeout=-1",
            "--grpc-max-connection-age=2147483648",
            "--grpc-http2-max-ping-strikes=-1",
            "--grpc-infer-thread-count=1",
            "--grpc-infer-thread-count=129",
            "--grpc-max-response-pool-size=0",
            "--grpc-use-ssl=perhaps",
            "--grpc-header-forward-pattern=x-(",
        ] {
            assert!(parsed(&[argument]).is_err(), "{argument}");
        }
        let twice = ["--grpc-restricted-protocol=health:a=b", "--grpc-restricted-protocol=health:c=d"];
        let error = parsed(&twice).unwrap().face().unwrap_err();
        assert!(error.starts_with("--grpc-restricted-protocol: "), "{error}");
    }
}
