//! Graphs that keep the rules, and graphs that break them.

use super::*;

/// A graph from lines like `crates/core nereid-core: tokio nereid-kserve-http`; outside crates have no folder.
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
fn the_plan_itself_passes() {
    check_lines(
        &[
            "crates/model-config nereid-model-config: prost serde_json",
            "crates/backend-api nereid-backend-api: bytes smallvec nereid-model-config",
            "crates/core nereid-core: tokio nereid-backend-api nereid-model-config",
            "crates/repository nereid-repository: nereid-core",
            "crates/kserve-http nereid-kserve-http: hyper nereid-core",
            "backends/tract nereid-tract: tract-onnx nereid-backend-api",
            "crates/nereid nereid: nereid-core nereid-kserve-http nereid-repository nereid-tract",
            "xtask xtask: clap",
            "hyper: tokio",
        ],
        &[],
    );
}

#[test]
fn an_arrow_that_points_outward_is_found_with_its_line() {
    check_lines(
        &[
            "crates/core nereid-core: tokio nereid-kserve-http",
            "crates/kserve-http nereid-kserve-http: nereid-core",
        ],
        &[
            "crates/core/Cargo.toml:3: nereid-core may not depend on nereid-kserve-http: core knows no face, no framework, \
           no cloud and no C",
        ],
    );
    check_lines(
        &["backends/x nereid-x: nereid-core", "crates/core nereid-core: tokio"],
        &[
            "backends/x/Cargo.toml:2: nereid-x may not depend on nereid-core: a backend implements backend-api and \
           depends on nothing above it",
        ],
    );
}

#[test]
fn a_banned_library_is_found_at_any_depth_with_the_way_to_it() {
    check_lines(
        &["crates/core nereid-core: bytes a", "a: b", "b: hyper-util"],
        &[
            "crates/core/Cargo.toml:3: nereid-core may not bring in hyper-util (a -> b -> hyper-util): core knows no \
           face, no framework, no cloud and no C",
        ],
    );
}

#[test]
fn a_neighbour_answers_for_what_it_brings_in() {
    check_lines(
        &["crates/core nereid-core: nereid-model-config", "crates/model-config nereid-model-config: prost"],
        &[],
    );
}

#[test]
fn the_leaf_names_no_library_outside_its_list() {
    check_lines(
        &["crates/backend-api nereid-backend-api: bytes regex"],
        &[
            "crates/backend-api/Cargo.toml:3: nereid-backend-api may not depend on regex: backend-api is a leaf \
           that every backend author builds",
        ],
    );
}

#[test]
fn a_crate_without_a_rule_is_found() {
    check_lines(
        &["crates/new nereid-new:"],
        &[
            "crates/new/Cargo.toml:1: no rule says what nereid-new may depend on; add one to the table of tidy",
        ],
    );
}

#[test]
fn patterns_match_whole_names_or_beginnings() {
    assert!(matches_pattern("tokio", "tokio"));
    assert!(!matches_pattern("tokio", "tokio-util"));
    assert!(matches_pattern("tonic*", "tonic-build"));
    assert!(matches_pattern("tonic*", "tonic"));
}
