//! The compute time of all requests that a composite model made for one of its own.
//!
//! Some backends report it after their answer, so the sum may be complete only after the composite model's own answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nereid_statistics::ComputeTimes;

/// The sum of compute times over the requests to members.
#[derive(Default)]
pub struct ComputeSum(Mutex<Sum>);

#[derive(Default)]
struct Sum {
    /// Number of requests that have not ended.
    open: usize,
    times: ComputeTimes,
    then: Option<Then>,
}

/// Called with the sum.
type Then = Box<dyn FnOnce(ComputeTimes) + Send>;

impl ComputeSum {
    /// A request has started.
    pub(crate) fn begin(&self) {
        self.lock().open += 1;
    }

    /// A request has ended; `times` are the compute times of a successful one.
    pub(crate) fn end(&self, times: Option<ComputeTimes>) {
        let mut sum = self.lock();
        sum.open = sum.open.saturating_sub(1);
        if let Some(times) = times {
            sum.times.input += times.input;
            sum.times.infer += times.infer;
            sum.times.output += times.output;
        }
        Self::report_if_complete(sum);
    }

    /// No further request starts. Calls `then` with the sum once all have ended.
    pub fn finish(&self, then: impl FnOnce(ComputeTimes) + Send + 'static) {
        let mut sum = self.lock();
        sum.then = Some(Box::new(then));
        Self::report_if_complete(sum);
    }

    fn report_if_complete(mut sum: MutexGuard<'_, Sum>) {
        if sum.open > 0 {
            return;
        }
        let (then, times) = (sum.then.take(), sum.times);
        drop(sum);
        if let Some(then) = then {
            then(times);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sum> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn times(millis: u64) -> ComputeTimes {
        let duration = Duration::from_millis(millis);
        ComputeTimes { input: duration, infer: 2 * duration, output: 3 * duration }
    }

    #[test]
    fn the_sum_is_reported_when_the_last_request_has_ended() {
        let computed = ComputeSum::default();
        let reported = Arc::new(Mutex::new(None));
        computed.begin();
        computed.begin();
        computed.begin();
        computed.end(Some(times(1)));
        computed.end(None);
        let hears = Arc::clone(&reported);
        computed.finish(move |sum| *hears.lock().unwrap() = Some(sum));
        assert_eq!(*reported.lock().unwrap(), None);
        computed.end(Some(times(2)));
        assert_eq!(*reported.lock().unwrap(), Some(times(3)));
    }
}
