//! The bytes of requests and answers in flight, over all faces and models, and their limit.
//!
//! Only bytes in memory count: those that arrived or were decompressed, and those of answers until clients have taken them. A
//! length that a client announces does not count, but is refused if it can never fit.

use std::io::{self, Read};

use bytes::Bytes;
use nereid_backend_api::{Error, Result};

use crate::budget::{Budget, Permit};

/// Bodies up to this length are not counted, so that small requests touch no counter that all threads share.
const UNCOUNTED: usize = 16 << 10;

/// A body's share grows by multiples of this.
const STEP: usize = 16 << 10;

/// How many bytes of requests and answers may be in flight. Its clones share it.
#[derive(Clone, Debug, Default)]
pub struct BodyBudget(Option<Budget>);

impl BodyBudget {
    /// One without a limit.
    pub const UNLIMITED: Self = Self(None);

    /// A budget of `bytes`; 0 for no limit.
    pub fn new(bytes: usize) -> Self {
        Self((bytes > 0).then(|| Budget::new(bytes)))
    }

    fn bytes(&self) -> Option<&Budget> {
        self.0.as_ref()
    }

    /// Bytes of an answer, which count until their last reference is dropped.
    ///
    /// # Errors
    /// `Unavailable` if the budget has no room for them.
    pub fn hold(&self, bytes: impl Into<Bytes>) -> Result<Bytes> {
        let (bytes, mut share) = (bytes.into(), BodyShare::default());
        share.cover(self, bytes.len())?;
        Ok(share.attached_to(bytes))
    }

    /// Like [`hold`](Self::hold), for re-encoded bytes that replace the original; may exceed the budget.
    pub fn hold_anyway(&self, bytes: Bytes) -> Bytes {
        let share = self.bytes().filter(|_| bytes.len() > UNCOUNTED);
        BodyShare(share.map(|budget| budget.acquire_anyway(bytes.len()))).attached_to(bytes)
    }

    /// Whether a body of this length, which has not arrived yet, could fit at all.
    pub fn could_hold(&self, bytes: u64) -> bool {
        self.bytes().is_none_or(|budget| bytes <= budget.capacity() as u64)
    }

    /// The message for a body that could not.
    pub fn too_long(&self, what: &str, bytes: u64) -> String {
        let most = self.bytes().map_or(usize::MAX, Budget::capacity);
        format!("{what} of {bytes} bytes exceeds the {most} bytes that all requests in flight may take")
    }

    /// Whether little is left: those who can wait should.
    pub fn is_scarce(&self) -> bool {
        self.bytes().is_some_and(Budget::is_mostly_used)
    }
}

/// How many bytes are decompressed before the limits are checked again.
const DECOMPRESSED_AT_ONCE: u64 = 64 << 10;

/// The most memory that is reserved for a decompressed body before anything came out.
const FIRST_RESERVE: usize = 1 << 20;

/// Why a body was not decompressed.
#[derive(Debug)]
pub enum DecompressionError {
    /// The compressed data is malformed or truncated.
    Invalid(io::Error),
    /// The decompressed body exceeds its limit.
    TooLong,
    /// The budget has no room for it.
    NoRoom(Error),
}

/// The part of a [`BodyBudget`] that one request holds until this is dropped.
#[derive(Debug, Default)]
pub struct BodyShare(Option<Permit>);

impl BodyShare {
    /// Grows to cover a body with this many bytes in memory.
    ///
    /// # Errors
    /// `Unavailable` if the budget is exhausted.
    #[inline]
    pub fn cover(&mut self, budget: &BodyBudget, bytes: usize) -> Result<()> {
        if bytes <= UNCOUNTED { Ok(()) } else { self.cover_long(budget, bytes) }
    }

    fn cover_long(&mut self, budget: &BodyBudget, bytes: usize) -> Result<()> {
        let Some(budget) = budget.bytes() else { return Ok(()) };
        let has = self.0.as_ref().map_or(0, Permit::weight);
        if bytes <= has {
            return Ok(());
        }
        let more = (bytes - has).next_multiple_of(STEP);
        let grown = match &mut self.0 {
            Some(permit) => budget.try_grow(permit, more),
            None => {
                self.0 = budget.try_acquire(more);
                self.0.is_some()
            }
        };
        if grown {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "the server has reached its limit of {} bytes of requests and answers in flight; try again later",
            budget.capacity()
        )))
    }

    /// Reads the output of a decompressor to its end, and grows with it. `compressed` bytes are in memory as well.
    ///
    /// # Errors
    /// See [`DecompressionError`].
    pub fn decompress(
        &mut self,
        budget: &BodyBudget,
        compressed: usize,
        most: usize,
        mut decoder: impl Read,
    ) -> Result<Vec<u8>, DecompressionError> {
        let mut plain = Vec::with_capacity(compressed.saturating_mul(4).min(most).min(FIRST_RESERVE));
        loop {
            let step = decoder.by_ref().take(DECOMPRESSED_AT_ONCE).read_to_end(&mut plain);
            if step.map_err(DecompressionError::Invalid)? == 0 {
                return Ok(plain);
            }
            if plain.len() > most {
                return Err(DecompressionError::TooLong);
            }
            self.cover(budget, plain.len().saturating_add(compressed)).map_err(DecompressionError::NoRoom)?;
        }
    }

    /// Bytes that hold the share until their last reference is dropped.
    pub fn attached_to(self, bytes: impl Into<Bytes>) -> Bytes {
        let bytes = bytes.into();
        if self.0.is_none() { bytes } else { Bytes::from_owner(SharedBytes { bytes, _share: self }) }
    }

    /// The permit, for the caller that holds it from now on.
    pub fn into_permit(self) -> Option<Permit> {
        self.0
    }
}

