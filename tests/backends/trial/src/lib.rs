//! A backend for tests of `triton-backend`'s guarantees: the request's parameter `do` selects an action.
//!
//! The result is the output `OUT`, a list of texts. The same library is a batch strategy: it keeps requests whose
//! parameter `alone` is true out of batches.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use triton_backend::{
    Attributes, Backend, BackendContext, Batch, BatchStrategy, CorrelationId, DataType, Error, InferRequest,
    Instance, InstanceContext, InstanceGroup, InstanceKind, MemoryKind, MemoryManager, MemoryUsage,
    MetricFamily, MetricKind, Model, ModelConfig, ModelContext, OutputMemory, Parameter, Piece, Request,
    RequestInfo, Result, Server,
};

struct Trial {
    memory: MemoryManager,
}

struct TrialModel {
    memory: MemoryManager,
    server: Server,
    facts: Vec<String>,
    takes_batches: bool,
}

struct TrialInstance {
    model: Arc<TrialModel>,
    facts: Vec<String>,
    threads: Vec<JoinHandle<()>>,
}

impl Backend for Trial {
    type Model = TrialModel;

    fn attributes() -> Attributes {
        Attributes {
            preferred_instances: vec![InstanceGroup { kind: InstanceKind::Cpu, count: 1, devices: vec![] }],
            parallel_instance_loading: true,
        }
    }

    fn start(context: &BackendContext<'_>) -> Result<Self> {
        match context.setting("start")?.as_deref() {
            Some("fails") => Err(Error::unsupported("trial: fails to start on purpose")),
            Some("panics") => panic!("trial: panics on purpose"),
            _ => Ok(Self { memory: context.memory_manager()? }),
        }
    }
}

impl Model for TrialModel {
    type Backend = Trial;
    type Instance = TrialInstance;

    fn complete_config(_: &Arc<Trial>, _: &ModelContext<'_>, config: &mut ModelConfig) -> Result<()> {
        config.add_input("IN", DataType::Int32, &[-1]);
        config.add_output("OUT", DataType::Bytes, &[-1]);
        config.add_output("NUMBERS", DataType::Int32, &[-1]);
        Ok(())
    }

    fn load(backend: &Arc<Trial>, context: &ModelContext<'_>) -> Result<Self> {
        let config = context.config()?;
        match config.parameter("load") {
            Some("fails") => return Err(Error::invalid_argument("trial: fails to load on purpose")),
            Some("panics") => panic!("trial: panics on purpose"),
            _ => {}
        }
        let folder = context.version_folder();
        let folder: Vec<_> = folder.iter().rev().take(2).filter_map(|part| part.to_str()).collect();
        let facts = vec![format!("model {} version {} in {folder:?}", context.name(), context.version())];
        context.report_memory_usage(&[usage(1)])?;
        context.report_memory_usage(&[usage(1000), MemoryUsage { device: 2, ..usage(5) }])?;
        let memory = backend.memory;
        Ok(Self { memory, server: context.server(), facts, takes_batches: config.max_batch_size() > 0 })
    }
}

impl Instance for TrialInstance {
    type Model = TrialModel;

    fn start(model: &Arc<TrialModel>, context: &InstanceContext<'_>) -> Result<Self> {
        let facts = vec![format!(
            "instance {:?} {} passive {} profiles {:?} devices {:?} policy {}",
            context.kind(),
            context.device_id(),
            context.is_passive(),
            context.profiles(),
            context.secondary_devices(),
            context.host_policy()?
        )];
        context.report_memory_usage(&[usage(20)])?;
        Ok(Self { model: Arc::clone(model), facts, threads: Vec::new() })
    }

