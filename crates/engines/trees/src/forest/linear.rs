//! Leaves that are linear functions of the features.

use super::Span;
use super::run::Sum;
use crate::ensemble::Linear;
use crate::error::FormatError;
use crate::number::Number;

/// The functions of all leaves.
#[derive(Debug, Default)]
pub(super) struct Functions {
    functions: Vec<Function>,
    /// The terms of all functions: features and coefficients.
    terms: Vec<(u32, f64)>,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    constant: f64,
    terms: Span,
    otherwise: Option<f64>,
}

impl Functions {
    /// Adds a function, and returns its number.
    pub(super) fn add(&mut self, linear: &Linear, features: usize) -> Result<u32, FormatError> {
        let number = u32::try_from(self.functions.len())
            .map_err(|_| FormatError::new("the model has more leaves than can be served"))?;
        let start = self.terms.len();
        for &(feature, coefficient) in &linear.terms {
            if feature >= features {
                return Err(FormatError::new(format!("a leaf depends on feature {feature} of {features}")));
            }
            self.terms.push((feature as u32, coefficient));
        }
        let terms = Span { start, len: linear.terms.len() };
        self.functions.push(Function { constant: linear.constant, terms, otherwise: linear.otherwise });
        Ok(number)
    }

    pub(super) fn need_features(&self) -> bool {
        self.functions.iter().any(|function| function.otherwise.is_some())
    }

    pub(super) fn terms_in_all(&self) -> usize {
        self.terms.len()
    }

    pub(super) fn constant(&self, number: u32) -> f64 {
        self.functions[number as usize].constant
    }

    /// The terms of a function for the features that a row has.
    pub(super) fn terms<N: Number>(&self, number: u32, row: &[N]) -> impl Iterator<Item = (usize, f64)> {
        let Span { start, len } = self.functions[number as usize].terms;
        self.terms[start..][..len].iter().filter_map(|&(feature, coefficient)| {
            let value = row[feature as usize];
            (!value.is_nan()).then(|| (feature as usize, value.double() * coefficient))
        })
    }

    /// Adds the result of a function for a row.
    pub(super) fn add_result<N: Number, S: Sum>(&self, number: u32, row: &[N], sum: &mut S) {
        let Function { constant, terms, otherwise } = self.functions[number as usize];
        let Some(otherwise) = otherwise else {
            // Each summand is rounded to the sum's precision, as XGBoost does.
            sum.add(constant);
            self.terms(number, row).for_each(|(_, value)| sum.add(value));
            return;
        };
        let (mut total, mut present) = (constant, 0);
        for (_, value) in self.terms(number, row) {
            total += value;
            present += 1;
        }
        sum.add(if present == terms.len { total } else { otherwise });
    }
}
