//! A process that runs the identity backend, for the tests of this crate: any backend could run like this. It misbehaves when
//! the id of a request says so.

#![expect(clippy::disallowed_methods, reason = "a process that ends at once is what the tests need")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Answer, Backend, Batch, BatchMonitor, DataType, ExecutionTimes, InferRequest, Instance, InstanceContext,
    InstanceKind, ModelContext, NoPeers, Phase, Request, RequestedOutput, Responder, Response, ResponseSink,
    Tensor,
};
use nereid_identity::IdentityBackend;
use nereid_model_config::from_json;
use nereid_worker_protocol::call;
use nereid_worker_protocol::tensor::{self as wire, Failure, Value};
use nereid_worker_protocol::worker::{Connection, connect};
use nereid_worker_protocol::{Incoming, Message, Sender, side};

/// Reports its readiness late.
const SLOW: &str = "slow to be ready";

fn main() {
    let behaviour = std::env::args().nth(1).unwrap_or_default();
    match behaviour.as_str() {
        "ends at once" => std::process::exit(3),
        "never says hello" => std::thread::sleep(Duration::from_secs(3600)),
        "speaks garbage" => {
            rustix::io::write(std::io::stdin(), b"GET / HTTP/1.1\r\n\r\n").unwrap();
            std::thread::sleep(Duration::from_secs(3600));
        }
        _ => {}
    }
    let connection = connect("the identity backend").unwrap();
    assert!(std::io::read_to_string(std::io::stdin()).unwrap().is_empty(), "the socket is out of the way");
    println!("this goes to the log");
    Worker { connection, instance: None }.serve(&behaviour);
}

struct Worker {
    connection: Connection,
    instance: Option<Box<dyn Instance>>,
}

impl Worker {
    fn serve(mut self, behaviour: &str) {
        while let Some(incoming) = self.connection.calls.receiver.receive().unwrap() {
            match incoming.kind() {
                call::COMPLETE => self.reply(call::COMPLETED, |message| message.optional_text(None)),
                call::INITIALIZE => self.initialize(&incoming),
                call::EXECUTE => self.execute(&incoming),
                call::READY => {
                    if behaviour == SLOW {
                        std::thread::sleep(Duration::from_millis(400));
                    }
                    self.reply(call::READINESS, |message| message.bool(true));
                }
                call::FINALIZE => self.reply(call::FINALIZED, |_| ()),
                kind => panic!("unknown call {kind}"),
            }
        }
    }

    fn reply(&mut self, kind: u16, write: impl FnOnce(&mut Message<'_>)) {
        let mut message = self.connection.calls.sender.message(kind);
        write(&mut message);
        message.send().unwrap();
    }

    fn initialize(&mut self, incoming: &Incoming) {
        let (_, json) = incoming.reader().pairs().unwrap()[0];
        let context = ModelContext {
            name: "m".into(),
            version: 1,
            directory: PathBuf::new(),
            config: from_json(json).unwrap(),
            complete: false,
            peers: Arc::new(NoPeers),
        };
        let instance = IdentityBackend
            .load(context)
            .and_then(|model| model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)));
        match instance {
            Ok(instance) => {
                self.instance = Some(instance);
                self.reply(call::INITIALIZED, |message| message.u32(call::REPORTS_READINESS));
            }
            Err(error) => {
                let failure = Failure { code: error.code() as u8, message: error.message() };
                self.reply(call::FAILED, |message| {
                    message.failure(failure);
                    message.u64(0);
                });
            }
        }
    }

    fn execute(&mut self, incoming: &Incoming) {
        let mut reader = incoming.reader();
        let count = reader.count(1).unwrap();
        let mut ids = Vec::new();
        let (requests, answers): (Vec<_>, Vec<_>) = (0..count)
            .map(|_| {
                let (request, inputs) = reader.request().unwrap();
                ids.push((request.handle, request.id.to_owned()));
                let collected = Arc::<Collected>::default();
                let responder = Responder::new(Arc::clone(&collected) as _, None);
                (Request::new(infer_request(&request, inputs), 1, responder), collected)
            })
            .unzip();
        reader.end().unwrap();
        for (_, id) in &ids {
            misbehave(id);
        }
        let batch = Batch::new(requests, Arc::new(NoMonitor));
        self.instance.as_mut().unwrap().execute(batch);
        let Connection { calls, side } = &mut self.connection;
        let early = ids.iter().filter(|(_, id)| id == "later");
        early.for_each(|(handle, _)| stream(&mut side.sender, *handle));
        if ids[0].1 == "answers, then throws" {
            stream(&mut side.sender, ids[0].0);
            let mut message = calls.sender.message(call::FAILED);
            message.failure(Failure { code: 1, message: "ValueError: late" });
            message.u64(side.sender.sent());
            message.send().unwrap();
            return;
        }
        let mut message = calls.sender.message(call::EXECUTED);
        message.u64(side.sender.sent());
        message.count(count + usize::from(ids[0].1 == "an outcome too many"));
        for ((_, id), answer) in ids.iter().zip(&answers) {
            match id.as_str() {
                "later" | "nothing" => message.later_outcome(),
                "fails" => message.failure_outcome(Failure { code: 3, message: "as it was asked to" }),
                "unknown output" => {
                    message.response_outcome(std::iter::empty());
                    message.count(2);
                    message.tensor("UNKNOWN", 6, &[5], 5, |_| ()).unwrap();
                    message.tensor("OUTPUT0", 6, &[20_000], 20_000, |_| ()).unwrap();
                }
                "wrong size" => {
                    message.response_outcome(std::iter::empty());
                    message.count(1);
                    message.tensor("OUTPUT0", 8, &[100], 4, |_| ()).unwrap();
                }
                _ => put_response(&mut message, answer.0.lock().unwrap().take().unwrap().as_ref().unwrap()),
            }
        }
        message.send().unwrap();
        for (handle, _) in ids.iter().filter(|(_, id)| id == "nothing") {
            let mut message = side.sender.message(side::RELEASE);
            message.u64(*handle);
            message.send().unwrap();
        }
    }
}

