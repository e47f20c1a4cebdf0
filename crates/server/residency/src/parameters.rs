//! The parameters of a model's configuration that this crate reads.

use std::collections::BTreeMap;
use std::time::Duration;

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_core::model_config::proto::model_instance_group::Kind;
use nereid_core::model_config::{ParameterError, ParameterReader, ParameterSet};

use crate::amounts::Gpu;

use crate::schedule::{Schedule, parse_stay};

/// Parameter of models that are loaded for their first request.
const LOAD_ON_DEMAND: &str = "load_on_demand";
/// Parameter of models that never leave the memory on the server's own decision.
const KEEP_LOADED: &str = "keep_loaded";
/// Parameter with the seconds after which a model without requests leaves; 0 for never.
const IDLE_TIMEOUT: &str = "idle_timeout_secs";
/// Parameter with the memory of a model, in place of a measurement.
const MEMORY_BYTES: &str = "memory_byte_size";
/// Parameter with the memory that a model takes of each of its GPUs, or of GPUs by their numbers.
const GPU_MEMORY_BYTES: &str = "gpu_memory_byte_size";
/// Parameter with the times at which a model is loaded.
const SCHEDULE: &str = "load_schedule";
/// Parameter with how long it stays from then on.
const STAY: &str = "load_schedule_keep";

/// The settings of a model's stay in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Whether the model is loaded on demand.
    pub load_on_demand: bool,
    /// Never evicts the model.
    pub keep_loaded: bool,
    /// The time without requests after which it leaves, if the configuration sets one.
    pub idle_timeout: Option<Duration>,
    /// The declared memory of the model, in bytes.
    pub memory: Option<u64>,
    /// The declared memory of GPUs, in bytes.
    pub gpu_memory: Option<BTreeMap<Gpu, u64>>,
    /// When it is loaded without a request.
    pub schedule: Option<Schedule>,
}

/// The parameters that decide which models are in memory.
pub const PARAMETERS: ParameterSet = ParameterSet {
    names: &[LOAD_ON_DEMAND, KEEP_LOADED, IDLE_TIMEOUT, MEMORY_BYTES, GPU_MEMORY_BYTES, SCHEDULE, STAY],
    check: |config| Parameters::read(config).1,
};

impl Parameters {
    /// Reads the parameters of a configuration.
    ///
    /// # Errors
    /// The first parameter with an invalid value.
    pub(crate) fn of(config: &ModelConfig) -> Result<Self> {
        let (parameters, errors) = Self::read(config);
        match errors.first() {
            None => Ok(parameters),
            Some(error) => Err(Error::invalid_arg(error.of_model(config))),
        }
    }

    /// Reads what is valid.
    fn read(config: &ModelConfig) -> (Self, Vec<ParameterError>) {
        let (reader, mut errors) = (ParameterReader(config), Vec::new());
        let schedule = valid(schedule(reader), &mut errors);
        let number = |name| reader.number(name, 0..=u64::MAX, "be a whole number");
        let parameters = Self {
            load_on_demand: valid(reader.boolean(LOAD_ON_DEMAND), &mut errors).unwrap_or(schedule.is_some()),
            keep_loaded: valid(reader.boolean(KEEP_LOADED), &mut errors).unwrap_or(false),
            idle_timeout: valid(number(IDLE_TIMEOUT), &mut errors).map(Duration::from_secs),
            memory: valid(number(MEMORY_BYTES), &mut errors),
            gpu_memory: valid(gpu_memory(reader), &mut errors),
            schedule,
        };
        (parameters, errors)
    }
}

/// The value, or none and one more error.
fn valid<T>(outcome: Result<Option<T>, ParameterError>, errors: &mut Vec<ParameterError>) -> Option<T> {
    outcome.unwrap_or_else(|error| {
        errors.push(error);
        None
    })
}

/// How many instances of a model run on each GPU.
pub(crate) fn gpu_instances(config: &ModelConfig) -> BTreeMap<Gpu, u64> {
    let mut instances = BTreeMap::new();
    for group in config.instance_group.iter().filter(|group| group.kind() == Kind::Gpu) {
        for gpu in &group.gpus {
            *instances.entry(*gpu).or_default() += u64::try_from(group.count).unwrap_or(0).max(1);
        }
    }
    instances
}

/// Whether a model chooses its GPUs itself.
pub(crate) fn chooses_gpus(config: &ModelConfig) -> bool {
    config.instance_group.iter().any(|group| group.kind() == Kind::Model)
}

fn gpu_memory(reader: ParameterReader<'_>) -> Result<Option<BTreeMap<Gpu, u64>>, ParameterError> {
    let Some(text) = reader.text(GPU_MEMORY_BYTES) else { return Ok(None) };
    if let Ok(bytes) = text.parse::<u64>() {
        return Ok(Some(gpu_instances(reader.0).into_keys().map(|gpu| (gpu, bytes)).collect()));
    }
    let mut gpus = BTreeMap::new();
    for part in text.split(',') {
        let pair = part.split_once(':');
        let pair = pair.and_then(|(gpu, bytes)| Some((gpu.trim().parse().ok()?, bytes.trim().parse().ok()?)));
        match pair.filter(|(gpu, _)| *gpu >= 0) {
            Some((gpu, bytes)) if !gpus.contains_key(&gpu) => gpus.insert(gpu, bytes),
            _ => {
                let expected = "be bytes of each GPU of the model, or GPU:BYTES for each GPU, such as 0:2000000000,1:1000000000";
                return Err(reader.invalid(GPU_MEMORY_BYTES, text, expected));
            }
        };
    }
    Ok(Some(gpus))
}

