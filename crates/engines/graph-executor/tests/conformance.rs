//! A complete engine in a few lines, and what the executor does for it: the contract of `Engine`, from an author's side.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use nereid_backend_api::{
    Answer, Batch, BatchMonitor, DataType, Error, ExecutionTimes, InferRequest, Instance, Phase, Request,
    Responder, Response, ResponseSink, Result, Shape, Tensor,
};
use nereid_graph_executor::{
    Contents, Engine, Executor, GraphModel, Lanes, Port, RunInput, Signature, Target, optional_inputs,
};
use nereid_model_config::{normalise, parse_text};

/// The inputs of the graph in one run: the shape and bytes of each.
type Run = Vec<Option<(Vec<i64>, Vec<u8>)>>;

/// Computes one output, its first input with 1 added to each byte. Refuses tensors with a byte 13, and fails runs with a
/// byte 66.
#[derive(Default)]
struct Increment {
    runs: Arc<Mutex<Vec<Run>>>,
}

impl Engine for Increment {
    type Value = Vec<u8>;
    type Raw = (Shape, Vec<u8>);

    fn check(&self, port: &Port, tensor: &Tensor) -> Result<()> {
        if tensor.contiguous()?.contains(&13) {
            return Err(Error::invalid_arg(format!("input '{}' has an unlucky byte", port.name)));
        }
        Ok(())
    }

    fn gather(&self, _: &Port, _: &Shape, parts: &[&Tensor]) -> Result<Vec<u8>> {
        let parts = parts.iter().map(|part| Ok(part.contiguous()?.to_vec()));
        Ok(parts.collect::<Result<Vec<_>>>()?.concat())
    }

    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<Vec<u8>>>>,
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<(Shape, Vec<u8>)>>> {
        assert!(targets.is_empty(), "an engine that writes no targets gets none");
        let run =
            inputs.iter().map(|input| Some((input.as_ref()?.shape.to_vec(), input.as_ref()?.value.clone())));
        self.runs.lock().unwrap().push(run.collect());
        let Some(Some(RunInput { shape, value })) = inputs.into_iter().next() else {
            return Ok(vec![Some(([1].into(), vec![0]))]);
        };
        if value.contains(&66) {
            return Err(Error::internal("the engine broke down"));
        }
        Ok(vec![Some((shape, value.into_iter().map(|byte| byte + 1).collect()))])
    }

    fn read(&self, _: &Port, (shape, bytes): (Shape, Vec<u8>)) -> Result<(Shape, Contents)> {
        Ok((shape, Contents::Fixed(bytes.into())))
    }
}

/// A model of the engine, and the runs it made.
struct Model {
    executor: Executor<Increment>,
    runs: Arc<Mutex<Vec<Run>>>,
}

/// A graph's port without a fixed shape behind `dims`.
fn port(name: &str, data_type: DataType, dims: &[Option<i64>]) -> Port {
    Port { name: name.into(), data_type, dims: Some(dims.iter().copied().collect()) }
}

fn load(config: &str, inputs: Vec<Port>, outputs: Vec<Port>) -> Result<Model> {
    let mut config = parse_text(config).unwrap();
    normalise(&mut config);
    let optional = optional_inputs(&config, |name| Ok(name == "OPTIONAL"))?;
    let graph = GraphModel::new("m", &config, Signature { inputs, outputs }, &optional)?;
    Ok(model(graph))
}

fn model(graph: GraphModel) -> Model {
    let engine = Increment::default();
    let runs = Arc::clone(&engine.runs);
    Model { executor: Executor::new(Arc::new(graph), engine), runs }
}

#[derive(Default)]
struct Sink(Mutex<Vec<Answer>>);

