//! Limits of a principal's requests to a model: their rate, how many are in progress, their bytes, and the time to compute them.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nereid_budgets::{Budget, Permit};
use nereid_core::backend_api::Flow;
use nereid_protocol::{Admission, Exhausted, Usage};

/// Pause before another attempt where other requests have to end first.
const PAUSE: Duration = Duration::from_secs(1);

/// The time in which a limit of bytes may be used.
const SECOND: Duration = Duration::from_secs(1);

/// The time in which a limit of computing may be used.
const MINUTE: Duration = Duration::from_secs(60);

/// The limits of a role, for each principal and model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The rate of requests, and how many may come at once.
    pub per_second: Option<NonZeroU32>,
    /// Requests in progress.
    pub concurrent: Option<NonZeroU32>,
    /// Bytes of requests in a second.
    pub bytes: Option<NonZeroU32>,
    /// Seconds of computing in a minute.
    pub compute: Option<NonZeroU32>,
    /// Tokens generated in a minute.
    pub tokens: Option<NonZeroU32>,
}

impl Limits {
    /// Whether no limit is set.
    pub(crate) fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// The requests of a principal since the server started, over all models.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    admitted: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
    compute_nanoseconds: AtomicU64,
    tokens: AtomicU64,
}

/// Usage of a principal since the start of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrincipalUsage {
    /// Requests within the limits.
    pub admitted: u64,
    /// Requests beyond them.
    pub refused: u64,
    /// Bytes of admitted requests.
    pub bytes: u64,
    /// The time that requests were computed.
    pub compute: Duration,
    /// Tokens that requests through OpenAI's interface generated.
    pub tokens: u64,
}