    fn execute(&mut self, batch: &mut Batch) -> Result<()> {
        self.threads.retain(|thread| !thread.is_finished());
        batch.mark_compute_start();
        let rows = batch.rows();
        if batch.requests().iter().any(|request| deed(request) == Ok("reschedule")) {
            for request in batch.take() {
                if let Err(error) = request.reschedule() {
                    triton_backend::warning!("trial: rescheduling: {error}");
                }
            }
            return Ok(());
        }
        if batch.requests().iter().any(|request| deed(request) == Ok("keep")) {
            let kept = batch.take();
            self.threads.push(thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                for request in &kept {
                    drop(answer(request, &["kept"]));
                }
            }));
            return Ok(());
        }
        for request in &*batch {
            match deed(request)? {
                "panic" => panic!("trial: panics on purpose"),
                "fail" => return Err(Error::invalid_argument("trial: fails on purpose")),
                "nothing" => {}
                "twice" => {
                    answer(request, &["once"])?;
                    let second = answer(request, &["twice"]);
                    triton_backend::warning!("trial: the second answer: {second:?}");
                }
                "fail_beside" => {
                    let open = request.respond()?;
                    let refused = request.fail(Error::internal("trial: beside"));
                    triton_backend::warning!("trial: beside another response: {refused:?}");
                    drop(open);
                    answer(request, &["alone"])?;
                }
                "drop_response" => drop(request.respond()?),
                "wrong_shape" => {
                    let mut response = request.respond()?;
                    response.bytes_output("OUT", &[1, 7], &["only one"])?;
                }
                "computed" => computed(request)?,
                "device" => device(self.model.memory, request)?,
                "rows" if self.model.takes_batches => answer_batched(request, &format!("{rows} rows"))?,
                what => {
                    let lines = self.lines(what, request)?;
                    answer(request, &lines)?;
                }
            }
        }
        batch.mark_compute_end();
        Ok(())
    }
}

impl Drop for TrialInstance {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl TrialInstance {
    /// The lines that answer the request.
    fn lines(&self, what: &str, request: &Request) -> Result<Vec<String>> {
        match what {
            "facts" => Ok(self.model.facts.iter().chain(&self.facts).cloned().collect()),
            "request" => request_lines(request),
            "infer" => self.infer(request),
            "cancel" => self.cancel(),
            "memory" => memory(self.model.memory),
            "metrics" => metrics(),
            "state" => match request.state("STATE", DataType::Int32, &[1]) {
                Ok(state) => state.update(&7_i32.to_le_bytes()).map(|()| vec!["updated".to_owned()]),
                Err(error) => Ok(vec![format!("{:?}: {error}", error.code())]),
            },
            "trace" => request.trace("trial").map(|()| vec!["traced".to_owned()]),
            other => Err(Error::unsupported(format!("trial: cannot {other}"))),
        }
    }

    /// Asks another model for a stream and stops it after the first response, on another thread.
    fn cancel(&self) -> Result<Vec<String>> {
        let words = InferRequest::new("slow_words").bytes_input("TEXT", &[1], &["a ".repeat(400)])?;
        let mut responses = self.model.server.infer(words)?;
        let canceller = responses.canceller();
        let first = responses.next().transpose()?.is_some();
        let stopper = thread::spawn({
            let canceller = canceller.clone();
            move || canceller.cancel()
        });
        let stopped = stopper.join().map_err(|_| Error::internal("the thread panicked"))?;
        let further = responses.filter(Result::is_ok).count();
        // The request is finished, so this has no effect.
        let again = canceller.cancel();
        Ok(vec![format!("first {first} stopped {stopped:?} early {} again {again:?}", further < 100)])
    }

