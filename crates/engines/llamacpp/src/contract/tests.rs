//! Requests and configurations by the tensors of the contract: tables of inputs and outcomes.

use std::sync::Arc;

use nereid_backend_api::{InferRequest, ParameterValue, Parameters, RequestedOutput, Responder};
use nereid_testkit::normalised;

use super::*;
use crate::testing::Alphabet;

struct Ignore;

impl nereid_backend_api::ResponseSink for Ignore {
    fn deliver(&self, _: Option<nereid_backend_api::Answer>, _: bool) {}
}

fn request(inputs: Vec<Tensor>, outputs: &[&str], parameters: Parameters) -> Request {
    let outputs = outputs.iter().map(|output| RequestedOutput::new(*output)).collect();
    let request = InferRequest { inputs, outputs, parameters, ..InferRequest::default() };
    Request::new(request, 1, Responder::new(Arc::new(Ignore), None))
}

fn bytes(name: &str, value: &[u8]) -> Tensor {
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, value).unwrap();
    Tensor::new(name, DataType::Bytes, [1], contents)
}

fn truth(name: &str, value: bool) -> Tensor {
    Tensor::new(name, DataType::Bool, [1], vec![u8::from(value)])
}

fn wish(inputs: Vec<Tensor>) -> Result<Wish> {
    Wish::of(&request(inputs, &[], Parameters::default()), 128)
}

#[test]
fn configuration_is_completed_with_the_tensors_of_the_vllm_backend() {
    let mut config = normalised("m", "backend: 'llamacpp'");
    complete(&mut config);
    check(&config).unwrap();
    let inputs: Vec<_> = config.input.iter().map(|input| (input.name.as_str(), input.optional)).collect();
    assert_eq!(inputs[..3], [("text_input", false), ("stream", true), ("sampling_parameters", true)]);
    let outputs: Vec<_> = config.output.iter().map(|output| output.name.as_str()).collect();
    assert_eq!(
        outputs,
        [
            "text_output",
            "finish_reason",
            "logprobs",
            "num_input_tokens",
            "num_cached_tokens",
            "num_output_tokens",
            "tokens",
            "token_strs"
        ]
    );
    assert!(config.model_transaction_policy.as_ref().unwrap().decoupled);
    let before = config.clone();
    complete(&mut config);
    assert_eq!(config, before);
}

#[test]
fn configurations_that_the_backend_cannot_serve_are_refused() {
    let text = "input { name: 'text_input' data_type: TYPE_STRING dims: [ 1 ] }";
    let output = "output { name: 'text_output' data_type: TYPE_STRING dims: [ 1 ] }";
    let decoupled = "model_transaction_policy { decoupled: true }";
    for (config, expected) in [
        (format!("max_batch_size: 4 {text} {output} {decoupled}"), "max_batch_size is 4, but must be 0"),
        (format!("{text} {output}"), "model_transaction_policy must have decoupled: true"),
        (
            format!("{text} {decoupled}"),
            "the model needs the input 'text_input' and the output 'text_output'",
        ),
        (
            format!("{text} {output} {decoupled} input {{ name: 'x' data_type: TYPE_BOOL dims: [ 1 ] }}"),
            "input 'x': backend 'llamacpp' has no input of this name",
        ),
        (
            format!(
                "{text} {output} {decoupled} input {{ name: 'stream' data_type: TYPE_FP32 dims: [ 1 ] }}"
            ),
            "input 'stream' must have data_type TYPE_BOOL and dims [ 1 ]",
        ),
        (
            format!(
                "{text} {output} {decoupled} output {{ name: 'logprobs' data_type: TYPE_STRING dims: [ 2 ] }}"
            ),
            "output 'logprobs' must have data_type TYPE_STRING and dims [ 1 ]",
        ),
    ] {
        let error = check(&normalised("m", &format!("backend: 'llamacpp' {config}"))).unwrap_err();
        assert!(error.message().starts_with(expected), "{error}");
    }
}

#[test]
fn input_is_repeated_only_without_a_stream_and_unless_excluded() {
    for (stream, excludes, expected) in [
        (None, None, Some(true)),
        (Some(false), None, Some(true)),
        (Some(true), None, Some(false)),
        (None, Some(true), Some(false)),
        (None, Some(false), Some(true)),
        (Some(true), Some(true), Some(false)),
        (Some(true), Some(false), None),
    ] {
        let mut inputs = vec![bytes(TEXT_INPUT, b"a")];
        inputs.extend(stream.map(|stream| truth(STREAM, stream)));
        inputs.extend(excludes.map(|excludes| truth(EXCLUDE_INPUT, excludes)));
        let found = wish(inputs);
        assert_eq!(
            found.as_ref().ok().map(|wish| wish.format.repeats_input),
            expected,
            "{stream:?} {excludes:?}"
        );
        let error = found.err().map(|error| error.message().to_owned());
        let message = "input 'exclude_input_in_output' must not be false if 'stream' is true";
        assert_eq!(error, expected.is_none().then(|| message.to_owned()));
    }
}

