//! The tables of options in `COMPATIBILITY.md`, generated from the declarations, and every option of Triton.
//!
//! `UPDATE_OPTIONS=1 cargo test -p nereid-options` regenerates the tables.

use std::collections::BTreeSet;
use std::fs;

use clap::CommandFactory as _;

use super::abbreviations::OWN;
use super::sources::{names, options};
use super::{Options, parse};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../COMPATIBILITY.md");

/// Markers around the tables in the page.
const MARKS: [&str; 2] = [
    "<!-- Generated from the declarations in crates/programs/options: UPDATE_OPTIONS=1 cargo test -p nereid-options. -->\n",
    "<!-- End of the tables of options. -->\n",
];

/// Options that differ from Triton's of the same name, and how.
const DIFFERS: &[(&[&str], &str)] = &[
    (&["log-format"], "also `JSON`"),
    (&["model-control-mode", "load-model"], "also `on-demand`: requests load their models"),
    (&["http-thread-count"], "default one per processor"),
    (
        &["http-max-input-size", "allow-client-shm"],
        "options of newer Triton. The former limits JSON, raw bodies and what a compressed body may unpack to (default 64 MiB); the latter defaults to true, as in 2.51",
    ),
    (&["http-header-forward-pattern", "metrics-config"], "invalid values are refused at start"),
    (&["host-policy"], "invalid values are reported at start"),
    (
        &["trace-config", "trace-file", "trace-level", "trace-rate", "trace-count", "trace-log-frequency"],
        "invalid values are refused at start, unknown settings are reported; files are written earlier",
    ),
    (&["pinned-memory-pool-byte-size", "cuda-memory-pool-byte-size"], "negative sizes are refused"),
    (
        &["repository-poll-secs"],
        "a change is loaded when two polls have seen the same files; also with `on-demand`",
    ),
    (&["metrics-interval-ms"], "the machine is sampled when metrics are scraped, at most this often"),
    (
        &["grpc-use-ssl", "grpc-use-ssl-mutual", "grpc-server-cert", "grpc-server-key", "grpc-root-cert"],
        "missing files are refused at start; changed files are reloaded",
    ),
    (
        &["grpc-keepalive-time", "grpc-keepalive-permit-without-calls"],
        "pings are sent at each interval, regardless of other frames",
    ),
    (
        &[
            "grpc-http2-max-pings-without-data",
            "grpc-infer-allocation-pool-size",
            "grpc-max-response-pool-size",
            "grpc-infer-thread-count",
            "sagemaker-thread-count",
            "vertex-ai-thread-count",
            "buffer-manager-thread-count",
            "cuda-virtual-address-size",
            "enable-peer-access",
        ],
        "accepted with a warning; no effect",
    ),
];

/// The declared options and their other names, in the order of declaration.
fn declared() -> Vec<String> {
    let command = Options::command();
    options(&command).flat_map(names).map(str::to_owned).collect()
}

/// Compares an option with Triton's.
fn state(option: &str) -> &'static str {
    if OWN.contains(&option) {
        return "ours";
    }
    if DIFFERS.iter().any(|(options, _)| options.contains(&option)) { "differs" } else { "same" }
}

fn tables() -> String {
    let list = |names: &mut dyn Iterator<Item = &str>| {
        names.map(|name| format!("`--{name}`")).collect::<Vec<_>>().join(", ")
    };
    let declared = declared();
    let of = |wanted| list(&mut declared.iter().map(String::as_str).filter(|name| state(name) == wanted));
    let differs = DIFFERS.iter().map(|(options, how)| {
        let options = list(&mut options.iter().copied());
        format!("| {options} | {how} |\n")
    });
    format!(
        "\n| state | options |\n|---|---|\n| same | {} |\n| differs | see the table below |\n| ours | {} |\n\n\
         | differs | how |\n|---|---|\n{}\n",
        of("same"),
        of("ours"),
        differs.collect::<String>()
    )
}

#[test]
fn the_tables_of_options_are_up_to_date() {
    let page = fs::read_to_string(PAGE).unwrap();
    let [begin, end] = MARKS;
    let (before, rest) = page.split_once(begin).expect("the mark before the tables");
    let (_, after) = rest.split_once(end).expect("the mark after the tables");
    let made = format!("{before}{begin}{}{end}{after}", tables());
    if std::env::var_os("UPDATE_OPTIONS").is_some() {
        fs::write(PAGE, &made).unwrap();
    } else {
        assert!(
            page == made,
            "COMPATIBILITY.md differs from the declarations; UPDATE_OPTIONS=1 regenerates its tables"
        );
    }
}

#[test]
fn tables_mention_only_existing_options_of_triton() {
    let declared: BTreeSet<_> = declared().into_iter().collect();
    let triton: BTreeSet<_> = TRITON.iter().chain(&FURTHER).map(|(name, _)| *name).collect();
    for own in OWN.into_iter().filter(|option| *option != "version") {
        assert!(declared.contains(own) && !triton.contains(own), "--{own}");
    }
    let mut differing = BTreeSet::new();
    for option in DIFFERS.iter().flat_map(|(options, _)| options.iter()) {
        assert!(declared.contains(*option), "--{option} is not declared");
        assert!(triton.contains(option), "--{option} is not an option of Triton");
        assert!(differing.insert(option), "--{option} is in the table twice");
    }
    for option in declared.iter().filter(|option| state(option) == "same") {
        let is_known = triton.contains(option.as_str()) || option == "disable-auto-complete-config";
        assert!(is_known, "--{option} is not an option of Triton: list it in OWN");
    }
}

