//! The direction of dependencies between crates, and which outside crates are banned.
//!
//! The folders of `crates/` are floors. Each floor has one rule: the floors that its crates may use, and the libraries
//! that they must not pull in. Exceptions restrict a few crates further. Rules cover normal and build dependencies, not
//! those of tests. A crate is responsible for its outside dependencies at any depth; dependencies of another crate of the
//! workspace fall under that crate's rules.

mod graph;

pub use self::graph::Graph;
use self::graph::{Member, Package};
use super::Problem;

/// Allowed dependencies of the crates in one folder.
struct Floor {
    folder: &'static str,
    /// The crates of the workspace that may be used, by folder or by name. The floor itself is included by its folder.
    uses: &'static [&'static str],
    /// Libraries that may not come in, not even through others; `name*` matches every crate with that prefix.
    never: &'static [&'static str],
    /// The reason, shown with each problem.
    why: &'static str,
}

/// Restrictions of one crate in addition to its floor's rule.
struct Exception {
    krate: &'static str,
    /// The crates of the workspace that it may use.
    workspace: Allowed,
    /// The libraries that it may use.
    libraries: Allowed,
    /// Libraries that may not come in, not even through others.
    never: &'static [&'static str],
    why: &'static str,
}

enum Allowed {
    /// Whatever the floor may use.
    Floor,
    Only(&'static [&'static str]),
}

/// From top to bottom: a floor uses floors above it, never those below.
const FLOORS: &[Floor] = &[
    Floor {
        folder: "crates/api",
        uses: &["crates/api"],
        never: &["axum*", "hyper*", "reqwest", "tokio", "tonic*", "tract*"],
        why: "api is what everybody may use, and does no I/O",
    },
    Floor {
        folder: "crates/platform",
        uses: &["crates/api", "crates/platform"],
        never: &["axum*", "hyper*", "tokio", "tonic*"],
        why: "platform is the machine, and knows no server and no protocol",
    },
    Floor {
        folder: "crates/server",
        uses: &["crates/api", "crates/platform", "crates/server"],
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
        why: "the server knows no face, no framework, no cloud and no C",
    },
    Floor {
        folder: "crates/models",
        uses: &["crates/api", "crates/platform", "crates/server", "crates/models"],
        never: &["aws-lc*", "axum*", "clap*", "reqwest", "tonic*", "tract*"],
        why: "models feed the server, and know no face and no engine; TLS is rustls with ring",
    },
    Floor {
        folder: "crates/faces",
        uses: &["crates/api", "crates/platform", "crates/server", "crates/faces"],
        never: &[
            "aws-*",
            "axum*",
            "azure*",
            "google-cloud*",
            "object_store",
            "opentelemetry*",
            "reqwest",
            "tract*",
        ],
        why: "a face knows the server, and no source of models and no engine",
    },
    Floor {
        folder: "crates/engines",
        uses: &["crates/api", "crates/platform", "crates/engines"],
        never: &["axum*", "hyper*", "tonic*"],
        why: "an engine implements backend-api, and knows no server, no source of models and no face",
    },
    Floor {
        folder: "crates/triton",
        uses: &["crates/api", "crates/platform", "crates/server", "crates/triton", "nereid-protocol"],
        never: &["axum*", "hyper*", "prost*", "tonic*", "tract*"],
        why: "triton is the C interface, and knows no network and no source of models",
    },
    Floor {
        folder: "crates/programs",
        uses: &["crates"],
        never: &[],
        why: "programs are what is started or linked, and use everything",
    },
    Floor {
        folder: "examples/agents",
        uses: &["triton-repoagent"],
        never: &[],
        why: "an example agent is built as anybody's would be, with triton-repoagent alone",
    },
    Floor {
        folder: "examples/backends",
        uses: &["triton-backend"],
        never: &[],
        why: "an example backend is built as anybody's would be, with triton-backend alone",
    },
    Floor {
        folder: "tests/backends",
        uses: &["triton-backend"],
        never: &[],
        why: "a backend of the tests tries triton-backend as its users have it",
    },
    Floor { folder: "", uses: &[], never: &[], why: "xtask has to run while the rest does not compile" },
];

