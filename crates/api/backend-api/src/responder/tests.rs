//! Answers that reach the client, for each way in which a backend may use its responder.

use std::sync::{Mutex, mpsc};

use bytes::Bytes;
use nereid_model_config::DataType;

use super::*;
use crate::testing::{Card, START, on_card, whole};
use crate::{DeviceBuffer, DeviceOutput, ErrorCode, InferRequest, PlacedMemory, Request};

#[derive(Default)]
struct Recorder(Mutex<Vec<(Option<Answer>, bool)>>);

impl ResponseSink for Recorder {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        self.0.lock().unwrap().push((answer, last));
    }
}

/// Provides memory that reports its contents when it is returned.
struct Region {
    returned: mpsc::Sender<Vec<u8>>,
    size: Option<usize>,
}

struct Piece(Vec<u8>, mpsc::Sender<Vec<u8>>);

struct Returned(Vec<u8>, mpsc::Sender<Vec<u8>>);

impl OutputAllocator for Region {
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Box<dyn PlacedMemory>>> {
        let size = self.size.unwrap_or(output.byte_size);
        Ok((output.name == "placed").then(|| Box::new(Piece(vec![0; size], self.returned.clone())) as _))
    }
}

impl PlacedMemory for Piece {
    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }
    fn freeze(self: Box<Self>) -> Result<Buffer> {
        Ok(Buffer::host(Bytes::from_owner(Returned(self.0, self.1))))
    }
}

impl AsRef<[u8]> for Returned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

fn answers(act: impl FnOnce(Responder)) -> Vec<(Option<Answer>, bool)> {
    let recorder = Arc::new(Recorder::default());
    act(Responder::new(Arc::<Recorder>::clone(&recorder), None));
    std::mem::take(&mut recorder.0.lock().unwrap())
}

