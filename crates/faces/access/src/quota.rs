//! Limits of a principal's requests to a model: their rate, and how many are in progress.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nereid_budgets::{Budget, Permit};
use nereid_protocol::Exhausted;

/// Pause before another attempt where other requests have to end first.
const PAUSE: Duration = Duration::from_secs(1);

/// The limits of a role, for each principal and model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The rate of requests, and how many may come at once.
    pub per_second: Option<NonZeroU32>,
    /// Requests in progress.
    pub concurrent: Option<NonZeroU32>,
}

impl Limits {
    /// Whether no limit is set.
    pub(crate) fn is_unlimited(&self) -> bool {
        *self == Self::default()
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
}

impl Meter {
    fn new(limits: Limits, now: Instant) -> Self {
        let capacity = |count: NonZeroU32| usize::try_from(count.get()).unwrap_or(usize::MAX);
        Self {
            rate: limits.per_second.map(|limit| Rate::new(limit, now)),
            budget: limits.concurrent.map(|count| Budget::new(capacity(count))),
        }
    }

    fn admit(&self, now: Instant) -> Result<Option<Permit>, Exhausted> {
        // Before the rate, because a place is given back.
        let permit = match &self.budget {
            None => None,
            Some(budget) => Some(budget.try_acquire(1).ok_or_else(|| Exhausted {
                message: format!("the limit of {} requests in progress is reached", budget.capacity()),
                limit: u32::try_from(budget.capacity()).unwrap_or(u32::MAX),
                retry_after: PAUSE,
            })?),
        };
        if let Some(rate) = &self.rate {
            rate.admit(now).map_err(|retry_after| Exhausted {
                message: format!("the limit of {} requests a second is reached", rate.limit),
                limit: rate.limit.get(),
                retry_after,
            })?;
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
        limits: Limits,
    ) -> Result<Option<Permit>, Exhausted> {
        self.admit_at(principal, model, limits, Instant::now())
    }

    fn admit_at(
        &self,
        principal: &str,
        model: &str,
        limits: Limits,
        now: Instant,
    ) -> Result<Option<Permit>, Exhausted> {
        let known = {
            let meters = self.0.read().unwrap_or_else(PoisonError::into_inner);
            meters.get(principal).and_then(|models| models.get(model)).map(Arc::clone)
        };
        let meter = known.unwrap_or_else(|| {
            let mut meters = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let models = meters.entry(principal.to_owned()).or_default();
            Arc::clone(models.entry(model.to_owned()).or_insert_with(|| Arc::new(Meter::new(limits, now))))
        });
        meter.admit(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(per_second: u32, concurrent: u32) -> Limits {
        Limits { per_second: NonZeroU32::new(per_second), concurrent: NonZeroU32::new(concurrent) }
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
            let admit = || quotas.admit("a", "m", limits(0, count));
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

    proptest! {
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