const EXCEPTIONS: &[Exception] = &[
    Exception {
        krate: "nereid-model-config",
        workspace: Allowed::Only(&["nereid-tensor-types"]),
        libraries: Allowed::Floor,
        never: &[],
        why: "model-config is pure data",
    },
    Exception {
        krate: "nereid-tensor-types",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "tensor-types is built into backends for other servers and into modules of Python, and knows neither",
    },
    Exception {
        krate: "nereid-model-files",
        workspace: Allowed::Only(&["nereid-model-config"]),
        libraries: Allowed::Only(&["rustix"]),
        never: &[],
        why: "model-files opens files, and knows neither their formats nor who reads them",
    },
    Exception {
        krate: "nereid-backend-api",
        workspace: Allowed::Only(&["nereid-model-config", "nereid-model-files"]),
        libraries: Allowed::Only(&["bytes", "half", "smallvec", "thiserror"]),
        never: &["prost*", "serde_json"],
        why: "backend-api is a leaf that every backend author builds",
    },
    Exception {
        krate: "nereid-testkit",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-model-config"]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "testkit serves the unit tests of core too, which would see two of every crate that depends on core",
    },
    Exception {
        krate: "nereid-archives",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["flate2", "rawzip", "rustix", "ruzstd", "tar"]),
        never: &[],
        why: "archives unpacks untrusted files, and knows neither where they are from nor what they are for",
    },
    Exception {
        krate: "nereid-affinity",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["libc", "rustix", "thiserror"]),
        never: &[],
        why: "affinity holds unsafe code, so it is small; it places threads and knows nothing of what they do",
    },
    Exception {
        krate: "nereid-allocator",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["libc", "libmimalloc-sys", "mimalloc", "rustix"]),
        never: &[],
        why: "allocator holds unsafe code, so it is small, and knows nothing of what is allocated",
    },
    Exception {
        krate: "nereid-dylib",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["libloading", "thiserror"]),
        never: &[],
        why: "dylib opens shared libraries, so it is small and knows none of them",
    },
    Exception {
        krate: "nereid-cuda-driver",
        workspace: Allowed::Only(&["nereid-dylib"]),
        libraries: Allowed::Only(&["thiserror", "tracing"]),
        never: &[],
        why: "cuda-driver is built into what runs in other processes, and knows neither a server nor models",
    },
    Exception {
        krate: "nereid-cuda",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-cuda-driver"]),
        libraries: Allowed::Only(&["range-alloc", "tracing"]),
        never: &[],
        why: "cuda calls a driver, so it is small",
    },
    Exception {
        krate: "nereid-shared-memory",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-cuda"]),
        libraries: Allowed::Only(&["bytes", "libc", "rustix"]),
        never: &[],
        why: "shared memory holds unsafe code, so it is small",
    },
    Exception {
        krate: "nereid-access",
        workspace: Allowed::Only(&["nereid-budgets", "nereid-core", "nereid-protocol"]),
        libraries: Allowed::Only(&[
            "arc-swap",
            "blake3",
            "jsonwebtoken",
            "quick_cache",
            "ring",
            "serde",
            "serde_json",
            "subtle",
            "tempfile",
            "thiserror",
            "time",
            "tokio",
            "toml_edit",
            "tracing",
        ]),
        never: &["hyper*", "prost*", "tonic*"],
        why: "access decides for all faces, and knows no wire format but that of tokens",
    },
    Exception {
        krate: "nereid-protocol",
        workspace: Allowed::Floor,
        libraries: Allowed::Only(&["arc-swap", "regex", "serde", "tokio", "tracing"]),
        never: &["hyper*", "prost*", "tonic*"],
        why: "protocol is what faces share, and knows no wire format",
    },
    Exception {
        krate: "nereid-http2",
        workspace: Allowed::Only(&["nereid-net"]),
        libraries: Allowed::Floor,
        never: &["h2", "prost*", "tonic*"],
        why: "http2 is connections, and knows neither the server nor gRPC",
    },
    Exception {
        krate: "nereid-budgets",
        workspace: Allowed::Only(&["nereid-backend-api"]),
        libraries: Allowed::Only(&["bytes"]),
        never: &[],
        why: "budgets counts what is in use, and knows neither the server nor its faces",
    },
    Exception {
        krate: "nereid-tasks",
        workspace: Allowed::Only(&["nereid-backend-api"]),
        libraries: Allowed::Only(&["tokio", "tracing"]),
        never: &[],
        why: "tasks runs work of any kind, and knows neither the server nor its faces",
    },
    Exception {
        krate: "nereid-trace-settings",
        workspace: Allowed::Only(&["nereid-backend-api"]),
        libraries: Allowed::Only(&["arc-swap"]),
        never: &[],
        why: "trace-settings decides which requests are traced, and knows neither the server nor its faces",
    },
    Exception {
        krate: "nereid-ensemble",
        workspace: Allowed::Only(&[
            "nereid-backend-api",
            "nereid-core",
            "nereid-model-config",
            "nereid-tasks",
        ]),
        libraries: Allowed::Floor,
        never: &[],
        why: "ensemble is an executor as any other crate could register one, on core's public interface alone",
    },
    Exception {
        krate: "nereid-worker-protocol",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&["range-alloc", "rustix"]),
        never: &[],
        why: "worker-protocol is built into what runs in other processes, and knows neither a server nor models",
    },
    Exception {
        krate: "nereid-graph-executor",
        workspace: Allowed::Only(&["nereid-backend-api", "nereid-model-config"]),
        libraries: Allowed::Only(&["bytemuck", "bytes", "smallvec"]),
        never: &["ort*", "tokio", "tract*"],
        why: "graph-executor is what engines that run graphs share, and knows none of them nor their formats",
    },
    Exception {
        krate: "nereid-python-env",
        workspace: Allowed::Only(&[
            "nereid-archives",
            "nereid-model-files",
            "nereid-private-folders",
            "nereid-sandbox",
        ]),
        libraries: Allowed::Only(&["ring", "rustix", "thiserror"]),
        never: &["tokio"],
        why: "python-env makes environments, and knows nothing of the server and of what runs in them",
    },
    Exception {
        krate: "nereid-python-arrays",
        workspace: Allowed::Only(&["nereid-tensor-types"]),
        libraries: Allowed::Only(&["pyo3"]),
        never: &[],
        why: "python-arrays is built into modules of Python, which are small",
    },
    Exception {
        krate: "nereid-python-module",
        workspace: Allowed::Only(&["nereid-cuda-driver", "nereid-python-arrays", "nereid-worker-protocol"]),
        libraries: Allowed::Only(&["pyo3"]),
        never: &[],
        why: "the module runs within a model's interpreter and is built for it alone, so it is small",
    },
    Exception {
        krate: "nereid-triton-sys",
        workspace: Allowed::Only(&[]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "triton-sys declares Triton's C interface and does nothing",
    },
    Exception {
        krate: "triton-backend",
        workspace: Allowed::Only(&["nereid-tensor-types", "nereid-triton-sys"]),
        libraries: Allowed::Only(&["bytemuck", "half", "libc", "serde_json"]),
        never: &["tokio"],
        why: "triton-backend is built into backends that other servers load, and knows nothing of this one",
    },
    Exception {
        krate: "triton-repoagent",
        workspace: Allowed::Only(&["nereid-triton-sys"]),
        libraries: Allowed::Only(&[]),
        never: &[],
        why: "triton-repoagent is built into agents that other servers load, and knows nothing of this one",
    },
    Exception {
        krate: "nereid-assembly",
        workspace: Allowed::Floor,
        libraries: Allowed::Floor,
        never: &["clap*", "tracing-subscriber"],
        why: "assembly puts a server together, and leaves the command line and the process to its caller",
    },
    Exception {
        krate: "nereid-options",
        workspace: Allowed::Floor,
        libraries: Allowed::Only(&["clap", "clap_complete", "toml_edit"]),
        never: &["tracing-subscriber"],
        why: "options describes a server and starts nothing",
    },
    Exception {
        krate: "nereid-logging",
        workspace: Allowed::Only(&["nereid-protocol", "nereid-triton-host"]),
        libraries: Allowed::Only(&["serde_json", "time", "tracing", "tracing-subscriber"]),
        never: &[],
        why: "logging writes the lines of a process, whatever runs in it",
    },
    Exception {
        krate: "nereid-client",
        workspace: Allowed::Only(&["nereid-tensor-types"]),
        libraries: Allowed::Floor,
        never: &["clap*", "protox*", "tonic-prost-build", "tracing-subscriber", "url"],
        why: "client is a library for programs of others, with few dependencies, and knows servers by their protocol alone",
    },
    Exception {
        krate: "nereid-terminal",
        workspace: Allowed::Only(&["nereid-client", "nereid-tensor-types"]),
        libraries: Allowed::Floor,
        never: &["clap*"],
        why: "terminal knows servers by their HTTP API alone, as it does those of others",
    },
    Exception {
        krate: "nereid",
        workspace: Allowed::Floor,
        libraries: Allowed::Floor,
        never: &["clap*", "tracing-subscriber"],
        why: "nereid is for programs of others, and leaves the command line and the process to them",
    },
    Exception {
        krate: "nereid-libtritonserver",
        workspace: Allowed::Only(&[
            "nereid",
            "nereid-cli",
            "nereid-core",
            "nereid-cuda",
            "nereid-logging",
            "nereid-triton-host",
            "nereid-triton-sys",
        ]),
        libraries: Allowed::Only(&["libloading"]),
        never: &[],
        why: "libtritonserver joins the C interface with servers and the command, and its program opens it",
    },
    Exception {
        krate: "nereid-wheel",
        workspace: Allowed::Only(&["nereid-python-arrays", "nereid-triton-sys"]),
        libraries: Allowed::Only(&["pyo3"]),
        never: &[],
        why: "the package has one copy of the server, in libtritonserver.so, whose C interface it uses",
    },
];

