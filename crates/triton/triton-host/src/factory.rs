//! Response factories, which answer requests that may already be released.

use std::sync::Arc;

use nereid_backend_api::{Error, Result};
use triton_sys::*;

use crate::boundary::exports;
use crate::reply::Reply;

/// A factory behind a C handle.
pub(crate) struct Factory(Arc<Reply>);

impl Factory {
    pub(crate) fn reply(&self) -> &Arc<Reply> {
        &self.0
    }
}

/// Whether these flags mark the final response.
pub(crate) fn is_final(flags: u32) -> Result<bool> {
    match flags {
        0 => Ok(false),
        flags if flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 => Ok(true),
        other => Err(Error::invalid_arg(format!("{other} is not a valid combination of response flags"))),
    }
}

exports! {
    fn TRITONBACKEND_ResponseFactoryNew(
        factory: *mut *mut TRITONBACKEND_ResponseFactory,
        request: *mut TRITONBACKEND_Request,
    ) {
        let reply = Arc::clone(request.get()?.reply());
        factory.give(Arc::new(Factory(reply)))?;
    }

    fn TRITONBACKEND_ResponseFactoryDelete(factory: *mut TRITONBACKEND_ResponseFactory) {
        factory.delete()?;
    }

    fn TRITONBACKEND_ResponseFactorySendFlags(factory: *mut TRITONBACKEND_ResponseFactory, send_flags: u32) {
        let factory = factory.get()?;
        let last = is_final(send_flags)?;
        factory.0.check_open()?;
        if last {
            factory.0.finish();
        }
    }

    fn TRITONBACKEND_ResponseFactoryIsCancelled(
        factory: *mut TRITONBACKEND_ResponseFactory,
        is_cancelled: *mut bool,
    ) {
        is_cancelled.set(factory.get()?.0.is_cancelled())?;
    }
}
