//! The options of Vertex AI, and the environment variables by which it configures a container.

use std::ffi::OsString;

use clap::{ArgAction, Args};
use nereid_assembly::{Endpoint, VertexAi};
use nereid_core::{ScopedName, Server};
use nereid_net::listener::Address;
use nereid_vertex_ai::{RoutePattern, VertexAiOptions as FaceOptions, only_model};

use super::http::HttpOptions;
use super::values::{boolean, int, port};

/// The options of Vertex AI.
#[derive(Debug, Args)]
#[command(next_help_heading = "Vertex AI")]
pub(crate) struct VertexAiOptions {
    /// Serve Vertex AI, on the routes in the environment variables AIP_PREDICT_ROUTE and AIP_HEALTH_ROUTE. With
    /// AIP_MODE=PREDICTION this defaults to true, and --allow-http and --allow-grpc to false.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    allow_vertex_ai: bool,

    /// Port to serve Vertex AI on, on every address; 0 for any free one. Defaults to AIP_HTTP_PORT of the environment,
    /// if set.
    #[arg(long, value_name = "PORT", default_value_t = 8080, value_parser = port())]
    vertex_ai_port: u16,

    /// Threads for Vertex AI. Accepted, without effect: requests run on the threads of --http-thread-count.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = int::<u32>())]
    vertex_ai_thread_count: u32,

    /// Model for predictions that name none. Default: the only model served at start.
    #[arg(long, value_name = "NAME")]
    vertex_ai_default_model: Option<String>,
}

impl VertexAiOptions {
    /// Address of the Vertex AI face, if enabled.
    pub(super) fn address(&self) -> Option<Address> {
        self.allow_vertex_ai.then(|| Address::tcp("0.0.0.0", self.vertex_ai_port))
    }

    /// The face, if Vertex AI is served.
    ///
    /// # Errors
    /// Which variable is missing, or what is wrong with one or with the options of HTTP, which hold here, too.
    pub(super) fn face(
        &self,
        http: &HttpOptions,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<VertexAi>, String> {
        let Some(address) = self.address() else { return Ok(None) };
        let route = |name: &str| {
            let route = variable(name).unwrap_or_default();
            route.parse::<RoutePattern>().map_err(|reason| {
                format!("Vertex AI needs its routes in the environment, but {name} {reason}")
            })
        };
        let options = FaceOptions {
            health: route("AIP_HEALTH_ROUTE")?,
            predict: route("AIP_PREDICT_ROUTE")?,
            model: self.vertex_ai_default_model.clone(),
        };
        Ok(Some(VertexAi {
            endpoint: Endpoint { address, tls: http.tls()? },
            options,
            http: http.face_options()?,
        }))
    }

    /// Checks the default model, once the models are loaded.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn check_model(&self, server: &Server) -> Result<(), String> {
        if !self.allow_vertex_ai {
            return Ok(());
        }
        match &self.vertex_ai_default_model {
            Some(name) => server
                .models()
                .find(ScopedName::everywhere(name), None)
                .map(drop)
                .map_err(|error| format!("--vertex-ai-default-model={name}: {}", error.message())),
            None => only_model(server).map(drop).map_err(|error| format!("Vertex AI: {}", error.message())),
        }
    }
}

/// The default of an option in Vertex AI's environment, with the variable that sets it.
pub(super) fn default(
    option: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<(&'static str, OsString)> {
    let predicts = |value: &str| {
        let mode = variable("AIP_MODE").filter(|mode| mode == "PREDICTION");
        mode.map(|_| ("AIP_MODE", OsString::from(value)))
    };
    let given = |name| Some((name, variable(name).filter(|value| !value.is_empty())?));
    match option {
        "allow-vertex-ai" => predicts("true"),
        "allow-http" | "allow-grpc" => predicts("false"),
        "vertex-ai-port" => given("AIP_HTTP_PORT"),
        "model-repository" => given("AIP_STORAGE_URI"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, parse};

    const ROUTES: [(&str, &str); 2] = [("AIP_HEALTH_ROUTE", "/health"), ("AIP_PREDICT_ROUTE", "/predict")];
    const CLOUD: [(&str, &str); 3] =
        [("AIP_MODE", "PREDICTION"), ("AIP_HTTP_PORT", "7080"), ("AIP_STORAGE_URI", "/models")];

    fn parsed(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Options, clap::Error> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        parse(["nereid"].iter().chain(arguments).map(Into::into).collect(), variable)
    }

    /// Whether HTTP and gRPC are served, and on which port Vertex AI is.
    fn served(arguments: &[&str], variables: &[(&str, &str)]) -> (bool, bool, Option<u16>) {
        let options = parsed(arguments, variables).unwrap();
        let port = options.vertex_ai.address().map(|address| address.as_tcp().unwrap().port);
        (options.http.allow_http, options.grpc.allow_grpc, port)
    }

    #[test]
    fn vertex_ai_is_enabled_by_option_or_environment() {
        let repository = "--model-repository=m";
        for (arguments, variables, expected) in [
            ([repository].as_slice(), [].as_slice(), (true, true, None)),
            (&[repository], &[("AIP_MODE", "prediction")], (true, true, None)),
            (&[repository, "--allow-vertex-ai=true"], &[], (true, true, Some(8080))),
            (&[repository, "--allow-vertex-ai=ON", "--vertex-ai-port=9"], &[], (true, true, Some(9))),
            (&[], &CLOUD, (false, false, Some(7080))),
            (&["--allow-http=1", "--vertex-ai-port=9"], &CLOUD, (true, false, Some(9))),
            (&["--allow-vertex-ai=0"], &CLOUD, (false, false, None)),
        ] {
            assert_eq!(served(arguments, variables), expected, "{arguments:?} {variables:?}");
        }
        assert!(!parsed(&[], &[]).unwrap().has_repository());
        assert!(parsed(&["--model-repository=m"], &[("AIP_HTTP_PORT", "x")]).is_err());
    }

    #[test]
    fn environment_names_the_repository_unless_an_option_does() {
        for (arguments, expected) in [([].as_slice(), "/models"), (&["--model-repository=m"], "m")] {
            let options = parsed(arguments, &CLOUD).unwrap();
            assert_eq!(options.models.repositories(), [std::path::PathBuf::from(expected)]);
        }
    }

    #[test]
    fn both_vertex_ai_routes_are_required() {
        let options = parsed(&["--model-repository=m", "--allow-vertex-ai=1"], &[]).unwrap();
        for (routes, is_fine) in [
            (ROUTES.as_slice(), true),
            (&ROUTES[..1], false),
            (&ROUTES[1..], false),
            (&[ROUTES[0], ("AIP_PREDICT_ROUTE", "/p(")], false),
        ] {
            let variable = |name: &str| {
                routes.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(options.vertex_ai.face(&options.http, variable).is_ok(), is_fine, "{routes:?}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for argument in [
            "--allow-vertex-ai=yes",
            "--vertex-ai-port=x",
            "--vertex-ai-port=99999",
            "--vertex-ai-thread-count=x",
        ] {
            assert!(parsed(&["--model-repository=m", argument], &[]).is_err(), "{argument}");
        }
    }
}
