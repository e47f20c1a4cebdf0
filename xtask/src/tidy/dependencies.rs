//! The direction of dependencies between crates, and which outside crates are banned.
//!
//! One table has all rules. It covers what a crate is built from; its tests may use anything. A crate is responsible
//! for the outside crates that it depends on, at any depth; what comes through another crate of ours falls under that
//! crate's rule.

mod graph;

pub use self::graph::Graph;
use self::graph::{Member, Package};
use super::Problem;

/// What one crate, or each crate of one folder, may be built from.
struct Rule {
    /// The crate's name, or `folder/*`.
    krate: &'static str,
    /// The crates of this workspace that it may depend on.
    workspace: Allowed,
    /// The outside crates that it may depend on.
    libraries: Allowed,
    /// Outside crates that it may not depend on, not even through others; `name*` matches every crate with that prefix.
    never: &'static [&'static str],
    /// The reason, shown with each problem.
    why: &'static str,
}

enum Allowed {
    Any,
    Only(&'static [&'static str]),
}

const RULES: &[Rule] = &[
    Rule {
        krate: "nereid-model-config",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Any,
        never: &["axum*", "hyper*", "reqwest", "tokio", "tonic*", "tract*"],
        why: "model-config is pure data and knows no I/O",
    },
    Rule {
        krate: "nereid-model-files",
        workspace: Allowed::Only(&["nereid-model-config"]),
        libraries: Allowed::Only(&["rustix"]),
        never: &[],
        why: "model-files opens files, and knows neither their formats nor who reads them",
    },
    Rule {
        krate: "nereid-archives",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["flate2", "rawzip", "ruzstd", "tar"]),
        never: &[],
        why: "archives unpacks what nobody trusts, and knows neither where it is from nor what it is for",
    },
    Rule {
        krate: "nereid-python-env",
        workspace: Allowed::Only(&["nereid-archives", "nereid-model-files"]),
        libraries: Allowed::Only(&["ring", "rustix", "thiserror"]),
        never: &["tokio"],
        why: "python-env makes environments, and knows nothing of the server and of what runs in them",
    },
    Rule {
        krate: "nereid-backend-api",
        workspace: Allowed::Only(&["nereid-model-config", "nereid-model-files"]),
        libraries: Allowed::Only(&["bytes", "half", "smallvec", "thiserror"]),
        never: &["axum*", "hyper*", "prost*", "serde_json", "tokio", "tonic*", "tract*"],
        why: "backend-api is a leaf that every backend author builds",
    },
    Rule {
        krate: "nereid-placement",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["libc", "rustix", "thiserror"]),
        never: &[],
        why: "placement holds unsafe code, so it is small; it places threads and knows nothing of what they do",
    },
    Rule {
        krate: "nereid-heap",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["libc", "libmimalloc-sys", "mimalloc", "rustix"]),
        never: &[],
        why: "heap holds unsafe code, so it is small; it knows the allocator and nothing of what is allocated",
    },
    Rule {
        krate: "nereid-dylib",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["libloading", "thiserror"]),
        never: &[],
        why: "dylib opens shared libraries, so it is small and knows none of them",
    },
    Rule {
        krate: "nereid-plugin",
        workspace: Allowed::Only(&["nereid-dylib"]),
        libraries: Allowed::Only(&["libc", "libloading", "object", "rustix", "thiserror"]),
        never: &[],
        why: "plugin loads Triton's libraries of every kind and knows nothing of what they do",
    },
    Rule {
        krate: "nereid-core",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-model-config", "nereid-placement"]),
        libraries: Allowed::Any,
        never: &[
            "aws-*",
            "axum*",
            "azure*",
            "google-cloud*",
            "hyper*",
            "libloading",
            "object_store",
            "ort*",
            "prost*",
            "pyo3*",
            "reqwest",
            "tonic*",
            "tract*",
        ],
        why: "core knows no face, no framework, no cloud and no C",
    },
    Rule {
        krate: "nereid-repository",
        workspace: Allowed::Only(&[
            "nereid-backend-api",
            "nereid-core",
            "nereid-model-config",
            "nereid-model-files",
        ]),
        libraries: Allowed::Any,
        never: &["axum*", "tonic*", "tract*"],
        why: "repository feeds core and knows no face and no backend",
    },
    Rule {
        krate: "nereid-object-stores",
        workspace: Allowed::Only(&["nereid-archives", "nereid-core", "nereid-repository"]),
        libraries: Allowed::Any,
        never: &["aws-lc*", "axum*", "reqwest", "tonic*", "tract*"],
        why: "object-stores are stores of the repository; TLS is rustls with ring, the client hyper",
    },
    Rule {
        krate: "nereid-repository-agents",
        workspace: Allowed::Only(&["nereid-core", "nereid-model-files", "nereid-repository"]),
        libraries: Allowed::Any,
        never: &["aws-lc*", "axum*", "object_store", "reqwest", "tonic*", "tract*"],
        why: "repository-agents see models before they are loaded, and know neither clouds nor faces",
    },
    Rule {
        krate: "nereid-cuda-driver",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["libloading", "thiserror", "tracing"]),
        never: &[],
        why: "cuda-driver is built into what runs in other processes, and knows neither a server nor models",
    },
    Rule {
        krate: "nereid-cuda",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-cuda-driver"]),
        libraries: Allowed::Only(&["range-alloc", "tracing"]),
        never: &["axum*", "hyper*", "tokio", "tonic*"],
        why: "cuda calls a driver, so it is small and knows no protocol and no server",
    },
    Rule {
        krate: "nereid-shared-memory",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-cuda"]),
        libraries: Allowed::Only(&["bytes", "libc", "rustix"]),
        never: &["axum*", "hyper*", "tokio", "tonic*"],
        why: "shared memory holds unsafe code, so it is small and knows no protocol",
    },
    Rule {
        krate: "nereid-worker-protocol",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["range-alloc", "rustix"]),
        never: &[],
        why: "worker-protocol is built into what runs in other processes, and knows neither a server nor models",
    },
    Rule {
        krate: "nereid-worker",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-model-config", "nereid-worker-protocol"]),
        libraries: Allowed::Only(&["bytes", "futures-util", "rustix", "smallvec", "tracing"]),
        never: &["axum*", "hyper*", "pyo3*", "tonic*"],
        why: "worker runs instances in processes, and knows neither what they run nor a server",
    },
    Rule {
        krate: "nereid-isolation",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-worker", "nereid-worker-protocol"]),
        libraries: Allowed::Only(&["tracing"]),
        never: &["axum*", "hyper*", "tonic*"],
        why: "isolation keeps backends apart from the server, and knows none of them",
    },
    Rule {
        krate: "nereid-protocol",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-core"]),
        libraries: Allowed::Only(&["arc-swap", "regex", "serde", "tokio", "tracing"]),
        never: &["axum*", "hyper*", "prost*", "tonic*", "tract*"],
        why: "protocol is what faces share, and knows no wire format",
    },
    Rule {
        krate: "nereid-listener",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&[
            "rustls",
            "rustls-webpki",
            "thiserror",
            "tokio",
            "tokio-rustls",
            "tokio-util",
            "tracing",
        ]),
        never: &["aws-lc-rs", "axum*", "hyper*", "tonic*"],
        why: "listener opens connections and knows no protocol; its cryptography is ring's, which needs no cmake",
    },
    Rule {
        krate: "nereid-io-runtime",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["futures-util", "hyper", "pin-project-lite", "rustix", "tokio"]),
        never: &["tonic*"],
        why: "io-runtime schedules I/O tasks and knows nothing of what they do",
    },
    Rule {
        krate: "nereid-http2",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["bytes", "tokio"]),
        never: &["tonic*"],
        why: "http2 knows frames and connections, and nothing of what is asked on them",
    },
    Rule {
        krate: "nereid-slow-clients",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["bytes", "http-body", "hyper", "pin-project-lite", "tokio", "tracing"]),
        never: &["tonic*"],
        why: "slow-clients waits for clients and knows nothing of what they ask for",
    },
    Rule {
        krate: "nereid-http-transport",
        workspace: Allowed::Only(&[
            "nereid-backend-api",
            "nereid-http2",
            "nereid-io-runtime",
            "nereid-listener",
            "nereid-slow-clients",
            "nereid-protocol",
        ]),
        libraries: Allowed::Any,
        never: &["axum*", "tonic*", "tract*"],
        why: "http-transport serves routes over HTTP and knows neither a server nor what faces answer",
    },
    Rule {
        krate: "nereid-kserve-http",
        workspace: Allowed::Only(&[
            "nereid-backend-api",
            "nereid-core",
            "nereid-http-transport",
            "nereid-load-report",
            "nereid-model-config",
            "nereid-protocol",
            "nereid-shared-memory",
        ]),
        libraries: Allowed::Any,
        never: &["aws-*", "azure*", "google-cloud*", "object_store", "tonic*", "tract*"],
        why: "a face knows core, and no source of models, no backend and no other face",
    },
    Rule {
        krate: "nereid-sagemaker",
        workspace: Allowed::Only(&[
            "nereid-core",
            "nereid-http-transport",
            "nereid-kserve-http",
            "nereid-protocol",
        ]),
        libraries: Allowed::Only(&["hyper", "serde", "serde_json", "tokio", "tracing"]),
        never: &["aws-*", "object_store", "tonic*", "tract*"],
        why: "sagemaker is routes before KServe's face, and knows no source of models and no backend",
    },
    Rule {
        krate: "nereid-vertex-ai",
        workspace: Allowed::Only(&[
            "nereid-core",
            "nereid-http-transport",
            "nereid-kserve-http",
            "nereid-metrics",
            "nereid-protocol",
        ]),
        libraries: Allowed::Only(&["hyper", "regex"]),
        never: &["google-cloud*", "object_store", "tonic*", "tract*"],
        why: "vertex-ai is routes before KServe's face, and knows no source of models and no backend",
    },
    Rule {
        krate: "nereid-grpc",
        workspace: Allowed::Only(&[
            "nereid-backend-api",
            "nereid-core",
            "nereid-http2",
            "nereid-io-runtime",
            "nereid-listener",
            "nereid-load-report",
            "nereid-model-config",
            "nereid-slow-clients",
            "nereid-protocol",
            "nereid-shared-memory",
        ]),
        libraries: Allowed::Any,
        never: &["aws-*", "axum*", "azure*", "google-cloud*", "object_store", "tract*"],
        why: "a face knows core, and no source of models, no backend and no other face",
    },
    Rule {
        krate: "nereid-metrics",
        workspace: Allowed::Only(&["nereid-core", "nereid-http-transport"]),
        libraries: Allowed::Any,
        never: &["aws-*", "axum*", "azure*", "google-cloud*", "object_store", "tonic*", "tract*"],
        why: "a face knows core, and no source of models, no backend and no other face",
    },
    Rule {
        krate: "nereid-response-cache",
        workspace: Allowed::Only(&["nereid-core", "nereid-listener"]),
        libraries: Allowed::Any,
        never: &["aws-*", "axum*", "hyper*", "tonic*", "tract*"],
        why: "a response cache keeps entries, and knows no face, no backend and no request",
    },
    Rule {
        krate: "nereid-load-report",
        workspace: Allowed::Only(&["nereid-core"]),
        libraries: Allowed::Only(&["arc-swap", "base64", "http", "prost", "serde_json"]),
        never: &["axum*", "hyper*", "tonic*", "tract*"],
        why: "load-report is what faces say of the server's load, and knows no protocol",
    },
    Rule {
        krate: "nereid-trace",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-core"]),
        libraries: Allowed::Any,
        never: &["axum*", "opentelemetry*", "reqwest", "tonic*", "tract*"],
        why: "trace stores what core traces, and knows no face and no backend",
    },
    Rule {
        krate: "nereid-testkit",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-model-config"]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "testkit serves the unit tests of core too, which would see two of every crate that depends on core",
    },
    Rule {
        krate: "nereid-graph-executor",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-model-config"]),
        libraries: Allowed::Only(&["bytemuck", "bytes", "smallvec"]),
        never: &["axum*", "hyper*", "ort*", "tokio", "tonic*", "tract*"],
        why: "graph-executor is what all engines that run graphs share, and knows none of them nor their formats",
    },
    Rule {
        krate: "triton-sys",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "triton-sys declares Triton's C interface and does nothing",
    },
    Rule {
        krate: "triton-backend",
        workspace: Allowed::Only(&["triton-sys"]),
        libraries: Allowed::Only(&["bytemuck", "half", "libc", "serde_json"]),
        never: &["hyper*", "prost*", "tokio", "tonic*", "tract*"],
        why: "triton-backend is built into backends that other servers load, and knows nothing of this one",
    },
    Rule {
        krate: "triton-repoagent",
        workspace: Allowed::Only(&["triton-sys"]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "triton-repoagent is built into agents that other servers load, and knows nothing of this one",
    },
    Rule {
        krate: "examples/agents/*",
        workspace: Allowed::Only(&["triton-repoagent"]),
        libraries: Allowed::Any,
        never: &[],
        why: "an example agent is built as anybody's would be, with triton-repoagent alone",
    },
    Rule {
        krate: "examples/backends/*",
        workspace: Allowed::Only(&["triton-backend"]),
        libraries: Allowed::Any,
        never: &[],
        why: "an example backend is built as anybody's would be, with triton-backend alone",
    },
    Rule {
        krate: "nereid-triton-host",
        workspace: Allowed::Only(&[
            "nereid-backend-api",
            "nereid-core",
            "nereid-cuda",
            "nereid-model-config",
            "nereid-plugin",
            "nereid-protocol",
            "triton-sys",
        ]),
        libraries: Allowed::Only(&[
            "bytes",
            "libc",
            "serde",
            "serde_json",
            "sharded-slab",
            "tokio",
            "tracing",
        ]),
        never: &["axum*", "hyper*", "tonic*", "tract*"],
        why: "triton-host is full of C, and knows neither a protocol nor a source of models",
    },
    Rule {
        krate: "tests/backends/*",
        workspace: Allowed::Only(&["triton-backend"]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "a backend of the tests tries triton-backend as its users have it",
    },
    Rule {
        krate: "nereid-python-arrays",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["pyo3"]),
        never: &[],
        why: "python-arrays is built into modules of Python, which are small",
    },
    Rule {
        krate: "nereid-netdef",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["prost", "thiserror"]),
        never: &[],
        why: "netdef turns one format into another, and knows no server and no engine",
    },
    Rule {
        krate: "nereid-python-package",
        workspace: Allowed::Only(&["nereid-python-arrays", "triton-sys"]),
        libraries: Allowed::Only(&["libloading", "pyo3"]),
        never: &[],
        why: "the package has one copy of the server, in libtritonserver.so, whose C interface it uses",
    },
    Rule {
        krate: "nereid-python-module",
        workspace: Allowed::Only(&["nereid-cuda-driver", "nereid-python-arrays", "nereid-worker-protocol"]),
        libraries: Allowed::Only(&["pyo3"]),
        never: &[],
        why: "the module runs within a model's interpreter and is built for it alone, so it is small",
    },
    Rule {
        krate: "backends/*",
        workspace: Allowed::Only(&[
            "nereid-archives",
            "nereid-backend-api",
            "nereid-dylib",
            "nereid-graph-executor",
            "nereid-model-config",
            "nereid-model-files",
            "nereid-netdef",
            "nereid-python-env",
            "nereid-worker",
            "nereid-worker-protocol",
        ]),
        libraries: Allowed::Any,
        never: &["axum*", "hyper*", "tonic*"],
        why: "a backend implements backend-api and depends on nothing above it",
    },
    Rule {
        krate: "nereid-check",
        workspace: Allowed::Only(&["nereid-core", "nereid-model-files", "nereid-repository"]),
        libraries: Allowed::Only(&["serde", "serde_json"]),
        never: &["clap*"],
        why: "check reads repositories, and knows no backend, no command line and no running server",
    },
    Rule {
        krate: "nereid-assembly",
        workspace: Allowed::Any,
        libraries: Allowed::Any,
        never: &["clap*", "tracing-subscriber"],
        why: "assembly puts a server together, and leaves the command line and the process to its caller",
    },
    Rule {
        krate: "nereid",
        workspace: Allowed::Any,
        libraries: Allowed::Any,
        never: &[],
        why: "nereid turns options into a configuration, and its command owns the process",
    },
    Rule {
        krate: "nereid-tritonserver",
        workspace: Allowed::Only(&[
            "nereid",
            "nereid-core",
            "nereid-cuda",
            "nereid-triton-host",
            "triton-sys",
        ]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "tritonserver joins the C interface with the crate nereid, and does nothing itself",
    },
    Rule {
        krate: "xtask",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Any,
        never: &[],
        why: "xtask has to run while the rest does not compile",
    },
];

