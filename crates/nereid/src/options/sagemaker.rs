//! The options of the SageMaker endpoints. These are not built yet: the options are checked and reported, so that a command
//! line that has them starts the server.

use std::ops::RangeInclusive;

use clap::{ArgAction, Args};

use super::boolean;

/// The options of the SageMaker endpoints.
#[derive(Debug, Args)]
#[command(next_help_heading = "SageMaker")]
pub(crate) struct SageMakerOptions {
    /// Serve SageMaker. Not built yet: true is accepted with a warning.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    allow_sagemaker: bool,

    /// Port to serve SageMaker on. Accepted, without effect yet.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    sagemaker_port: u16,

    /// Ports that the other protocols may use beside SageMaker. Accepted, without effect yet.
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    sagemaker_safe_port_range: Option<RangeInclusive<u16>>,

    /// Threads for SageMaker. Accepted, without effect: requests run on the threads of --http-thread-count.
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    sagemaker_thread_count: u32,
}

impl SageMakerOptions {
    /// What was asked for and is not served. The other options mean nothing by themselves.
    pub(super) fn advice(&self) -> Option<String> {
        let range = self
            .sagemaker_safe_port_range
            .as_ref()
            .map_or("", |_| "; --sagemaker-safe-port-range is not checked");
        self.allow_sagemaker.then(|| {
            format!(
                "--allow-sagemaker=true: SageMaker endpoints are not built yet, so nothing answers on port {} \
                 (/ping, /invocations, /models){range}",
                self.sagemaker_port
            )
        })
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
    }

    fn parsed(arguments: &[&str]) -> Result<SageMakerOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.sagemaker)
    }

    #[test]
    fn only_asking_for_the_endpoints_is_reported() {
        for (arguments, reported) in [
            ([].as_slice(), None),
            (&["--allow-sagemaker=OFF", "--sagemaker-port=1"], None),
            (&["--sagemaker-thread-count=2", "--sagemaker-safe-port-range=18000-18100"], None),
            (&["--allow-sagemaker=true"], Some("port 8080")),
            (&["--allow-sagemaker=On", "--sagemaker-port=9090"], Some("port 9090")),
            (&["--allow-sagemaker=1", "--sagemaker-safe-port-range=2-1"], Some("is not checked")),
        ] {
            let advice = parsed(arguments).unwrap().advice();
            match reported {
                None => assert_eq!(advice, None, "{arguments:?}"),
                Some(part) => assert!(advice.unwrap().contains(part), "{arguments:?}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
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
