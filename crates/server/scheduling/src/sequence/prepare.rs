//! Controls, states and turns, which the server adds to the requests of a sequence.
//!
//! Controls are inputs with the position of a request in its sequence (`control_input` of a configuration). Knows nothing of
//! slots and of when requests leave.

use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use nereid_backend_api::{
    Answer, Buffer, CorrelationId, DataType, InferRequest, ModelConfig, Phase, Request, Responder,
    ResponseSink, SequenceFlags, SequenceState, SequenceStates, Shape, Tensor, Turn, TurnObserver,
};
use nereid_model_config::proto::ModelSequenceBatching;
use nereid_model_config::proto::model_sequence_batching::Control as ControlConfig;
use nereid_model_config::proto::model_sequence_batching::control::Kind;

use super::rules::{Prepare, SequenceItem};
use super::{Place, RequestFormer, SequenceScheduler};

/// Makes the requests of one model ready.
pub struct RequestPreparer {
    former: RequestFormer,
    controls: Vec<Control>,
    /// The initial states of every sequence.
    states: Vec<SequenceState>,
    /// Inputs whose values are shapes: a filler copies them from another request.
    shape_tensors: Vec<String>,
    observer: Option<Weak<SequenceScheduler>>,
    iterates: bool,
}

/// An input with the position in the sequence.
struct Control {
    name: String,
    shape: Shape,
    value: Value,
}

enum Value {
    /// True or false, as the configuration writes them.
    Flag { data_type: DataType, kind: Kind, values: [Bytes; 2] },
    /// The sequence's id.
    Id(DataType),
}

impl RequestPreparer {
    /// The preparer of a checked configuration. `observer`, if any, is notified of turns; each sequence begins with `states`.
    pub fn new(
        config: &ModelConfig,
        batching: &ModelSequenceBatching,
        states: Vec<SequenceState>,
        observer: Option<Weak<SequenceScheduler>>,
    ) -> Self {
        let shape: Shape = if config.max_batch_size > 0 { [1, 1].into() } else { [1].into() };
        let controls = batching.control_input.iter().flat_map(|input| {
            let controls = input.control.iter();
            controls.map(|control| (input.name.clone(), control))
        });
        let controls =
            controls.map(|(name, control)| Control { name, shape: shape.clone(), value: Value::of(control) });
        let shape_tensors = config.input.iter().filter(|input| input.is_shape_tensor);
        Self {
            former: RequestFormer::new(config, None, None),
            controls: controls.collect(),
            states,
            shape_tensors: shape_tensors.map(|input| input.name.clone()).collect(),
            observer,
            iterates: batching.iterative_sequence,
        }
    }

    /// Whether requests may come without an id: each then is a sequence of its own.
    pub fn iterates(&self) -> bool {
        self.iterates
    }

    fn give_controls(&self, request: &mut Request, ready: bool) {
        for control in &self.controls {
            let (data_type, contents) = control.value.of_request(request, ready);
            request.set_input(Tensor::new(control.name.clone(), data_type, control.shape.clone(), contents));
        }
    }
}

impl Prepare<Request> for RequestPreparer {
    /// The states of the sequence.
    type State = Option<Arc<SequenceStates>>;

    fn alike(&self, first: &Request, item: &Request) -> bool {
        self.former.alike(first, item)
    }

    fn prepare(&mut self, item: &mut Request, kept: &mut Self::State, place: Place) {
        self.give_controls(item, true);
        if !self.states.is_empty() && (item.sequence.start || kept.is_none()) {
            *kept = Some(Arc::new(SequenceStates::new(self.states.clone())));
        }
        if let Some(states) = kept {
            states.inputs().into_iter().for_each(|state| item.set_input(state));
        }
        let turn = Turn::new(kept.clone());
        item.begin_turn(match self.observer.as_ref().and_then(Weak::upgrade) {
            Some(observer) => {
                turn.notifying(observer as Arc<dyn TurnObserver>, place.number(), self.iterates)
            }
            None => turn,
        });
    }

    fn state_bytes(kept: &Self::State) -> usize {
        let states = kept.iter().flat_map(|states| states.inputs());
        states.map(|state| state.byte_size()).sum()
    }

