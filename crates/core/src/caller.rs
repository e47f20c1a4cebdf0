//! The caller of a request, and the permits it holds until the request is over.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::bodies::BodyShare;
use crate::budget::Permit;
use crate::ensemble::Computed;
use crate::statistics::ComputeTimes;

/// Who makes a request. The default is a client that holds nothing yet.
///
/// What a caller holds is released when the request is over: answered, and released by the backend.
#[derive(Default)]
pub struct Caller {
    permits: SmallVec<[Permit; 2]>,
    /// Hears how long the request was computed, if an ensemble made it.
    computed: Option<Arc<Computed>>,
    /// Whether a backend asks, and not a client.
    is_backend: bool,
}

impl Caller {
    /// The same, holding a part of a budget until the request is over. A face may take it before it reads a body.
    #[must_use]
    pub fn with_permit(mut self, permit: Permit) -> Self {
        self.permits.push(permit);
        self
    }

    /// A backend, which may need the answer for a request that it executes.
    pub(crate) fn backend() -> Self {
        Self { is_backend: true, ..Self::default() }
    }

    /// Whether a backend asks.
    pub(crate) fn is_backend(&self) -> bool {
        self.is_backend
    }

    /// The same, holding what its body takes until the request is over.
    #[must_use]
    pub fn with_body(mut self, share: BodyShare) -> Self {
        self.permits.extend(share.into_permit());
        self
    }

    /// An ensemble, whose own request holds what there is to hold.
    pub(crate) fn ensemble(computed: &Arc<Computed>) -> Self {
        Self { computed: Some(Arc::clone(computed)), ..Self::default() }
    }

    /// The request begins.
    pub(crate) fn begin(&self) {
        if let Some(computed) = &self.computed {
            computed.begin();
        }
    }

    /// The request has ended, and was computed that long if it was successful.
    pub(crate) fn computed(&self, times: Option<ComputeTimes>) {
        if let Some(computed) = &self.computed {
            computed.end(times);
        }
    }
}
