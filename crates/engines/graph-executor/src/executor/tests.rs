//! Tensors pass through without a copy: requests' inputs to the engine, its outputs to the responses.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use nereid_backend_api::{
    Answer, BatchMonitor, Buffer, DataType, ExecutionTimes, InferRequest, OutputAllocator, Phase,
    PlacedMemory, RequestedOutput, Responder, ResponseSink, SequenceState, SequenceStates, Turn,
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

/// Notes where its inputs lie, and writes its output to where it is wanted, or to memory of its own.
#[derive(Default)]
struct Placed {
    inputs: Arc<Mutex<Vec<Place>>>,
    outputs: Arc<Mutex<Vec<Place>>>,
}

impl Engine for Placed {
    const WRITES_TARGETS: bool = true;

    type Value = Vec<Place>;
    type Raw = (Shape, Bytes);

    fn check(&self, _: &Port, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _: &Port, _: &Shape, parts: &[&Tensor]) -> Result<Vec<Place>> {
        Ok(parts.iter().flat_map(|part| places(part)).collect())
    }

    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<Vec<Place>>>>,
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<(Shape, Bytes)>>> {
        let given = inputs.into_iter().flatten().next().unwrap();
        self.inputs.lock().unwrap().extend(given.value);
        if let Some(Some(target)) = targets.first_mut() {
            assert_eq!(target.shape, given.shape);
            let bytes = target.memory.as_mut_slice().unwrap();
            bytes.fill(7);
            self.outputs.lock().unwrap().push((bytes.as_ptr().addr(), bytes.len()));
            return Ok(vec![None]);
        }
        let output = Bytes::from(vec![7_u8; given.shape.element_count().unwrap()]);
        self.outputs.lock().unwrap().push(place(&output));
        Ok(vec![Some((given.shape, output))])
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

/// Gives memory for any output, and notes where.
#[derive(Default)]
struct Wanted(Mutex<Vec<Place>>);

impl OutputAllocator for Wanted {
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Box<dyn PlacedMemory>>> {
        let memory = vec![0_u8; output.byte_size];
        self.0.lock().unwrap().push((memory.as_ptr().addr(), memory.len()));
        Ok(Some(Box::new(Piece(memory))))
    }
}

struct Piece(Vec<u8>);

impl PlacedMemory for Piece {
    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }
    fn freeze(self: Box<Self>) -> Result<Buffer> {
        Ok(Buffer::host(self.0))
    }
}

/// The places of the engine's inputs and outputs, and of the responses' outputs.
fn execute(contents: &[&Bytes]) -> [Vec<Place>; 3] {
    run(contents, None, &[Some(4)])
}

/// Responses with outputs where `allocator` wants them, of a model that declares its output's dimensions after the batch.
fn run(contents: &[&Bytes], allocator: Option<Arc<Wanted>>, dims: &[Option<i64>]) -> [Vec<Place>; 3] {
    let port = |name: &str| Port {
        name: name.into(),
        data_type: DataType::Uint8,
        dims: Some([None].iter().chain(dims).copied().collect()),
    };
    let served = GraphModel {
        name: "m".into(),
        batching: true,
        inputs: vec![Input { port: port("X"), source: Source::Requests { ragged: false, optional: false } }],
        outputs: vec![Output {
            port: port("Y"),
            shape: None,
            scatter: None,
            in_response: true,
            is_state: false,
        }],
        padded_to: None,
    };
    let engine = Placed::default();
    let (inputs, outputs) = (Arc::clone(&engine.inputs), Arc::clone(&engine.outputs));
    let answers = Arc::<Answers>::default();
    let request = |bytes: &&Bytes| {
        let inputs = vec![Tensor::new("X", DataType::Uint8, [1, 4], Bytes::clone(bytes))];
        let request =
            InferRequest { inputs, outputs: vec![RequestedOutput::new("Y")], ..InferRequest::default() };
        let allocator = allocator.clone().map(|allocator| allocator as Arc<dyn OutputAllocator>);
        Request::new(request, 1, Responder::new(Arc::<Answers>::clone(&answers), allocator))
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

#[test]
fn one_request_is_answered_from_where_it_wants_its_output_without_a_copy() {
    let wanted = Arc::<Wanted>::default();
    let [_, written, answered] = run(&[&Bytes::from_static(b"abcd")], Some(Arc::clone(&wanted)), &[Some(4)]);
    assert_eq!(*wanted.0.lock().unwrap(), written);
    assert_eq!((written.len(), answered), (1, written));
}

#[test]
fn outputs_of_unknown_size_and_parts_of_larger_ones_are_copied_to_where_they_are_wanted() {
    let contents = Bytes::from_static(b"abcd");
    for (contents, dims) in [(vec![&contents], None), (vec![&contents, &contents], Some(4))] {
        let wanted = Arc::<Wanted>::default();
        let [_, written, answered] = run(&contents, Some(Arc::clone(&wanted)), &[dims]);
        assert_eq!(*wanted.0.lock().unwrap(), answered);
        assert_eq!(answered.len(), contents.len());
        assert!(written.iter().all(|place| !answered.contains(place)), "{written:?} {answered:?}");
    }
}

#[test]
fn an_output_that_is_a_state_is_kept_for_its_sequence_and_answered_only_if_it_is_configured() {
    let port = |name: &str| Port { name: name.into(), data_type: DataType::Uint8, dims: None };
    for answered in [true, false] {
        let served = GraphModel {
            name: "m".into(),
            batching: true,
            inputs: vec![Input {
                port: port("X"),
                source: Source::Requests { ragged: false, optional: false },
            }],
            outputs: vec![Output {
                port: port("Y"),
                shape: None,
                scatter: None,
                in_response: answered,
                is_state: true,
            }],
            padded_to: None,
        };
        let engine = Placed::default();
        let answers = Arc::<Answers>::default();
        let states = |value: u8| {
            let value = Tensor::new("S", DataType::Uint8, [1, 1], vec![value]);
            Arc::new(SequenceStates::new(vec![SequenceState {
                output: "Y".into(),
                value,
                shares_memory: false,
            }]))
        };
        let [one, two, nobodys] = [1, 2, 3].map(states);
        let request = |turn: Turn| {
            let inputs = vec![Tensor::new("X", DataType::Uint8, [1, 1], vec![5])];
            let responder = Responder::new(Arc::<Answers>::clone(&answers), None);
            let mut request = Request::new(InferRequest { inputs, ..InferRequest::default() }, 1, responder);
            request.begin_turn(turn);
            request
        };
        let turns =
            [Turn::new(Some(one.clone())), Turn::filler(Some(nobodys.clone())), Turn::new(Some(two.clone()))];
        let batch = Batch::new(turns.map(request).into(), Arc::<Answers>::clone(&answers));
        Executor::new(Arc::new(served), engine).execute(batch);
        let value = |states: &SequenceStates| states.inputs()[0].contiguous().unwrap().to_vec();
        assert_eq!([value(&one), value(&two), value(&nobodys)], [[7], [7], [3]]);
        let answers = std::mem::take(&mut *answers.0.lock().unwrap());
        let given: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().outputs.len()).collect();
        assert_eq!(given, [usize::from(answered), 0, usize::from(answered)]);
    }
}
