//! The parameters of a model whose instances follow the load.

use nereid_core::backend_api::{Error, ModelConfig, Result};
use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::model_config::proto::model_instance_group::Kind;
use nereid_core::model_config::proto::model_sequence_batching::StrategyChoice;
use nereid_core::model_config::{ParameterError, ParameterReader, ParameterSet};
use nereid_core::{INSTANCES_MAX, INSTANCES_MIN};

use crate::controller::Limits;

/// The parameters of models whose instances follow the load.
pub const PARAMETERS: ParameterSet = ParameterSet {
    names: &[INSTANCES_MIN, INSTANCES_MAX],
    check: |config| read(config).err().into_iter().collect(),
};

/// Reads the parameters of a configuration; `None` if the number of its instances is fixed.
///
/// # Errors
/// A parameter has an invalid value, or the model's instances cannot follow the load.
pub(crate) fn limits(config: &ModelConfig) -> Result<Option<Limits>> {
    read(config).map_err(|error| Error::invalid_arg(error.of_model(config)))
}

fn read(config: &ModelConfig) -> Result<Option<Limits>, ParameterError> {
    let reader = ParameterReader(config);
    let number = |name| reader.number(name, 1..=1_024_usize, "be a whole number from 1 to 1024");
    let Some(max) = number(INSTANCES_MAX)? else {
        return match number(INSTANCES_MIN)? {
            Some(_) => Err(reader.error(INSTANCES_MIN, format!("has no effect without '{INSTANCES_MAX}'"))),
            None => Ok(None),
        };
    };
    let min = number(INSTANCES_MIN)?.unwrap_or(1);
    if min > max {
        let reason = format!("is {min}, more than '{INSTANCES_MAX}', which is {max}");
        return Err(reader.error(INSTANCES_MIN, reason));
    }
    let is_on_cpu = match config.instance_group.as_slice() {
        [] => true,
        [group] => matches!(group.kind(), Kind::Auto | Kind::Cpu) && !group.passive,
        _ => false,
    };
    if !is_on_cpu {
        let reason = "needs a single instance group on CPUs that is not passive";
        return Err(reader.error(INSTANCES_MAX, reason));
    }
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice
        && !matches!(batching.strategy_choice, Some(StrategyChoice::Oldest(_)))
    {
        let reason =
            "does not support the direct strategy of sequences, whose instances hold state; use 'oldest'";
        return Err(reader.error(INSTANCES_MAX, reason));
    }
    Ok(Some(Limits { min, max }))
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    fn read(text: &str) -> Result<Option<(usize, usize)>, String> {
        let limits = limits(&parse_text(&format!("name: 'm' {text}")).unwrap());
        let pair = |limits: Option<Limits>| limits.map(|Limits { min, max }| (min, max));
        limits.map(pair).map_err(|error| error.message().to_owned())
    }

    fn parameter(key: &str, value: &str) -> String {
        format!("parameters {{ key: 'instances_{key}' value {{ string_value: '{value}' }} }} ")
    }

    #[test]
    fn parameters_are_read_and_invalid_ones_reported() {
        assert_eq!(read("instance_group { count: 3 }"), Ok(None));
        assert_eq!(read(&parameter("max", "4")), Ok(Some((1, 4))));
        assert_eq!(read(&(parameter("max", " 4 ") + &parameter("min", "2"))), Ok(Some((2, 4))));
        let oldest = "instance_group { kind: KIND_CPU } sequence_batching { oldest { } }";
        assert_eq!(read(&(parameter("max", "4") + oldest)), Ok(Some((1, 4))));
        for (text, expected) in [
            (parameter("min", "2"), "'instances_min' has no effect without 'instances_max'"),
            (parameter("max", "0"), "is '0', but must be a whole number from 1 to 1024"),
            (parameter("max", "many"), "is 'many', but must be"),
            (
                parameter("max", "2") + &parameter("min", "3"),
                "'instances_min' is 3, more than 'instances_max', which is 2",
            ),
            (
                parameter("max", "2") + "instance_group { kind: KIND_GPU }",
                "needs a single instance group on CPUs",
            ),
            (
                parameter("max", "2") + "instance_group { } instance_group { }",
                "needs a single instance group",
            ),
            (parameter("max", "2") + "instance_group { passive: true }", "needs a single instance group"),
            (parameter("max", "2") + "sequence_batching { }", "does not support the direct strategy"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(
                error.starts_with("model 'm': parameter 'instances_") && error.contains(expected),
                "{error}"
            );
        }
    }
}
