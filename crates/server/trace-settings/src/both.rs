//! A trace that the settings and a capture want.

use std::sync::Arc;
use std::time::Instant;

use nereid_backend_api::{Activity, Tensor, TensorActivity, Trace, TraceLevel, TraceSink};

/// Passes reports to the sink of the settings, as far as their level goes, and times to the capture.
pub(crate) struct Both {
    level: TraceLevel,
    drawn: Arc<dyn TraceSink>,
    capture: Arc<dyn TraceSink>,
}

impl Both {
    pub(crate) fn of(
        level: TraceLevel,
        drawn: Arc<dyn TraceSink>,
        capture: Arc<dyn TraceSink>,
    ) -> Arc<dyn TraceSink> {
        Arc::new(Self { level, drawn, capture })
    }
}

impl TraceSink for Both {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, at: Instant) {
        if self.level.timestamps {
            self.drawn.activity(trace, activity, at);
        }
        self.capture.activity(trace, activity, at);
    }

    fn tensor(&self, trace: &Arc<Trace>, activity: TensorActivity, tensor: &Tensor) {
        self.drawn.tensor(trace, activity, tensor);
    }

    fn stamp(&self, trace: &Trace, name: &'static str, at: Instant) {
        if self.level.timestamps {
            self.drawn.stamp(trace, name, at);
        }
        self.capture.stamp(trace, name, at);
    }

    fn ended(&self, trace: &Arc<Trace>) {
        self.drawn.ended(trace);
        self.capture.ended(trace);
    }

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        let (drawn, capture) = (Arc::clone(&self.drawn).derived(), Arc::clone(&self.capture).derived());
        Self::of(self.level, drawn, capture)
    }
}
