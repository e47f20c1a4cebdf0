//! One optimised plan for each distinct set of input shapes and of decided conditions, in a cache of bounded size.
//!
//! The instances of a model share the cache. A plan is built outside the cache's lock, so an instance whose plan is
//! cached continues while another waits for its own. Each plan holds weights in the layout of its kernels, so the cache
//! needs a bound.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lru::LruCache;
use nereid_backend_api::{Error, Result, Shape};
use smallvec::SmallVec;
use tract_onnx::prelude::{DatumType, TValue, TVec};
use tract_onnx::tract_core::internal::{TypedSimpleState, anyhow};
use tract_onnx::tract_core::plan;

use crate::bounded::Bounded;
use crate::convert;
use crate::graph::{Graph, OptimisedGraph};
use crate::guard::guarded;
use crate::limits::Limits;

/// The shapes of a graph's inputs, in the file's order.
pub(crate) type Shapes = SmallVec<[Shape; 2]>;

/// The shapes and conditions that a plan is built for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Case {
    pub(crate) shapes: Shapes,
    /// The conditions that earlier plans computed.
    pub(crate) computed: SmallVec<[bool; 8]>,
}

impl From<Shapes> for Case {
    fn from(shapes: Shapes) -> Self {
        Self { shapes, computed: SmallVec::new() }
    }
}

/// Builds plans and caches the most recently used.
pub(crate) struct Plans {
    graph: Arc<Graph>,
    limits: Limits,
    bounded: Bounded,
    inputs: Vec<(String, DatumType)>,
    kept: Mutex<LruCache<Case, Arc<Plan>>>,
    /// Held while a plan is built: instances that want the same one build it once, and a burst of new shapes does not
    /// take all processors.
    building: Mutex<()>,
}

/// The graph, or what computes its conditions, optimised for a case.
pub(crate) struct Plan {
    optimised: OptimisedGraph,
    limits: Limits,
    /// Idle execution states; never more than there are instances.
    idle: Mutex<Vec<TypedSimpleState>>,
}

impl Plans {
    /// Plans of `graph`, whose inputs have these names and types; at most `size` of them are kept.
    pub(crate) fn new(
        graph: Graph,
        inputs: Vec<(String, DatumType)>,
        size: NonZeroUsize,
        limits: Limits,
        bounded: Bounded,
    ) -> Self {
        let kept = Mutex::new(LruCache::new(size));
        Self { graph: Arc::new(graph), limits, bounded, inputs, kept, building: Mutex::new(()) }
    }

    /// The plan for a case, built if it is not cached.
    pub(crate) fn get(&self, case: &Case) -> Result<Arc<Plan>> {
        if let Some(plan) = self.kept(case) {
            return Ok(plan);
        }
        let _building = lock(&self.building);
        if let Some(plan) = self.kept(case) {
            return Ok(plan);
        }
        let plan = Arc::new(self.build(case)?);
        lock(&self.kept).put(case.clone(), Arc::clone(&plan));
        Ok(plan)
    }

    /// Whether the whole graph's plan for a case is cached.
    pub(crate) fn has(&self, case: &Case) -> bool {
        lock(&self.kept).peek(case).is_some_and(|plan| !plan.decides())
    }

    fn kept(&self, case: &Case) -> Option<Arc<Plan>> {
        lock(&self.kept).get(case).cloned()
    }

    /// # Errors
    /// `InvalidArg` for shapes that the graph cannot run with: a plan depends on nothing else that a client sends but conditions.
    fn build(&self, case: &Case) -> Result<Plan> {
        let Case { shapes, computed } = case;
        let names = || self.inputs.iter().map(|(name, _)| name.as_str());
        self.graph.symbols.check(names(), shapes)?;
        let types = self.inputs.iter().map(|(_, datum_type)| *datum_type);
        let inputs: Vec<_> = types.zip(shapes.iter().cloned()).collect();
        let (graph, memory, computed) = (Arc::clone(&self.graph), self.limits.memory, computed.clone());
        let work = move || guarded(|| graph.optimise(&inputs, &computed, memory));
        let optimised = self.bounded.run(self.limits.planning, work).map_err(|why| {
            let inputs: Vec<_> = names().zip(shapes).map(|(name, shape)| format!("{name} {shape}")).collect();
            Error::invalid_arg(format!(
                "the embedded engine cannot run it on inputs {}: {why}",
                inputs.join(", ")
            ))
        })?;
        Ok(Plan { optimised, limits: self.limits, idle: Mutex::default() })
    }
}

impl Plan {
    /// Whether its outputs are conditions, and another plan follows.
    pub(crate) fn decides(&self) -> bool {
        !self.optimised.conditions.is_empty()
    }

    /// The values of its conditions.
    pub(crate) fn decide(&self, inputs: TVec<TValue>) -> Result<SmallVec<[bool; 8]>> {
        let values = self.run(inputs)?;
        let named = self.optimised.conditions.iter().zip(&values);
        named
            .map(|(name, value)| match value.try_as_plain_ram().and_then(|value| value.as_slice::<bool>()) {
                Ok(&[value]) => Ok(value),
                _ => Err(Error::invalid_arg(format!(
                    "the condition '{name}' is {:?} {} instead of one truth value",
                    value.datum_type(),
                    convert::shape_of(value)
                ))),
            })
            .collect()
    }

    /// Runs it. The inputs have the types and shapes that the plan was built for.
    pub(crate) fn run(&self, inputs: TVec<TValue>) -> Result<TVec<TValue>> {
        let idle = lock(&self.idle).pop();
        let OptimisedGraph { runnable, checks, .. } = &self.optimised;
        let limit = self.limits.execution;
        let start = Instant::now();
        let outcome = guarded(|| {
            let mut state = idle.map_or_else(|| runnable.spawn(), Ok)?;
            let outputs = state.run_plan_with_eval(inputs, |context, op_state, node, inputs| {
                if start.elapsed() >= limit {
                    return Err(anyhow!("it ran for {} s, which is its limit", limit.as_secs_f32()));
                }
                checks.eval(node.id, inputs, |inputs| plan::eval(context, op_state, node, inputs))
            })?;
            Ok((outputs, state))
        });
        let (outputs, state) =
            outcome.map_err(|why| Error::internal(format!("the embedded engine failed: {why}")))?;
        // Recurrent operators carry their last state over into the next run: one client's data into another's answer.
        if state.op_states.iter().all(Option::is_none) {
            lock(&self.idle).push(state);
        }
        Ok(outputs)
    }
}

/// Nothing panics under these locks, and what they guard is always consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
