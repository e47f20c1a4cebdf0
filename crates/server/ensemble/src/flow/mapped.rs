//! Mapped steps: one request for each element of a tensor, whose answers are gathered in order.

use nereid_backend_api::{Buffers, DataType, Error, Response, Result, Shape, Tensor};
use nereid_core::Signature;

use super::rows::{difference, dim, split, take};
use crate::plan::PlannedStep;
use crate::wave::Value;

/// The inputs of a mapped step.
pub(super) struct Mapped {
    /// Number of rows; `None` without a batch dimension.
    rows: Option<usize>,
    /// Number of elements in each row.
    per_row: usize,
    inputs: Vec<Input>,
}

enum Input {
    /// One element for each request.
    Each { name: String, data_type: DataType, shape: Shape, parts: Vec<Buffers> },
    /// One tensor for each row, shared by the row's elements.
    Whole(Vec<Tensor>),
}

/// An input before it is split.
pub(super) struct Unsplit<'a> {
    pub name: &'a str,
    /// Dimensions in the model.
    pub dims: &'a [i64],
    pub value: Value,
    pub each: bool,
}

impl Mapped {
    /// Splits the inputs of a step with these rows. `member_batches`: whether requests to the model have a batch dimension.
    ///
    /// # Errors
    /// `InvalidArg` if tensors have no elements, different numbers of them, or more than `most`.
    pub(super) fn new(
        inputs: Vec<Unsplit<'_>>,
        rows: Option<usize>,
        member_batches: bool,
        most: usize,
    ) -> Result<Self> {
        let mut mapped = Self { rows, per_row: 0, inputs: Vec::new() };
        let mut counted: Option<(&str, usize)> = None;
        for Unsplit { name, dims, value, each } in inputs {
            if !each {
                mapped.inputs.extend(mapped.whole(name, dims, value, member_batches)?);
                continue;
            }
            let full: Vec<_> = std::iter::once(-1).chain(dims.iter().copied()).collect();
            let tensor = value.shaped_for(&full, rows.is_some()).tensor;
            let omitted =
                || Error::invalid_arg(format!("the tensor of input '{name}' was omitted, but is mapped"));
            let tensor = tensor.ok_or_else(omitted)?;
            let outer = if rows.is_some() { 2 } else { 1 };
            let (Some(&per_row), true) = (
                tensor.shape.get(outer - 1),
                rows.is_none_or(|rows| tensor.shape.first() == Some(&dim(rows))),
            ) else {
                return Err(Error::invalid_arg(format!(
                    "the tensor of input '{name}' of shape {} has no dimension for its elements",
                    tensor.shape
                )));
            };
            let per_row = usize::try_from(per_row).unwrap_or(0);
            // Checked before anything is split: elements without contents take no bytes of the request.
            let count = per_row.saturating_mul(rows.unwrap_or(1));
            if count > most {
                return Err(Error::invalid_arg(format!(
                    "input '{name}' has {count} elements, but at most {most} are allowed (parameter '$each_max_elements')"
                )));
            }
            match counted {
                Some((other, count)) if count != per_row => {
                    return Err(Error::invalid_arg(format!(
                        "the tensors of the inputs '{other}' and '{name}' have different numbers of elements, {count} and \
                         {per_row}"
                    )));
                }
                _ => counted = Some((name, per_row)),
            }
            let mut shape = Shape::from(tensor.shape.get(outer..).unwrap_or_default());
            if shape.is_empty() && dims == [1] {
                shape.push(1);
            }
            if member_batches {
                shape.push_front(1);
            }
            let parts = split(&tensor, count)?;
            let data_type = tensor.data_type;
            mapped.inputs.push(Input::Each { name: name.to_owned(), data_type, shape, parts });
            mapped.per_row = per_row;
        }
        Ok(mapped)
    }

