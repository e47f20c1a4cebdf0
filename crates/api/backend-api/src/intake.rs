//! The queue of a model as an instance with continuous batching sees it.
//!
//! Such an instance takes requests one at a time, while others that it took before are still executing. It takes no more
//! than it can hold. Everything else stays in the queue, where priorities, timeouts, cancellation and limits apply.

use std::fmt;
use std::task::Waker;

use crate::{Batch, Request};

/// The queue of a model, for one of its instances.
///
/// ```
/// # use nereid_backend_api::{Batch, Intake, Next};
/// # struct Engine { active: Vec<Batch>, slots: usize }
/// # impl Engine { fn step(&mut self) { self.active.clear() } }
/// fn run(engine: &mut Engine, mut intake: Intake) {
///     loop {
///         match intake.try_next(|_| engine.active.len() < engine.slots) {
///             Next::Request(batch) => engine.active.push(batch),
///             Next::Ended if engine.active.is_empty() => return,
///             _ if engine.active.is_empty() => intake.wait(),
///             _ => engine.step(),
///         }
///     }
/// }
/// ```
pub struct Intake(Box<dyn IntakeSource>);

impl Intake {
    /// An intake that takes requests from `source`. For the server.
    pub fn new(source: impl IntakeSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// Takes the next request, if there is one and it `fits` what the instance has left: slots, tokens, memory. Does not block.
    ///
    /// A request that does not fit keeps its place, and holds back those behind it. An instance that holds no request is not
    /// consulted: it gets the next request in any case, and has to refuse one that it can never execute.
    ///
    /// The request counts as executing until it is dropped. It comes as a batch of its own, which reports its phases and its
    /// execution like any other.
    ///
    /// `fits` is called with the queue locked: it must be quick and must not call the server.
    pub fn try_next(&mut self, mut fits: impl FnMut(&Request) -> bool) -> Next {
        self.0.try_next(&mut fits)
    }

    /// Waits until [`try_next`](Self::try_next) may have a request, the queue ends, or the [waker](Self::waker) is woken. May
    /// return early.
    ///
    /// While the instance holds requests, after [`Next::Full`] or [`Next::Ended`], only the waker ends the wait, or the end of
    /// a request on another thread: the instance alone knows when it has room again.
    pub fn wait(&mut self) {
        self.0.wait();
    }

    /// Ends the current or the next [`wait`](Self::wait): for events of the instance's own, such as a device that has finished.
    pub fn waker(&self) -> Waker {
        self.0.waker()
    }
}

impl fmt::Debug for Intake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake").finish_non_exhaustive()
    }
}

/// The outcome of [`Intake::try_next`].
pub enum Next {
    /// A batch of one request, which now belongs to the instance.
    Request(Batch),
    /// The next request does not fit, or other models' instances are served first.
    Full,
    /// No request may leave the queue.
    Nothing,
    /// The model is being unloaded, and no request is left in the queue. The instance finishes the requests that it holds and
    /// returns.
    Ended,
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(batch) => f.debug_tuple("Request").field(&batch.requests()).finish(),
            Self::Full => f.write_str("Full"),
            Self::Nothing => f.write_str("Nothing"),
            Self::Ended => f.write_str("Ended"),
        }
    }
}

/// The server's side of an [`Intake`].
pub trait IntakeSource: Send {
    /// See [`Intake::try_next`].
    fn try_next(&mut self, fits: &mut dyn FnMut(&Request) -> bool) -> Next;

    /// See [`Intake::wait`].
    fn wait(&mut self);

    /// See [`Intake::waker`].
    fn waker(&self) -> Waker;
}
