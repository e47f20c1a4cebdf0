//! The options of the Vertex AI endpoints. These are not built yet: the options are checked and reported, so that a command
//! line that has them starts the server.

use clap::{ArgAction, Args};

use super::boolean;

/// The options of the Vertex AI endpoints.
#[derive(Debug, Args)]
#[command(next_help_heading = "Vertex AI")]
pub(crate) struct VertexAiOptions {
    /// Serve Vertex AI. Not built yet: true is accepted with a warning. Default: true where the environment has
    /// AIP_MODE=PREDICTION.
    #[arg(long, value_name = "BOOL", value_parser = boolean(), action = ArgAction::Set)]
    allow_vertex_ai: Option<bool>,

    /// Port to serve Vertex AI on. Accepted, without effect yet. Default: AIP_HTTP_PORT of the environment, or else 8080.
    #[arg(long, value_name = "PORT")]
    vertex_ai_port: Option<u16>,

    /// Threads for Vertex AI. Accepted, without effect: requests run on the threads of --http-thread-count.
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    vertex_ai_thread_count: u32,

    /// Model that predictions without a model's name are made with. Accepted, without effect yet.
    #[arg(long, value_name = "NAME")]
    vertex_ai_default_model: Option<String>,
}

impl VertexAiOptions {
    /// What was asked for and is not served. The other options mean nothing by themselves.
    pub(super) fn advice(&self, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
        let by = match self.allow_vertex_ai {
            Some(false) => return None,
            Some(true) => "--allow-vertex-ai=true",
            None => {
                variable("AIP_MODE").filter(|mode| mode == "PREDICTION").map(|_| "AIP_MODE=PREDICTION")?
            }
        };
        let port = self.vertex_ai_port.map(|port| port.to_string()).or_else(|| variable("AIP_HTTP_PORT"));
        Some(format!(
            "{by}: Vertex AI endpoints are not built yet, so nothing answers on port {} (health and predictions)",
            port.as_deref().unwrap_or("8080")
        ))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        vertex_ai: VertexAiOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<VertexAiOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.vertex_ai)
    }

    #[test]
    fn asking_for_the_endpoints_is_reported_whether_by_option_or_environment() {
        let cloud = [("AIP_MODE", "PREDICTION"), ("AIP_HTTP_PORT", "7080")];
        for (arguments, variables, reported) in [
            ([].as_slice(), [].as_slice(), None),
            (&[], &[("AIP_MODE", "prediction")], None),
            (&["--allow-vertex-ai=false"], &cloud, None),
            (&["--vertex-ai-port=1", "--vertex-ai-thread-count=4", "--vertex-ai-default-model=m"], &[], None),
            (
                &["--allow-vertex-ai=true"],
                &[],
                Some(
                    "--allow-vertex-ai=true: Vertex AI endpoints are not built yet, so nothing answers on port 8080",
                ),
            ),
            (
                &[],
                &cloud,
                Some(
                    "AIP_MODE=PREDICTION: Vertex AI endpoints are not built yet, so nothing answers on port 7080",
                ),
            ),
            (&["--allow-vertex-ai=ON", "--vertex-ai-port=9"], &cloud, Some("port 9 ")),
        ] {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            let advice = parsed(arguments).unwrap().advice(variable);
            match reported {
                None => assert_eq!(advice, None, "{arguments:?}"),
                Some(part) => assert!(advice.as_ref().unwrap().contains(part), "{arguments:?}: {advice:?}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for argument in [
            "--allow-vertex-ai=yes",
            "--vertex-ai-port=x",
            "--vertex-ai-port=99999",
            "--vertex-ai-thread-count=x",
        ] {
            assert!(parsed(&[argument]).is_err(), "{argument}");
        }
    }
}
