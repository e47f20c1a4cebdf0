//! The types of features: single and double precision.

use std::fmt::Debug;

/// A floating-point type of features and thresholds.
pub trait Number: Copy + Debug + Default + PartialOrd + Send + Sync + 'static {
    /// The bound that all numbers pass.
    const INFINITY: Self;

    /// The bound for this type: `x <= at_most(bound)` for the same `x` as `x <= bound`.
    fn at_most(bound: f64) -> Self;

    /// The bound for this type: `x <= below(bound)` for the same `x` as `x < bound`.
    fn below(bound: f64) -> Self;

    /// The nearest number of this type.
    fn nearest(value: f64) -> Self;

    /// The number in double precision.
    fn double(self) -> f64;

    /// Whether this is NaN.
    fn is_nan(self) -> bool;
}

impl Number for f32 {
    const INFINITY: Self = Self::INFINITY;

    fn at_most(bound: f64) -> Self {
        let single = bound as Self;
        if f64::from(single) > bound { single.next_down() } else { single }
    }

    fn below(bound: f64) -> Self {
        let single = Self::at_most(bound);
        match f64::from(single) == bound {
            // Nothing is less.
            true if single == Self::NEG_INFINITY => Self::NAN,
            true => single.next_down(),
            false => single,
        }
    }

    fn nearest(value: f64) -> Self {
        value as Self
    }

    fn double(self) -> f64 {
        self.into()
    }

    fn is_nan(self) -> bool {
        self.is_nan()
    }
}

impl Number for f64 {
    const INFINITY: Self = Self::INFINITY;

    fn at_most(bound: f64) -> Self {
        bound
    }

    fn below(bound: f64) -> Self {
        if bound == Self::NEG_INFINITY { Self::NAN } else { bound.next_down() }
    }

    fn nearest(value: f64) -> Self {
        value
    }

    fn double(self) -> f64 {
        self
    }

    fn is_nan(self) -> bool {
        self.is_nan()
    }
}
