//! A backend's response.

use crate::{Error, Parameters, Result, Tensor};

/// One response to a request. The server adds its identity (model, version, id).
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The outputs, in the backend's order.
    pub outputs: Vec<Tensor>,
    /// Parameters of the response.
    pub parameters: Parameters,
}

impl Response {
    /// A response with these outputs.
    pub fn new(outputs: Vec<Tensor>) -> Self {
        Self { outputs, parameters: Parameters::default() }
    }

    /// The output of that name.
    ///
    /// # Errors
    /// `NotFound` if the response lacks it.
    pub fn output(&self, name: &str) -> Result<&Tensor> {
        self.outputs.iter().find(|output| output.name == name).ok_or_else(|| {
            let names: Vec<_> = self.outputs.iter().map(|output| output.name.as_str()).collect();
            Error::not_found(format!("the response lacks output '{name}' (available: {})", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataType;

    #[test]
    fn outputs_are_found_by_name() {
        let tensor = |name: &str| Tensor::new(name, DataType::Uint8, [1], vec![1]);
        let response = Response::new(vec![tensor("a"), tensor("b c")]);
        for name in ["a", "b c"] {
            assert_eq!(response.output(name).unwrap().name, name);
        }
        let error = response.output("b").unwrap_err();
        assert_eq!(error.message(), "the response lacks output 'b' (available: a, b c)");
        assert!(Response::default().output("").is_err());
    }
}