    fn filler(&mut self, beside: &Request) -> Request {
        let request = InferRequest {
            inputs: beside.inputs.iter().map(|input| self.blank(input)).collect(),
            ..InferRequest::default()
        };
        let mut filler = Request::new(request, beside.batch_size(), Responder::new(Arc::new(NoAnswer), None));
        self.give_controls(&mut filler, false);
        // The model may write states of the filler, which belong to no sequence.
        let states = beside.states().map(|states| {
            let blank = |state: SequenceState| SequenceState { value: self.blank(&state.value), ..state };
            Arc::new(SequenceStates::new(states.all().into_iter().map(blank).collect()))
        });
        filler.begin_turn(Turn::filler(states));
        filler
    }
}

impl RequestPreparer {
    /// A tensor of the same form without contents.
    fn blank(&self, like: &Tensor) -> Tensor {
        if self.shape_tensors.contains(&like.name) {
            return like.clone();
        }
        Tensor {
            buffers: [Buffer::host(zeros(like.data_type, &like.shape))].into_iter().collect(),
            ..like.clone()
        }
    }
}

/// The contents of a tensor of nothing but zeros, or empty strings.
pub(super) fn zeros(data_type: DataType, shape: &Shape) -> Bytes {
    // A string of no bytes takes the four bytes of its length.
    let element = data_type.byte_size().unwrap_or(4);
    Bytes::from(vec![0; shape.element_count().unwrap_or(0).saturating_mul(element)])
}

impl Value {
    fn of(control: &ControlConfig) -> Self {
        let kind = control.kind();
        if kind == Kind::ControlSequenceCorrid {
            return Self::Id(control.data_type().element_type().unwrap_or(DataType::Uint64));
        }
        let (data_type, values) = if let [no, yes] = control.int32_false_true[..] {
            (DataType::Int32, [no, yes].map(|value| Bytes::copy_from_slice(&value.to_le_bytes())))
        } else if let [no, yes] = control.fp32_false_true[..] {
            (DataType::Fp32, [no, yes].map(|value| Bytes::copy_from_slice(&value.to_le_bytes())))
        } else {
            let values = match control.bool_false_true[..] {
                [no, yes] => [no, yes],
                _ => [false, true],
            };
            (DataType::Bool, values.map(|value| Bytes::copy_from_slice(&[u8::from(value)])))
        };
        Self::Flag { data_type, kind, values }
    }

    /// Type and contents for a request. Without readiness, the other controls are meaningless.
    fn of_request(&self, request: &Request, ready: bool) -> (DataType, Bytes) {
        match self {
            Self::Flag { data_type, kind, values } => {
                let holds = match kind {
                    Kind::ControlSequenceStart => request.sequence.start,
                    Kind::ControlSequenceEnd => request.sequence.end,
                    _ => true,
                };
                (*data_type, values[usize::from(ready && holds)].clone())
            }
            Self::Id(data_type) => (*data_type, id_contents(&request.correlation_id, *data_type)),
        }
    }
}

/// An id as an element of a tensor. That its type is right was checked when the request came.
fn id_contents(id: &CorrelationId, data_type: DataType) -> Bytes {
    match (data_type.byte_size(), id) {
        (Some(size), CorrelationId::Number(number)) => {
            let bytes = number.to_le_bytes();
            Bytes::copy_from_slice(&bytes[..size.min(bytes.len())])
        }
        (Some(size), _) => Bytes::from(vec![0; size]),
        (None, CorrelationId::Text(text)) => {
            let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend_from_slice(text.as_bytes());
            Bytes::from(bytes)
        }
        (None, _) => Bytes::from_static(&[0; 4]),
    }
}

/// Hears the answers to a filler.
struct NoAnswer;

impl ResponseSink for NoAnswer {
    fn deliver(&self, _answer: Option<Answer>, _last: bool) {}

    fn mark(&self, _: Phase, _: Instant) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

impl SequenceItem for Request {
    fn sequence(&self) -> &CorrelationId {
        &self.correlation_id
    }

    fn flags(&self) -> SequenceFlags {
        self.sequence
    }

    fn repeated(&mut self) {
        let id = self.correlation_id.clone();
        self.set_sequence(id, SequenceFlags::default());
    }
}