impl ResponseSink for Sink {
    fn deliver(&self, answer: Option<Answer>, _: bool) {
        self.0.lock().unwrap().extend(answer);
    }
    fn mark(&self, _: Phase, _: Instant) {}
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl BatchMonitor for Sink {
    fn executed(&self, _: usize, _: ExecutionTimes) {}
}

type Inputs<'a> = &'a [(&'a str, &'a [i64], &'a [u8])];

impl Model {
    /// Executes one batch of requests with these inputs; their answers in order, as shape and bytes of the output.
    fn execute(
        &mut self,
        batch_size: impl Fn(Inputs<'_>) -> usize,
        requests: &[Inputs<'_>],
    ) -> Vec<Result<(Vec<i64>, Vec<u8>)>> {
        let sinks: Vec<_> = requests.iter().map(|_| Arc::<Sink>::default()).collect();
        let batch = requests.iter().zip(&sinks).map(|(inputs, sink)| {
            let tensor = |(name, shape, bytes): &(&str, &[i64], &[u8])| {
                Tensor::new(*name, DataType::Uint8, *shape, bytes.to_vec())
            };
            let request =
                InferRequest { inputs: inputs.iter().map(tensor).collect(), ..InferRequest::default() };
            Request::new(request, batch_size(inputs), Responder::new(Arc::<Sink>::clone(sink), None))
        });
        self.executor.execute(Batch::new(batch.collect(), Arc::<Sink>::default()));
        let answer = |sink: Arc<Sink>| {
            let answers = std::mem::take(&mut *sink.0.lock().unwrap());
            let [answer] = <[Answer; 1]>::try_from(answers).expect("one answer for each request");
            answer.map(|response: Response| {
                let output = &response.outputs[0];
                assert_eq!(output.name, "Y");
                (output.shape.to_vec(), output.contiguous().unwrap().to_vec())
            })
        };
        sinks.into_iter().map(answer).collect()
    }

    fn runs(&self) -> Vec<Run> {
        std::mem::take(&mut self.runs.lock().unwrap())
    }
}

const BATCHED: &str = "max_batch_size: 8 input { name: 'X' data_type: TYPE_UINT8 dims: -1 }
                       output { name: 'Y' data_type: TYPE_UINT8 dims: -1 }";

fn batched() -> Model {
    let open = [None, None];
    load(BATCHED, vec![port("X", DataType::Uint8, &open)], vec![port("Y", DataType::Uint8, &open)]).unwrap()
}

/// The first dimension of a request's first input.
fn items(inputs: Inputs<'_>) -> usize {
    inputs[0].1[0] as usize
}

#[test]
fn requests_that_fit_together_are_one_run_and_others_are_runs_of_their_own() {
    let mut model = batched();
    let answers = model.execute(
        items,
        &[&[("X", &[1, 2], &[1, 2])], &[("X", &[1, 3], &[3, 4, 5])], &[("X", &[2, 2], &[6, 7, 8, 9])]],
    );
    let expected = [(vec![1, 2], vec![2, 3]), (vec![1, 3], vec![4, 5, 6]), (vec![2, 2], vec![7, 8, 9, 10])];
    assert_eq!(answers, expected.map(Ok));
    let joined = vec![Some((vec![3, 2], vec![1, 2, 6, 7, 8, 9]))];
    assert_eq!(model.runs(), [joined, vec![Some((vec![1, 3], vec![3, 4, 5]))]]);
}

#[test]
fn a_request_that_the_engine_refuses_fails_alone() {
    let mut model = batched();
    let answers = model.execute(items, &[&[("X", &[1, 1], &[13])], &[("X", &[1, 1], &[1])]]);
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.message(), "model 'm': input 'X' has an unlucky byte");
    assert_eq!(answers[1], Ok((vec![1, 1], vec![2])));
    assert_eq!(model.runs().len(), 1);
}

#[test]
fn a_run_that_fails_takes_no_other_run_along() {
    let mut model = batched();
    let requests: [Inputs<'_>; 3] =
        [&[("X", &[1, 1], &[66])], &[("X", &[1, 1], &[1])], &[("X", &[1, 2], &[1, 1])]];
    let answers = model.execute(items, &requests);
    for failed in &answers[..2] {
        assert_eq!(failed.as_ref().unwrap_err().message(), "model 'm': the engine broke down");
    }
    assert_eq!(answers[2], Ok((vec![1, 2], vec![2, 2])));
    assert_eq!(model.execute(items, &requests[1..2]), [Ok((vec![1, 1], vec![2]))]);
}

#[test]
fn ragged_inputs_batch_inputs_and_scattered_outputs_go_by_elements() {
    let config =
        "max_batch_size: 8 input { name: 'X' data_type: TYPE_UINT8 dims: -1 allow_ragged_batch: true }
                  output { name: 'Y' data_type: TYPE_UINT8 dims: -1 }
                  batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: 'ENDS' data_type: TYPE_FP32
                                source_input: 'X' }
                  batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: 'Y' source_input: 'X' }";
    let inputs = vec![port("X", DataType::Uint8, &[None]), port("ENDS", DataType::Fp32, &[None])];
    let mut model = load(config, inputs, vec![port("Y", DataType::Uint8, &[None])]).unwrap();
    let answers = model.execute(|_| 1, &[&[("X", &[1, 2], &[1, 2])], &[("X", &[1, 3], &[3, 4, 5])]]);
    assert_eq!(answers, [Ok((vec![1, 2], vec![2, 3])), Ok((vec![1, 3], vec![4, 5, 6]))]);
    let ends = [2_f32, 5.0].map(f32::to_ne_bytes).concat();
    assert_eq!(model.runs(), [vec![Some((vec![5], vec![1, 2, 3, 4, 5])), Some((vec![2], ends))]]);
}

#[test]
fn an_optional_input_that_is_left_out_is_none() {
    let config = "input [ { name: 'X' data_type: TYPE_UINT8 dims: 1 },
                          { name: 'OPTIONAL' data_type: TYPE_UINT8 dims: 1 optional: true } ]
                  output { name: 'Y' data_type: TYPE_UINT8 dims: 1 }";
    let inputs = || ["X", "OPTIONAL"].map(|name| port(name, DataType::Uint8, &[Some(1)])).into();
    let outputs = || vec![port("Y", DataType::Uint8, &[Some(1)])];
    let mut model = load(config, inputs(), outputs()).unwrap();
    model.execute(|_| 1, &[&[("X", &[1], &[1])], &[("X", &[1], &[2]), ("OPTIONAL", &[1], &[3])]]);
    let [left_out, given] = [None, Some((vec![1], vec![3]))];
    let expected = [vec![Some((vec![1], vec![1])), left_out], vec![Some((vec![1], vec![2])), given]];
    assert_eq!(model.runs(), expected);

    let required = config
        .replace("'X' data_type: TYPE_UINT8 dims: 1", "'X' data_type: TYPE_UINT8 dims: 1 optional: true");
    let error = load(&required, inputs(), outputs()).map(drop).unwrap_err();
    assert_eq!(error.message(), "input 'X' cannot be optional: the model has no default value for it");
}

#[test]
fn a_configuration_that_does_not_fit_the_graph_is_refused_before_anything_runs() {
    let refused = |data_type, dims: &[Option<i64>]| {
        let outputs = vec![port("Y", DataType::Uint8, &[None, None])];
        load(BATCHED, vec![port("X", data_type, dims)], outputs).map(drop).unwrap_err().message().to_owned()
    };
    let messages: BTreeMap<_, _> = [
        (refused(DataType::Int8, &[None, None]), "input 'X' is UINT8 in the configuration, but INT8 in the model"),
        (
            refused(DataType::Uint8, &[None, Some(3)]),
            "input 'X' has shape [-1,-1] with the batch dimension in the configuration, but [-1,3] in the model",
        ),
    ]
    .into();
    for (message, expected) in messages {
        assert_eq!(message, expected);
    }
}

#[test]
fn a_graph_of_a_fixed_batch_gets_zeros_behind_smaller_batches_and_its_answers_to_them_are_dropped() {
    for (sizes, padding) in [(&[1][..], 3), (&[1, 2], 1), (&[2, 2], 0), (&[4], 0)] {
        let mut config = parse_text(BATCHED).unwrap();
        normalise(&mut config);
        let ports = |name: &str| vec![port(name, DataType::Uint8, &[None, None])];
        let signature = Signature { inputs: ports("X"), outputs: ports("Y") };
        let mut graph = GraphModel::new("m", &config, signature, &[]).unwrap();
        graph.padded_to = Some(4);
        let mut model = model(graph);
        let contents: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![size as u8; 2 * size]).collect();
        let shapes: Vec<[i64; 2]> = sizes.iter().map(|&size| [size as i64, 2]).collect();
        let inputs = shapes.iter().zip(&contents).map(|(shape, bytes)| [("X", &shape[..], &bytes[..])]);
        let inputs: Vec<_> = inputs.collect();
        let requests: Vec<Inputs<'_>> = inputs.iter().map(|inputs| &inputs[..]).collect();
        let answers = model.execute(|inputs| inputs[0].1[0] as usize, &requests);
        for ((answer, shape), bytes) in answers.into_iter().zip(&shapes).zip(&contents) {
            let expected: Vec<u8> = bytes.iter().map(|byte| byte + 1).collect();
            assert_eq!(answer.unwrap(), (shape.to_vec(), expected), "{sizes:?}");
        }
        let filled = [contents.concat(), vec![0; 2 * padding]].concat();
        assert_eq!(model.runs(), [[Some((vec![4, 2], filled))]], "{sizes:?}");
    }
}

#[test]
fn a_configuration_says_what_a_model_takes_whose_file_does_not() {
    let text = "input [{ name: 'A' data_type: TYPE_FP32 dims: [ 3, -1 ] },
                       { name: 'B' data_type: TYPE_STRING dims: 4 reshape { shape: [ 2, 2 ] } }]
                output { name: 'Y' data_type: TYPE_INT8 dims: -1 }
                sequence_batching {
                  control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
                  state { input_name: 'IN' output_name: 'OUT' data_type: TYPE_FP16 dims: 5 } }";
    for batching in [false, true] {
        let mut config = parse_text(&format!("max_batch_size: {} {text}", u8::from(batching))).unwrap();
        normalise(&mut config);
        let signature = Signature::of_config(&config).unwrap();
        let dims = |own: &[Option<i64>]| [&[None][usize::from(!batching)..], own].concat();
        let expected = [
            ("A", DataType::Fp32, dims(&[Some(3), None])),
            ("B", DataType::Bytes, dims(&[Some(2), Some(2)])),
            ("START", DataType::Int32, dims(&[Some(1)])),
            ("IN", DataType::Fp16, dims(&[Some(5)])),
            ("Y", DataType::Int8, dims(&[None])),
            ("OUT", DataType::Fp16, dims(&[Some(5)])),
        ];
        let ports = signature.inputs.iter().chain(&signature.outputs);
        let found: Vec<_> = ports
            .map(|port| (port.name.as_str(), port.data_type, port.dims.clone().unwrap().to_vec()))
            .collect();
        assert_eq!(found, expected);
        GraphModel::new("m", &config, signature, &[]).expect("it fits itself");
    }
    let mut config = parse_text("input { name: 'A' dims: 1 }").unwrap();
    normalise(&mut config);
    let error = Signature::of_config(&config).unwrap_err();
    assert_eq!(error.message(), "input 'A' has no data_type in the configuration");
}

