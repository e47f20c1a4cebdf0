//! An embedding instance over a scripted embedder: conformance, batches, and refused texts.

use nereid_backend_api::{Backend, InferRequest, InstanceContext, Model, ModelContext, push_bytes_element};
use nereid_testkit::{Executions, Recorder, conformance, normalised};

use super::*;
use crate::testing::Alphabet;

/// The vector of a text is the number of its tokens, and the first token.
#[derive(Default)]
struct Counter {
    batches: Vec<usize>,
}

impl Embedder for Counter {
    fn limits(&self) -> Limits {
        Limits { sequences: 3, context: 10, cache: 12, batch: 12 }
    }

    fn embed(&mut self, texts: &[&[Token]]) -> Result<Vec<Vec<f32>>, String> {
        let tokens: usize = texts.iter().map(|text| text.len()).sum();
        assert!(tokens <= 12 && texts.len() <= 3);
        self.batches.push(texts.len());
        if texts.iter().any(|text| text[0] == Token::from(b'!')) {
            return Err("no such token".to_owned());
        }
        let number = |number: usize| f32::from(u16::try_from(number).unwrap());
        let vector = |text: &&[Token]| vec![number(text.len()), number(usize::try_from(text[0]).unwrap())];
        Ok(texts.iter().map(vector).collect())
    }
}

fn instance(normalizes: bool, is_batched: bool) -> EmbeddingInstance<Counter> {
    let vocabulary = Arc::new(Alphabet);
    let form = Form::Vector(2);
    EmbeddingInstance {
        embedder: Counter::default(),
        vocabulary,
        form,
        normalizes,
        is_batched,
        longest_text: 20,
    }
}

struct Counters;

impl Backend for Counters {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        check(&context.config, Form::Vector(2))?;
        Ok(Box::new(Self))
    }
}

impl Model for Counters {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(instance(false, true)))
    }
}

fn request(texts: &[&str]) -> InferRequest {
    let mut contents = Vec::new();
    texts.iter().for_each(|text| push_bytes_element(&mut contents, text.as_bytes()).unwrap());
    let shape = [i64::try_from(texts.len()).unwrap(), 1];
    let input = Tensor::new(TEXT_INPUT, DataType::Bytes, shape, contents);
    InferRequest { inputs: vec![input], ..InferRequest::default() }
}

fn vector(shape: &[i64], values: &[f32]) -> Tensor {
    let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor::new("embedding", DataType::Fp32, shape, contents)
}

