//! API keys: `nereid_<id>_<last day>_<secret><check>`.
//!
//! The prefix lets scanners of code and logs recognise a leaked key, the check lets them do so without false alarms, and
//! the id lets its owner find and revoke it. The secret is 256 random bits, so a fast hash is enough to store it.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use nereid_protocol::Credential;
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq as _;
use time::{Date, Duration, Month, OffsetDateTime};

/// The prefix of every key.
const PREFIX: &str = "nereid_";

/// The longest key. Longer ones are not hashed.
const MAX_LENGTH: usize = 128;

/// The hexadecimal digits of an id.
const ID_DIGITS: usize = 16;

/// The hexadecimal digits of the check.
const CHECK_DIGITS: usize = 8;

/// Seconds since the epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The last day on which a key is valid, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expiry {
    /// The key is valid through this day.
    On(Date),
    /// The key is valid until it is revoked.
    Never,
}

impl Expiry {
    /// The day after this number of days from today.
    pub fn after(days: u16) -> Self {
        today().checked_add(Duration::days(days.into())).map_or(Self::Never, Self::On)
    }

    /// The second at which the key expires.
    pub(crate) fn end(self) -> u64 {
        let Self::On(day) = self else { return u64::MAX };
        let end = day.next_day().map(|next| next.midnight().assume_utc().unix_timestamp());
        end.and_then(|end| u64::try_from(end).ok()).unwrap_or(if day.year() < 1970 { 0 } else { u64::MAX })
    }

    /// As it is written in a key: without separators.
    fn in_key(self) -> String {
        self.to_string().replace('-', "")
    }
}

/// Today in UTC.
pub(crate) fn today() -> Date {
    OffsetDateTime::now_utc().date()
}

/// A day as `2027-12-31`.
pub(crate) fn parse_day(text: &str) -> Option<Date> {
    let [year, month, day] = text.split('-').collect::<Vec<_>>()[..] else { return None };
    let is_number =
        |part: &str, digits| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(year, 4) || !is_number(month, 2) || !is_number(day, 2) {
        return None;
    }
    let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
    Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On(day) => write!(f, "{:04}-{:02}-{:02}", day.year(), u8::from(day.month()), day.day()),
            Self::Never => f.write_str("never"),
        }
    }
}

impl FromStr for Expiry {
    type Err = String;

    /// A day, a number of days from today as `90d`, or `never`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok());
        let expiry = days.map(Self::after).or_else(|| parse_day(text).map(Self::On));
        expiry.ok_or_else(|| {
            "expected a day such as 2027-12-31, a number of days such as 90d, or never".to_owned()
        })
    }
}

/// The BLAKE3 hash of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// The hash of a key.
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(*blake3::hash(key).as_bytes())
    }

    /// Whether this is the hash of a key. Compares in constant time.
    pub(crate) fn is_of(&self, key: &[u8]) -> bool {
        Self::of(key).0.ct_eq(&self.0).into()
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash")
    }
}

/// The id in a text of a key's form; `None` for any other text.
pub(crate) fn id_of(key: &[u8]) -> Option<Credential> {
    if key.len() > MAX_LENGTH {
        return None;
    }
    let rest = key.strip_prefix(PREFIX.as_bytes())?;
    let (id, rest) = rest.split_at_checked(ID_DIGITS)?;
    let id = rest.starts_with(b"_").then_some(id)?;
    parse_id(std::str::from_utf8(id).ok()?)
}

/// The id in a key, as it is listed; `None` for any other text.
pub fn key_id(key: &str) -> Option<String> {
    id_of(key.trim().as_bytes()).map(id_digits)
}

/// An id from its hexadecimal digits.
pub(crate) fn parse_id(digits: &str) -> Option<Credential> {
    let is_id =
        digits.len() == ID_DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then(|| u64::from_str_radix(digits, 16).ok().map(Credential))?
}

/// The hexadecimal digits of an id.
pub(crate) fn id_digits(id: Credential) -> String {
    format!("{:016x}", id.0)
}

/// A key that was just made. Its text is shown once and stored nowhere.
pub struct NewKey {
    /// The id.
    pub id: Credential,
    /// The whole key.
    pub text: String,
    /// The last day.
    pub expiry: Expiry,
}

impl NewKey {
    /// The id as it is written in the key.
    pub fn id_text(&self) -> String {
        id_digits(self.id)
    }

