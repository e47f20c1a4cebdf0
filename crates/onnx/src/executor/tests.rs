//! That tensors are handed through without a copy: requests' inputs to the engine, its outputs to the responses.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use nereid_backend_api::{
    Answer, BatchMonitor, DataType, ExecutionTimes, InferRequest, Phase, Responder, ResponseSink,
};

use super::*;

/// Where bytes lie, and how many.
type Place = (usize, usize);

fn place(bytes: &Bytes) -> Place {
    (bytes.as_ptr().addr(), bytes.len())
}

fn places(tensor: &Tensor) -> Vec<Place> {
    tensor.buffers.iter().map(|buffer| place(buffer.as_host().unwrap())).collect()
}

/// Notes where its inputs lie, and gives memory of its own as the output.
#[derive(Default)]
struct Placed {
    inputs: Arc<Mutex<Vec<Place>>>,
    outputs: Arc<Mutex<Vec<Place>>>,
}

impl Engine for Placed {
    type Value = Vec<Place>;
    type Raw = (Shape, Bytes);

    fn check(&self, _: &Port, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _: &Port, _: &Shape, parts: &[&Tensor]) -> Result<Vec<Place>> {
        Ok(parts.iter().flat_map(|part| places(part)).collect())
    }

    fn run(&mut self, inputs: Vec<Option<Given<Vec<Place>>>>) -> Result<Vec<(Shape, Bytes)>> {
        let given = inputs.into_iter().flatten().next().unwrap();
        self.inputs.lock().unwrap().extend(given.value);
        let output = Bytes::from(vec![7_u8; given.shape.element_count().unwrap()]);
        self.outputs.lock().unwrap().push(place(&output));
        Ok(vec![(given.shape, output)])
    }

    fn read(&self, _: &Port, (shape, bytes): (Shape, Bytes)) -> Result<(Shape, Contents)> {
        Ok((shape, Contents::Fixed(bytes)))
    }
}

#[derive(Default)]
struct Answers(Mutex<Vec<Answer>>);

impl ResponseSink for Answers {
    fn deliver(&self, answer: Option<Answer>, _: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(answer);
    }
    fn mark(&self, _: Phase, _: Instant) {}
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl BatchMonitor for Answers {
    fn executed(&self, _: usize, _: ExecutionTimes) {}
}

/// The places of the engine's inputs and outputs, and of the responses' outputs.
fn execute(contents: &[&Bytes]) -> [Vec<Place>; 3] {
    let port = |name: &str| Port {
        name: name.into(),
        data_type: DataType::Uint8,
        dims: Some([None, Some(4)].into_iter().collect()),
    };
    let served = Served {
        name: "m".into(),
        batching: true,
        inputs: vec![Input { port: port("X"), source: Source::Requests { ragged: false, optional: false } }],
        outputs: vec![Output { port: port("Y"), shape: None, scatter: None }],
    };
    let engine = Placed::default();
    let (inputs, outputs) = (Arc::clone(&engine.inputs), Arc::clone(&engine.outputs));
    let answers = Arc::<Answers>::default();
    let request = |bytes: &&Bytes| {
        let inputs = vec![Tensor::new("X", DataType::Uint8, [1, 4], Bytes::clone(bytes))];
        let request = InferRequest { inputs, ..InferRequest::default() };
        Request::new(request, 1, Responder::new(Arc::<Answers>::clone(&answers), None))
    };
    let requests = contents.iter().map(request).collect();
    Executor::new(Arc::new(served), engine).execute(Batch::new(requests, Arc::<Answers>::clone(&answers)));
    let answers = std::mem::take(&mut *answers.0.lock().unwrap());
    let answered = answers.into_iter().flat_map(|answer| places(&answer.unwrap().outputs[0])).collect();
    [std::mem::take(&mut *inputs.lock().unwrap()), std::mem::take(&mut *outputs.lock().unwrap()), answered]
}

#[test]
fn one_request_is_run_on_where_it_lies_and_answered_from_where_the_engine_wrote() {
    let contents = Bytes::from(vec![1, 2, 3, 4]);
    let [given, written, answered] = execute(&[&contents]);
    assert_eq!(given, [place(&contents)]);
    assert_eq!((written.len(), answered), (1, written));
}

#[test]
fn several_requests_are_answered_from_parts_of_the_same_memory() {
    let (one, other) = (Bytes::from(vec![1, 2, 3, 4]), Bytes::from(vec![5, 6, 7, 8]));
    let [given, written, answered] = execute(&[&one, &other]);
    assert_eq!(given, [place(&one), place(&other)]);
    let [(start, 8)] = written[..] else { panic!("{written:?}") };
    assert_eq!(answered, [(start, 4), (start + 4, 4)]);
}
