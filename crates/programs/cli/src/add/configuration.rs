//! Writes the `config.pbtxt` of an added model: what its file declares, and comments for those who edit it.

use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::model_config::proto::{self, ModelConfig, ModelInput, ModelOutput};
use nereid_core::model_config::to_text;
use nereid_options::{AddOptions, TensorDeclaration};

/// Platforms that their backend does not imply.
const NAMED_PLATFORMS: [&str; 3] = ["tensorflow_savedmodel", "tensorflow_graphdef", "torch_aoti"];

/// The configuration with the inputs and outputs that the options declare; empty without any.
pub(super) fn declared(options: &AddOptions) -> ModelConfig {
    let data_type = |tensor: &TensorDeclaration| proto::DataType::from(tensor.data_type) as i32;
    let input = |tensor: &TensorDeclaration| ModelInput {
        name: tensor.name.clone(),
        data_type: data_type(tensor),
        dims: tensor.dims.clone(),
        ..ModelInput::default()
    };
    let output = |tensor: &TensorDeclaration| ModelOutput {
        name: tensor.name.clone(),
        data_type: data_type(tensor),
        dims: tensor.dims.clone(),
        ..ModelOutput::default()
    };
    ModelConfig {
        input: options.input.iter().map(input).collect(),
        output: options.output.iter().map(output).collect(),
        max_batch_size: options.max_batch_size.unwrap_or_default(),
        ..ModelConfig::default()
    }
}

/// The text of a configuration, with its essential parts: what the server adds by itself is left out.
pub(super) fn text(config: &ModelConfig) -> String {
    let backend = match NAMED_PLATFORMS.contains(&config.platform.as_str()) {
        true => ModelConfig { platform: config.platform.clone(), ..ModelConfig::default() },
        false => ModelConfig { backend: config.backend.clone(), ..ModelConfig::default() },
    };
    let tensors = |config: ModelConfig| to_text(&config);
    let inputs = tensors(ModelConfig { input: config.input.clone(), ..ModelConfig::default() });
    let outputs = tensors(ModelConfig { output: config.output.clone(), ..ModelConfig::default() });
    let batches = match config.max_batch_size {
        0 => "# 0: requests are executed one by one, and the dimensions below are those of whole tensors.",
        _ => {
            "# The largest batch. The dimensions below leave out that of the batch, which comes first in requests; with 0, the\n\
             # model has no batches, and dimensions are those of whole tensors."
        }
    };
    let is_batched = matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_)));
    let batcher = match is_batched {
        true => "# Requests that wait are executed together, in batches.\ndynamic_batching { }\n",
        false if config.max_batch_size > 0 => {
            "# To execute waiting requests together, in batches:\n# dynamic_batching { }\n"
        }
        false => "",
    };
    let others = ModelConfig {
        model_transaction_policy: config.model_transaction_policy,
        scheduling_choice: config.scheduling_choice.clone().filter(|_| !is_batched),
        ..ModelConfig::default()
    };
    format!(
        "# Written by `nereid add`. `nereid check` finds mistakes in it; docs/models.md describes more fields.\n\
         {}\n{batches}\nmax_batch_size: {}\n\n# In dims, -1 is a dimension of any size.\n{inputs}{outputs}\n{batcher}{}\
         # Instances execute requests at the same time, each with threads of its own. Without this: chosen by the server.\n\
         # instance_group [ {{ count: 1 }} ]\n",
        to_text(&backend),
        config.max_batch_size,
        to_text(&others)
    )
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    #[test]
    fn text_has_what_the_configuration_says() {
        let tensors = "input { name: 'a \"b\"' data_type: TYPE_FP32 dims: [ 3, -1 ] } input { name: 'ü' data_type: TYPE_STRING \
                       dims: 1 optional: true } output { name: 'y' data_type: TYPE_BF16 dims: [ -1 ] reshape { shape: [ ] } }";
        for rest in [
            "backend: 'onnxruntime' max_batch_size: 4 dynamic_batching { }",
            "backend: 'onnxruntime' max_batch_size: 8",
            "backend: 'python' model_transaction_policy { decoupled: true }",
            "platform: 'tensorflow_savedmodel'",
            "platform: 'torch_aoti' max_batch_size: 1",
            "backend: 'python' max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 7 }",
        ] {
            let config = parse_text(&format!("{tensors} {rest}")).unwrap();
            let written = text(&config);
            assert_eq!(parse_text(&written).unwrap(), config, "{written}");
            assert!(written.lines().filter(|line| line.starts_with('#')).count() > 3, "{written}");
        }
    }

    #[test]
    fn defaults_are_left_out() {
        let whole = parse_text(
            "name: 'm' platform: 'onnxruntime_onnx' backend: 'onnxruntime' default_model_filename: 'model.onnx' \
             version_policy { latest { num_versions: 1 } } instance_group { count: 2 kind: KIND_CPU name: 'm' } \
             max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 }",
        );
        let written = parse_text(&text(&whole.unwrap())).unwrap();
        let expected = parse_text("backend: 'onnxruntime' max_batch_size: 4 dynamic_batching { }").unwrap();
        assert_eq!(written, expected);
    }
}