impl Counters {
    /// Counts a request.
    pub(crate) fn count(&self, is_admitted: bool, bytes: usize) {
        if is_admitted {
            self.admitted.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn usage(&self) -> PrincipalUsage {
        let Self { admitted, refused, bytes, compute_nanoseconds, tokens } = self;
        let [admitted, refused, bytes, nanoseconds, tokens] =
            [admitted, refused, bytes, compute_nanoseconds, tokens]
                .map(|count| count.load(Ordering::Relaxed));
        PrincipalUsage { admitted, refused, bytes, compute: Duration::from_nanos(nanoseconds), tokens }
    }
}

impl Usage for Counters {
    fn computed(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.compute_nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn generated(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }
}

/// A limit of something whose amount is known only afterwards. A request is admitted while less is used than fits into the
/// window; what is used then drains evenly.
#[derive(Debug)]
struct Allowance {
    limit: NonZeroU32,
    window: Duration,
    /// When everything used has drained.
    drained: Mutex<Instant>,
}

impl Allowance {
    fn new(limit: NonZeroU32, window: Duration, now: Instant) -> Self {
        Self { limit, window, drained: Mutex::new(now) }
    }

    fn drained(&self) -> MutexGuard<'_, Instant> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a request at this time.
    ///
    /// # Errors
    /// The time until a request would be admitted.
    fn check(&self, now: Instant) -> Result<(), Duration> {
        let used = self.drained().saturating_duration_since(now);
        match used.checked_sub(self.window) {
            None => Ok(()),
            // At the very end of the time, the window would be full again.
            Some(excess) => Err(excess + Duration::from_millis(1)),
        }
    }

    /// Counts this much of the limit's unit.
    fn charge(&self, amount: f64, now: Instant) {
        let share = amount / f64::from(self.limit.get());
        // Neither a clock nor a client can make an hour of debt from one request.
        let time = self.window.mul_f64(share.clamp(0.0, 3600.0));
        let mut drained = self.drained();
        *drained = (*drained).max(now) + time;
    }
}

/// A rate of requests, by the generic cell rate algorithm: each request moves a time forward by its share of a second, and is
/// admitted unless that time is more than a second ahead.
struct Rate {
    limit: NonZeroU32,
    /// The time at which the admitted requests would end if they came at an even rate.
    next: Mutex<Instant>,
}

impl Rate {
    fn new(limit: NonZeroU32, now: Instant) -> Self {
        Self { limit, next: Mutex::new(now) }
    }

    /// Admits a request at this time.
    ///
    /// # Errors
    /// The time until a request would be admitted.
    fn admit(&self, now: Instant) -> Result<(), Duration> {
        let share = Duration::from_secs(1) / self.limit.get();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let due = (*next).max(now) + share;
        match due.saturating_duration_since(now).checked_sub(Duration::from_secs(1)) {
            None | Some(Duration::ZERO) => {
                *next = due;
                Ok(())
            }
            Some(early) => Err(early),
        }
    }
}

/// The use of a model by a principal.
struct Meter {
    rate: Option<Rate>,
    budget: Option<Budget>,
    bytes: Option<Allowance>,
    compute: Option<Allowance>,
    tokens: Option<Allowance>,
    counters: Arc<Counters>,
}

impl Usage for Meter {
    fn computed(&self, time: Duration) {
        self.counters.computed(time);
        if let Some(compute) = &self.compute {
            compute.charge(time.as_secs_f64(), Instant::now());
        }
    }

    fn generated(&self, tokens: u64) {
        self.counters.generated(tokens);
        if let Some(allowance) = &self.tokens {
            allowance.charge(tokens as f64, Instant::now());
        }
    }
}

impl Meter {
    fn new(limits: Limits, counters: Arc<Counters>, now: Instant) -> Self {
        let capacity = |count: NonZeroU32| usize::try_from(count.get()).unwrap_or(usize::MAX);
        Self {
            rate: limits.per_second.map(|limit| Rate::new(limit, now)),
            budget: limits.concurrent.map(|count| Budget::new(capacity(count))),
            bytes: limits.bytes.map(|limit| Allowance::new(limit, SECOND, now)),
            compute: limits.compute.map(|limit| Allowance::new(limit, MINUTE, now)),
            tokens: limits.tokens.map(|limit| Allowance::new(limit, MINUTE, now)),
            counters,
        }
    }

    fn admit(&self, bytes: usize, now: Instant) -> Result<Option<Permit>, Exhausted> {
        // Before the rate, because a place is given back.
        let permit = match &self.budget {
            None => None,
            Some(budget) => Some(budget.try_acquire(1).ok_or_else(|| Exhausted {
                message: format!("the limit of {} requests in progress is reached", budget.capacity()),
                limit: u32::try_from(budget.capacity()).unwrap_or(u32::MAX),
                retry_after: PAUSE,
            })?),
        };
        for (allowance, unit) in [
            (&self.bytes, "bytes a second"),
            (&self.compute, "seconds of computing a minute"),
            (&self.tokens, "generated tokens a minute"),
        ] {
            let Some(allowance) = allowance else { continue };
            allowance.check(now).map_err(|retry_after| Exhausted {
                message: format!("the limit of {} {unit} is used up", allowance.limit),
                limit: allowance.limit.get(),
                retry_after,
            })?;
        }
        if let Some(rate) = &self.rate {
            rate.admit(now).map_err(|retry_after| Exhausted {
                message: format!("the limit of {} requests a second is reached", rate.limit),
                limit: rate.limit.get(),
                retry_after,
            })?;
        }
        if let Some(allowance) = &self.bytes {
            allowance.charge(bytes as f64, now);
        }
        Ok(permit)
    }
}

/// The use of models by principals with limits.
#[derive(Default)]
pub(crate) struct Quotas(RwLock<HashMap<String, HashMap<String, Arc<Meter>>>>);

impl Quotas {
    /// Counts a request of a principal to a model that exists.
    ///
    /// # Errors
    /// The exhausted limit.
    pub(crate) fn admit(
        &self,
        principal: &str,
        model: &str,
        bytes: usize,
        limits: Limits,
        counters: &Arc<Counters>,
    ) -> Result<Admission, Exhausted> {
        let now = Instant::now();
        let meter = self.meter(principal, model, || Meter::new(limits, Arc::clone(counters), now));
        let permit = meter.admit(bytes, now)?;
        Ok(Admission { permit, usage: Some(meter), flow: Flow::default() })
    }

    fn meter(&self, principal: &str, model: &str, new: impl FnOnce() -> Meter) -> Arc<Meter> {
        let known = {
            let meters = self.0.read().unwrap_or_else(PoisonError::into_inner);
            meters.get(principal).and_then(|models| models.get(model)).map(Arc::clone)
        };
        known.unwrap_or_else(|| {
            let mut meters = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let models = meters.entry(principal.to_owned()).or_default();
            Arc::clone(models.entry(model.to_owned()).or_insert_with(|| Arc::new(new())))
        })
    }
}

/// The requests of all principals that were seen, by their names.
#[derive(Debug, Default)]
pub(crate) struct Principals(RwLock<BTreeMap<String, Arc<Counters>>>);

impl Principals {
    /// The counters of a principal.
    pub(crate) fn of(&self, name: &str) -> Arc<Counters> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).map(Arc::clone);
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(name.to_owned()).or_default())
        })
    }

    /// Usage of each principal.
    pub(crate) fn usage(&self) -> Vec<(String, PrincipalUsage)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(name, counters)| (name.clone(), counters.usage())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(per_second: u32, concurrent: u32) -> Limits {
        let (per_second, concurrent) = (NonZeroU32::new(per_second), NonZeroU32::new(concurrent));
        Limits { per_second, concurrent, ..Limits::default() }
    }

    impl Quotas {
        fn admit_at(
            &self,
            principal: &str,
            model: &str,
            limits: Limits,
            now: Instant,
        ) -> Result<Option<Permit>, Exhausted> {
            self.meter(principal, model, || Meter::new(limits, Arc::default(), now)).admit(0, now)
        }
    }

    #[test]
    fn each_principal_has_its_own_rate_for_each_model() {
        let (quotas, now) = (Quotas::default(), Instant::now());
        let admit = |principal, model, later| quotas.admit_at(principal, model, limits(2, 0), now + later);
        for (principal, model) in [("a", "m"), ("b", "m"), ("a", "n")] {
            let admitted =
                |milliseconds| admit(principal, model, Duration::from_millis(milliseconds)).is_ok();
            let outcomes = [0, 0, 0, 400, 500, 500, 999, 1000, 5000, 5000, 5000].map(admitted);
            let expected = [true, true, false, false, true, false, false, true, true, true, false];
            assert_eq!(outcomes, expected, "{principal} {model}");
        }
        let refused = admit("a", "m", Duration::from_secs(5)).unwrap_err();
        assert_eq!(refused.retry_after, Duration::from_millis(500));
        assert_eq!(
            (refused.limit, refused.message.as_str()),
            (2, "the limit of 2 requests a second is reached")
        );
    }

    #[test]
    fn place_of_a_request_is_free_once_it_is_over() {
        for count in [1, 2, 5] {
            let quotas = Quotas::default();
            let admit = || quotas.admit_at("a", "m", limits(0, count), Instant::now());
            let mut permits: Vec<_> = (0..count).map(|_| admit().unwrap()).collect();
            assert!(permits.iter().all(Option::is_some));
            assert_eq!(admit().unwrap_err().limit, count);
            permits.pop();
            permits.push(admit().unwrap());
            assert!(admit().is_err());
        }
    }

    #[test]
    fn request_beyond_the_rate_takes_no_place() {
        let (quotas, now) = (Quotas::default(), Instant::now());
        drop(quotas.admit_at("a", "m", limits(1, 1), now).unwrap());
        for _ in 0..3 {
            let refused = quotas.admit_at("a", "m", limits(1, 1), now).unwrap_err();
            assert!(refused.message.contains("a second"), "{refused:?}");
        }
    }

    #[test]
    fn bytes_and_computing_are_charged_after_the_request() {
        let (start, counters) = (Instant::now(), Arc::<Counters>::default());
        let (bytes, compute) = (NonZeroU32::new(1000), NonZeroU32::new(6));
        let meter = Meter::new(Limits { bytes, compute, ..Limits::default() }, Arc::clone(&counters), start);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        // A request larger than the limit is admitted, and paid for by those that follow.
        assert!(meter.admit(3000, at(0)).is_ok());
        let refused = meter.admit(1, at(1000)).unwrap_err();
        assert_eq!(
            (refused.limit, refused.message.as_str()),
            (1000, "the limit of 1000 bytes a second is used up")
        );
        assert_eq!(refused.retry_after, Duration::from_millis(1001));
        assert!(meter.admit(999, at(2001)).is_ok() && meter.admit(1, at(2001)).is_err());
        meter.computed(Duration::from_secs(7));
        let refused = meter.admit(0, at(10_000)).unwrap_err();
        assert_eq!(refused.message, "the limit of 6 seconds of computing a minute is used up");
        // Seven seconds drain in 70, and the limit is 60 ahead.
        assert!(meter.admit(0, at(5_000)).is_err() && meter.admit(0, at(15_000)).is_ok());
        assert_eq!(counters.usage().compute, Duration::from_secs(7));
    }

    #[test]
    fn tokens_delay_the_requests_after_those_that_generated_them() {
        let (now, counters) = (Instant::now(), Arc::<Counters>::default());
        let limits = Limits { tokens: NonZeroU32::new(100), ..Limits::default() };
        let meter = Meter::new(limits, Arc::clone(&counters), now);
        meter.generated(50);
        assert!(meter.admit(0, now).is_ok());
        meter.generated(60);
        let refused = meter.admit(0, now).unwrap_err();
        assert_eq!(refused.message, "the limit of 100 generated tokens a minute is used up");
        assert!(meter.admit(0, now + Duration::from_secs(7)).is_ok());
        assert_eq!(counters.usage().tokens, 110);
    }

    #[test]
    fn principals_are_counted_over_all_models() {
        let principals = Principals::default();
        principals.of("b").count(false, 7);
        for bytes in [1, 2, 3] {
            principals.of("a").count(true, bytes);
        }
        principals.of("a").computed(Duration::from_millis(5));
        let used = |admitted, refused, bytes, compute| PrincipalUsage {
            admitted,
            refused,
            bytes,
            compute: Duration::from_millis(compute),
            ..PrincipalUsage::default()
        };
        let expected = [("a".to_owned(), used(3, 0, 6, 5)), ("b".to_owned(), used(0, 1, 0, 0))];
        assert_eq!(principals.usage(), expected);
    }

    proptest! {
        /// However requests use an allowance, its use over any time is bounded.
        #[test]
        fn allowance_bounds_its_use(amounts in prop::collection::vec((0_u64..2000, 0_u32..500), 1..100)) {
            let start = Instant::now();
            let allowance = Allowance::new(NonZeroU32::new(1000).unwrap(), SECOND, start);
            let (mut now, mut used) = (start, 0.0);
            for (pause, amount) in amounts {
                now += Duration::from_millis(pause);
                if allowance.check(now).is_ok() {
                    allowance.charge(amount.into(), now);
                    used += f64::from(amount);
                }
                let limit = 1000.0 * (now - start).as_secs_f64() + 1000.0 + 500.0;
                prop_assert!(used <= limit, "{used} of {limit}");
            }
        }

        /// No second has more than twice the limit, and a client that waits for the given time is admitted.
        #[test]
        fn rate_bounds_every_second_and_keeps_its_word(
            limit in 1_u32..50,
            pauses in prop::collection::vec(0_u64..300, 1..200),
        ) {
            let mut now = Instant::now();
            let rate = Rate::new(NonZeroU32::new(limit).unwrap(), now);
            let mut admitted = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                match rate.admit(now) {
                    Ok(()) => admitted.push(now),
                    Err(wait) => {
                        prop_assert!(wait <= Duration::from_secs(1));
                        if pause % 3 == 0 {
                            now += wait;
                            prop_assert_eq!(rate.admit(now), Ok(()));
                            admitted.push(now);
                        }
                    }
                }
            }
            for (index, first) in admitted.iter().enumerate() {
                let second = admitted[index..].iter().take_while(|at| **at - *first < Duration::from_secs(1));
                prop_assert!(second.count() <= 2 * limit as usize);
            }
        }
    }
}
