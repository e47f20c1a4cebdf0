//! An inner request in progress: forwards its answers as they arrive.
//!
//! The thread that delivers an answer also calls the response callback, so an inner request occupies no thread except
//! the executing model's. Calls for one request are sequential.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use nereid_backend_api::{Answer, Answers, Error, InnerRequest, Peers, Result, block_on};
use triton_sys::*;

use crate::allocator::Placement;
use crate::handle::{Handle, LentHandle};
use crate::inference::InferenceRequest;
use crate::outcome::InferenceResponse;
use crate::trace::{SentTrace, TraceObject};

/// Cancels an inference.
#[derive(Clone)]
pub(crate) struct Canceller {
    call: nereid_backend_api::Canceller,
    cancelled: Arc<AtomicBool>,
}

impl Canceller {
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        (self.call)();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

struct Call {
    /// `None` after the last answer.
    stream: Mutex<Option<Box<dyn Answers>>>,
    /// Number of wake-ups since the last poll.
    wakes: AtomicUsize,
    placement: Arc<Placement>,
    complete: unsafe extern "C" fn(*mut TRITONSERVER_InferenceResponse, u32, *mut c_void),
    userp: AtomicPtr<c_void>,
    /// The request's trace, unless C deletes it.
    _trace: Option<LentHandle<TraceObject>>,
}

/// Sends a request. Its response callback gets the answers, perhaps before this returns.
///
/// # Errors
/// The server does not accept the request: it is neither released nor answered.
pub(crate) fn start(
    peers: &dyn Peers,
    handle: Handle<InferenceRequest>,
    trace: Option<SentTrace>,
) -> Result<()> {
    let object = handle.get()?;
    let (name, version) = object.fields().model()?;
    let model = block_on(peers.resolve(&name, version))?;
    let (mut request, placement, release, complete, userp) = {
        let fields = object.fields();
        let no_complete = || Error::invalid_arg("the request has no response callback");
        let complete = fields.callbacks.complete.ok_or_else(no_complete)?;
        let userp = AtomicPtr::new(fields.callbacks.complete_userp.load(Ordering::Relaxed));
        let (request, placement, release) = fields.build(&*model, handle, object.cuda())?;
        (request, placement, release, complete, userp)
    };
    // Functions of the backend may be called from here on, its trace's first: hold no lock.
    let (trace, trace_handle) = match trace {
        Some(sent) => (Some(sent.trace), sent.handle),
        None => (None, None),
    };
    request.trace = trace;
    let stream = model.infer(InnerRequest::new(request)).inspect_err(|_| release.disarm())?;
    let canceller = Canceller { call: stream.canceller(), cancelled: Arc::default() };
    object.fields().canceller = Some(canceller);
    let (stream, wakes) = (Mutex::new(Some(stream)), AtomicUsize::new(0));
    let call = Arc::new(Call { stream, wakes, placement, complete, userp, _trace: trace_handle });
    drop(release);
    call.wake();
    Ok(())
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            // The polling thread checks once more.
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        loop {
            let seen = self.wakes.load(Ordering::Acquire);
            self.forward(&mut context);
            if self.wakes.fetch_sub(seen, Ordering::AcqRel) == seen {
                return;
            }
        }
    }
}

impl Call {
    /// Forwards the available answers. Called by one thread at a time.
    fn forward(&self, context: &mut Context<'_>) {
        let mut place = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut stream) = place.take() else { return };
        drop(place);
        loop {
            match stream.poll_next(context) {
                Poll::Pending => {
                    *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
                    return;
                }
                Poll::Ready(None) => return self.notify(ptr::null_mut(), true),
                Poll::Ready(Some(answer)) => {
                    // An end that the backend reports by itself is a call by itself, even if it is known already.
                    let last = stream.ended_with_answer();
                    self.notify(self.response(answer, &*stream), last);
                    if last {
                        return;
                    }
                }
            }
        }
    }

    fn response(&self, answer: Answer, stream: &dyn Answers) -> *mut TRITONSERVER_InferenceResponse {
        let created = InferenceResponse::new(answer, stream, &self.placement)
            .or_else(|error| InferenceResponse::new(Err(error), stream, &self.placement))
            .and_then(|response| Handle::give(Arc::new(response)));
        created.map_or_else(
            |error| {
                tracing::error!("lost a response to a backend: {error}");
                ptr::null_mut()
            },
            Handle::as_c,
        )
    }

    fn notify(&self, response: *mut TRITONSERVER_InferenceResponse, last: bool) {
        let flags = if last { TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 } else { 0 };
        // SAFETY: the function was registered for this call, with these arguments; the response is the callee's to delete.
        unsafe { (self.complete)(response, flags, self.userp.load(Ordering::Relaxed)) }
    }
}