#[test]
fn sampling_parameters_come_from_the_input_or_the_request() {
    let mut parameters = Parameters::default();
    parameters.set("max_tokens".to_owned(), ParameterValue::Int(5));
    let text = || bytes(TEXT_INPUT, "é".as_bytes());
    let found = Wish::of(&request(vec![text()], &[], parameters.clone()), 128).unwrap();
    assert_eq!((found.text.as_str(), found.parameters.max_tokens), ("é", Some(5)));
    let json = bytes(SAMPLING_PARAMETERS, br#"{"max_tokens": 7, "logprobs": 2}"#);
    let found = Wish::of(&request(vec![text(), json.clone()], &[], parameters), 128).unwrap();
    assert_eq!((found.parameters.max_tokens, found.parameters.logprobs), (Some(7), None));
    let found = wish(vec![text(), json, truth(RETURN_LOGPROBS, true)]).unwrap();
    assert_eq!(found.parameters.logprobs, Some(2));
}

#[test]
fn invalid_inputs_are_refused_by_name() {
    let two = Tensor::new(STREAM, DataType::Bool, [2], vec![1, 1]);
    let none = Tensor::new(TEXT_INPUT, DataType::Bytes, [0], vec![]);
    for (inputs, expected) in [
        (vec![], "the request lacks input 'text_input'"),
        (vec![none], "input 'text_input' must have one element"),
        (vec![bytes(TEXT_INPUT, b"a"), two], "input 'stream' must have one element"),
        (vec![bytes(TEXT_INPUT, b"\xff")], "input 'text_input' is not valid UTF-8"),
        (
            vec![bytes(TEXT_INPUT, b"a"), bytes(SAMPLING_PARAMETERS, b"\xff")],
            "input 'sampling_parameters' is not valid UTF-8",
        ),
        (
            vec![bytes(TEXT_INPUT, b"a"), bytes(SAMPLING_PARAMETERS, b"{")],
            "input 'sampling_parameters': not a JSON object",
        ),
    ] {
        let error = wish(inputs).unwrap_err();
        assert!(error.message().starts_with(expected), "{error}");
    }
}

#[test]
fn response_has_what_the_request_asks_for() {
    let all = [
        RETURN_FINISH_REASON,
        RETURN_LOGPROBS,
        RETURN_INPUT_TOKENS,
        RETURN_CACHED_TOKENS,
        RETURN_OUTPUT_TOKENS,
    ];
    let logprob = |token, rank| TokenLogprob { token, logprob: -0.5, rank };
    let part =
        Part { text: "hi".to_owned(), tokens: 2, logprobs: vec![vec![logprob(105, 2), logprob(104, 1)]] };
    let contents = |outputs: &[&str], flags: &[&str], finish| {
        let mut inputs = vec![bytes(TEXT_INPUT, b"a")];
        inputs.extend(flags.iter().map(|flag| truth(flag, true)));
        let request = request(inputs, outputs, Parameters::default());
        let format = Wish::of(&request, 128).unwrap().format;
        let prompt = PromptTokens { count: 3, cached: 1 };
        let response = response(&request, format, &part, prompt, finish, &Alphabet).unwrap();
        let value = |output: &Tensor| match output.data_type {
            DataType::Bytes => {
                let contents = output.contiguous().unwrap().into_owned();
                String::from_utf8(BytesElements::new(&contents).next().unwrap().unwrap().to_vec()).unwrap()
            }
            _ => u32::from_le_bytes(output.contiguous().unwrap().as_ref().try_into().unwrap()).to_string(),
        };
        response.outputs.iter().map(|output| (output.name.clone(), value(output))).collect::<Vec<_>>()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(contents(&[], &[], None), [pair(TEXT_OUTPUT, "hi")]);
    assert_eq!(contents(&[FINISH_REASON], &all[..1], Some(Finish::Length)), [pair(FINISH_REASON, "length")]);
    let json = r#"[{"105":{"logprob":-0.5,"rank":2,"decoded_token":"i"},"104":{"logprob":-0.5,"rank":1,"decoded_token":"h"}}]"#;
    assert_eq!(
        contents(&[], &all, None),
        [
            pair(TEXT_OUTPUT, "hi"),
            pair(FINISH_REASON, "None"),
            pair(LOGPROBS, json),
            pair(INPUT_TOKENS, "3"),
            pair(CACHED_TOKENS, "1"),
            pair(OUTPUT_TOKENS, "2"),
        ]
    );
    assert_eq!(contents(&[], &all[..1], Some(Finish::Stop))[1], pair(FINISH_REASON, "stop"));
}
