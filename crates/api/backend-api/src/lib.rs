//! The API for backend authors: tensors, requests, responses, and the three traits that a backend implements.
//!
//! A backend owns the [`Request`]s of a [`Batch`] and answers each through its [`Responder`], on any thread, now or
//! later. Calls from a backend to the server go through [`Peers`]. The server uses the same types internally, so no
//! conversion is needed between a protocol and a backend.
//!
//! This crate knows no scheduler, protocol or framework. It depends only on the model configuration and on leaf
//! libraries.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod backend;
mod batch;
mod batch_io;
mod cancellation;
mod capabilities;
mod elements;
mod error;
mod intake;
pub mod language_metrics;
mod memory;
mod metrics;
mod output;
mod overrides;
mod parameters;
mod peers;
mod readiness;
mod request;
mod responder;
mod response;
mod settings;
mod shape;
mod states;
mod tensor;
#[cfg(test)]
mod testing;
mod trace;
mod turn;

pub use backend::{
    Backend, BackendFinder, BatchBuilder, CustomBatching, HostPolicy, Instance, InstanceContext,
    InstanceKind, Lookup, Model, ModelContext,
};
pub use batch::{Batch, BatchMonitor, ExecutionTimes};
pub use batch_io::{BatchInput, BatchOutput};
pub use cancellation::{CancelSignal, CancelWatch, Cancellation};
pub use capabilities::{BackendCapabilities, ModelCapabilities, SharedInputs};
pub use elements::{BytesElements, push_bytes_element};
pub use error::{Error, ErrorCode, Result};
pub use intake::{Intake, IntakeSource, Next};
pub use memory::{Buffer, DeviceBuffer, DeviceMemory, IpcHandle, Memory, MemoryKind, MemoryUsage};
pub use metrics::{
    FamilySnapshot, HistogramValue, Metric, MetricFamily, MetricKind, MetricLabels, MetricRegistry,
    MetricValue,
};
pub use nereid_model_config::{DataType, ModelConfig};
pub use output::{DeviceOutput, OutputAllocator, OutputBuffer, OutputSpec, PlacedMemory};
pub use overrides::Overrides;
pub use parameters::{ParameterValue, Parameters};
pub use peers::{
    Answers, Canceller, InnerRequest, NoPeers, OutputLabels, PeerModel, Peers, Pending, block_on,
};
pub use readiness::{ReadinessAnnouncer, ReadinessReports};
pub use request::{
    CorrelationId, Flow, InferRequest, PolicyContents, Request, RequestedOutput, SequenceFlags,
};
pub use responder::{Answer, Phase, Responder, ResponseKind, ResponseSink, ResponseTimes};
pub use response::Response;
pub use settings::BackendSettings;
pub use shape::Shape;
pub use states::{SequenceState, SequenceStates, StateMemory};
pub use tensor::{Buffers, Tensor};
pub use trace::{
    Activity, RequestTrace, TensorActivity, Trace, TraceLevel, TraceShare, TraceSink, TraceSubject,
};
pub use turn::{Turn, TurnObserver};
