//! Turns a model's configuration into what its network is made with: device, properties, and the dimensions of inputs.
//!
//! The parameters have the names and meanings of Triton's backend. Opens nothing.

use nereid_backend_api::{Error, InstanceKind, ModelConfig, Result};
use nereid_model_config::proto::model_instance_group::Kind;

/// The choices of a model's configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// `TARGET_DEVICE`; by default, the kind of an instance decides.
    device: Option<String>,
    /// Properties by the library's names.
    pub(crate) properties: Vec<(String, String)>,
    /// `CPU_EXTENSION_PATH`.
    pub(crate) extension: Option<String>,
    /// How the network gets its batch dimension, if the model takes batches.
    pub(crate) batching: Batching,
    /// `RESHAPE_IO_LAYERS`: inputs get the dimensions of the configuration.
    pub(crate) reshape: bool,
    /// How many instances execute side by side.
    pub(crate) instances: usize,
}

/// How batches of different sizes go through a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batching {
    /// Inputs get a variable first dimension.
    Variable,
    /// `SKIP_OV_DYNAMIC_BATCHSIZE`: the network keeps its dimensions. Where its batch is fixed, smaller ones are padded.
    AsInFile,
    /// `ENABLE_BATCH_PADDING`: the network takes batches of `max_batch_size`, and smaller ones are padded.
    Padded,
}

/// Parameters that are passed on under the same name, if they are a number of threads.
const THREADS: [&str; 2] = ["INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS"];

/// The property for the type that the device computes floating-point numbers in.
pub(crate) const PRECISION: &str = "INFERENCE_PRECISION_HINT";

const HINTS: [&str; 3] = ["LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"];

impl Options {
    /// Reads a configuration. By default, each instance of a model has a stream, and a `foreign` model, of another
    /// framework's format, computes with the precision of its types: the CPU plug-in prefers BF16 where the processor has it,
    /// which the framework itself would not.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid parameter, by name.
    pub(crate) fn of(config: &ModelConfig, foreign: bool) -> Result<Self> {
        let parameter = |key: &str| config.parameters.get(key).map(|value| value.string_value.trim());
        let flag = |key: &str| match parameter(key) {
            None => Ok(false),
            Some(value) => match value.to_ascii_uppercase().as_str() {
                "YES" | "TRUE" | "1" => Ok(true),
                "NO" | "FALSE" | "0" | "" => Ok(false),
                _ => Err(wrong(key, value, "YES or NO")),
            },
        };
        let mut properties = Vec::new();
        let mut set = |key: &str, value: &str| properties.push((key.to_owned(), value.to_owned()));
        for key in THREADS {
            if let Some(value) = parameter(key) {
                let number = value.parse::<u32>().map_err(|_| wrong(key, value, "a non-negative integer"))?;
                set(key, &number.to_string());
            }
        }
        let hint = parameter("PERFORMANCE_HINT");
        if let Some(value) = hint {
            let known = HINTS.iter().find(|known| known.eq_ignore_ascii_case(value));
            set(
                "PERFORMANCE_HINT",
                known.ok_or_else(|| wrong("PERFORMANCE_HINT", value, &HINTS.join(", ")))?,
            );
        }
        if foreign || parameter("HINT_BF16").is_some() {
            set(PRECISION, if flag("HINT_BF16")? { "bf16" } else { "f32" });
        }
        match parameter("NUM_STREAMS") {
            Some(value) => {
                let value = match value.to_ascii_uppercase().as_str() {
                    "AUTO" => "-1".to_owned(),
                    "NUMA" => "-2".to_owned(),
                    _ => value
                        .parse::<u32>()
                        .map(|count| count.to_string())
                        .map_err(|_| wrong("NUM_STREAMS", value, "a non-negative integer, AUTO or NUMA"))?,
                };
                set("NUM_STREAMS", &value);
            }
            None if hint.is_none() && instances(config) > 1 => {
                set("NUM_STREAMS", &instances(config).to_string());
            }
            None => {}
        }
        let batching = if flag("ENABLE_BATCH_PADDING")? {
            Batching::Padded
        } else if flag("SKIP_OV_DYNAMIC_BATCHSIZE")? {
            Batching::AsInFile
        } else {
            Batching::Variable
        };
        Ok(Self {
            device: parameter("TARGET_DEVICE").filter(|device| !device.is_empty()).map(str::to_owned),
            properties,
            extension: parameter("CPU_EXTENSION_PATH").map(str::to_owned),
            batching,
            reshape: flag("RESHAPE_IO_LAYERS")?,
            instances: usize::try_from(instances(config)).unwrap_or(1),
        })
    }

    /// The library's name of the device for an instance of this kind.
    pub(crate) fn device(&self, kind: InstanceKind) -> String {
        match (&self.device, kind) {
            (Some(device), _) => device.clone(),
            (None, InstanceKind::Gpu(number)) => format!("GPU.{number}"),
            (None, _) => "CPU".to_owned(),
        }
    }
}

/// How many instances of the model execute side by side on the CPU.
fn instances(config: &ModelConfig) -> i32 {
    let groups = config.instance_group.iter().filter(|group| !group.passive && group.kind() != Kind::Gpu);
    groups.map(|group| group.count.max(1)).sum::<i32>().max(1)
}

fn wrong(key: &str, value: &str, right: &str) -> Error {
    Error::invalid_arg(format!("parameter '{key}' is '{value}', expected {right}"))
}

