//! The trait that an engine implements: gather an input, run the graph, read an output.
//!
//! An engine sees one run at a time. How requests become a run, and a run's outputs become responses, is the
//! [`Executor`](crate::Executor)'s work.

use nereid_backend_api::{OutputBuffer, Result, Shape, Tensor};

use crate::contents::Contents;
use crate::signature::Port;

/// An input of one run.
#[derive(Debug)]
pub struct RunInput<T> {
    /// The shape, which the port accepts.
    pub shape: Shape,
    /// The contents, which fit the shape.
    pub value: T,
}

/// Memory that the client chose for an output: a shared-memory region, for example.
pub struct Target {
    /// The shape that the output will have according to the model.
    pub shape: Shape,
    /// Host memory of exactly that shape's size.
    pub memory: OutputBuffer,
}

/// Runs a graph: one instance's session of a framework.
///
/// For each run the executor calls [`gather`](Self::gather) for each input, then [`run`](Self::run) once, then
/// [`read`](Self::read) for each output that a request wants. All calls come from the instance's thread, and requests
/// of one batch whose inputs do not fit together become several runs. An error fails the requests of its run and no
/// others; the engine must be ready for the next run.
pub trait Engine: Send {
    /// Whether [`run`](Self::run) can write outputs to the memory that clients chose. If not, it gets no targets.
    const WRITES_TARGETS: bool = false;
    /// Whether the graph may read an output that it has written to a target, as where a further operator takes it. Then
    /// targets are memory that no other process can write.
    const READS_TARGETS: bool = true;

    /// The contents of an input in the engine's form.
    type Value;
    /// An output in the engine's form.
    type Raw;

    /// Checks a request's tensor against the engine's own rules, before the request joins a run. The tensor's type is
    /// already known to be the port's, and its contents to fit its shape.
    ///
    /// # Errors
    /// `InvalidArg`, which fails that request alone.
    fn check(&self, port: &Port, tensor: &Tensor) -> Result<()>;

    /// Joins the contents of `parts`, one behind the other, to an input of `shape`. Each part belongs to a request and
    /// passed [`check`](Self::check), or was made for the batch. A single part need not be copied.
    ///
    /// # Errors
    /// Fails all requests of the run.
    fn gather(&self, port: &Port, shape: &Shape, parts: &[&Tensor]) -> Result<Self::Value>;

    /// Runs the graph. `inputs` are in the order of [`GraphModel::inputs`](crate::GraphModel::inputs), with `None` for an
    /// optional one that is left out. The outputs are returned in the order of
    /// [`GraphModel::outputs`](crate::GraphModel::outputs), with `None` for one that was written to its target.
    ///
    /// `targets` is empty or has one entry for each output. The engine may leave any of them unused.
    ///
    /// # Errors
    /// Fails all requests of the run.
    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<Self::Value>>>,
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<Self::Raw>>>;

    /// The shape and contents of an output.
    ///
    /// # Errors
    /// Fails all requests of the run.
    fn read(&self, port: &Port, output: Self::Raw) -> Result<(Shape, Contents)>;
}