    /// A random key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random(expiry: Expiry) -> Result<Self, String> {
        let (mut id, mut secret) = ([0; 8], [0; 32]);
        let random = SystemRandom::new();
        random
            .fill(&mut id)
            .and_then(|()| random.fill(&mut secret))
            .map_err(|_| "the system provides no random numbers".to_owned())?;
        let id = Credential(u64::from_be_bytes(id));
        let mut text = format!("{PREFIX}{}_{}_{}", id_digits(id), expiry.in_key(), hex(&secret));
        let check = hex(&KeyHash::of(text.as_bytes()).0);
        text.push_str(check.get(..CHECK_DIGITS).unwrap_or_default());
        Ok(Self { id, text, expiry })
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewKey").field("id", &id_digits(self.id)).finish_non_exhaustive()
    }
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from hexadecimal digits.
pub(crate) fn parse_hash(digits: &str) -> Option<KeyHash> {
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.contains('+'))?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(KeyHash(hash))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn key_has_prefix_id_expiry_secret_and_check() {
        for expiry in ["2027-12-31", "never", "1d"] {
            let expiry: Expiry = expiry.parse().unwrap();
            let (key, other) = (NewKey::random(expiry).unwrap(), NewKey::random(expiry).unwrap());
            assert_ne!(key.text, other.text);
            let parts: Vec<_> = key.text.split('_').collect();
            assert_eq!(parts[0], "nereid");
            assert_eq!(parse_id(parts[1]), Some(key.id));
            assert_eq!(parts[2], expiry.to_string().replace('-', ""));
            assert_eq!(parts[3].len(), 64 + CHECK_DIGITS);
            let (head, check) = key.text.split_at(key.text.len() - CHECK_DIGITS);
            assert!(hex(&KeyHash::of(head.as_bytes()).0).starts_with(check));
            assert_eq!(id_of(key.text.as_bytes()), Some(key.id));
            assert_eq!(key_id(&key.text), Some(key.id_text()));
            assert!(KeyHash::of(key.text.as_bytes()).is_of(key.text.as_bytes()));
            assert!(!format!("{key:?}").contains(parts[3]), "keys must not be logged");
        }
    }

    #[test]
    fn texts_of_another_form_have_no_id() {
        let key = NewKey::random(Expiry::Never).unwrap().text;
        let long = key.clone() + &"0".repeat(MAX_LENGTH);
        let upper = key.to_uppercase();
        for text in [
            "",
            "nereid_",
            "nereid_0123456789abcdef",
            "Bearer x",
            &long,
            &upper,
            &key[1..],
            "nereid_0123456789abcdeg_x",
        ] {
            assert_eq!(id_of(text.as_bytes()), None, "{text}");
        }
        assert_eq!(id_of(&[0xff; 100]), None);
    }

    #[test]
    fn expiry_is_a_day_or_never() {
        for (text, expected) in [
            ("2027-12-31", Some("2027-12-31")),
            ("2028-02-29", Some("2028-02-29")),
            ("never", Some("never")),
            ("2027-02-29", None),
            ("2027-2-9", None),
            ("27-12-31", None),
            ("20271231", None),
            ("2027-12-31-", None),
            ("+027-12-31", None),
            ("Never", None),
            ("90", None),
            ("-1d", None),
            ("", None),
        ] {
            let parsed = text.parse::<Expiry>().ok().map(|expiry| expiry.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
        let days = |text: &str| match text.parse::<Expiry>().unwrap() {
            Expiry::On(day) => (day - today()).whole_days(),
            Expiry::Never => i64::MAX,
        };
        // Midnight may pass between the two.
        assert!((29..=30).contains(&days("30d")));
    }

    #[test]
    fn key_is_valid_through_its_last_day() {
        for (text, end) in [("1970-01-01", 86_400), ("2026-11-26", 1_795_737_600), ("never", u64::MAX)] {
            assert_eq!(text.parse::<Expiry>().unwrap().end(), end, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(id) = id_of(&bytes) {
                prop_assert!(bytes.starts_with(PREFIX.as_bytes()));
                prop_assert!(bytes[PREFIX.len()..].starts_with(id_digits(id).as_bytes()));
            }
        }

        #[test]
        fn hashes_survive_their_text(bytes: [u8; 32]) {
            prop_assert_eq!(parse_hash(&hex(&bytes)), Some(KeyHash(bytes)));
        }

        #[test]
        fn changed_key_has_another_hash(at in 0_usize..100, by in 1_u8..=255) {
            let key = NewKey::random(Expiry::Never).unwrap().text.into_bytes();
            let hash = KeyHash::of(&key);
            let mut changed = key.clone();
            let at = at % key.len();
            changed[at] ^= by;
            prop_assert!(hash.is_of(&key) && !hash.is_of(&changed) && !hash.is_of(&key[..at]));
        }
    }
}
