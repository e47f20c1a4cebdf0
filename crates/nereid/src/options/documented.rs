//! The tables of options in `COMPATIBILITY.md` have every option of this program once, and it takes every option of Triton.

use std::collections::{BTreeMap, BTreeSet};

use clap::CommandFactory as _;

use super::abbreviations::OWN;
use super::{Options, parse};

const PAGE: &str = include_str!("../../../../COMPATIBILITY.md");

/// What the tables say of each option: the first column of its row, or "differs" where the row is about options alone.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let (_, section) = PAGE.split_once("\n## Options\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut states = BTreeMap::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| ")) {
        let (first, rest) = row.split_once(" | ").unwrap();
        let (state, cell) = if first.starts_with("`--") { ("differs", first) } else { (first, rest) };
        for option in cell.split('`').filter_map(|code| code.strip_prefix("--")) {
            assert!(states.insert(option, state).is_none(), "--{option} is in the tables twice");
        }
    }
    states
}

#[test]
fn every_option_has_its_state() {
    let command = Options::command();
    let mut declared = BTreeSet::new();
    for argument in command.get_arguments() {
        declared.extend(argument.get_long());
        declared.extend(argument.get_visible_aliases().unwrap_or_default());
    }
    declared.retain(|option| !["help", "version"].contains(option));

    let documented = documented();
    for option in &declared {
        let state = documented.get(option).copied();
        assert!(
            matches!(state, Some("same" | "differs" | "not yet" | "ours")),
            "--{option} is declared; in COMPATIBILITY.md its state is {state:?}"
        );
    }
    for (option, state) in &documented {
        assert!(declared.contains(option), "--{option} is documented as '{state}'");
    }
    let own: BTreeSet<_> =
        documented.iter().filter(|(_, state)| **state == "ours").map(|(option, _)| *option).collect();
    assert_eq!(own, OWN.into_iter().filter(|option| *option != "version").collect());
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
/// Further ones, which contradict one of those.
const FURTHER: [(&str, &str); 3] =
    [("response-cache-byte-size", "1048576"), ("vertex-ai-port", "8080"), ("vertex-ai-thread-count", "8")];

#[test]
fn every_option_of_triton_is_taken_with_its_name_cut_off_too() {
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
    // The tables know all of them.
    let documented = documented();
    for name in names {
        assert!(matches!(documented.get(name), Some(&("same" | "differs" | "not yet"))), "--{name}");
    }
}
