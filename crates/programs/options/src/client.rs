//! The options of the commands that are clients of a server: `nereid infer` and `nereid top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nereid_terminal::tls::Trust;
use nereid_terminal::{Access, Address, Fit, Infer, Order, Scale, Top, key};

use super::health::header;
use super::values::whole_in;

/// The usual limits of waits.
const INFER_SECONDS: u32 = 300;
const TOP_SECONDS: u32 = 5;

/// The port of metrics.
const METRICS_PORT: u16 = 8002;

/// How a server is reached.
#[derive(Debug, Args)]
pub(super) struct AccessArguments {
    /// Seconds to wait for an answer to begin, and for each part of it. Default: 300, and 5 for top.
    #[arg(long, value_name = "SECONDS", value_parser = whole_in::<u32>(1..=86_400))]
    timeout: Option<u32>,

    /// PEM file of the certificate authorities to trust, in place of the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// PEM file of a certificate chain, for servers that require client certificates.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// PEM file of the private key of --client-cert.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,

    /// Send this header. May be given several times.
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,
}

impl AccessArguments {
    /// Access to a server; `seconds` is the limit without the option.
    fn access(&self, address: &str, seconds: u32) -> Result<Access, String> {
        let parsed =
            Address::parse(address).map_err(|reason| format!("the address is '{address}', {reason}"))?;
        let headers = self.header.iter().cloned().chain(key()?).collect();
        Ok(Access {
            address: parsed,
            trust: self.ca.clone().map_or(Trust::System, Trust::Authorities),
            identity: self.client_cert.clone().zip(self.client_key.clone()),
            headers,
            limit: Duration::from_secs(self.timeout.unwrap_or(seconds).into()),
        })
    }
}

/// Send an inference request to a server and print the answer. Works with every server of the KServe v2 protocol over HTTP. Sends the
/// API key in the variable NEREID_API_KEY, if set.
#[derive(Debug, Args)]
pub struct InferOptions {
    /// Address of the server, such as localhost:8000 or https://models.
    #[arg(value_name = "ADDRESS")]
    address: String,

    /// Name of the model.
    #[arg(value_name = "MODEL")]
    model: String,

    /// Input tensors: INPUT=value with JSON, numbers or a text, or INPUT=@file. Files .npy, .json and .txt hold values, .png and
    /// .jpg an image, which gets the size of the input; others hold raw elements. Inputs of type BYTES take a file as it is.
    #[arg(value_name = "INPUT=VALUE")]
    inputs: Vec<String>,

    /// The version of the model. Default: the one that the server chooses.
    #[arg(long, value_name = "NUMBER", value_parser = whole_in::<u64>(1..=i64::MAX as u64))]
    model_version: Option<u64>,

    /// Request this output instead of all. May be given several times.
    #[arg(long, value_name = "NAME")]
    output: Vec<String>,

    /// A parameter of the request, in JSON or as a text, such as sequence_id=7. May be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    parameter: Vec<String>,

    /// Print this many of the highest classes of each output, with the model's labels.
    #[arg(long, value_name = "NUMBER", value_parser = whole_in::<u32>(1..=1000), conflicts_with = "stream")]
    classes: Option<u32>,

    /// Send the request to generate_stream and print responses as they arrive. Default for decoupled models.
    #[arg(long, conflicts_with = "output")]
    stream: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Values of images. Default: 0 to 1 for floats, otherwise 0 to 255.
    #[arg(long, value_name = "RANGE")]
    scale: Option<ScaleName>,

    /// How images get the size of an input.
    #[arg(long, value_name = "HOW", default_value = "crop")]
    fit: FitName,

    /// Order of an image's colours.
    #[arg(long, value_name = "ORDER", default_value = "rgb")]
    colors: OrderName,

    #[command(flatten)]
    access: AccessArguments,
}

impl InferOptions {
    /// The request.
    ///
    /// # Errors
    /// The address or the API key is invalid.
    pub fn request(&self) -> Result<Infer, String> {
        Ok(Infer {
            access: self.access.access(&self.address, INFER_SECONDS)?,
            model: self.model.clone(),
            version: self.model_version,
            inputs: self.inputs.clone(),
            outputs: self.output.clone(),
            parameters: self.parameter.clone(),
            classes: self.classes,
            stream: self.stream,
            json: self.json,
            scale: self.scale.map(|scale| match scale {
                ScaleName::Bytes => Scale::Bytes,
                ScaleName::Unit => Scale::Unit,
                ScaleName::Signed => Scale::Signed,
                ScaleName::Imagenet => Scale::ImageNet,
            }),
            fit: match self.fit {
                FitName::Crop => Fit::Crop,
                FitName::Stretch => Fit::Stretch,
                FitName::Pad => Fit::Pad,
            },
            order: match self.colors {
                OrderName::Rgb => Order::Rgb,
                OrderName::Bgr => Order::Bgr,
            },
        })
    }
}

