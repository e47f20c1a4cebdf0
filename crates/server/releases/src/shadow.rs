//! Copies of requests: sent to candidates, their answers compared and dropped.
//!
//! Clients never wait for a copy: it is sent when the request is in its queue, and answers are compared on a thread of their own.
//! Copies in progress are limited; further ones are skipped.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;

use nereid_core::backend_api::{InferRequest, Request, RequestedOutput, Response, Result, Tensor};
use nereid_core::{Model, ServedModels};
use nereid_tasks::TaskGroup;
use tokio::sync::watch;

use crate::release::ModelRelease;

/// How many copies may be in progress for one release.
const MAX_COPIES: usize = 64;

/// The most bytes of inputs in the copies of one release.
const MAX_BYTES: usize = 256 << 20;

/// The client's answer, with which the answers of copies are compared.
pub(crate) type ExpectedAnswer = watch::Sender<Option<Response>>;

/// Makes copies of requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Shadows {
    models: ServedModels,
    workers: Arc<Workers>,
}

/// The tasks and the thread that all releases of a server share.
#[derive(Default)]
pub(crate) struct Workers {
    tasks: Arc<TaskGroup>,
    /// Receives answers to compare; `None` if the thread could not be started.
    comparer: OnceLock<Option<SyncSender<Pair>>>,
}

/// The copies of one request.
pub(crate) struct Copies(Vec<Copy>, Arc<Workers>);

struct Copy {
    candidate: Arc<Model>,
    request: InferRequest,
    established: u64,
    expected: watch::Receiver<Option<Response>>,
    permit: Permit,
}

/// A place among the copies in progress.
struct Permit {
    release: Arc<ModelRelease>,
    bytes: usize,
}

/// Two answers to compare.
struct Pair {
    request_id: String,
    established: u64,
    candidate: u64,
    expected: Response,
    found: Response,
    permit: Permit,
}

impl Shadows {
    pub(crate) fn new(models: ServedModels, workers: Arc<Workers>) -> Self {
        Self { models, workers }
    }

    /// The copies to send of a request to a version, and where its answer goes.
    pub(crate) fn copies_of(
        &self,
        release: &Arc<ModelRelease>,
        model: &Model,
        request: &Request,
    ) -> Option<(Copies, ExpectedAnswer)> {
        let versions = release.copies_for(model.version());
        if versions.is_empty() {
            return None;
        }
        let models = self.models.now()?;
        let (sender, expected) = watch::channel(None);
        let bytes: usize = request.inputs.iter().map(Tensor::byte_size).sum();
        let copies = versions.into_iter().filter_map(|version| {
            let candidate = models.find_exactly(model.id(), Some(version)).ok()?;
            let permit = Permit::acquire(release, bytes);
            let copy = permit.and_then(|permit| {
                let request = copy(request).ok()?;
                let (candidate, expected) = (Arc::clone(candidate), expected.clone());
                Some(Copy { candidate, request, established: model.version(), expected, permit })
            });
            release.count_copy(version, copy.is_some());
            copy
        });
        let copies: Vec<_> = copies.collect();
        (!copies.is_empty()).then(|| (Copies(copies, Arc::clone(&self.workers)), sender))
    }
}

/// A copy that keeps its contents when the client has its answer and writes to its regions again.
fn copy(request: &InferRequest) -> Result<InferRequest> {
    let mut inputs = request.inputs.clone();
    inputs.iter_mut().try_for_each(retain)?;
    Ok(InferRequest {
        id: request.id.clone(),
        inputs,
        outputs: request.outputs.iter().map(|output| RequestedOutput::new(&output.name)).collect(),
        parameters: request.parameters.clone(),
        priority: request.priority,
        ..InferRequest::default()
    })
}

/// Copies what is in memory of the client.
fn retain(tensor: &mut Tensor) -> Result<()> {
    for buffer in tensor.buffers.iter_mut().filter(|buffer| buffer.is_shared() || buffer.is_placed()) {
        *buffer = buffer.to_retained()?;
    }
    Ok(())
}

/// Keeps an answer for the copies of its request.
pub(crate) fn keep(response: &Response) -> Option<Response> {
    let mut kept = response.clone();
    kept.outputs.iter_mut().try_for_each(retain).ok()?;
    Some(kept)
}

impl Copies {
    /// Sends them.
    pub(crate) fn send(self) {
        let Self(copies, workers) = self;
        for copy in copies {
            let of_task = Arc::clone(&workers);
            // The group is never closed: copies end with the requests that they are.
            let _ = workers.tasks.spawn(copy, |copy| copy.run(of_task));
        }
    }
}

impl Copy {
    async fn run(self, workers: Arc<Workers>) {
        let Self { candidate, request, established, mut expected, permit } = self;
        let request_id = request.id.clone();
        let mut answers = match candidate.infer_copy(request) {
            Ok(answers) => answers,
            Err(_) => return permit.release.refused(candidate.version()),
        };
        // A failure was counted as a result.
        let Ok(found) = answers.single().await else { return };
        let Ok(Some(expected)) = expected.wait_for(Option::is_some).await.map(|answer| answer.clone()) else {
            return;
        };
        let candidate = candidate.version();
        workers.compare(Pair { request_id, established, candidate, expected, found, permit });
    }
}

impl Permit {
    fn acquire(release: &Arc<ModelRelease>, bytes: usize) -> Option<Self> {
        let release = Arc::clone(release);
        let copies = release.copies.fetch_add(1, Ordering::Relaxed);
        let held = release.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
        let permit = Self { release, bytes };
        (copies < MAX_COPIES && held.saturating_add(bytes) <= MAX_BYTES).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.release.copies.fetch_sub(1, Ordering::Relaxed);
        self.release.copied_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Workers {
    /// Compares two answers on the thread for it.
    fn compare(&self, pair: Pair) {
        let start = || {
            // More pairs than copies in progress of one release never wait.
            let (sender, pairs) = sync_channel(MAX_COPIES);
            let spawned = Builder::new().name("nereid-compare".into()).spawn(move || compare_all(&pairs));
            spawned
                .inspect_err(|error| {
                    tracing::error!("cannot start the thread that compares answers: {error}")
                })
                .ok()
                .map(|_| sender)
        };
        if let Some(comparer) = self.comparer.get_or_init(start) {
            // One that finds no place is not compared.
            let _ = comparer.try_send(pair);
        }
    }
}

fn compare_all(pairs: &Receiver<Pair>) {
    for Pair { request_id, established, candidate, expected, found, permit } in pairs {
        match permit.release.settings().comparison.mismatch(&expected, &found) {
            Ok(mismatch) => permit.release.compared(&request_id, established, candidate, mismatch),
            Err(error) => tracing::warn!("answers of a release cannot be compared: {error}"),
        }
    }
}
