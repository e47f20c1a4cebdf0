//! The options of SageMaker, and the environment variables by which it configures a container.

use std::ops::RangeInclusive;

use clap::{ArgAction, Args};
use nereid_assembly::{Endpoint, SageMaker};
use nereid_kserve::Inference;
use nereid_net::listener::Address;
use nereid_sagemaker::{PingMode, SageMakerOptions as FaceOptions};

use super::http::HttpOptions;
use super::values::{boolean, int, port};

/// The options of SageMaker.
#[derive(Debug, Args)]
#[command(next_help_heading = "SageMaker")]
pub(crate) struct SageMakerOptions {
    /// Serve SageMaker: /ping, /invocations, and /models for multi-model endpoints.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    allow_sagemaker: bool,

    /// Port to serve SageMaker on, on every address; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080, value_parser = port())]
    sagemaker_port: u16,

    /// Ports allowed for the other protocols. Default: any.
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    sagemaker_safe_port_range: Option<RangeInclusive<u16>>,

    /// Threads for SageMaker. Accepted, without effect: requests run on the threads of --http-thread-count.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = int::<u32>())]
    sagemaker_thread_count: u32,
}

impl SageMakerOptions {
    /// Address of the SageMaker face, if enabled.
    pub(super) fn address(&self) -> Option<Address> {
        self.allow_sagemaker.then(|| Address::tcp("0.0.0.0", self.sagemaker_port))
    }

    /// Whether the port of another protocol is one that SageMaker allows.
    pub(super) fn allows(&self, port: u16) -> bool {
        let range = self.sagemaker_safe_port_range.as_ref().filter(|_| self.allow_sagemaker);
        range.is_none_or(|range| range.contains(&port))
    }

    /// The SageMaker face, if enabled.
    ///
    /// # Errors
    /// An invalid variable or HTTP option; the HTTP options apply to SageMaker, too.
    pub(super) fn face(
        &self,
        http: &HttpOptions,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<SageMaker>, String> {
        let Some(address) = self.address() else { return Ok(None) };
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let options = FaceOptions {
            ping: match set("SAGEMAKER_TRITON_PING_MODE") {
                Some(mode) => {
                    mode.parse().map_err(|reason| format!("SAGEMAKER_TRITON_PING_MODE: {reason}"))?
                }
                None => PingMode::default(),
            },
            model: set("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
            inference: match set("SAGEMAKER_TRITON_INFERENCE_TYPE").as_deref() {
                None | Some("infer") => Inference::Infer,
                Some("generate") => Inference::Generate,
                Some("generate_stream") => Inference::GenerateStream,
                Some(other) => {
                    return Err(format!(
                        "SAGEMAKER_TRITON_INFERENCE_TYPE: must be infer, generate or generate_stream, not '{other}'"
                    ));
                }
            },
        };
        Ok(Some(SageMaker {
            endpoint: Endpoint { address, tls: http.tls()? },
            options,
            http: http.face_options()?,
        }))
    }
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ports =
        text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let (first, last) = ports.ok_or("must be FIRST-LAST, such as 8000-8010")?;
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        sagemaker: SageMakerOptions,
        #[command(flatten)]
        http: HttpOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<Line, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat())
    }

    fn face(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Option<SageMaker>, String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let line = parsed(arguments).unwrap();
        line.sagemaker.face(&line.http, variable)
    }

    #[test]
    fn sagemaker_is_served_only_if_allowed() {
        for (arguments, port) in [
            ([].as_slice(), None),
            (&["--allow-sagemaker=OFF", "--sagemaker-port=1"], None),
            (&["--allow-sagemaker=true"], Some(8080)),
            (&["--allow-sagemaker=On", "--sagemaker-port=9090"], Some(9090)),
        ] {
            let face = face(arguments, &[("SAGEMAKER_TRITON_PING_MODE", "live")]).unwrap();
            let bound = face.map(|face| face.endpoint.address.as_tcp().unwrap().port);
            assert_eq!(bound, port, "{arguments:?}");
        }
    }

    #[test]
    fn sagemaker_variables_configure_the_face() {
        let on = ["--allow-sagemaker=1", "--http-restricted-api=inference:k=v"];
        let face = |variables: &[(&str, &str)]| face(&on, variables).map(Option::unwrap);
        let plain = face(&[("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "")]).unwrap();
        let FaceOptions { ping, model, inference } = plain.options;
        assert_eq!((ping, model, inference), (PingMode::Ready, None, Inference::Infer));
        let anonymous = nereid_protocol::Identity::default();
        assert!(plain.http.access.check(&anonymous, nereid_protocol::Action::Infer, None).is_err());
        let chosen = face(&[
            ("SAGEMAKER_TRITON_PING_MODE", "live"),
            ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "m"),
            ("SAGEMAKER_TRITON_INFERENCE_TYPE", "generate_stream"),
        ]);
        let FaceOptions { ping, model, inference } = chosen.unwrap().options;
        assert_eq!(
            (ping, model.as_deref(), inference),
            (PingMode::Live, Some("m"), Inference::GenerateStream)
        );
        for (name, value) in
            [("SAGEMAKER_TRITON_PING_MODE", "Ready"), ("SAGEMAKER_TRITON_INFERENCE_TYPE", "chat")]
        {
            assert!(face(&[(name, value)]).unwrap_err().starts_with(name), "{name}");
        }
    }

    #[test]
    fn other_ports_must_lie_in_the_safe_range() {
        for (arguments, allowed) in [
            ([].as_slice(), [true, true, true]),
            (&["--sagemaker-safe-port-range=8000-8001"], [true, true, true]),
            (&["--allow-sagemaker=true"], [true, true, true]),
            (&["--allow-sagemaker=true", "--sagemaker-safe-port-range=8000-8001"], [false, true, false]),
            (&["--allow-sagemaker=true", "--sagemaker-safe-port-range=2-1"], [false, false, false]),
        ] {
            let sagemaker = parsed(arguments).unwrap().sagemaker;
            assert_eq!([7999, 8000, 8002].map(|port| sagemaker.allows(port)), allowed, "{arguments:?}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for argument in [
            "--allow-sagemaker=yes",
            "--sagemaker-port=x",
            "--sagemaker-port=99999",
            "--sagemaker-thread-count=x",
            "--sagemaker-safe-port-range=18100",
            "--sagemaker-safe-port-range=a-b",
            "--sagemaker-safe-port-range=1-2-3",
        ] {
            assert!(parsed(&[argument]).is_err(), "{argument}");
        }
    }
}