/// The options of Triton 2.73, each with a value that it takes.
const TRITON: [(&str, &str); 86] = [
    ("allow-client-shm", "true"),
    ("allow-cpu-metrics", "false"),
    ("allow-gpu-metrics", "OFF"),
    ("allow-grpc", "true"),
    ("allow-http", "True"),
    ("allow-metrics", "on"),
    ("allow-sagemaker", "true"),
    ("allow-vertex-ai", "false"),
    ("backend-config", "python,shm-default-byte-size=1048576"),
    ("backend-directory", "/opt/tritonserver/backends"),
    ("buffer-manager-thread-count", "2"),
    ("cache-config", "local,size=1048576"),
    ("cache-directory", "/opt/tritonserver/caches"),
    ("cuda-memory-pool-byte-size", "0:67108864"),
    ("cuda-virtual-address-size", "0:1073741824"),
    ("enable-peer-access", "true"),
    ("exit-on-error", "false"),
    ("exit-timeout-secs", "30"),
    ("grpc-address", "127.0.0.1"),
    ("grpc-header-forward-pattern", "x-.*"),
    ("grpc-http2-max-ping-strikes", "2"),
    ("grpc-http2-max-pings-without-data", "2"),
    ("grpc-http2-min-recv-ping-interval-without-data", "300000"),
    ("grpc-infer-allocation-pool-size", "8"),
    ("grpc-infer-response-compression-level", "High"),
    ("grpc-infer-thread-count", "2"),
    ("grpc-keepalive-permit-without-calls", "false"),
    ("grpc-keepalive-time", "7200000"),
    ("grpc-keepalive-timeout", "20000"),
    ("grpc-max-connection-age", "0"),
    ("grpc-max-connection-age-grace", "0"),
    ("grpc-max-response-pool-size", "2147483647"),
    ("grpc-port", "0"),
    ("grpc-restricted-protocol", "health,metadata:key=value"),
    ("grpc-root-cert", "ca.pem"),
    ("grpc-server-cert", "server.pem"),
    ("grpc-server-key", "server.key"),
    ("grpc-use-ssl", "false"),
    ("grpc-use-ssl-mutual", "false"),
    ("host-policy", "gpu_0,numa-node=0"),
    ("http-address", "127.0.0.1"),
    ("http-header-forward-pattern", "x-.*"),
    ("http-max-input-size", "67108864"),
    ("http-port", "0"),
    ("http-restricted-api", "health,metadata:key=value"),
    ("http-thread-count", "8"),
    ("id", "triton"),
    ("load-model", "*"),
    ("log-error", "true"),
    ("log-file", ""),
    ("log-format", "ISO8601"),
    ("log-info", "true"),
    ("log-verbose", "0"),
    ("log-warning", "true"),
    ("metrics-address", "127.0.0.1"),
    ("metrics-config", "summary_latencies=true"),
    ("metrics-interval-ms", "2000"),
    ("metrics-port", "0"),
    ("min-supported-compute-capability", "7.5"),
    ("model-config-name", "h100"),
    ("model-control-mode", "EXPLICIT"),
    ("model-load-gpu-limit", "0:0.5"),
    ("model-load-retry-count", "0"),
    ("model-load-thread-count", "4"),
    ("model-namespacing", "false"),
    ("model-repository", "models"),
    ("model-store", "more"),
    ("pinned-memory-pool-byte-size", "268435456"),
    ("rate-limit", "OFF"),
    ("rate-limit-resource", "R1:10:0"),
    ("repoagent-directory", "/opt/tritonserver/repoagents"),
    ("repository-poll-secs", "0"),
    ("reuse-grpc-port", "false"),
    ("reuse-http-port", "false"),
    ("sagemaker-port", "8080"),
    ("sagemaker-safe-port-range", "0-8010"),
    ("sagemaker-thread-count", "8"),
    ("strict-model-config", "false"),
    ("strict-readiness", "true"),
    ("trace-config", "opentelemetry,url=localhost:4318/v1/traces"),
    ("trace-count", "-1"),
    ("trace-file", "trace.json"),
    ("trace-level", "TIMESTAMPS"),
    ("trace-log-frequency", "0"),
    ("trace-rate", "1000"),
    ("vertex-ai-default-model", "digits"),
];
/// Further options, which conflict with one of those.
const FURTHER: [(&str, &str); 3] =
    [("response-cache-byte-size", "1048576"), ("vertex-ai-port", "8080"), ("vertex-ai-thread-count", "8")];

#[test]
fn every_triton_option_and_abbreviation_is_accepted() {
    let mut all = vec!["nereid".to_owned(), "--disable-auto-complete-config".to_owned()];
    all.extend(TRITON.map(|(name, value)| format!("--{name}={value}")));
    let options = parse(all.iter().map(Into::into).collect(), |_| None).unwrap();
    assert_eq!(options.contradiction(), None);
    assert!(options.config().is_ok());
    let names: BTreeSet<_> = TRITON.iter().chain(&FURTHER).map(|(name, _)| *name).collect();
    for (name, value) in TRITON.iter().chain(&FURTHER) {
        // The shortest beginning that no other has.
        let shortest = (1..=name.len()).map(|length| &name[..length]).find(|short| {
            names
                .iter()
                .chain(&["disable-auto-complete-config"])
                .filter(|other| other.starts_with(short))
                .count()
                == 1
        });
        for spelled in [Some(*name), shortest].into_iter().flatten() {
            let line = ["nereid", "--model-repository=models", &format!("--{spelled}={value}")];
            let options = parse(line.iter().map(Into::into).collect(), |_| None);
            assert!(options.is_ok(), "--{spelled}={value}: {}", options.unwrap_err());
        }
    }
}
