//! The command that sends a first request to a model: curl, with inputs of zeros in shapes that the model takes.

use nereid_core::backend_api::DataType;
use nereid_core::model_config::ModelConfig;
use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_terminal::path_segment;
use serde_json::{Value, json};

/// The most elements of all inputs that are written out. More come from `/dev/zero`.
const WRITTEN: u64 = 32;

/// The bytes of an empty string in a binary tensor: its length.
const EMPTY_STRING: u64 = 4;

/// The command for the model's completed configuration. `None` for models that HTTP does not serve, or with too large inputs.
pub(crate) fn curl(name: &str, config: &ModelConfig) -> Option<String> {
    if config.model_transaction_policy.is_some_and(|policy| policy.decoupled) {
        let url = format!("localhost:8000/v2/models/{}/generate", path_segment(name));
        return answers_whole(config)
            .then(|| format!("curl {url} -d {}", quoted(r#"{"text_input":"Hello"}"#)));
    }
    let inputs = config.input.iter().filter(|input| !input.optional);
    let inputs: Vec<_> = inputs
        .map(|input| {
            let batch = (config.max_batch_size > 0).then_some(1);
            let shape: Vec<i64> = batch.into_iter().chain(input.dims.iter().map(|&dim| dim.max(1))).collect();
            let count = shape.iter().try_fold(1_u64, |count, &dim| count.checked_mul(dim.unsigned_abs()))?;
            Some(Input { name: &input.name, data_type: input.data_type().element_type()?, shape, count })
        })
        .collect::<Option<_>>()?;
    let count = inputs.iter().try_fold(0_u64, |sum, input| sum.checked_add(input.count))?;
    let is_written = count <= WRITTEN && inputs.iter().all(|input| input.zero().is_some());
    let mut body = json!({ "inputs": inputs.iter().map(|input| input.json(is_written)).collect::<Vec<_>>() });
    if matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))) {
        body["parameters"] = json!({ "sequence_id": 1, "sequence_start": true, "sequence_end": true });
    }
    let is_half = |data_type: Option<DataType>| matches!(data_type, Some(DataType::Fp16 | DataType::Bf16));
    let has_half = config.output.iter().any(|output| is_half(output.data_type().element_type()));
    if has_half {
        body["parameters"]["binary_data_output"] = Value::Bool(true);
    }
    // Terminals show no binary data.
    let target = if has_half { " --output answer.bin" } else { "" };
    let (body, url) =
        (body.to_string(), format!("localhost:8000/v2/models/{}/infer{target}", path_segment(name)));
    if is_written {
        return Some(format!("curl {url} -d {}", quoted(&body)));
    }
    let bytes = inputs.iter().try_fold(0_u64, |sum, input| sum.checked_add(input.byte_size()?))?;
    Some(format!(
        "(printf %s {}; head -c {bytes} /dev/zero) | curl {url} -H 'Inference-Header-Content-Length: {}' --data-binary @-",
        quoted(&body),
        body.len()
    ))
}

/// Whether a decoupled model is one of text that answers in one piece unless its input `stream` is true.
fn answers_whole(config: &ModelConfig) -> bool {
    let mut required = config.input.iter().filter(|input| !input.optional).map(|input| input.name.as_str());
    required.next() == Some("text_input")
        && required.next().is_none()
        && config.input.iter().any(|input| input.name == "stream")
        && config.output.iter().any(|output| output.name == "text_output")
}

/// An input of the request.
struct Input<'a> {
    name: &'a str,
    data_type: DataType,
    shape: Vec<i64>,
    /// The number of elements.
    count: u64,
}

impl Input<'_> {
    /// The least element in JSON; `None` for types that JSON has no form for.
    fn zero(&self) -> Option<Value> {
        match self.data_type {
            DataType::Fp16 | DataType::Bf16 => None,
            DataType::Bool => Some(json!(false)),
            DataType::Bytes => Some(json!("")),
            DataType::Fp32 | DataType::Fp64 => Some(json!(0.0)),
            _ => Some(json!(0)),
        }
    }

    fn byte_size(&self) -> Option<u64> {
        let element = self.data_type.byte_size().map_or(Some(EMPTY_STRING), |size| u64::try_from(size).ok());
        self.count.checked_mul(element?)
    }

    fn json(&self, is_written: bool) -> Value {
        let mut input =
            json!({ "name": self.name, "datatype": self.data_type.protocol_name(), "shape": self.shape });
        match self.zero().filter(|_| is_written) {
            Some(zero) => {
                let elements = (0..self.count).map(|_| zero.clone());
                input["data"] = Value::Array(elements.collect());
            }
            None => input["parameters"] = json!({ "binary_data_size": self.byte_size() }),
        }
        input
    }
}