/// Checks every crate of the workspace against its rule.
pub fn check(graph: &Graph) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in graph.packages.values() {
        let Some(member) = &package.member else { continue };
        match RULES.iter().find(|rule| rule.covers(&package.name, &member.folder)) {
            Some(rule) => problems.extend(rule.check(graph, package, member)),
            None => problems.push(Problem::new(
                &member.path(),
                1,
                format!("no rule says what {} may depend on; add one to the table of tidy", package.name),
            )),
        }
    }
    problems
}

impl Rule {
    fn covers(&self, name: &str, folder: &str) -> bool {
        match self.krate.strip_suffix("/*") {
            Some(parent) => folder.rsplit_once('/').is_some_and(|(found, _)| found == parent),
            None => self.krate == name,
        }
    }

    fn check(&self, graph: &Graph, package: &Package, member: &Member) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut complain = |dependency: &str, what: String| {
            let message = format!("{} {what}: {}", package.name, self.why);
            problems.push(Problem::new(&member.path(), member.line_of(dependency), message));
        };
        for used in graph.used_by(package) {
            let allowed = if used.member.is_some() { &self.workspace } else { &self.libraries };
            if !allowed.contains(&used.name) {
                complain(&used.name, format!("may not depend on {}", used.name));
            }
        }
        for way in graph.brought_in(package) {
            let (Some(first), Some(last)) = (way.first(), way.last()) else { continue };
            if self.never.iter().any(|pattern| matches_pattern(pattern, last)) {
                complain(first, format!("may not bring in {last} ({})", way.join(" -> ")));
            }
        }
        problems
    }
}

impl Allowed {
    fn contains(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(names) => names.contains(&name),
        }
    }
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests;
