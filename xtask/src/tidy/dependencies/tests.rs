//! Graphs that keep the rules, and graphs that break them.

use super::*;

/// A graph from lines like `crates/server/core nereid-core: tokio nereid-kserve`; outside crates have no folder.
fn graph(lines: &[&str]) -> Graph {
    let mut graph = Graph::default();
    for line in lines {
        let (head, uses) = line.split_once(':').unwrap();
        let (folder, name) =
            head.rsplit_once(' ').map_or((None, head), |(folder, name)| (Some(folder), name));
        let uses: Vec<String> = uses.split_whitespace().map(str::to_owned).collect();
        let member = folder.map(|folder| Member {
            folder: folder.to_owned(),
            manifest: format!("[dependencies]\n{}.workspace = true\n", uses.join(".workspace = true\n")),
        });
        for used in &uses {
            let leaf = Package { name: used.clone(), ..Package::default() };
            graph.packages.entry(used.clone()).or_insert(leaf);
        }
        graph.packages.insert(name.to_owned(), Package { name: name.to_owned(), member, uses });
    }
    graph
}

#[track_caller]
fn check_lines(lines: &[&str], expected: &[&str]) {
    let found: Vec<_> = check(&graph(lines)).iter().map(Problem::to_string).collect();
    assert_eq!(found, expected);
}

#[test]
fn dependencies_that_follow_the_floors_pass() {
    check_lines(
        &[
            "crates/api/model-config nereid-model-config: prost serde_json",
            "crates/api/backend-api nereid-backend-api: bytes smallvec nereid-model-config",
            "crates/server/core nereid-core: tokio nereid-backend-api nereid-model-config",
            "crates/models/repository nereid-repository: nereid-core",
            "crates/faces/kserve nereid-kserve: hyper nereid-core",
            "crates/engines/tract nereid-tract: tract-onnx nereid-backend-api",
            "crates/programs/nereid nereid: nereid-core nereid-kserve nereid-repository nereid-tract",
            "hyper: tokio",
        ],
        &[],
    );
}

#[test]
fn dependency_on_a_lower_floor_is_reported_with_its_line() {
    check_lines(
        &[
            "crates/server/core nereid-core: tokio nereid-kserve",
            "crates/faces/kserve nereid-kserve: nereid-core",
        ],
        &[
            "crates/server/core/Cargo.toml:3: nereid-core may not depend on nereid-kserve: the server knows no face, no \
           framework, no cloud and no C",
        ],
    );
    check_lines(
        &["crates/engines/x nereid-x: nereid-core", "crates/server/core nereid-core: tokio"],
        &[
            "crates/engines/x/Cargo.toml:2: nereid-x may not depend on nereid-core: an engine implements backend-api, \
           and knows no server, no source of models and no face",
        ],
    );
}

#[test]
fn crate_named_by_a_floor_may_be_used_from_below() {
    let host = "crates/triton/triton-host nereid-triton-host: nereid-protocol";
    check_lines(&[host, "crates/faces/protocol nereid-protocol:"], &[]);
    check_lines(
        &["crates/triton/triton-host nereid-triton-host: nereid-http", "crates/faces/http nereid-http:"],
        &[
            "crates/triton/triton-host/Cargo.toml:2: nereid-triton-host may not depend on nereid-http: triton is the C \
           interface, and knows no network and no source of models",
        ],
    );
}

#[test]
fn banned_library_is_reported_at_any_depth_with_its_path() {
    check_lines(
        &["crates/server/core nereid-core: bytes a", "a: b", "b: hyper-util"],
        &[
            "crates/server/core/Cargo.toml:3: nereid-core may not bring in hyper-util (a -> b -> hyper-util): the server \
           knows no face, no framework, no cloud and no C",
        ],
    );
}

#[test]
fn libraries_of_a_workspace_crate_count_against_that_crate_alone() {
    check_lines(
        &[
            "crates/server/core nereid-core: nereid-model-config",
            "crates/api/model-config nereid-model-config: prost",
        ],
        &[],
    );
}

#[test]
fn exception_narrows_the_rule_of_its_floor() {
    check_lines(
        &["crates/api/backend-api nereid-backend-api: bytes regex"],
        &[
            "crates/api/backend-api/Cargo.toml:3: nereid-backend-api may not depend on regex: backend-api is a leaf \
           that every backend author builds",
        ],
    );
}

#[test]
fn crate_outside_the_floors_is_reported() {
    check_lines(
        &["crates/new nereid-new:"],
        &["crates/new/Cargo.toml:1: nereid-new is on no floor of tidy's table of dependencies"],
    );
}

#[test]
fn exception_for_an_unknown_crate_is_reported() {
    let problems = check(&graph(&["xtask xtask:"]));
    assert_eq!(problems.len(), EXCEPTIONS.len());
    assert!(problems[0].to_string().ends_with("has a rule for nereid-model-config, which does not exist"));
}

#[test]
fn patterns_match_whole_names_or_prefixes() {
    assert!(matches_pattern("tokio", "tokio"));
    assert!(!matches_pattern("tokio", "tokio-util"));
    assert!(matches_pattern("tonic*", "tonic-build"));
    assert!(matches_pattern("tonic*", "tonic"));
}
