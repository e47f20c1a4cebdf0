//! An instance over a scripted engine: conformance, streams, refused prompts, and its queue.

use std::collections::VecDeque;
use std::task::Waker;

use nereid_backend_api::{
    Answer, Backend, DataType, Flow, InferRequest, InstanceContext, IntakeSource, Model, ModelContext,
    Tensor, push_bytes_element,
};
use nereid_testkit::{Executions, Recorder, conformance, normalised};

use super::*;
use crate::engine::Limits;
use crate::testing::{Alphabet, Scripted};

/// A backend whose models write the alphabet.
struct Writers;

impl Backend for Writers {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        contract::check(&context.config)?;
        Ok(Box::new(Self))
    }
}

impl Model for Writers {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(instance(2)))
    }
}

fn instance(sequences: usize) -> LanguageInstance<Scripted> {
    instance_with(sequences, false)
}

fn instance_with(sequences: usize, shares_prefixes: bool) -> LanguageInstance<Scripted> {
    let (engine, _) = Scripted::new(Limits { sequences, context: 64, cache: 128, batch: 32 });
    let vocabulary = Arc::new(Alphabet);
    let scheduler = Scheduler::new(engine, Arc::<Alphabet>::clone(&vocabulary), None, None);
    let adapters = vec!["next".to_owned(), "other".to_owned()];
    LanguageInstance::new(scheduler, vocabulary, 100, adapters, shares_prefixes, None)
}

fn bytes(name: &str, value: &str) -> Tensor {
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, value.as_bytes()).unwrap();
    Tensor::new(name, DataType::Bytes, [1], contents)
}

fn truth(name: &str, value: bool) -> Tensor {
    Tensor::new(name, DataType::Bool, [1], vec![u8::from(value)])
}

