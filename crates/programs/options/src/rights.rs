//! The table of rights in `docs/security.md`, generated from the declarations of routes and calls.
//!
//! `UPDATE_OPTIONS=1 cargo test -p nereid-options` regenerates the table.

use std::collections::BTreeSet;
use std::fs;

use nereid_protocol::{Action, Need};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/security.md");

/// Markers around the table in the page.
const MARKS: [&str; 2] = [
    "<!-- Generated from the declarations of routes and calls: UPDATE_OPTIONS=1 cargo test -p nereid-options. -->\n",
    "<!-- End of the table of rights. -->\n",
];

/// A route or a call.
struct Row {
    face: &'static str,
    request: String,
    action: Action,
    /// Whether its path or message names a model.
    names_model: bool,
}

/// Every route and call.
fn rows() -> Vec<Row> {
    let http = |face, (method, path, action): (String, String, Action)| {
        let names_model = ["{model}", "{adapter}"].iter().any(|name| path.contains(name))
            || action == Action::Infer
            || (face == "SageMaker" && action == Action::Load);
        Row { face, request: format!("{method} {path}"), action, names_model }
    };
    let kserve =
        nereid_kserve::routes().map(|(method, path, action)| (method.to_string(), path.to_owned(), action));
    let kserve = kserve.map(|route| http("HTTP", route));
    let grpc = nereid_grpc::calls().map(|(path, action)| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let names_model =
            name.starts_with("Model") || name.starts_with("RepositoryModel") || name == "TraceSetting";
        Row { face: "gRPC", request: path.trim_start_matches('/').to_owned(), action, names_model }
    });
    let metrics =
        nereid_metrics::routes().map(|(method, path, action)| (method.to_string(), path.to_owned(), action));
    let metrics = metrics.map(|route| http("metrics", route));
    let console =
        nereid_console::routes().map(|(method, path, action)| (method.to_string(), path.to_owned(), action));
    let console = console.map(|route| http("HTTP", route));
    let openai =
        nereid_openai::routes().map(|(method, path, action)| (method.to_string(), path.to_owned(), action));
    let openai = openai.map(|route| http("OpenAI", route));
    let sagemaker = nereid_sagemaker::routes()
        .map(|(method, path, action)| (method.to_string(), path.to_owned(), action));
    let sagemaker = sagemaker.map(|route| http("SageMaker", route));
    let vertex = nereid_vertex_ai::routes().map(|(method, path, action)| (method.to_string(), path, action));
    let vertex = vertex.map(|route| http("Vertex AI", route));
    kserve.chain(console).chain(openai).chain(grpc).chain(metrics).chain(sagemaker).chain(vertex).collect()
}

impl Row {
    /// The right that it needs.
    fn needs(&self) -> String {
        match (self.action.need(), self.names_model) {
            (Need::Nothing, _) | (Need::Sight, false) => "none".to_owned(),
            (Need::Sight, true) => "any on the model".to_owned(),
            (Need::Any(right) | Need::Every(right), true) => format!("`{}` on the model", right.name()),
            (Need::Any(right), false) => format!("`{}` on any model", right.name()),
            (Need::Every(right), false) => format!("`{}` on all models", right.name()),
        }
    }

    /// The rights that parts of the request need in addition.
    fn parts(&self) -> String {
        let right = |action: Action| action.need().right().map_or("none", |right| right.name());
        let (files, regions) = (right(Action::LoadFiles), right(Action::UseRegions));
        match (self.face, self.action) {
            ("SageMaker", Action::Load) => format!("`{files}` on the model: the request names a folder"),
            (_, Action::Load) => format!("with files or a configuration: `{files}` on the model"),
            (_, Action::Infer) => format!("with shared memory: `{regions}` on all models"),
            (_, Action::Metrics) if self.request.contains("metrics") => {
                format!(
                    "other metrics than those of models: `{}` on all models",
                    right(Action::MachineMetrics)
                )
            }
            ("gRPC", Action::ReadTrace) => {
                format!("without a model, changes need `{}` on all models", right(Action::ChangeTrace))
            }
            ("gRPC", Action::ReadLog) => format!("changes need `{}` on all models", right(Action::ChangeLog)),
            ("gRPC", Action::Statistics) => {
                "without a model: shows those models that the client may read".to_owned()
            }
            ("gRPC", Action::Describe) => String::new(),
            (_, Action::Statistics | Action::Index | Action::Describe) if !self.names_model => {
                "shows only such models".to_owned()
            }
            _ => String::new(),
        }
    }
}

fn table() -> String {
    let mut table = "\n| face | request | needs | in addition |\n|---|---|---|---|\n".to_owned();
    for row in rows() {
        let cells = [row.face.to_owned(), format!("`{}`", row.request), row.needs(), row.parts()];
        table.push_str(&format!("| {} |\n", cells.join(" | ").trim_end()));
    }
    table.push('\n');
    table
}

#[test]
fn the_table_of_rights_is_up_to_date() {
    let page = fs::read_to_string(PAGE).unwrap();
    let [begin, end] = MARKS;
    let (before, rest) = page.split_once(begin).expect("the mark before the table");
    let (_, after) = rest.split_once(end).expect("the mark after the table");
    let made = format!("{before}{begin}{}{end}{after}", table());
    if std::env::var_os("UPDATE_OPTIONS").is_some() {
        fs::write(PAGE, &made).unwrap();
    } else {
        assert!(
            page == made,
            "docs/security.md differs from the declarations; UPDATE_OPTIONS=1 regenerates its table"
        );
    }
}

#[test]
fn only_health_is_open_and_no_request_is_listed_twice() {
    let mut seen = BTreeSet::new();
    for row in rows() {
        assert!(seen.insert((row.face, row.request.clone())), "{}", row.request);
        if row.needs() == "none" {
            let path = row.request.to_ascii_lowercase();
            let is_health =
                ["health", "ping", "serverlive", "serverready"].iter().any(|word| path.contains(word));
            assert!(is_health && row.action == Action::Health, "{} needs no right", row.request);
        }
    }
    assert!(seen.len() > 90);
}