fn schedule(reader: ParameterReader<'_>) -> Result<Option<Schedule>, ParameterError> {
    let (times, stay) = (reader.text(SCHEDULE), reader.text(STAY));
    let invalid = |name, text: &str, expected: String| reader.invalid(name, text, &format!("be {expected}"));
    let stay = stay.map(|stay| parse_stay(stay).map_err(|expected| invalid(STAY, stay, expected)));
    match (times, stay.transpose()?) {
        (Some(times), stay) => {
            Schedule::parse(times, stay).map(Some).map_err(|expected| invalid(SCHEDULE, times, expected))
        }
        (None, None) => Ok(None),
        (None, Some(_)) => Err(reader.error(STAY, format!("has no effect without '{SCHEDULE}'"))),
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Parameters, String> {
        let parameter = |(key, value): &(&str, &str)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
        };
        let text: String = parameters.iter().map(parameter).collect();
        Parameters::of(&parse_text(&format!("name: 'm' {text}")).unwrap())
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn parameters_are_read_and_invalid_ones_reported() {
        let default = Parameters::default;
        let scheduled = |times, stay: Option<&str>| {
            Schedule::parse(times, stay.map(|it| parse_stay(it).unwrap())).unwrap()
        };
        for (parameters, expected) in [
            (&[][..], default()),
            (&[("load", "true")], default()),
            (&[("load_on_demand", "true")], Parameters { load_on_demand: true, ..default() }),
            (&[("load_on_demand", " False ")], default()),
            (
                &[("keep_loaded", "TRUE"), ("idle_timeout_secs", "0")],
                Parameters { keep_loaded: true, idle_timeout: Some(Duration::ZERO), ..default() },
            ),
            (&[("memory_byte_size", "5000000000")], Parameters { memory: Some(5_000_000_000), ..default() }),
            (
                &[("load_schedule", "0 8 * * MON-FRI")],
                Parameters {
                    load_on_demand: true,
                    schedule: Some(scheduled("0 8 * * MON-FRI", None)),
                    ..default()
                },
            ),
            (
                &[
                    ("load_schedule", "0 8 * * * UTC"),
                    ("load_schedule_keep", "9h"),
                    ("load_on_demand", "false"),
                ],
                Parameters { schedule: Some(scheduled("0 8 * * * UTC", Some("9h"))), ..default() },
            ),
        ] {
            assert_eq!(read(parameters), Ok(expected), "{parameters:?}");
        }
        for (key, value, expected) in [
            ("load_on_demand", "yes", "true or false"),
            ("load_on_demand", "", "true or false"),
            ("keep_loaded", "1", "true or false"),
            ("idle_timeout_secs", "-1", "a whole number"),
            ("idle_timeout_secs", "1.5", "a whole number"),
            ("memory_byte_size", "5G", "a whole number"),
            (
                "load_schedule",
                "8:00",
                "five fields as in cron and an optional time zone, such as '0 8 * * MON-FRI Europe/Berlin'",
            ),
            ("load_schedule", "0 0 30 2 *", "a schedule with a time that comes, unlike the 30th of February"),
        ] {
            let error = format!("model 'm': parameter '{key}' is '{value}', but must be {expected}");
            assert_eq!(read(&[(key, value)]), Err(error));
        }
    }

    #[test]
    fn memory_of_gpus_is_that_of_each_or_of_those_that_are_named() {
        let read = |groups: &str, value: &str| {
            let parameter =
                format!("parameters {{ key: '{GPU_MEMORY_BYTES}' value {{ string_value: '{value}' }} }}");
            Parameters::of(&parse_text(&format!("name: 'm' {groups} {parameter}")).unwrap())
        };
        let gpus = "instance_group { kind: KIND_GPU gpus: [ 0, 2 ] } instance_group { kind: KIND_CPU }";
        for (groups, value, expected) in [
            (gpus, "7", &[(0, 7), (2, 7)][..]),
            (gpus, "1:5", &[(1, 5)]),
            ("", "7", &[]),
            ("", " 0:5 , 1:6 ", &[(0, 5), (1, 6)]),
        ] {
            let expected = Some(expected.iter().copied().collect());
            assert_eq!(read(groups, value).unwrap().gpu_memory, expected, "{groups} {value}");
        }
        for value in
            ["", "x", "-1", "0:", ":1", "0:1,", "-1:5", "0:1,0:2", "0:1:2", "0:18446744073709551616", "0;1"]
        {
            let error = read(gpus, value).unwrap_err().to_string();
            assert!(error.contains(&format!("is '{value}', but must be bytes of each GPU")), "{error}");
        }
    }

    #[test]
    fn instances_are_counted_for_each_gpu() {
        let config = "name: 'm' instance_group { kind: KIND_GPU gpus: [ 0, 2 ] count: 3 } instance_group { kind: KIND_GPU gpus: 2 }
            instance_group { kind: KIND_CPU count: 9 } instance_group { kind: KIND_MODEL }";
        assert_eq!(gpu_instances(&parse_text(config).unwrap()), [(0, 3), (2, 4)].into());
    }
}
