//! A process that hosts an engine with continuous batching, for the tests of this crate. A request's id is its number of responses,
//! one in each step; `forever` has no end, `silent` has one response after many steps, `aborts` ends the process, and `hangs` stops it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nereid_backend_api::{
    Backend, Batch, DataType, Error, Instance, InstanceContext, Intake, Model, ModelContext, Next, Request,
    Response, Result, Tensor,
};

/// How many requests the engine holds.
const SLOTS: usize = 2;

/// The steps before the response of a silent request. Each takes at least a millisecond.
const SILENT_STEPS: u64 = 2200;

fn main() -> io::Result<()> {
    nereid_worker::host("a continuous backend", || Ok(Arc::new(Counters)))
}

struct Counters;

impl Backend for Counters {
    fn load(&self, _: ModelContext) -> Result<Box<dyn Model>> {
        Ok(Box::new(Self))
    }
}

impl Model for Counters {
    fn engine(&self) -> Option<String> {
        Some("counters 7 (tests)".to_owned())
    }

    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(Engine { active: Vec::new() }))
    }
}

struct Engine {
    /// The requests, with the numbers of responses that they got.
    active: Vec<(Request, u64)>,
}

impl Engine {
    /// Gives every request its next response.
    fn step(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
        let held = self.active.len() as u64;
        for (request, count) in std::mem::take(&mut self.active) {
            if request.responder().is_cancelled() {
                request.answer(Err(Error::internal("the engine saw the cancellation")));
                continue;
            }
            if request.id == "silent" && count < SILENT_STEPS {
                self.active.push((request, count + 1));
                continue;
            }
            let values = [count, held].map(u64::to_le_bytes).concat();
            request.responder().send(Ok(Response::new(vec![Tensor::new(
                "COUNTS",
                DataType::Uint64,
                [2],
                values,
            )])));
            match request.id.parse::<u64>() {
                Err(_) if request.id == "silent" => request.responder().finish(),
                Ok(wanted) if count + 1 == wanted => request.responder().finish(),
                _ => self.active.push((request, count + 1)),
            }
        }
    }
}

impl Instance for Engine {
    fn execute(&mut self, batch: Batch) {
        batch.fail(Error::unsupported("the engine executes continuously"));
    }

    fn executes_continuously(&self) -> bool {
        true
    }

    fn capacity(&self) -> usize {
        SLOTS
    }

    fn run(&mut self, mut intake: Intake) {
        loop {
            match intake.try_next(|_| self.active.len() < SLOTS) {
                Next::Request(batch) => {
                    for request in batch.into_requests() {
                        match request.id.as_str() {
                            "aborts" => std::process::abort(),
                            "hangs" => loop {
                                std::thread::park();
                            },
                            "panics" => panic!("as it was asked to"),
                            _ => self.active.push((request, 0)),
                        }
                    }
                }
                Next::Ended if self.active.is_empty() => return,
                _ if self.active.is_empty() => intake.wait(),
                _ => self.step(),
            }
        }
    }
}
