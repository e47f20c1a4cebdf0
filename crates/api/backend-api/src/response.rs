//! A backend's response.

use crate::{Parameters, Tensor};

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
}