    /// An input that all elements of a row share; `None` if it was omitted.
    fn whole(&self, name: &str, dims: &[i64], value: Value, member_batches: bool) -> Result<Option<Input>> {
        let Some(rows) = self.rows else {
            let tensor = value.shaped_for(dims, member_batches).tensor;
            return Ok(tensor.map(|tensor| Input::Whole(vec![Tensor { name: name.to_owned(), ..tensor }])));
        };
        let Value { tensor: Some(tensor), batch, sequence } = value else { return Ok(None) };
        let one = |row: usize| {
            let has_rows = batch > 0 && tensor.shape.first() == Some(&dim(rows));
            let tensor = if has_rows { take(&tensor, &[row])? } else { tensor.clone() };
            let value = Value { tensor: Some(tensor), batch: batch.min(1), sequence: sequence.clone() };
            let tensor = value.shaped_for(dims, member_batches).tensor;
            Ok(tensor.map(|tensor| Tensor { name: name.to_owned(), ..tensor }))
        };
        let by_row: Result<Vec<_>> = (0..rows).filter_map(|row| one(row).transpose()).collect();
        Ok(Some(Input::Whole(by_row?)))
    }

    /// Number of elements.
    pub(super) fn count(&self) -> usize {
        self.per_row * self.rows.unwrap_or(1)
    }

    /// The inputs of one element's request. The contents of elements are taken out.
    pub(super) fn inputs_of(&mut self, element: usize) -> Vec<Tensor> {
        let row = element.checked_div(self.per_row).unwrap_or(0);
        let inputs = self.inputs.iter_mut().filter_map(|input| match input {
            Input::Each { name, data_type, shape, parts } => {
                let buffers = std::mem::take(parts.get_mut(element)?);
                Some(Tensor { name: name.clone(), data_type: *data_type, shape: shape.clone(), buffers })
            }
            Input::Whole(by_row) => by_row.get(row).cloned(),
        });
        inputs.collect()
    }

    /// Gathers the answers for all elements: the outputs of the step, in the order of its plan.
    ///
    /// # Errors
    /// `InvalidArg` if the outputs of different elements do not fit into one tensor.
    pub(super) fn gather(
        &self,
        step: &PlannedStep,
        signature: &Signature,
        answers: Vec<Response>,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut outputs: Vec<_> = answers.into_iter().map(|answer| answer.outputs).collect();
        let of_output = |(name, _): &(String, usize)| {
            let mut gathered: Option<Tensor> = None;
            let (mut buffers, mut omitted) = (Buffers::new(), 0);
            for (element, outputs) in outputs.iter_mut().enumerate() {
                let Some(place) = outputs.iter().position(|output| output.name == *name) else {
                    omitted += 1;
                    continue;
                };
                let mut output = outputs.swap_remove(place);
                if signature.max_batch_size == 0 {
                    output.shape.push_front(1);
                } else if output.shape.first() != Some(&1) {
                    return Err(Error::invalid_arg(format!(
                        "output '{name}' of shape {} does not have one row for element {element}",
                        output.shape
                    )));
                }
                if let Some(different) = gathered.as_ref().and_then(|first| difference(first, &output)) {
                    return Err(Error::invalid_arg(format!(
                        "output '{name}' has {different} for elements 0 and {element}, which cannot be gathered in one \
                         tensor; let the model pad it"
                    )));
                }
                buffers.append(&mut output.buffers);
                gathered.get_or_insert(output);
            }
            if gathered.is_some() && omitted > 0 {
                return Err(Error::invalid_arg(format!(
                    "output '{name}' was omitted for {omitted} elements"
                )));
            }
            let gathered = match gathered {
                None if self.count() == 0 => signature.output(name).map(|output| {
                    let dims = output.dims.iter().map(|&dim| dim.max(0));
                    let shape: Shape = std::iter::once(0).chain(dims).collect();
                    Tensor::new(name.clone(), output.data_type, shape, Vec::new())
                }),
                gathered => gathered,
            };
            Ok(gathered.map(|mut tensor| {
                if let Some(first) = tensor.shape.first_mut() {
                    *first = dim(self.per_row);
                }
                if let Some(rows) = self.rows {
                    tensor.shape.push_front(dim(rows));
                }
                tensor.buffers = buffers;
                tensor
            }))
        };
        step.outputs.iter().map(of_output).collect()
    }
}