/// Show the models of a server and their activity, live. Keys sort, filter, scroll and quit. Prints lines once if not on
/// a terminal. Works with every server of the KServe v2 protocol over HTTP. Sends the API key in the variable NEREID_API_KEY, if set.
#[derive(Debug, Args)]
pub struct TopOptions {
    /// Address of the server.
    #[arg(value_name = "ADDRESS", default_value = "localhost:8000")]
    address: String,

    /// Address of its metrics. Default: port 8002 of the same host, to which no header is sent.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,

    /// Show this model only, also on servers that do not list their models. May be given several times.
    #[arg(long, value_name = "NAME")]
    model: Vec<String>,

    /// Seconds between two polls.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = whole_in::<u32>(1..=3600))]
    interval: u32,

    /// Print lines once, after one interval.
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    access: AccessArguments,
}

impl TopOptions {
    /// The options of the overview.
    ///
    /// # Errors
    /// An address or the API key is invalid.
    pub fn top(&self) -> Result<Top, String> {
        let access = self.access.access(&self.address, TOP_SECONDS)?;
        let metrics = match &self.metrics {
            Some(address) => self.access.access(address, TOP_SECONDS)?,
            None => {
                let address = access.address.sibling(METRICS_PORT);
                Access { address, headers: Vec::new(), ..access.clone() }
            }
        };
        let colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let interval = Duration::from_secs(self.interval.into());
        Ok(Top { access, metrics, models: self.model.clone(), interval, once: self.once, colors })
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScaleName {
    /// 0 to 255
    Bytes,
    /// 0 to 1
    Unit,
    /// -1 to 1
    Signed,
    /// ImageNet's mean and deviation
    Imagenet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FitName {
    /// Cut off what does not fit around the centre
    Crop,
    /// Scale height and width separately
    Stretch,
    /// Add black borders
    Pad,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderName {
    /// Red, green, blue
    Rgb,
    /// Blue, green, red
    Bgr,
}

#[cfg(test)]
mod tests {
    use super::super::{Command, parse};
    use super::*;

    fn request(arguments: &[&str]) -> Result<Infer, String> {
        let line = ["nereid", "infer"].iter().chain(arguments).map(Into::into).collect();
        match parse(line, |_| None).map_err(|error| error.to_string())?.command {
            Some(Command::Infer(options)) => options.request(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn command_line_describes_a_request() {
        let found = request(&[
            "h:8000",
            "m",
            "x=-1",
            "--json",
            "t=@a.txt",
            "--scale=imagenet",
            "--fit",
            "pad",
            "--colors=bgr",
            "--output=y",
            "--model-version=3",
            "--parameter=a=1",
            "--classes=5",
            "--timeout=7",
            "--ca=c",
            "--header=a: b",
        ])
        .unwrap();
        assert_eq!((found.model.as_str(), found.version, found.classes), ("m", Some(3), Some(5)));
        assert_eq!(found.inputs, ["x=-1", "t=@a.txt"]);
        assert_eq!((found.outputs, found.parameters), (vec!["y".to_owned()], vec!["a=1".to_owned()]));
        assert_eq!((found.scale, found.fit, found.order), (Some(Scale::ImageNet), Fit::Pad, Order::Bgr));
        assert!(found.json && !found.stream);
        assert_eq!(found.access.address.to_string(), "http://h:8000");
        assert_eq!(found.access.trust, Trust::Authorities("c".into()));
        assert_eq!(
            (found.access.headers.first(), found.access.limit),
            (Some(&("a".into(), "b".into())), Duration::from_secs(7))
        );
    }

    #[test]
    fn metrics_are_on_the_same_host_or_elsewhere() {
        for (arguments, metrics, headers) in [
            (&["https://h:1/a"][..], "http://h:8002", 0),
            (&[], "http://localhost:8002", 0),
            (&["h", "--metrics=https://m:9/x"], "https://m:9/x", 1),
        ] {
            let line = ["nereid", "top", "--header=a: b", "--once"]
                .iter()
                .chain(arguments)
                .map(Into::into)
                .collect();
            let Some(Command::Top(options)) = parse(line, |_| None).unwrap().command else {
                panic!("{arguments:?}")
            };
            let top = options.top().unwrap();
            assert_eq!(
                (top.metrics.address.to_string().as_str(), top.metrics.headers.len()),
                (metrics, headers)
            );
            assert!(top.once && top.access.headers.len() == 1 && top.interval == Duration::from_secs(2));
        }
    }

    #[test]
    fn wrong_command_lines_are_refused() {
        for (arguments, expected) in [
            (&["h"][..], "<MODEL>"),
            (&["ftp://h", "m"], "the address is 'ftp://h', but must begin with http://"),
            (&["h", "m", "--fit=tile"], "crop, stretch, pad"),
            (&["h", "m", "--classes=0"], "from 1 to 1000"),
            (&["h", "m", "--classes=2", "--stream"], "cannot be used with"),
            (&["h", "m", "--client-cert=c"], "--client-key"),
        ] {
            let error = request(arguments).map(|request| request.model).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