/// A word for the shell, in quotes only if it needs them.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |character: char| character.is_alphanumeric() || "_-./:@%+=,".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { quoted(text) }
}

/// A word for the shell, in quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    fn sample(config: &str) -> Option<String> {
        curl("a b", &parse_text(config).unwrap())
    }

    #[test]
    fn small_inputs_are_written_out() {
        let config = "max_batch_size: 4 input { name: \"it's\" data_type: TYPE_INT8 dims: [ 2, -1 ] } \
                      input { name: 's' data_type: TYPE_STRING dims: 1 } input { name: 'o' data_type: TYPE_FP16 dims: 9 optional: true }";
        let sample = sample(config).unwrap();
        let body = sample.strip_prefix("curl localhost:8000/v2/models/a%20b/infer -d '").unwrap();
        let body = body.strip_suffix('\'').unwrap().replace(r"'\''", "\0");
        assert!(!body.contains('\''), "{sample}");
        assert_eq!(
            serde_json::from_str::<Value>(&body.replace('\0', "'")).unwrap(),
            json!({ "inputs": [
                { "name": "it's", "datatype": "INT8", "shape": [1, 2, 1], "data": [0, 0] },
                { "name": "s", "datatype": "BYTES", "shape": [1, 1], "data": [""] },
            ] })
        );
    }

    #[test]
    fn large_inputs_and_half_precision_are_binary() {
        for (config, bytes) in [
            ("input { name: 'x' data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }", 602_112),
            ("input { name: 'x' data_type: TYPE_FP16 dims: 1 }", 2),
            (
                "input { name: 'x' data_type: TYPE_BF16 dims: [ -1, 5 ] } input { name: 'y' data_type: TYPE_BOOL dims: 3 }",
                13,
            ),
            ("max_batch_size: 2 input { name: 'x' data_type: TYPE_STRING dims: 50 }", 200),
        ] {
            let sample = sample(config).unwrap();
            assert!(sample.contains(&format!("head -c {bytes} /dev/zero")), "{sample}");
            let body = sample.split('\'').nth(1).unwrap();
            assert!(
                sample.contains(&format!("Inference-Header-Content-Length: {}'", body.len())),
                "{sample}"
            );
            assert!(!body.contains("\"data\""), "{sample}");
        }
    }

    #[test]
    fn half_precision_comes_back_in_a_file() {
        for (data_type, is_file) in
            [("TYPE_FP16", true), ("TYPE_BF16", true), ("TYPE_FP32", false), ("TYPE_STRING", false)]
        {
            let config = format!(
                "input {{ name: 'x' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'y' data_type: {data_type} dims: 1 }} \
                 sequence_batching {{ }}"
            );
            let sample = sample(&config).unwrap();
            assert_eq!(sample.contains("infer --output answer.bin "), is_file, "{sample}");
            assert_eq!(sample.contains("\"binary_data_output\":true"), is_file, "{sample}");
            assert!(sample.contains("\"sequence_id\":1"), "{sample}");
        }
    }

    #[test]
    fn sequences_have_parameters_and_decoupled_models_a_command_if_they_answer_whole() {
        let input = "input { name: 'x' data_type: TYPE_FP32 dims: 1 }";
        let sequence = sample(&format!("{input} sequence_batching {{ }}")).unwrap();
        assert!(sequence.contains("\"sequence_start\":true"), "{sequence}");
        assert_eq!(sample(&format!("{input} model_transaction_policy {{ decoupled: true }}")), None);
        let text = "input { name: 'text_input' data_type: TYPE_STRING dims: 1 } output { name: 'text_output' data_type: TYPE_STRING dims: 1 } \
                    model_transaction_policy { decoupled: true }";
        assert_eq!(sample(text), None);
        let stream = "input { name: 'stream' data_type: TYPE_BOOL dims: 1 optional: true }";
        let expected = r#"curl localhost:8000/v2/models/a%20b/generate -d '{"text_input":"Hello"}'"#;
        assert_eq!(sample(&format!("{stream} {text}")).unwrap(), expected);
        let endless =
            "input { name: 'x' data_type: TYPE_FP32 dims: [ 9223372036854775807, 9223372036854775807 ] }";
        assert_eq!(sample(endless), None);
    }
}