    /// Runs another model and returns its answer.
    fn infer(&self, request: &Request) -> Result<Vec<String>> {
        let server = &self.model.server;
        let mut lines =
            vec![format!("words_at_once is ready: {}", server.is_model_ready("words_at_once", None)?)];
        let text =
            |words: &str| InferRequest::new("words_at_once").id("inner").bytes_input("TEXT", &[1], &[words]);
        let response = server.infer(text("one two three")?.output("WORD"))?.one()?;
        let words: Vec<_> =
            response.output("WORD")?.to_byte_strings()?.into_iter().map(String::from_utf8_lossy).collect();
        lines.push(format!("{} {} answered {words:?}", response.model, response.version));
        let streamed = InferRequest::new("words").bytes_input("TEXT", &[1], &["one two three"])?;
        lines
            .push(format!("words sent {} responses", server.infer(streamed)?.filter_map(Result::ok).count()));
        for (what, wrong) in [
            ("unknown model", InferRequest::new("nobody")),
            ("no input", InferRequest::new("words_at_once")),
            ("wrong type", InferRequest::new("words_at_once").input("TEXT", &[1], &[1_i32])?),
            ("wrong parameter", text("one")?.output("NONE")),
        ] {
            let error = server.infer(wrong).and_then(|responses| responses.one()).err();
            lines.push(format!("{what}: {:?}", error.map(|error| error.code())));
        }
        lines.push(format!("outer id: {}", request.id()));
        Ok(lines)
    }
}

/// This much ordinary memory.
fn usage(byte_size: usize) -> MemoryUsage {
    MemoryUsage { kind: MemoryKind::Cpu, device: 0, byte_size }
}

/// Allocates memory from the server, uses it, and releases it.
fn memory(manager: MemoryManager) -> Result<Vec<String>> {
    let mut buffer = manager.allocate(5)?;
    let fresh = buffer.to_vec();
    buffer.copy_from_slice(b"bytes");
    // It may be given back on any thread.
    let text = thread::spawn(move || String::from_utf8_lossy(&buffer).into_owned()).join();
    let text = text.map_err(|_| Error::internal("the thread panicked"))?;
    let empty = manager.allocate(0)?.len();
    let many = (0..1000).map(|_| manager.allocate(1 << 20).map(|it| it.len())).sum::<Result<usize>>()?;
    Ok(vec![format!("{fresh:?} {text} {empty} {many}")])
}

struct Strategy;

impl BatchStrategy for Strategy {
    /// Whether the batch has a request, and whether that request must stay alone.
    type Batch = (bool, bool);

    fn start(_: &ModelContext<'_>) -> Result<Self> {
        Ok(Self)
    }

    fn begin(&self) -> Result<Self::Batch> {
        Ok((false, false))
    }