/// Checks every crate of the workspace against the rule of its floor, and its own if it has one.
pub fn check(graph: &Graph) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in graph.packages.values() {
        let Some(member) = &package.member else { continue };
        let checked = Checked { graph, package, member };
        match FLOORS.iter().find(|floor| floor.folder == parent(&member.folder)) {
            Some(floor) => problems.extend(floor.check(&checked)),
            None => problems.push(Problem::new(
                &member.path(),
                1,
                format!("{} is on no floor of tidy's table of dependencies", package.name),
            )),
        }
        let own = EXCEPTIONS.iter().filter(|exception| exception.krate == package.name);
        problems.extend(own.flat_map(|exception| exception.check(&checked)));
    }
    problems.extend(unknown(graph));
    problems
}

/// Exceptions for crates that do not exist, as after a rename.
fn unknown(graph: &Graph) -> impl Iterator<Item = Problem> {
    let known = |krate: &str| graph.packages.values().any(|package| package.name == krate);
    // Tests have graphs of a few crates.
    let whole = known("xtask");
    EXCEPTIONS.iter().filter(move |exception| whole && !known(exception.krate)).map(|exception| {
        let message = format!("has a rule for {}, which does not exist", exception.krate);
        Problem::new("xtask/src/tidy/dependencies.rs", 1, message)
    })
}

