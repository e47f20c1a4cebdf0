//! Stands in for the server: loads a model from a folder of its own, and sends it batches of requests.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nereid_backend_api::{
    Answer, Backend, BackendSettings, Batch, BatchMonitor, DataType, ExecutionTimes, InferRequest, Instance,
    InstanceContext, InstanceKind, Model, ModelConfig, ModelContext, Phase, Request, RequestedOutput,
    Responder, Response, ResponseSink, Result, Tensor,
};
use nereid_model_config::proto::{ModelInput, ModelOutput};
use tempfile::TempDir;

use crate::TractBackend;

/// A configuration from its inputs and outputs, each with its type and dimensions.
pub(crate) fn config(
    max_batch_size: i32,
    inputs: &[(&str, DataType, &[i64])],
    outputs: &[(&str, DataType, &[i64])],
) -> ModelConfig {
    let input = inputs.iter().map(|&(name, data_type, dims)| ModelInput {
        name: name.into(),
        data_type: i32::from(data_type.number()),
        dims: dims.into(),
        ..Default::default()
    });
    let output = outputs.iter().map(|&(name, data_type, dims)| ModelOutput {
        name: name.into(),
        data_type: i32::from(data_type.number()),
        dims: dims.into(),
        ..Default::default()
    });
    ModelConfig { max_batch_size, input: input.collect(), output: output.collect(), ..Default::default() }
}

/// A folder with one version of a model in it.
pub(crate) fn folder(file: &[u8]) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("1")).unwrap();
    fs::write(folder.path().join("1/model.onnx"), file).unwrap();
    folder
}

/// Loads what the folder holds, with a configuration that is whole.
pub(crate) fn load_from(folder: &TempDir, config: ModelConfig) -> Result<Box<dyn Model>> {
    TractBackend::new(BackendSettings::default(), "it is under test").load(context(folder, config))
}

/// Loads what the folder holds, and has its configuration completed.
pub(crate) fn complete_from(
    folder: &TempDir,
    config: ModelConfig,
    settings: BackendSettings,
) -> Result<Box<dyn Model>> {
    let context = ModelContext { complete: true, ..context(folder, config) };
    TractBackend::new(settings, "it is under test").load(context)
}

/// The context in which the backend loads the model of a folder.
pub(crate) fn context(folder: &TempDir, config: ModelConfig) -> ModelContext {
    ModelContext { name: "m".into(), complete: false, ..nereid_testkit::context(folder.path(), config) }
}

/// The message with which a load is refused.
pub(crate) fn refusal(file: &[u8], config: ModelConfig) -> String {
    let outcome = load_from(&folder(file), config);
    outcome.map(|_| ()).expect_err("the load should be refused").message().to_owned()
}

/// A loaded model with one instance.
pub(crate) struct Served {
    instance: Box<dyn Instance>,
    pub(crate) batch_size: fn(&[Tensor]) -> usize,
    pub(crate) monitor: Arc<Monitor>,
}

/// Loads a model that is in order.
pub(crate) fn serve(file: &[u8], config: ModelConfig) -> Served {
    try_serve(file, config).unwrap()
}

/// Loads a model that may be refused.
pub(crate) fn try_serve(file: &[u8], config: ModelConfig) -> Result<Served> {
    let batching = config.max_batch_size > 0;
    let model = load_from(&folder(file), config)?;
    let context = InstanceContext::new("m_0", InstanceKind::Cpu);
    let instance = model.create_instance(context).unwrap();
    let batch_size =
        if batching { |inputs: &[Tensor]| inputs[0].shape[0] as usize } else { |_: &[Tensor]| 1 };
    Ok(Served { instance, batch_size, monitor: Arc::default() })
}

impl Served {
    /// Sends requests in one batch, each with its inputs and the names of the outputs it wants (none for all).
    pub(crate) fn execute(&mut self, requests: Vec<(Vec<Tensor>, &[&str])>) -> Vec<Result<Response>> {
        let sinks: Vec<_> = requests.iter().map(|_| Arc::new(Sink::default())).collect();
        let requests = requests.into_iter().zip(&sinks).map(|((inputs, wanted), sink)| {
            let batch_size = (self.batch_size)(&inputs);
            let outputs = wanted.iter().map(|&name| RequestedOutput::new(name)).collect();
            let request = InferRequest { inputs, outputs, ..Default::default() };
            Request::new(request, batch_size, Responder::new(sink.clone(), None))
        });
        let batch = Batch::new(requests.collect(), self.monitor.clone());
        self.instance.execute(batch);
        sinks
            .iter()
            .map(|sink| sink.answers.lock().unwrap().pop().expect("a request went unanswered"))
            .collect()
    }

    /// Sends one request that wants all outputs.
    pub(crate) fn infer(&mut self, inputs: Vec<Tensor>) -> Result<Response> {
        self.execute(vec![(inputs, &[])]).pop().unwrap()
    }
}

#[derive(Default)]
struct Sink {
    answers: Mutex<Vec<Answer>>,
}

impl ResponseSink for Sink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        assert!(last, "this engine answers once");
        self.answers.lock().unwrap().push(answer.expect("the last answer carries a response"));
    }

    fn mark(&self, _phase: Phase, _at: Instant) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// The sizes of the batches that were executed.
#[derive(Default)]
pub(crate) struct Monitor {
    pub(crate) sizes: Mutex<Vec<usize>>,
}

impl BatchMonitor for Monitor {
    fn executed(&self, size: usize, times: ExecutionTimes) {
        assert!(times.started <= times.inputs_ready && times.outputs_ready <= times.ended);
        self.sizes.lock().unwrap().push(size);
    }
}
