//! The way to answer a request: what a request, its response factories and its responses have in common.

use std::ops::Deref;
use std::sync::Arc;

use nereid_backend_api::{Error, Responder, Result};

/// The way to answer one request.
pub(crate) struct Way {
    responder: Responder,
    /// The names of the outputs that the model has.
    outputs: Arc<[String]>,
}

impl Way {
    pub(crate) fn new(responder: Responder, outputs: Arc<[String]>) -> Arc<Self> {
        Arc::new(Self { responder, outputs })
    }

    /// The names of the outputs that the model has.
    pub(crate) fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Checks that the model has an output of that name.
    pub(crate) fn check_output(&self, name: &str) -> Result<()> {
        if self.outputs.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(Error::invalid_arg(format!(
            "unexpected inference output '{name}': the outputs of the model are {}",
            self.outputs.join(", ")
        )))
    }

    /// Checks that no last answer was given.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.responder.is_finished() {
            return Err(Error::invalid_arg("the request was answered to the end before"));
        }
        Ok(())
    }
}

impl Deref for Way {
    type Target = Responder;

    fn deref(&self) -> &Responder {
        &self.responder
    }
}
