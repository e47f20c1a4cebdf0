//! Runs the plan for the shapes of a batch's inputs, after those that decide the graph's conditions.
//!
//! Knows nothing of how requests make a batch.

use std::sync::Arc;

use nereid_backend_api::{Request, Result, Shape, Tensor};
use nereid_graph_executor::{Contents, Engine, GraphModel, Port, RunInput, Target};
use tract_onnx::prelude::{TValue, TVec};

use crate::convert;
use crate::plans::{Case, Plans, Shapes};

/// The engine, as an instance uses it.
#[derive(Clone)]
pub(crate) struct TractEngine {
    pub(crate) plans: Arc<Plans>,
    /// The file's value for each input that a request may leave out, in the graph's order.
    pub(crate) defaults: Arc<[Option<TValue>]>,
}

impl TractEngine {
    /// Whether a plan for the request is cached. The answer does not matter for an invalid request.
    pub(crate) fn has_plan(&self, model: &GraphModel, request: &Request) -> bool {
        let Ok(shapes) = model.input_shapes(request) else { return false };
        let shape = |(shape, default): (Option<Shape>, &Option<TValue>)| {
            shape.or_else(|| default.as_ref().map(convert::shape_of))
        };
        let shapes = shapes.into_iter().zip(self.defaults.iter()).map(shape);
        shapes.collect::<Option<Shapes>>().is_some_and(|shapes| self.plans.has(&shapes.into()))
    }
}

impl Engine for TractEngine {
    type Value = TValue;
    type Raw = TValue;

    fn check(&self, port: &Port, tensor: &Tensor) -> Result<()> {
        convert::check(port, tensor)
    }

    fn gather(&self, port: &Port, shape: &Shape, parts: &[&Tensor]) -> Result<TValue> {
        convert::gather(port, shape, parts)
    }

    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<TValue>>>,
        _: &mut [Option<Target>],
    ) -> Result<Vec<Option<TValue>>> {
        let (mut shapes, mut values) = (Shapes::new(), TVec::new());
        for (input, default) in inputs.into_iter().zip(self.defaults.iter()) {
            match (input, default) {
                (Some(RunInput { shape, value }), _) => {
                    shapes.push(shape);
                    values.push(value);
                }
                (None, Some(value)) => {
                    shapes.push(convert::shape_of(value));
                    values.push(value.clone());
                }
                // Only an input with a default may be left out; a plan for fewer inputs is refused when it is built.
                (None, None) => {}
            }
        }
        let mut case = Case::from(shapes);
        let mut plan = self.plans.get(&case)?;
        while plan.decides() {
            case.computed.extend(plan.decide(values.clone())?);
            plan = self.plans.get(&case)?;
        }
        Ok(plan.run(values)?.into_iter().map(Some).collect())
    }

    fn read(&self, port: &Port, output: TValue) -> Result<(Shape, Contents)> {
        let shape = convert::shape_of(&output);
        Ok((shape, convert::contents(port, output)?))
    }
}
