//! Parsers of values that many options take.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use clap::builder::{StringValueParser, TypedValueParser};

/// The largest count or time of Triton's options.
pub(super) const INT_MAX: u64 = i32::MAX as u64;

/// The words that Triton takes for `true` and `false`, in upper or lower case.
pub(super) fn boolean() -> impl TypedValueParser<Value = bool> {
    StringValueParser::new()
        .try_map(|word| as_boolean(&word).ok_or("must be true, on or 1, or else false, off or 0"))
}

pub(super) fn as_boolean(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Some(true),
        "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// A whole number of an unsigned type.
pub(super) fn whole<T>() -> impl TypedValueParser<Value = T>
where
    T: TryFrom<u64> + Clone + Send + Sync + 'static,
{
    whole_in(0..=u64::MAX >> (64 - 8 * size_of::<T>()))
}

/// A whole number in the range of Triton's options for counts and times.
pub(super) fn int<T>() -> impl TypedValueParser<Value = T>
where
    T: TryFrom<u64> + Clone + Send + Sync + 'static,
{
    whole_in(0..=INT_MAX)
}

/// A number of bytes in the range of Triton's options for sizes.
pub(super) fn byte_size() -> impl TypedValueParser<Value = u64> {
    whole_in(0..=i64::MAX.unsigned_abs())
}

/// A whole number in a range.
pub(super) fn whole_in<T>(range: RangeInclusive<u64>) -> impl TypedValueParser<Value = T>
where
    T: TryFrom<u64> + Clone + Send + Sync + 'static,
{
    StringValueParser::new().try_map(move |text| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
    })
}

/// A whole number, 1 or more.
pub(super) fn non_zero() -> impl TypedValueParser<Value = NonZeroUsize> {
    whole_in::<usize>(1..=u64::MAX).try_map(NonZeroUsize::try_from)
}

/// The number of a port.
pub(super) fn port() -> impl TypedValueParser<Value = u16> {
    let expected = "must be a port: a whole number from 0 to 65535, where 0 is any free port";
    StringValueParser::new().try_map(move |text| text.parse::<u16>().map_err(|_| expected))
}