/// The vectors of requests that execute together, or their errors.
fn execute(instance: &mut EmbeddingInstance<Counter>, requests: &[&[&str]]) -> Vec<Result<Vec<f32>>> {
    let (requests, recorders): (Vec<_>, Vec<_>) =
        requests.iter().map(|texts| Recorder::request(request(texts), texts.len())).unzip();
    instance.execute(Arc::<Executions>::default().batch(requests));
    let values = |recorder: Arc<Recorder>| {
        let contents = recorder.answer()?.outputs[0].contiguous()?.into_owned();
        Ok(contents.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
    };
    recorders.into_iter().map(values).collect()
}

#[test]
fn embedding_model_passes_conformance() {
    let mut config = normalised("m", "backend: 'llamacpp'");
    complete(&mut config, Form::Vector(2), 4);
    assert_eq!(config.max_batch_size, 4);
    assert!(matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
    let mut other = config.clone();
    other.output[0].dims = vec![3];
    conformance::backend(conformance::Subject {
        backend: Arc::new(Counters),
        model: nereid_testkit::context("m", config),
        request: |number| request(&[&"a".repeat(usize::from(number % 7) + 1)]),
        outputs: |number| vec![vector(&[1, 2], &[f32::from(number % 7 + 1), f32::from(b'a')])],
        max_batch: 4,
        reports_executions: true,
        refused: vec![(
            nereid_testkit::context("m", other),
            "the output 'embedding' (TYPE_FP32, dims [ 2 ])",
        )],
        faulty: Some((|| request(&[""]), "input 'text_input' has no tokens")),
    });
}

#[test]
fn texts_are_evaluated_in_few_batches_and_keep_their_order() {
    let mut instance = instance(false, true);
    let requests: [&[&str]; 5] = [&["aaaa", "bbbb"], &["cccc"], &["d"], &["eeeeeeeeee"], &["ffffff", "g"]];
    let found: Vec<_> = execute(&mut instance, &requests).into_iter().map(Result::unwrap).collect();
    let [a, b, c, d, e, f, g] = [b'a', b'b', b'c', b'd', b'e', b'f', b'g'].map(f32::from);
    let expected = [vec![4.0, a, 4.0, b], vec![4.0, c], vec![1.0, d], vec![10.0, e], vec![6.0, f, 1.0, g]];
    assert_eq!(found, expected);
    assert_eq!(instance.embedder.batches, [3, 2, 2]);
}

#[test]
fn refused_texts_do_not_harm_the_others() {
    let mut instance = instance(false, true);
    let found = execute(&mut instance, &[&["aa"], &["bbbbbbbbbbb"], &[&"c".repeat(21)], &["d"]]);
    assert_eq!((found[0].clone().unwrap()[0], found[3].clone().unwrap()[0]), (2.0, 1.0));
    for (found, expected) in [
        (&found[1], "input 'text_input' has 11 tokens, but the context holds 10"),
        (&found[2], "input 'text_input' has 21 bytes, but the context holds 10 tokens"),
    ] {
        assert_eq!(found.as_ref().unwrap_err().message(), expected);
    }
    let found = execute(&mut instance, &[&["a"], &["!"]]);
    assert!(found.iter().all(|found| {
        found.as_ref().is_err_and(|error| error.message() == "llama.cpp failed: no such token")
    }));
}

#[test]
fn vectors_get_the_length_1_unless_they_are_zero() {
    let mut instance = instance(true, true);
    let found = execute(&mut instance, &[&["aaa"]]).remove(0).unwrap();
    assert!((found[0].hypot(found[1]) - 1.0).abs() < 1e-6);
    assert!((found[1] / found[0] - f32::from(b'a') / 3.0).abs() < 1e-3);
    let mut zeros = [0.0; 3];
    normalize(&mut zeros);
    assert_eq!(zeros, [0.0; 3]);
}

#[test]
fn model_without_batches_answers_without_a_batch_dimension() {
    let (request, recorder) = Recorder::request(request(&["aa"]), 1);
    instance(false, false).execute(Arc::<Executions>::default().batch(vec![request]));
    assert_eq!(recorder.answer().unwrap().outputs[0].shape[..], [2]);
}

/// The scores of a request with these pairs.
fn scores(normalizes: bool, queries: &[&str], documents: &[&str]) -> Result<Vec<f32>> {
    let form = Form::Score;
    let mut instance = EmbeddingInstance { form, ..instance(normalizes, true) };
    let texts = |name: &str, texts: &[&str]| {
        let tensor = request(texts).inputs.remove(0);
        Tensor { name: name.to_owned(), ..tensor }
    };
    let inputs = vec![texts("query", queries), texts("document", documents)];
    let (request, recorder) =
        Recorder::request(InferRequest { inputs, ..InferRequest::default() }, queries.len());
    instance.execute(Arc::<Executions>::default().batch(vec![request]));
    let response = recorder.answer()?;
    assert_eq!(response.outputs[0].name, "score");
    let contents = response.outputs[0].contiguous()?.into_owned();
    Ok(contents.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
}

#[test]
fn pairs_have_the_number_of_the_first_class() {
    // The embedder counts tokens, of which one is between the texts.
    assert_eq!(scores(false, &["a", "bc"], &["d", "efg"]).unwrap(), [3.0, 6.0]);
    // Several classes are probabilities already.
    assert_eq!(scores(true, &["a"], &["d"]).unwrap(), [3.0]);
    let mut classes = vec![0.0];
    score(&mut classes, true);
    assert_eq!(classes, [0.5]);
    for (queries, documents, message) in [
        (&["a"][..], &["b", "c"][..], "the request has not as many queries as documents"),
        (&["aaaaa"], &["bbbbb"], "the pair of query and document has 11 tokens, but the context holds 10"),
        (
            &["a"],
            &["bbbbbbbbbbbbbbbbbbbbb"],
            "input 'document' has 21 bytes, but the context holds 10 tokens",
        ),
    ] {
        let error = scores(false, queries, documents).unwrap_err();
        assert_eq!(error.message(), message);
    }
}

#[test]
fn configuration_of_pairs_is_completed_and_checked() {
    let mut config = normalised("m", "backend: 'llamacpp'");
    complete(&mut config, Form::Score, 4);
    let names: Vec<_> = config.input.iter().map(|input| input.name.as_str()).collect();
    assert_eq!((names, config.output[0].dims.as_slice()), (vec!["query", "document"], &[1][..]));
    check(&config, Form::Score).unwrap();
    config.input.pop();
    let error = check(&config, Form::Score).unwrap_err();
    assert_eq!(
        error.message(),
        "a model that scores pairs of texts needs the input 'query' (TYPE_STRING, dims [ 1 ]), the input 'document' (TYPE_STRING, \
         dims [ 1 ]) and the output 'score' (TYPE_FP32, dims [ 1 ]), and no others"
    );
}
