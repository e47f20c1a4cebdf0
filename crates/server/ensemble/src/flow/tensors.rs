//! The tensors of a request, row by row.

use nereid_backend_api::{DataType, Error, Result, Tensor};

use super::plan::{Filler, Flow};
use super::rows::{Rows, difference, dim, split, take};
use crate::wave::Value;

/// All tensors of a request.
pub(super) struct Tensors<'a> {
    flow: &'a Flow,
    /// Number of rows; 1 without a batch dimension.
    rows: usize,
    /// Whether there is a batch dimension.
    batches: bool,
    cells: Vec<Cell>,
}

struct Cell {
    /// Outputs of the steps that have ended.
    pieces: Vec<Piece>,
    /// Number of steps that write it and have not ended.
    writers_left: usize,
    /// The complete tensor.
    held: Option<Held>,
    /// Values by row, if the tensor is a condition. Read once, since other processes may write the memory.
    truths: Option<Vec<Option<bool>>>,
    /// Tensors whose value it is in some rows.
    waiters: Vec<usize>,
}

/// A complete tensor.
struct Held {
    /// The rows in which it exists.
    rows: Rows,
    value: Value,
}

/// A tensor in the rows in which one step ran.
pub(super) struct Piece {
    pub rows: Rows,
    pub source: Source,
}

pub(super) enum Source {
    Value(Value),
    Filler(Filler),
}

impl<'a> Tensors<'a> {
    /// Tensors of a request with this batch size; 0 without a batch dimension.
    pub(super) fn new(flow: &'a Flow, batch: usize) -> Self {
        let cell = |writers_left| Cell {
            pieces: Vec::new(),
            writers_left,
            held: None,
            truths: None,
            waiters: Vec::new(),
        };
        let cells = flow.tensors.iter().map(|tensor| cell(tensor.writers.len())).collect();
        Self { flow, rows: batch.max(1), batches: batch > 0, cells }
    }