/// A crate of the workspace with what it depends on.
struct Checked<'a> {
    graph: &'a Graph,
    package: &'a Package,
    member: &'a Member,
}

impl Checked<'_> {
    fn problem(&self, dependency: &str, what: &str, why: &str) -> Problem {
        let message = format!("{} {what}: {why}", self.package.name);
        Problem::new(&self.member.path(), self.member.line_of(dependency), message)
    }

    /// Direct dependencies of one kind that are not allowed.
    fn misused(&self, why: &str, allows: impl Fn(&Package) -> bool) -> Vec<Problem> {
        let used = self.graph.used_by(self.package).filter(|used| !allows(used));
        used.map(|used| self.problem(&used.name, &format!("may not depend on {}", used.name), why)).collect()
    }

    fn banned(&self, never: &[&str], why: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for way in self.graph.outside_dependencies(self.package) {
            let (Some(first), Some(last)) = (way.first(), way.last()) else { continue };
            if never.iter().any(|pattern| matches_pattern(pattern, last)) {
                problems.push(self.problem(
                    first,
                    &format!("may not bring in {last} ({})", way.join(" -> ")),
                    why,
                ));
            }
        }
        problems
    }
}

impl Floor {
    fn check(&self, checked: &Checked<'_>) -> Vec<Problem> {
        let allows = |used: &Package| match &used.member {
            None => true,
            Some(member) => {
                let names = [used.name.as_str(), parent(&member.folder), parent(parent(&member.folder))];
                self.uses.iter().any(|allowed| names.contains(allowed))
            }
        };
        let mut problems = checked.misused(self.why, allows);
        problems.extend(checked.banned(self.never, self.why));
        problems
    }
}

impl Exception {
    fn check(&self, checked: &Checked<'_>) -> Vec<Problem> {
        let allows = |used: &Package| {
            let allowed = if used.member.is_some() { &self.workspace } else { &self.libraries };
            match allowed {
                Allowed::Floor => true,
                Allowed::Only(names) => names.contains(&used.name.as_str()),
            }
        };
        let mut problems = checked.misused(self.why, allows);
        problems.extend(checked.banned(self.never, self.why));
        problems
    }
}

/// The folder that contains a folder; empty for a folder of the root.
fn parent(folder: &str) -> &str {
    folder.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests;