    fn include((begun, alone): &mut Self::Batch, request: &RequestInfo) -> Result<bool> {
        let wants = matches!(request.parameter("alone"), Some(Parameter::Bool(true)));
        let joins = !*begun || !(*alone || wants);
        if joins {
            (*begun, *alone) = (true, wants);
        }
        Ok(joins)
    }
}

/// The parameter `do`.
fn deed(request: &Request) -> Result<&str> {
    match request.parameter("do") {
        Some(Parameter::String(what)) => Ok(what),
        other => Err(Error::invalid_argument(format!("trial: parameter 'do' is {other:?}, expected a text"))),
    }
}

fn answer(request: &Request, lines: &[impl AsRef<[u8]>]) -> Result<()> {
    let mut response = request.respond()?;
    response.bytes_output("OUT", &[lines.len() as i64], lines)?;
    response.string_parameter("by", "trial")?;
    response.send_last()
}

/// Answers with numbers that are computed in the server's memory, after outputs of wrong lengths.
fn computed(request: &Request) -> Result<()> {
    let squares = |count: i32| (0..count).map(|number| number * number);
    for (count, shape) in [(2, &[3][..]), (4, &[3]), (1, &[-1]), (1, &[0]), (2, &[i64::MAX])] {
        let outcome = request.respond()?.output_from("NUMBERS", shape, squares(count));
        triton_backend::warning!("trial: {count} values of {shape:?}: {outcome:?}");
        if outcome.is_ok() {
            return Err(Error::internal(format!("{count} values fit {shape:?}")));
        }
    }
    let mut response = request.respond()?;
    response.output_from("NUMBERS", &[2, 3], squares(6))?;
    response.send_last()
}

/// Answers with where the input, an output and memory of the server's pools are. It writes the output if it can.
fn device(manager: MemoryManager, request: &Request) -> Result<()> {
    let input = request.input("IN")?;
    let place = |address: usize, byte_size: usize, device_id: i64| match address {
        0 => "nowhere".to_owned(),
        _ => format!("{byte_size} bytes on device {device_id}"),
    };
    let mut lines = Vec::new();
    for piece in input.pieces()? {
        lines.push(match piece {
            Piece::Host(bytes) => format!("input: {} bytes on the host", bytes.len()),
            Piece::Device { address, byte_size, device_id } => {
                format!("input: {}", place(address, byte_size, device_id))
            }
        });
    }
    lines.push(format!("values: {:?}", input.to_vec::<i32>().map_err(|error| error.code())));
    let lent = |device_id, byte_size| match manager.allocate_on_device(device_id, byte_size) {
        Ok(memory) => format!("lent: {}", place(memory.address(), memory.byte_size(), memory.device_id())),
        Err(error) => format!("lent: {:?}", error.code()),
    };
    // More than the pool has at once.
    lines.extend((0..20).map(|_| lent(0, 1 << 19)).chain([lent(99, 64)]));
    lines.dedup();
    let mut response = request.respond()?;
    let byte_size = usize::try_from(input.byte_size()).map_err(|_| Error::internal("a large input"))?;
    let gpu = (MemoryKind::Gpu, 0);
    let output = response.output_memory("NUMBERS", DataType::Int32, input.shape(), byte_size, gpu)?;
    lines.push(match output {
        OutputMemory::Device { address, byte_size, device_id } => {
            format!("output: {}", place(address, byte_size, device_id))
        }
        OutputMemory::Host(bytes) => {
            let was_zeroed = bytes.iter().all(|byte| *byte == 0);
            bytes.fill(1);
            format!("output: {} bytes on the host, zeroed {was_zeroed}", bytes.len())
        }
    });
    response.bytes_output("OUT", &[lines.len() as i64], &lines)?;
    response.send_last()
}

/// Repeats the line for each row.
fn answer_batched(request: &Request, line: &str) -> Result<()> {
    let rows = request.input("IN")?.shape().first().copied().unwrap_or(0);
    let lines = vec![line; usize::try_from(rows).unwrap_or(0)];
    let mut response = request.respond()?;
    response.bytes_output("OUT", &[rows, 1], &lines)?;
    response.send_last()
}

fn request_lines(request: &Request) -> Result<Vec<String>> {
    let sequence = match request.correlation_id() {
        CorrelationId::Number(id) => format!("number {id}"),
        CorrelationId::Text(id) => format!("text {id}"),
    };
    let input = request.input("IN")?;
    Ok(vec![
        format!("id {}", request.id()),
        format!("sequence {sequence} {} {}", request.is_sequence_start(), request.is_sequence_end()),
        format!("timeout {:?} cancelled {}", request.timeout(), request.is_cancelled()),
        format!("parameters {:?}", request.parameters()),
        format!("outputs {:?} wants OUT {}", request.requested_outputs(), request.wants("OUT")),
        format!("inputs {} {} {:?}", request.input_count(), input.name(), input.shape()),
        format!(
            "values {:?}, as texts {:?}",
            input.to_vec::<i32>()?,
            input.to_vec::<f32>().map_err(|error| error.code())
        ),
        format!("no such input: {:?}", request.input("NONE").err().map(|error| error.code())),
        format!("host memory {}", request.prefers_host_memory("OUT", 4)?),
    ])
}

fn metrics() -> Result<Vec<String>> {
    let counters = MetricFamily::new(MetricKind::Counter, "trial_counter", "what the trial counts")?;
    let counter = counters.metric(&[("who", "trial")])?;
    counter.increment(2.0)?;
    let gauge = MetricFamily::new(MetricKind::Gauge, "trial_gauge", "what the trial measures")?.metric(&[])?;
    gauge.set(2.5)?;
    let bounds = MetricKind::Histogram(vec![1.0, 10.0]);
    let histogram = MetricFamily::new(bounds, "trial_histogram", "what the trial sorts")?.metric(&[])?;
    histogram.observe(5.0)?;
    Ok(vec![
        format!("counter {}", counter.value()?),
        format!("gauge {}", gauge.value()?),
        format!("counter set: {:?}", counter.set(1.0).map_err(|error| error.code())),
        format!("histogram read: {:?}", histogram.value().map_err(|error| error.code())),
    ])
}

triton_backend::export_backend!(Trial);
triton_backend::export_batch_strategy!(Strategy);