/// A request that continues a text by this many tokens.
fn request(text: &str, tokens: usize, flags: &[&str]) -> InferRequest {
    let sampling = format!(r#"{{"temperature": 0, "max_tokens": {tokens}}}"#);
    let mut inputs = vec![bytes("text_input", text), bytes("sampling_parameters", &sampling)];
    inputs.extend(flags.iter().map(|flag| truth(flag, true)));
    InferRequest { inputs, ..InferRequest::default() }
}

/// The texts of a request's responses.
fn texts(answers: Vec<Answer>) -> Vec<String> {
    let text = |answer: Answer| {
        let response = answer.unwrap();
        let output = response.outputs.iter().find(|output| output.name == "text_output").unwrap();
        String::from_utf8(output.contiguous().unwrap()[4..].to_vec()).unwrap()
    };
    answers.into_iter().map(text).collect()
}

#[test]
fn language_model_passes_conformance() {
    let mut config = normalised("m", "backend: 'llamacpp'");
    contract::complete(&mut config);
    let mut batching = config.clone();
    batching.max_batch_size = 2;
    conformance::backend(conformance::Subject {
        backend: Arc::new(Writers),
        model: nereid_testkit::context("m", config),
        request: |number| {
            request(&char::from(b'a' + number % 20).to_string(), 3, &["exclude_input_in_output"])
        },
        outputs: |number| {
            let first = b'a' + number % 20;
            let text: String = (first + 1..=first + 3).map(char::from).collect();
            vec![bytes("text_output", &text)]
        },
        max_batch: 1,
        reports_executions: true,
        refused: vec![(nereid_testkit::context("m", batching), "max_batch_size is 2, but must be 0")],
        faulty: Some((|| request("", 3, &[]), "the prompt has no tokens")),
    });
}

#[test]
fn streams_get_each_token_and_others_the_whole_text() {
    let mut instance = instance(2);
    for (flags, expected) in [
        (&[][..], &["abcd"][..]),
        (&["exclude_input_in_output"], &["bcd"]),
        (&["stream"], &["b", "c", "d"]),
        (&["stream", "return_num_output_tokens"], &["b", "c", "d"]),
    ] {
        let (request, recorder) = Recorder::request(request("a", 3, flags), 1);
        instance.execute(Arc::<Executions>::default().batch(vec![request]));
        assert_eq!(
            (texts(recorder.answers()), recorder.ends()),
            (expected.iter().map(|&text| text.to_owned()).collect(), 1)
        );
    }
}

#[test]
fn cached_prefix_belongs_to_its_sender_unless_the_model_shares_it() {
    let text = "p".repeat(20);
    for (shares, flow, salt, expected) in [
        (false, 1, "", 19),
        (false, 0, "", 0),
        (false, 2, "", 0),
        (false, 1, "s", 0),
        (true, 2, "", 19),
        (true, 1, "s", 0),
    ] {
        let mut instance = instance_with(2, shares);
        let mut cached = |flow: u64, salt: &str| {
            let mut request = request(&text, 1, &["return_num_cached_tokens"]);
            let sampling = format!(r#"{{"temperature": 0, "max_tokens": 1, "cache_salt": "{salt}"}}"#);
            request.inputs[1] = bytes("sampling_parameters", &sampling);
            request.flow = Flow { id: flow, ..Flow::default() };
            let (request, recorder) = Recorder::request(request, 1);
            instance.execute(Arc::<Executions>::default().batch(vec![request]));
            let response = recorder.answers().pop().unwrap().unwrap();
            let output = response.outputs.iter().find(|output| output.name == "num_cached_tokens").unwrap();
            u32::from_le_bytes(output.contiguous().unwrap().as_ref().try_into().unwrap())
        };
        assert_eq!(cached(1, ""), 0);
        assert_eq!(cached(flow, salt), expected, "{flow} {salt:?}, shared: {shares}");
    }
}

#[test]
fn adapters_are_chosen_by_name() {
    let mut instance = instance(2);
    for (adapter, expected) in [
        ("next", Ok("ceg")),
        ("other", Ok("dgj")),
        ("", Err("the model has no adapter '' (available: next, other)")),
        ("none", Err("the model has no adapter 'none' (available: next, other)")),
    ] {
        let mut request = request("a", 3, &["exclude_input_in_output"]);
        let sampling = format!(r#"{{"temperature": 0, "max_tokens": 3, "lora_name": "{adapter}"}}"#);
        request.inputs[1] = bytes("sampling_parameters", &sampling);
        let (request, recorder) = Recorder::request(request, 1);
        instance.execute(Arc::<Executions>::default().batch(vec![request]));
        match expected {
            Ok(text) => assert_eq!(texts(recorder.answers()), [text]),
            Err(message) => {
                let error = recorder.answers().pop().unwrap().unwrap_err();
                assert_eq!(
                    (error.code(), error.message()),
                    (nereid_backend_api::ErrorCode::NotFound, message)
                );
            }
        }
    }
}

#[test]
fn prompts_that_the_context_cannot_hold_are_refused() {
    let mut instance = instance(1);
    for (text, expected) in [
        ("a".repeat(101), Some("the prompt has 101 bytes, but the context holds 64 tokens")),
        ("a".repeat(64), Some("the prompt has 64 tokens, but the context holds 64 tokens")),
        ("a".repeat(63), None),
    ] {
        let (request, recorder) = Recorder::request(request(&text, 3, &["exclude_input_in_output"]), 1);
        instance.execute(Arc::<Executions>::default().batch(vec![request]));
        match expected {
            Some(expected) => {
                let error = recorder.answer().unwrap_err();
                assert!(error.message().starts_with(expected), "{error}");
            }
            None => assert_eq!(texts(recorder.answers()), ["b"]),
        }
    }
}

#[test]
fn prompts_may_be_tokens() {
    let mut instance = instance(1);
    let tokens = |numbers: &[i32]| {
        let contents: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::new("tokens", DataType::Int32, [i64::try_from(numbers.len()).unwrap()], contents)
    };
    for (text, numbers, flags, expected) in [
        ("", &[104, 105][..], &["exclude_input_in_output"][..], Ok("jkl")),
        ("", &[104, 105], &[], Ok("hijkl")),
        ("", &[], &[], Err("the prompt has no tokens")),
        ("", &[127; 64], &[], Err("the prompt has 64 tokens, but the context holds 64 tokens")),
        ("", &[128], &[], Err("input 'tokens' has 128, but the tokens are 0 to 127")),
        ("", &[5, -1], &[], Err("input 'tokens' has -1, but the tokens are 0 to 127")),
        ("a", &[5], &[], Err("the request has a prompt in both 'text_input' and 'tokens'")),
    ] {
        let mut given = request(text, 3, flags);
        given.inputs.push(tokens(numbers));
        let (request, recorder) = Recorder::request(given, 1);
        instance.execute(Arc::<Executions>::default().batch(vec![request]));
        match expected {
            Ok(expected) => assert_eq!(texts(recorder.answers()), [expected]),
            Err(expected) => {
                let error = recorder.answer().unwrap_err();
                assert!(error.message().starts_with(expected), "{error}");
            }
        }
    }
}

/// A queue whose requests are all there, in the order of their arrival.
struct Waiting {
    requests: VecDeque<Request>,
    executions: Arc<Executions>,
    waits: usize,
}

impl IntakeSource for Waiting {
    fn try_next(&mut self, _: &mut dyn FnMut(&Request) -> bool) -> Next {
        match self.requests.pop_front() {
            Some(request) => Next::Request(self.executions.batch(vec![request])),
            None => Next::Ended,
        }
    }

    fn wait(&mut self) {
        self.waits += 1;
        panic!("the queue has ended, so nothing is awaited");
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }
}

#[test]
fn queue_is_executed_to_its_end_by_all_sequences() {
    for sequences in [1, 3, 9] {
        let executions = Arc::<Executions>::default();
        let (requests, recorders): (VecDeque<_>, Vec<_>) =
            (0..20).map(|number| Recorder::request(request("ab", 1 + number % 7, &["stream"]), 1)).unzip();
        let source = Waiting { requests, executions: Arc::clone(&executions), waits: 0 };
        instance(sequences).run(Intake::new(source));
        for (number, recorder) in recorders.iter().enumerate() {
            let expected: String = ('c'..).take(1 + number % 7).collect();
            assert_eq!(texts(recorder.answers()).concat(), expected);
        }
        assert_eq!(executions.all().len(), 20);
    }
}

/// A request whose output has a form.
fn guided(text: &str, sampling: &str) -> InferRequest {
    let sampling = format!(r#"{{"temperature": 0, "max_tokens": 9, {sampling}}}"#);
    let inputs = vec![
        bytes("text_input", text),
        bytes("sampling_parameters", &sampling),
        truth("exclude_input_in_output", true),
    ];
    InferRequest { inputs, ..InferRequest::default() }
}

#[test]
fn outputs_with_a_form_are_compiled_aside_and_end_with_it() {
    let cases = [
        // The model would write the next letters.
        (r#""guided_choice": ["xyz", "abc"]"#, Ok("abc")),
        (r#""guided_regex": "[c-e]+""#, Ok("cde")),
        (r#""guided_regex": "[c-e]+", "min_tokens": 4, "ignore_eos": true"#, Ok("cde")),
        (r#""guided_grammar": "root ::= \"b\" [x-z]""#, Ok("bx")),
        (r#""structured_outputs": {"json": {"const": "b"}}"#, Ok("\"b\"")),
        (r#""guided_regex": "b*""#, Ok("b")),
        (r#""guided_regex": "[""#, Err("structured output: ")),
        (r#""guided_json": {"type": "thing"}"#, Err("structured output: Invalid type: thing")),
    ];
    for sequences in [1, 3] {
        let executions = Arc::<Executions>::default();
        let (requests, recorders): (VecDeque<_>, Vec<_>) = (0..cases.len() * 2)
            .map(|number| match cases.get(number / 2) {
                Some((sampling, _)) if number % 2 == 0 => Recorder::request(guided("a", sampling), 1),
                _ => Recorder::request(request("a", 3, &["exclude_input_in_output"]), 1),
            })
            .unzip();
        let source = Waiting { requests, executions, waits: 0 };
        instance(sequences).run(Intake::new(source));
        for (number, recorder) in recorders.iter().enumerate() {
            let (sampling, expected) = cases[number / 2];
            match expected {
                _ if number % 2 == 1 => assert_eq!(texts(recorder.answers()), ["bcd"]),
                Ok(expected) => assert_eq!(texts(recorder.answers()), [expected], "{sampling}"),
                Err(expected) => {
                    let error = recorder.answer().unwrap_err();
                    assert!(error.message().starts_with(expected), "{sampling}: {error}");
                }
            }
        }
    }
}

#[test]
fn operations_on_tokens_evaluate_nothing() {
    let mut instance = instance(1);
    let tokens = |numbers: &[i32]| {
        let contents: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::new("tokens", DataType::Int32, [i64::try_from(numbers.len()).unwrap()], contents)
    };
    for (inputs, expected) in [
        (vec![bytes("text_input", "ab"), bytes("operation", "tokenize")], Ok(tokens(&[97, 98]))),
        (
            vec![
                bytes("text_input", "ab"),
                bytes("operation", "tokenize"),
                truth("return_token_strs", false),
            ],
            Ok(tokens(&[97, 98])),
        ),
        (
            vec![bytes("text_input", ""), bytes("operation", "detokenize"), tokens(&[98, 0])],
            Ok(bytes("text_output", "b<end>")),
        ),
        (vec![bytes("text_input", ""), bytes("operation", "detokenize")], Err("lacks input 'tokens'")),
        (
            vec![bytes("operation", "detokenize"), tokens(&[3, 128])],
            Err("input 'tokens' has 128, but the tokens are 0 to 127"),
        ),
        (vec![bytes("operation", "detokenize"), tokens(&[-1])], Err("input 'tokens' has -1")),
        (vec![bytes("operation", "count")], Err("'operation' is 'count', but must be generate, tokenize or")),
        (
            vec![bytes("text_input", &"a".repeat(101)), bytes("operation", "tokenize")],
            Err("input 'text_input' has 101 bytes"),
        ),
    ] {
        let (request, recorder) = Recorder::request(InferRequest { inputs, ..InferRequest::default() }, 1);
        instance.execute(Arc::<Executions>::default().batch(vec![request]));
        match (recorder.answer(), expected) {
            (Ok(response), Ok(expected)) => {
                let [output] = response.outputs.as_slice() else { panic!("{response:?}") };
                assert_eq!((&output.name, &output.shape), (&expected.name, &expected.shape));
                assert_eq!(output.contiguous().unwrap(), expected.contiguous().unwrap());
            }
            (Err(error), Err(expected)) => assert!(error.message().contains(expected), "{error}"),
            (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
        }
    }
    let inputs =
        vec![bytes("text_input", "ab"), bytes("operation", "tokenize"), truth("return_token_strs", true)];
    let (request, recorder) = Recorder::request(InferRequest { inputs, ..InferRequest::default() }, 1);
    instance.execute(Arc::<Executions>::default().batch(vec![request]));
    let response = recorder.answer().unwrap();
    let [numbers, texts] = response.outputs.as_slice() else { panic!("{response:?}") };
    assert_eq!(numbers.contiguous().unwrap(), tokens(&[97, 98]).contiguous().unwrap());
    let expected =
        [bytes("", "_97"), bytes("", "_98")].map(|text| text.contiguous().unwrap().to_vec()).concat();
    assert_eq!(
        (&*texts.name, &texts.shape, texts.contiguous().unwrap().to_vec()),
        ("token_strs", &[2].into(), expected)
    );
}