    /// Number of rows; 1 without a batch dimension.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn batches(&self) -> bool {
        self.batches
    }

    /// Sets an input of the ensemble.
    pub(super) fn give(&mut self, tensor: usize, value: Value, completed: &mut Vec<usize>) -> Result<()> {
        self.cells[tensor].pieces.push(Piece { rows: Rows::All, source: Source::Value(value) });
        self.complete(tensor, completed)
    }

    /// A step that writes the tensor has ended; `None` if it was skipped. Adds tensors that are complete now.
    pub(super) fn write(
        &mut self,
        tensor: usize,
        piece: Option<Piece>,
        completed: &mut Vec<usize>,
    ) -> Result<()> {
        let cell = &mut self.cells[tensor];
        cell.pieces.extend(piece);
        cell.writers_left = cell.writers_left.saturating_sub(1);
        if cell.writers_left == 0 { self.complete(tensor, completed) } else { Ok(()) }
    }

    /// Completes a tensor whose steps have all ended, once the tensors exist that are its value elsewhere.
    fn complete(&mut self, tensor: usize, completed: &mut Vec<usize>) -> Result<()> {
        let pieces = &mut self.cells[tensor].pieces;
        let is_missing = |row: usize| pieces.iter().all(|piece| piece.rows.place(row).is_none());
        let missing = Rows::which(self.rows, is_missing);
        if let Some(filler) = &self.flow.tensors[tensor].if_skipped
            && missing.len(self.rows) > 0
        {
            pieces.push(Piece { rows: missing, source: Source::Filler(filler.clone()) });
        }
        let fillers = pieces.iter().filter_map(|piece| match piece.source {
            Source::Filler(Filler::Tensor(filler)) => Some(filler),
            _ => None,
        });
        let fillers: Vec<_> = fillers.collect();
        if let Some(&awaited) = fillers.iter().find(|&&filler| self.cells[filler].held.is_none()) {
            self.cells[awaited].waiters.push(tensor);
            return Ok(());
        }
        let pieces = std::mem::take(&mut self.cells[tensor].pieces);
        let pieces: Result<Vec<_>> = pieces.into_iter().map(|piece| self.value_of(piece)).collect();
        self.cells[tensor].held = Some(self.join(tensor, pieces?)?);
        completed.push(tensor);
        for waiter in std::mem::take(&mut self.cells[tensor].waiters) {
            self.complete(waiter, completed)?;
        }
        Ok(())
    }

    fn value_of(&self, Piece { rows, source }: Piece) -> Result<(Rows, Value)> {
        let value = match source {
            Source::Value(value) => value,
            Source::Filler(Filler::Tensor(tensor)) => self.of_rows(tensor, &rows)?,
            Source::Filler(Filler::Constant { data_type, mut shape, contents }) => {
                let batch = if self.batches { rows.len(self.rows) } else { 0 };
                if self.batches {
                    shape.push_front(dim(batch));
                }
                let buffers = std::iter::repeat_n(contents, batch.max(1)).collect();
                let tensor = Tensor { name: String::new(), data_type, shape, buffers };
                Value { tensor: Some(tensor), batch, sequence: None }
            }
        };
        Ok((rows, value))
    }

    /// Joins the rows of a tensor that several steps wrote.
    fn join(&self, tensor: usize, mut pieces: Vec<(Rows, Value)>) -> Result<Held> {
        if pieces.len() < 2 {
            let none = || (Rows::Some(Vec::new()), Value { tensor: None, batch: 0, sequence: None });
            let (rows, value) = pieces.pop().unwrap_or_else(none);
            return Ok(Held { rows, value });
        }
        let name = &self.flow.tensors[tensor].name;
        let sequence = pieces.iter().find_map(|(_, value)| value.sequence.clone());
        let mut parts = Vec::new();
        let mut first: Option<Tensor> = None;
        for (rows, value) in pieces {
            let Some(part) = value.tensor else {
                return Err(Error::invalid_arg(format!(
                    "tensor '{name}' was omitted from the response of one of the steps that write it"
                )));
            };
            let count = rows.len(self.rows);
            self.check_rows(name, &part, value.batch, count)?;
            if let Some(different) = first.as_ref().and_then(|first| difference(first, &part)) {
                return Err(Error::invalid_arg(format!(
                    "rows of tensor '{name}' from different steps have {different}"
                )));
            }
            let contents = split(&part, count)?;
            parts.extend(rows.iter(self.rows).zip(contents));
            first.get_or_insert(part);
        }
        parts.sort_by_key(|(row, _)| *row);
        let rows: Vec<_> = parts.iter().map(|(row, _)| *row).collect();
        let batch = rows.len();
        let joined = first.map(|mut joined| {
            if let Some(first) = joined.shape.first_mut() {
                *first = dim(batch);
            }
            joined.buffers = parts.into_iter().flat_map(|(_, buffers)| buffers).collect();
            joined
        });
        let rows = Rows::which(self.rows, |row| rows.binary_search(&row).is_ok());
        Ok(Held { rows, value: Value { tensor: joined, batch, sequence } })
    }

    fn check_rows(&self, name: &str, tensor: &Tensor, batch: usize, count: usize) -> Result<()> {
        // Models without a batch dimension may still have one row for each of the request.
        if tensor.shape.first() == Some(&dim(count)) && (batch > 0 || self.rows > 1) {
            return Ok(());
        }
        Err(Error::invalid_arg(format!(
            "tensor '{name}' of shape {} does not have {count} rows, so rows cannot be selected by a condition",
            tensor.shape
        )))
    }

    /// A complete tensor in some rows, in which it exists.
    pub(super) fn of_rows(&self, tensor: usize, rows: &Rows) -> Result<Value> {
        let name = &self.flow.tensors[tensor].name;
        let missing = || Error::internal(format!("tensor '{name}' is read where it does not exist"));
        let Held { rows: held, value } = self.cells[tensor].held.as_ref().ok_or_else(missing)?;
        let Value { tensor: Some(contents), batch, .. } = value else { return Ok(value.clone()) };
        if held == rows {
            return Ok(value.clone());
        }
        self.check_rows(name, contents, *batch, held.len(self.rows))?;
        let places: Option<Vec<_>> = rows.iter(self.rows).map(|row| held.place(row)).collect();
        let places = places.ok_or_else(missing)?;
        let batch = places.len();
        Ok(Value { tensor: Some(take(contents, &places)?), batch, sequence: value.sequence.clone() })
    }

    /// Whether all steps that write the tensor have ended.
    pub(super) fn is_complete(&self, tensor: usize) -> bool {
        self.cells[tensor].held.is_some()
    }

    /// Whether the tensor exists in all rows.
    pub(super) fn is_whole(&self, tensor: usize) -> bool {
        self.cells[tensor].held.as_ref().is_some_and(|held| held.rows == Rows::All)
    }

    /// The rows in which complete tensors are what conditions require.
    ///
    /// # Errors
    /// `InvalidArg` if a tensor does not have one BOOL for each row.
    pub(super) fn rows_where(&mut self, conditions: &[(usize, bool)]) -> Result<Rows> {
        for &(tensor, _) in conditions {
            if self.cells[tensor].truths.is_none() {
                self.cells[tensor].truths = Some(self.truths(tensor)?);
            }
        }
        let holds = |row: usize| {
            let is = |tensor: usize| self.cells[tensor].truths.as_ref()?.get(row).copied().flatten();
            conditions.iter().all(|&(tensor, required)| is(tensor) == Some(required))
        };
        Ok(Rows::which(self.rows, holds))
    }

    /// The values of a tensor by row; `None` where it does not exist.
    fn truths(&self, tensor: usize) -> Result<Vec<Option<bool>>> {
        let name = &self.flow.tensors[tensor].name;
        let mut truths = vec![None; self.rows];
        let Some(Held { rows, value }) = &self.cells[tensor].held else { return Ok(truths) };
        let count = rows.len(self.rows);
        if count == 0 {
            return Ok(truths);
        }
        let omitted =
            || Error::invalid_arg(format!("condition '{name}' was omitted from a model's response"));
        let contents = value.tensor.as_ref().ok_or_else(omitted)?;
        let values = contents.contiguous()?;
        if contents.data_type != DataType::Bool || ![1, count].contains(&values.len()) {
            let rows =
                if self.batches { format!(", or one for each of {count} rows") } else { String::new() };
            return Err(Error::invalid_arg(format!(
                "condition '{name}' is {} of shape {}, expected one BOOL{rows}",
                contents.data_type, contents.shape
            )));
        }
        for (place, row) in rows.iter(self.rows).enumerate() {
            let value = values.get(place).or(values.first());
            truths[row] = value.map(|value| *value != 0);
        }
        Ok(truths)
    }
}
