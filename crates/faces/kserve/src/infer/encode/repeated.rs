//! Kept JSON parts of answers: with binary tensors of the same shapes, a model's answers have the same JSON part, except the
//! request's id.
//!
//! Each thread keeps some of the latest, by the model's name, with what they were made from. A model whose answers differ each time
//! is tried less and less often.

use std::cell::RefCell;

use nereid_core::ResponseStream;
use nereid_core::backend_api::{DataType, ParameterValue, Parameters, Response, Shape, Tensor};

use super::{Form, Format};
use crate::infer::places::place_of;

/// How many are kept. Each has one place, by the model's name.
const PLACES: usize = 64;

/// The longest JSON part that is kept, in bytes.
const LONGEST: usize = 1024;

/// After this many different answers in a row, only one in this many is kept.
const PATIENCE: u8 = 16;

thread_local! {
    static KEPT: RefCell<[Place; PLACES]> = const { RefCell::new([const { Place { answer: None, misses: 0 } }; PLACES]) };
}

struct Place {
    answer: Option<Answer>,
    /// How many answers in a row differed from the kept one, at most `2 * PATIENCE`.
    misses: u8,
}

impl Place {
    /// Counts an answer that differs, and returns whether to keep it.
    fn misses_again(&mut self) -> bool {
        self.misses += 1;
        if self.misses == 2 * PATIENCE {
            self.misses = PATIENCE;
            return true;
        }
        self.misses <= PATIENCE
    }
}

/// A JSON part, and what it was made from.
struct Answer {
    model: String,
    version: u64,
    parameters: Parameters,
    outputs: Vec<Output>,
    json: Vec<u8>,
}

struct Output {
    name: String,
    data_type: DataType,
    shape: Shape,
    form: Form,
    size: usize,
}

impl Answer {
    fn is_of(&self, answers: &ResponseStream, response: &Response, format: &Format) -> bool {
        self.version == answers.model_version()
            && self.model == answers.model_name()
            && self.outputs.len() == response.outputs.len()
            && self.outputs.iter().zip(&response.outputs).all(|(known, output)| known.is_of(output, format))
            && self.parameters == response.parameters
    }
}

impl Output {
    /// `None` if the JSON part has the values.
    fn of(output: &Tensor, format: &Format) -> Option<Self> {
        let form = format.of(&output.name);
        (form != Form::Json).then(|| Self {
            name: output.name.clone(),
            data_type: output.data_type,
            shape: output.shape.clone(),
            form,
            size: output.byte_size(),
        })
    }

    fn is_of(&self, output: &Tensor, format: &Format) -> bool {
        self.name == output.name
            && self.data_type == output.data_type
            && self.size == output.byte_size()
            && self.shape == output.shape
            && self.form == format.of(&output.name)
    }
}

/// Whether an answer's JSON part was kept.
pub(super) enum Lookup {
    /// The kept JSON part is appended.
    Found,
    /// The caller writes the JSON part, and may [keep] it.
    Missing { is_worth_keeping: bool },
}

/// Appends the kept JSON part of an equal answer.
pub(super) fn append(
    json: &mut Vec<u8>,
    answers: &ResponseStream,
    response: &Response,
    format: &Format,
) -> Lookup {
    if response.outputs.iter().any(|output| format.of(&output.name) == Form::Json) {
        return Lookup::Missing { is_worth_keeping: false };
    }
    KEPT.with_borrow_mut(|kept| {
        let Some(place) = kept.get_mut(place_of(answers.model_name().as_bytes(), PLACES)) else {
            return Lookup::Missing { is_worth_keeping: false };
        };
        match &place.answer {
            Some(answer) if answer.is_of(answers, response, format) => {
                place.misses = 0;
                json.extend_from_slice(&answer.json);
                Lookup::Found
            }
            _ => Lookup::Missing { is_worth_keeping: place.misses_again() },
        }
    })
}

/// Keeps the JSON part of an answer.
pub(super) fn keep(json: &[u8], answers: &ResponseStream, response: &Response, format: &Format) {
    let outputs = response.outputs.iter().map(|output| Output::of(output, format)).collect();
    let Some(outputs) = outputs else { return };
    // Two zeroes are equal and are written differently.
    let is_zero = |value: &ParameterValue| matches!(value, ParameterValue::Double(0.0));
    if json.len() > LONGEST || response.parameters.iter().any(|(_, value)| is_zero(value)) {
        return;
    }
    let answer = Answer {
        model: answers.model_name().to_owned(),
        version: answers.model_version(),
        parameters: response.parameters.clone(),
        outputs,
        json: json.to_owned(),
    };
    KEPT.with_borrow_mut(|kept| {
        if let Some(place) = kept.get_mut(place_of(answer.model.as_bytes(), PLACES)) {
            place.answer = Some(answer);
        }
    });
}

#[cfg(test)]
mod tests;