struct SharedBytes {
    bytes: Bytes,
    _share: BodyShare,
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_bodies_are_not_counted_and_long_ones_as_far_as_they_arrived() {
        let budget = BodyBudget::new(10 * STEP);
        let mut short: Vec<_> = (0..1000).map(|_| BodyShare::default()).collect();
        short.iter_mut().for_each(|share| share.cover(&budget, UNCOUNTED).unwrap());
        let mut long = BodyShare::default();
        for bytes in (1..=10 * STEP).step_by(1000) {
            long.cover(&budget, bytes).unwrap();
        }
        assert!(budget.is_scarce());
        let error = BodyShare::default().cover(&budget, UNCOUNTED + 1).unwrap_err();
        assert!(error.message().contains("in flight"), "{error}");
        drop(long);
        BodyShare::default().cover(&budget, 10 * STEP).unwrap();
        assert!(!budget.is_scarce());
    }

    #[test]
    fn bytes_hold_their_share_until_nobody_has_any_of_them() {
        let budget = BodyBudget::new(1 << 20);
        let share = |bytes: usize| {
            let mut share = BodyShare::default();
            share.cover(&budget, bytes).map(|()| share)
        };
        let whole = share(1 << 20).unwrap().attached_to(vec![7; 1 << 20]);
        let part = whole.slice(5..8);
        drop(whole);
        assert!(share(UNCOUNTED + 1).is_err());
        assert_eq!(part, [7; 3].as_slice());
        drop(part);
        assert!(share(1 << 20).is_ok());
        assert_eq!(BodyShare::default().attached_to("abc"), "abc");
    }

    #[test]
    fn answers_count_until_they_are_taken() {
        let budget = BodyBudget::new(1 << 20);
        let first = budget.hold(vec![1; 1 << 19]).unwrap();
        let second = budget.hold(first.clone()).unwrap();
        assert!(budget.hold(vec![1; UNCOUNTED + 1]).is_err());
        assert_eq!(budget.hold("short").unwrap(), "short");
        let other_form = budget.hold_anyway(vec![2; 1 << 19].into());
        drop((first, second));
        assert!(budget.hold(vec![1; 1 << 20]).is_err());
        assert!(budget.hold(vec![1; 1 << 19]).is_ok());
        drop(other_form);
        assert!(budget.hold(vec![1; 1 << 20]).is_ok());
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let budget = BodyBudget::new(0);
        let mut share = BodyShare::default();
        share.cover(&budget, usize::MAX).unwrap();
        let held = budget.hold_anyway(budget.hold(vec![7; 1 << 20]).unwrap());
        assert_eq!(held, vec![7; 1 << 20]);
        assert!(budget.could_hold(u64::MAX) && !budget.is_scarce() && share.into_permit().is_none());
    }

    proptest! {
        /// Bodies arrive in turns; each is refused when its bytes would exceed the budget, and releases all of its share.
        #[test]
        fn memory_never_exceeds_the_budget(arrivals in prop::collection::vec((0..8_usize, 0..200_000_usize), 0..100)) {
            let budget = BodyBudget::new(1 << 20);
            let mut bodies: Vec<(BodyShare, usize)> = (0..8).map(|_| Default::default()).collect();
            for (body, bytes) in arrivals {
                let (share, length) = &mut bodies[body];
                match share.cover(&budget, *length + bytes) {
                    Ok(()) => *length += bytes,
                    // The body is given up.
                    Err(_) => bodies[body] = Default::default(),
                }
                let counted = |length: &usize| if *length > UNCOUNTED { *length } else { 0 };
                prop_assert!(bodies.iter().map(|(_, length)| counted(length)).sum::<usize>() <= 1 << 20);
            }
            drop(bodies);
            prop_assert!(BodyShare::default().cover(&budget, 1 << 20).is_ok(), "all was given back");
        }
    }
}