fn misbehave(id: &str) {
    match id {
        "exits" => std::process::exit(7),
        "aborts" => std::process::abort(),
        "hangs" => std::thread::sleep(Duration::from_secs(3600)),
        "prints" => {
            print!("one\ntwo, without an end");
            std::io::stdout().flush().unwrap();
            eprintln!("to standard error");
        }
        _ => {}
    }
}

/// Three responses on the side channel, and the end.
fn stream(sender: &mut Sender, handle: u64) {
    for number in 0_u8..4 {
        let mut message = sender.message(side::RESPOND);
        message.u64(handle);
        message.bool(number == 3);
        if number == 3 {
            message.nothing_reply();
        } else {
            message.response_reply([("number", Value::Int(number.into()))].into_iter());
            message.count(1);
            // A large one, and small ones.
            let length = if number == 1 { 100_000 } else { 1 };
            message.tensor("OUTPUT0", 2, &[length], length as usize, |target| target.fill(number)).unwrap();
        }
        message.send().unwrap();
    }
}

fn put_response(message: &mut Message<'_>, response: &Response) {
    message.response_outcome([("answered", Value::Bool(true))].into_iter());
    message.count(response.outputs.len());
    for output in &response.outputs {
        let contents = output.contiguous().unwrap();
        let data_type = output.data_type.number();
        let fill = |target: &mut [u8]| target.copy_from_slice(&contents);
        message.tensor(&output.name, data_type, &output.shape, contents.len(), fill).unwrap();
    }
}

fn infer_request(request: &wire::Request<'_>, inputs: Vec<wire::Tensor<'_>>) -> InferRequest {
    let data_type = |number: u8| DataType::from_number(number).unwrap();
    InferRequest {
        id: request.id.to_owned(),
        inputs: inputs
            .into_iter()
            .map(|input| {
                let contents = input.contents.as_host().unwrap_or_default().to_vec();
                Tensor::new(input.name, data_type(input.data_type), input.shape.as_slice(), contents)
            })
            .collect(),
        outputs: request.outputs.iter().map(|output| RequestedOutput::new(*output)).collect(),
        ..InferRequest::default()
    }
}

#[derive(Default)]
struct Collected(Mutex<Option<Answer>>);

impl ResponseSink for Collected {
    fn deliver(&self, answer: Option<Answer>, _: bool) {
        *self.0.lock().unwrap() = answer;
    }
    fn mark(&self, _: Phase, _: Instant) {}
    fn is_cancelled(&self) -> bool {
        false
    }
}

struct NoMonitor;

impl BatchMonitor for NoMonitor {
    fn executed(&self, _: usize, _: ExecutionTimes) {}
}
