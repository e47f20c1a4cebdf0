//! The requests of one step: one, or one for each element that it is mapped over.

use nereid_backend_api::{Error, InferRequest, PolicyContents, Response, Result, Tensor};
use nereid_core::Model;

use super::mapped::{Mapped, Unsplit};
use super::plan::Flow;
use super::rows::Rows;
use super::tensors::Tensors;
use crate::graph::Shared;
use crate::request;
use crate::wave::{Sequence, Value};

/// The requests of a step that runs.
pub(super) struct Requests {
    step: usize,
    inputs: Inputs,
    policy_contents: Vec<PolicyContents>,
    sequence: Sequence,
    /// Batch size of the step's outputs; 0 without a batch dimension.
    batch: usize,
}

enum Inputs {
    One(Vec<Tensor>),
    Mapped(Mapped),
}

impl Requests {
    /// The requests of a step with these rows, whose tensors are complete.
    ///
    /// # Errors
    /// The tensors do not fit the step.
    pub(super) fn new(
        (shared, flow): (&Shared, &Flow),
        tensors: &Tensors<'_>,
        template: &InferRequest,
        (step, rows): (usize, &Rows),
        member: &Model,
    ) -> Result<Self> {
        let (plan, of_flow) = (&shared.plan.steps[step], &flow.steps[step]);
        let signature = member.signature();
        let member_batches = signature.max_batch_size > 0;
        if *rows != Rows::All && !member_batches {
            return Err(Error::invalid_arg(format!(
                "a condition of step {step} differs between the rows of the request, but model '{}' has no batch \
                 dimension (max_batch_size); send the rows one by one",
                member.name()
            )));
        }
        let count = rows.len(tensors.rows());
        let mut sequence = None;
        let mut inputs = Vec::with_capacity(plan.inputs.len());
        for ((name, tensor), &each) in plan.inputs.iter().zip(&of_flow.each) {
            let mut value = tensors.of_rows(*tensor, rows)?;
            request::join_sequences(&mut sequence, value.sequence.take(), member.name(), &shared.plan.name);
            let dims = signature.input(name).map_or(&[][..], |input| &input.dims[..]);
            inputs.push(Unsplit { name, dims, value, each });
        }
        let sequence = sequence.unwrap_or_else(|| Sequence::of(template));
        let is_mapped = of_flow.each.contains(&true);
        let (inputs, batch) = if is_mapped {
            let row_count = tensors.batches().then_some(count);
            let mapped = Mapped::new(inputs, row_count, member_batches, flow.max_elements);
            let mapped = mapped.map_err(|error| error.context(format_args!("step {step}")))?;
            (Inputs::Mapped(mapped), row_count.unwrap_or(0))
        } else {
            let inputs = inputs.into_iter().filter_map(|Unsplit { name, dims, value, .. }| {
                let tensor = value.shaped_for(dims, member_batches).tensor?;
                Some(Tensor { name: name.to_owned(), ..tensor })
            });
            let inputs: Vec<_> = inputs.collect();
            let first = inputs.first().and_then(|input| input.shape.first());
            let batch = match first {
                _ if !member_batches => 0,
                Some(&size) => usize::try_from(size).unwrap_or(0),
                None => 1,
            };
            (Inputs::One(inputs), batch)
        };
        // Contents for host policies cover all rows and elements.
        let policy_contents = match &inputs {
            Inputs::One(_) if *rows == Rows::All => request::policy_contents(template, &shared.plan, plan),
            _ => Vec::new(),
        };
        Ok(Self { step, inputs, policy_contents, sequence, batch })
    }

    /// Number of requests.
    pub(super) fn count(&self) -> usize {
        match &self.inputs {
            Inputs::One(_) => 1,
            Inputs::Mapped(mapped) => mapped.count(),
        }
    }

    /// Makes a request. Each is made once.
    pub(super) fn make(&mut self, element: usize, shared: &Shared, template: &InferRequest) -> InferRequest {
        let inputs = match &mut self.inputs {
            Inputs::One(inputs) => std::mem::take(inputs),
            Inputs::Mapped(mapped) => mapped.inputs_of(element),
        };
        let policy_contents = std::mem::take(&mut self.policy_contents);
        let step = &shared.plan.steps[self.step];
        request::to_member(template, step, inputs, &self.sequence, policy_contents)
    }

    /// The values of the step's outputs, in the order of its plan.
    ///
    /// # Errors
    /// The answers do not fit together.
    pub(super) fn outputs(
        &self,
        shared: &Shared,
        member: &Model,
        mut answers: Vec<Response>,
    ) -> Result<Vec<Value>> {
        let step = &shared.plan.steps[self.step];
        let (tensors, sequence) = match &self.inputs {
            Inputs::Mapped(mapped) => {
                (mapped.gather(step, member.signature(), answers)?, self.sequence.clone())
            }
            Inputs::One(_) => {
                let mut answer = answers.pop().unwrap_or_default();
                let sequence = self.sequence.after_response(&answer.parameters)?;
                let tensors = step.outputs.iter().map(|(name, _)| {
                    let place = answer.outputs.iter().position(|output| output.name == *name);
                    place.map(|place| answer.outputs.swap_remove(place))
                });
                (tensors.collect(), sequence)
            }
        };
        let value = |tensor| Value { tensor, batch: self.batch, sequence: Some(sequence.clone()) };
        Ok(tensors.into_iter().map(value).collect())
    }
}
