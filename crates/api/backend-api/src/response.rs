//! What a backend answers with.

use crate::{Parameters, Tensor};

/// One response to a request. Its identity (model, version, id) is the server's to add.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The outputs, in the order the backend gives them.
    pub outputs: Vec<Tensor>,
    /// Values that go along with them.
    pub parameters: Parameters,
}

impl Response {
    /// A response with these outputs.
    pub fn new(outputs: Vec<Tensor>) -> Self {
        Self { outputs, parameters: Parameters::default() }
    }
}