/// An instance whose executions end when the barrier's number of them are in progress, or panic.
struct Together(Arc<Barrier>, bool);

impl Instance for Together {
    fn execute(&mut self, batch: Batch) {
        self.0.wait();
        assert!(!self.1, "a lane panics");
        batch.complete([Ok(Response::default())]);
    }
}

#[test]
fn lanes_execute_as_many_batches_at_once_as_there_are() {
    for count in [1, 2, 5] {
        let barrier = Arc::new(Barrier::new(count));
        let instances = (0..count).map(|_| Box::new(Together(Arc::clone(&barrier), false)) as _).collect();
        let mut lanes = Lanes::new("m", instances).unwrap();
        let sinks: Vec<_> = (0..3 * count).map(|_| Arc::<Sink>::default()).collect();
        for sink in &sinks {
            let responder = Responder::new(Arc::<Sink>::clone(sink), None);
            let request = Request::new(InferRequest::default(), 1, responder);
            lanes.execute(Batch::new(vec![request], Arc::<Sink>::default()));
        }
        drop(lanes);
        assert!(sinks.iter().all(|sink| matches!(&sink.0.lock().unwrap()[..], [Ok(_)])));
    }
}

#[test]
fn a_lane_that_panics_fails_its_batch_and_executes_the_next() {
    let mut lanes = Lanes::new("m", vec![Box::new(Together(Arc::new(Barrier::new(1)), true))]).unwrap();
    let sinks: Vec<_> = (0..3).map(|_| Arc::<Sink>::default()).collect();
    for sink in &sinks {
        let request =
            Request::new(InferRequest::default(), 1, Responder::new(Arc::<Sink>::clone(sink), None));
        lanes.execute(Batch::new(vec![request], Arc::<Sink>::default()));
    }
    drop(lanes);
    assert!(sinks.iter().all(|sink| matches!(&sink.0.lock().unwrap()[..], [Err(_)])));
}