#[cfg(test)]
mod tests {
    use nereid_testkit::normalised;

    use super::*;

    fn options(parameters: &[(&str, &str)], more: &str) -> Result<Options> {
        options_of(parameters, more, false)
    }

    fn options_of(parameters: &[(&str, &str)], more: &str, foreign: bool) -> Result<Options> {
        let parameters: String = parameters
            .iter()
            .map(|(key, value)| {
                format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n")
            })
            .collect();
        Options::of(&normalised("m", &format!("backend: 'openvino' {more}\n{parameters}")), foreign)
    }

    fn property(key: &str, value: &str, more: &str) -> Vec<(String, String)> {
        options(&[(key, value)], more).unwrap().properties
    }

    #[test]
    fn parameters_become_properties_of_the_library() {
        let one = "instance_group { count: 1 kind: KIND_CPU }";
        for (key, value, name, expected) in [
            ("INFERENCE_NUM_THREADS", "3", "INFERENCE_NUM_THREADS", "3"),
            ("COMPILATION_NUM_THREADS", " 2 ", "COMPILATION_NUM_THREADS", "2"),
            ("PERFORMANCE_HINT", "throughput", "PERFORMANCE_HINT", "THROUGHPUT"),
            ("PERFORMANCE_HINT", "LATENCY", "PERFORMANCE_HINT", "LATENCY"),
            ("HINT_BF16", "YES", "INFERENCE_PRECISION_HINT", "bf16"),
            ("HINT_BF16", "NO", "INFERENCE_PRECISION_HINT", "f32"),
            ("NUM_STREAMS", "4", "NUM_STREAMS", "4"),
            ("NUM_STREAMS", "auto", "NUM_STREAMS", "-1"),
            ("NUM_STREAMS", "NUMA", "NUM_STREAMS", "-2"),
        ] {
            assert_eq!(property(key, value, one), [(name.to_owned(), expected.to_owned())], "{key}={value}");
        }
        assert!(property("SOMETHING_ELSE", "1", one).is_empty());
    }

    #[test]
    fn a_foreign_model_keeps_its_precision_unless_bf16_is_chosen() {
        let one = "instance_group { count: 1 kind: KIND_CPU }";
        for (parameters, own, foreign) in [
            (&[][..], None, Some("f32")),
            (&[("HINT_BF16", "NO")], Some("f32"), Some("f32")),
            (&[("HINT_BF16", "YES")], Some("bf16"), Some("bf16")),
        ] {
            for (is_foreign, expected) in [(false, own), (true, foreign)] {
                let properties = options_of(parameters, one, is_foreign).unwrap().properties;
                let expected: Vec<_> =
                    expected.iter().map(|value| (PRECISION.to_owned(), (*value).to_owned())).collect();
                assert_eq!(properties, expected, "{parameters:?} {is_foreign}");
            }
        }
    }

    #[test]
    fn several_instances_get_a_stream_each_unless_something_else_is_chosen() {
        let three = "instance_group { count: 2 kind: KIND_CPU } instance_group { count: 1 kind: KIND_CPU }";
        let streams = |value: &str| vec![("NUM_STREAMS".to_owned(), value.to_owned())];
        assert_eq!(options(&[], three).unwrap().properties, streams("3"));
        assert_eq!(property("NUM_STREAMS", "1", three), streams("1"));
        let hint = property("PERFORMANCE_HINT", "LATENCY", three);
        assert_eq!(hint, [("PERFORMANCE_HINT".to_owned(), "LATENCY".to_owned())]);
    }

    #[test]
    fn batches_and_the_device_are_chosen() {
        let batching = |key: &str, value: &str| options(&[(key, value)], "").unwrap().batching;
        assert_eq!(batching("ENABLE_BATCH_PADDING", "yes"), Batching::Padded);
        assert_eq!(batching("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"), Batching::AsInFile);
        assert_eq!(batching("SKIP_OV_DYNAMIC_BATCHSIZE", "NO"), Batching::Variable);
        let chosen = options(&[("TARGET_DEVICE", "AUTO:CPU"), ("RESHAPE_IO_LAYERS", "YES")], "").unwrap();
        assert_eq!(chosen.device(InstanceKind::Cpu), "AUTO:CPU");
        assert!(chosen.reshape);
        let open = options(&[], "").unwrap();
        assert_eq!(open.device(InstanceKind::Cpu), "CPU");
        assert_eq!(open.device(InstanceKind::Gpu(1)), "GPU.1");
        assert!(!open.reshape && open.extension.is_none());
    }

    #[test]
    fn invalid_parameters_are_refused_by_name() {
        for (key, value, right) in [
            ("INFERENCE_NUM_THREADS", "-1", "a non-negative integer"),
            ("COMPILATION_NUM_THREADS", "many", "a non-negative integer"),
            ("NUM_STREAMS", "some", "AUTO or NUMA"),
            ("PERFORMANCE_HINT", "FAST", "LATENCY, THROUGHPUT"),
            ("HINT_BF16", "maybe", "YES or NO"),
            ("ENABLE_BATCH_PADDING", "2", "YES or NO"),
            ("RESHAPE_IO_LAYERS", "x", "YES or NO"),
        ] {
            let error = options(&[(key, value)], "").unwrap_err();
            let start = format!("parameter '{key}' is '{value}', expected ");
            assert!(error.message().starts_with(&start) && error.message().contains(right), "{error}");
        }
    }
}
