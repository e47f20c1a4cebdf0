//! The caller of a request: who it is, and the permits it holds until the request is over.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nereid_backend_api::Flow;
use nereid_budgets::{BodyShare, Permit};
use smallvec::SmallVec;

use crate::compute_sum::ComputeSum;
use nereid_statistics::ComputeTimes;

/// The identity of a caller, as its transport knows it: the subject of a client's certificate. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The principal of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Counts what a sender's requests use.
pub trait Usage: Send + Sync {
    /// A request was computed for this long.
    fn computed(&self, time: Duration);

    /// A request generated this many tokens.
    fn generated(&self, tokens: u64);
}

/// The admission of a request by the limits of its sender.
#[derive(Default)]
pub struct Admission {
    /// The place among the requests in progress, until the request is over.
    pub permit: Option<Permit>,
    /// Counts what the request uses.
    pub usage: Option<Arc<dyn Usage>>,
    /// The sender's share of the model's queue.
    pub flow: Flow,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("permit", &self.permit)
            .field("flow", &self.flow)
            .finish_non_exhaustive()
    }
}

/// The origin of a request. The default is a client that holds nothing yet.
///
/// Permits of a caller are released when the request is over: answered, and released by the backend.
#[derive(Default)]
pub struct Caller {
    principal: Option<Principal>,
    permits: SmallVec<[Permit; 2]>,
    /// Sums compute times, if a composite model makes the request.
    computed: Option<Arc<ComputeSum>>,
    usage: Option<Arc<dyn Usage>>,
    /// The share of queues, if a policy sets it.
    flow: Option<Flow>,
    /// Whether a backend makes the request, not a client.
    is_backend: bool,
    /// Whether answers count in the server's [`BodyBudget`](nereid_budgets::BodyBudget) until it has taken them.
    is_remote: bool,
}

impl Caller {
    /// This caller, with the principal that its transport knows.
    #[must_use]
    pub fn with_principal(mut self, principal: Option<Principal>) -> Self {
        self.principal = principal;
        self
    }

    /// The principal; `None` for clients without a certificate. Requests of ensembles and backends have none: the request
    /// that they serve has it.
    pub fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    /// This caller, with a permit of a budget until the request is over. A face may acquire it before it reads a body.
    #[must_use]
    pub fn with_permit(mut self, permit: Permit) -> Self {
        self.permits.push(permit);
        self
    }

    /// This caller, as the limits of its sender admitted it.
    #[must_use]
    pub fn with_admission(mut self, admission: Option<Admission>) -> Self {
        if let Some(Admission { permit, usage, flow }) = admission {
            self.permits.extend(permit);
            self.usage = usage;
            self.flow = Some(flow);
        }
        self
    }

    /// The caller's share of queues, if a policy sets it.
    pub(crate) fn flow(&self) -> Option<Flow> {
        self.flow
    }

    /// A backend, which may need the answer for a request that it executes.
    pub(crate) fn backend() -> Self {
        Self { is_backend: true, ..Self::default() }
    }

    /// Whether a backend makes the request.
    pub(crate) fn is_backend(&self) -> bool {
        self.is_backend
    }

    /// A client elsewhere, holding what its body takes until the request is over. What it is answered with counts like its
    /// body, until it has taken it.
    #[must_use]
    pub fn with_body(mut self, share: BodyShare) -> Self {
        self.permits.extend(share.into_permit());
        self.is_remote = true;
        self
    }

    /// Whether the caller is in another process, and may be slow to take its answer.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// A composite model, whose own request holds the permits.
    pub(crate) fn composite(computed: &Arc<ComputeSum>) -> Self {
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
        if let (Some(usage), Some(ComputeTimes { input, infer, output })) = (&self.usage, times) {
            usage.computed(input + infer + output);
        }
    }
}
