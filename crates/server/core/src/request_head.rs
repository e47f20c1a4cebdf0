//! What comes before the body of a request.

use std::time::Duration;

/// Names and values that come before the body of a request, such as HTTP headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    values: Vec<(String, String)>,
    time_limit: Option<Duration>,
}

impl RequestHead {
    /// How long the client waits for its answer, if that is known.
    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// Sets how long the client waits for its answer, from now on.
    pub fn with_time_limit(self, time_limit: Option<Duration>) -> Self {
        Self { time_limit, ..self }
    }

    /// The first value of this name, regardless of case.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for RequestHead {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(entries: I) -> Self {
        let values = entries.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { values, time_limit: None }
    }
}