#[test]
fn unanswered_request_gets_an_error_when_dropped() {
    let answers = answers(|responder| drop(Request::new(InferRequest::default(), 1, responder)));
    let [(Some(Err(error)), true)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(error.code(), ErrorCode::Internal);
}

#[test]
fn answers_after_the_last_are_ignored() {
    let answers = answers(|responder| {
        responder.finish_with(Ok(Response::default()));
        responder.send(Ok(Response::default()));
        responder.finish();
        responder.finish_with(Err(Error::internal("late")));
    });
    assert!(matches!(answers.as_slice(), [(Some(Ok(_)), true)]), "{answers:?}");
}

#[test]
fn decoupled_request_may_get_many_answers_or_none() {
    let many = answers(|responder| {
        responder.send(Ok(Response::default()));
        responder.send(Err(Error::internal("one of many")));
        responder.finish();
    });
    assert!(
        matches!(many.as_slice(), [(Some(Ok(_)), false), (Some(Err(_)), false), (None, true)]),
        "{many:?}"
    );
    assert!(matches!(answers(|responder| responder.finish()).as_slice(), [(None, true)]));
}

#[test]
fn responder_answers_from_another_thread_after_release() {
    let answers = answers(|responder| {
        let responder = Request::new(InferRequest::default(), 1, responder).into_responder();
        std::thread::spawn(move || responder.finish_with(Ok(Response::default()))).join().unwrap();
    });
    assert!(matches!(answers.as_slice(), [(Some(Ok(_)), true)]), "{answers:?}");
}

fn answer_into(region: Region, response: impl FnOnce(&Responder) -> Answer) -> Answer {
    let recorder = Arc::new(Recorder::default());
    let responder = Responder::new(Arc::<Recorder>::clone(&recorder), Some(Arc::new(region)));
    responder.finish_with(response(&responder));
    let (answer, last) = recorder.0.lock().unwrap().pop().unwrap();
    assert!(last);
    answer.unwrap()
}

fn output(name: &str) -> Tensor {
    Tensor::new(name, DataType::Uint8, [3], Bytes::from_static(b"abc"))
}

#[test]
fn only_placed_output_is_copied_to_the_callers_memory() {
    let (returned, memory) = mpsc::channel();
    let answer = answer_into(Region { returned, size: None }, |_| {
        Ok(Response::new(vec![output("placed"), output("elsewhere")]))
    });
    let response = answer.unwrap();
    assert!(response.outputs[0].buffers[0].is_placed());
    assert!(!response.outputs[1].buffers[0].is_placed());
    drop(response);
    assert_eq!(memory.iter().collect::<Vec<_>>(), [b"abc"]);
}

#[test]
fn output_in_allocated_memory_is_not_copied_again() {
    let (returned, memory) = mpsc::channel();
    let answer = answer_into(Region { returned, size: None }, |responder| {
        let mut tensor = output("placed");
        let mut buffer = responder.allocate(&OutputSpec {
            name: "placed",
            data_type: DataType::Uint8,
            shape: &tensor.shape,
            byte_size: 3,
            preferred: Memory::HOST,
            is_read_back: false,
        })?;
        buffer.as_mut_slice().unwrap().copy_from_slice(b"xyz");
        tensor.buffers = SmallVec::from_buf([buffer.freeze().unwrap()]);
        Ok(Response::new(vec![tensor]))
    });
    drop(answer);
    assert_eq!(memory.iter().collect::<Vec<_>>(), [b"xyz"]);
}

#[test]
fn placed_memory_of_wrong_size_fails_the_answer() {
    let (returned, _memory) = mpsc::channel();
    let answer =
        answer_into(Region { returned, size: Some(2) }, |_| Ok(Response::new(vec![output("placed")])));
    assert_eq!(answer.unwrap_err().message(), "output 'placed' has 3 bytes, but 2 were allocated for it");
}

/// Places all outputs on a device.
struct OnCard(Arc<Card>);

impl OutputAllocator for OnCard {
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Box<dyn PlacedMemory>>> {
        let target = DeviceBuffer { len: output.byte_size, ..whole(&self.0) };
        Ok(Some(Box::new(DeviceOutput::new(target, 0, output.preferred))))
    }

    fn places_on_device(&self) -> bool {
        true
    }
}

fn answer_on_card(card: &Arc<Card>, response: impl FnOnce(&Responder) -> Answer) -> Answer {
    let recorder = Arc::new(Recorder::default());
    let responder =
        Responder::new(Arc::<Recorder>::clone(&recorder), Some(Arc::new(OnCard(Arc::clone(card)))));
    responder.finish_with(response(&responder));
    recorder.0.lock().unwrap().pop().unwrap().0.unwrap()
}

#[test]
fn outputs_placed_on_a_device_are_copied_there() {
    let card = Card::holding(&[0; 4]);
    let response = answer_on_card(&card, |_| Ok(Response::new(vec![output("X")]))).unwrap();
    assert_eq!(*card.contents.lock().unwrap(), b"abc\0");
    let [buffer] = response.outputs[0].buffers.as_slice() else { panic!("{response:?}") };
    assert!(buffer.is_placed() && buffer.as_host().is_none() && buffer.len() == 3, "{buffer:?}");
    card.fail();
    let error = answer_on_card(&card, |_| Ok(Response::new(vec![output("X")]))).unwrap_err();
    assert_eq!(error.message(), "the card is gone");
}

#[test]
fn device_memory_is_offered_only_to_backends_that_prefer_it() {
    let card = Card::holding(&[0; 4]);
    let gpu = |device| Memory { kind: crate::MemoryKind::Gpu, device };
    for (preferred, direct) in [(gpu(0), true), (gpu(1), false), (Memory::HOST, false)] {
        answer_on_card(&card, |responder| {
            let spec = OutputSpec {
                name: "X",
                data_type: DataType::Uint8,
                shape: &[3].into(),
                byte_size: 3,
                preferred,
                is_read_back: false,
            };
            let mut memory = responder.allocate(&spec)?;
            assert_eq!(memory.as_mut_slice().is_none(), direct);
            let address = memory.as_device().map(|buffer| buffer.as_device().unwrap().address);
            assert_eq!(address, direct.then_some(START));
            let frozen = memory.freeze()?;
            assert_eq!((frozen.memory(), frozen.is_placed()), (gpu(0), true));
            Ok(Response::default())
        })
        .unwrap();
    }
}

#[test]
fn outputs_left_on_a_device_are_copied_to_the_host() {
    let card = Card::holding(b"abc");
    let mut left = output("X");
    left.buffers = SmallVec::from_buf([on_card(&card)]);
    let answers = answers(|responder| responder.finish_with(Ok(Response::new(vec![left]))));
    let [(Some(Ok(response)), true)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(response.outputs[0].buffers[0].as_host().unwrap(), "abc");
}

/// Records the names of the calls, and is cancelled.
#[derive(Default)]
struct Calls(Mutex<Vec<&'static str>>, CancelSignal);

impl ResponseSink for Calls {
    fn deliver(&self, _: Option<Answer>, _: bool) {
        self.0.lock().unwrap().push("deliver");
    }
    fn mark(&self, _: Phase, _: Instant) {
        self.0.lock().unwrap().push("mark");
    }
    fn is_cancelled(&self) -> bool {
        true
    }
    fn model_name(&self) -> &'static str {
        "m"
    }
    fn cancel_signal(&self) -> Option<&CancelSignal> {
        Some(&self.1)
    }
    fn await_report(&self) {
        self.0.lock().unwrap().push("await_report");
    }
    fn report(&self, _: ExecutionTimes) {
        self.0.lock().unwrap().push("report");
    }
    fn report_response(&self, _: ResponseKind, _: ResponseTimes) {
        self.0.lock().unwrap().push("report_response");
    }
}

/// Handles answers only.
struct Before(Option<Arc<dyn ResponseSink>>);

impl ResponseSink for Before {
    fn deliver(&self, _: Option<Answer>, _: bool) {}
    fn next(&self) -> Option<&dyn ResponseSink> {
        self.0.as_deref()
    }
}

#[test]
fn sink_forwards_unhandled_calls_to_the_next() {
    let now = Instant::now();
    let times = ExecutionTimes { started: now, inputs_ready: now, outputs_ready: now, ended: now };
    let response = ResponseTimes { started: now, output_started: None, ended: now };
    let call_all = |sink: &dyn ResponseSink| {
        sink.deliver(None, true);
        sink.mark(Phase::Started, now);
        sink.await_report();
        sink.report(times);
        sink.report_response(ResponseKind::Nothing, response);
        (sink.is_cancelled(), sink.model_name().to_owned(), sink.cancel_signal().is_some())
    };
    let calls = Arc::new(Calls::default());
    let sink = Before(Some(Arc::new(Before(Some(Arc::clone(&calls) as _)))));
    assert_eq!(call_all(&sink), (true, "m".to_owned(), true));
    assert_eq!(*calls.0.lock().unwrap(), ["mark", "await_report", "report", "report_response"]);
    assert_eq!(call_all(&Before(None)), (false, String::new(), false));
}
