//! Further attempts after refusals.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::Error;

/// When a refused request is sent again: the server was not reached, had no capacity (503) or a limit of the client was reached (429).
/// In these cases no model has executed it. Without a time from the server, the delay doubles with each attempt, less a random
/// half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The most attempts, the first one included.
    pub attempts: u32,
    /// The delay before the second attempt.
    pub first_delay: Duration,
    /// The longest delay. A longer `Retry-After` ends the attempts.
    pub longest_delay: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 4, first_delay: Duration::from_millis(100), longest_delay: Duration::from_secs(30) }
    }
}

impl Retry {
    /// A single attempt.
    pub const NEVER: Self = Self { attempts: 1, first_delay: Duration::ZERO, longest_delay: Duration::ZERO };

    /// Calls `send` with the time that is left, until a result other than a refusal.
    ///
    /// # Errors
    /// The last attempt failed, or the deadline passed.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        &self,
        deadline: Option<Duration>,
        mut send: impl FnMut(Option<Duration>) -> F,
    ) -> Result<T, Error> {
        let end = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let mut attempt = 1;
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Deadline(deadline.unwrap_or_default()));
            }
            let outcome = match end {
                None => send(left).await,
                Some(end) => match timeout_at(end, send(left)).await {
                    Ok(outcome) => outcome,
                    Err(_) => return Err(Error::Deadline(deadline.unwrap_or_default())),
                },
            };
            let error = match outcome {
                Err(error) if error.may_retry() && attempt < self.attempts => error,
                other => return other,
            };
            let Some(delay) = self.delay(attempt, &error) else { return Err(error) };
            if end.is_some_and(|end| Instant::now() + delay >= end) {
                return Err(error);
            }
            sleep(delay).await;
            attempt += 1;
        }
    }

    /// The delay after an attempt, counted from 1; `None` if the server names too long a one.
    fn delay(&self, attempt: u32, error: &Error) -> Option<Duration> {
        if let Error::Status { retry_after: Some(delay), .. } = error {
            return (*delay <= self.longest_delay).then_some(*delay);
        }
        let factor = 2_u32.checked_pow(attempt - 1).unwrap_or(u32::MAX);
        let delay = self.first_delay.saturating_mul(factor).min(self.longest_delay);
        Some(delay.mul_f64(1.0 - fastrand::f64() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Code;

    fn refusal(code: Code, retry_after: Option<u64>) -> Error {
        Error::Status { code, message: "no".into(), retry_after: retry_after.map(Duration::from_secs) }
    }

    /// The attempts until the end, its outcome and the seconds that it took.
    async fn run(retry: Retry, deadline: Option<u64>, errors: &[Error]) -> (usize, Result<(), Error>, f64) {
        let start = Instant::now();
        let sent = Cell::new(0);
        let outcome = retry
            .run(deadline.map(Duration::from_secs), |_| {
                sent.set(sent.get() + 1);
                std::future::ready(errors.get(sent.get() - 1).cloned().map_or(Ok(()), Err))
            })
            .await;
        (sent.get(), outcome, start.elapsed().as_secs_f64())
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_sent_again_when_the_server_says() {
        let busy = refusal(Code::Unavailable, Some(7));
        let limited = refusal(Code::ResourceExhausted, Some(2));
        let (sent, outcome, took) = run(Retry::default(), None, &[busy.clone(), limited]).await;
        assert_eq!((sent, outcome), (3, Ok(())));
        assert!((9.0..9.1).contains(&took), "{took}");
        let too_long = refusal(Code::Unavailable, Some(31));
        for (deadline, errors, attempts) in [
            (None, vec![too_long], 1),
            (Some(7), vec![busy.clone()], 1),
            (Some(13), vec![busy.clone(), busy.clone()], 2),
            (None, vec![busy.clone(); 4], 4),
        ] {
            let (sent, outcome, _) = run(Retry::default(), deadline, &errors).await;
            assert_eq!((sent, outcome), (attempts, Err(errors[0].clone())));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn delays_double_to_their_limit() {
        let retry =
            Retry { attempts: 9, first_delay: Duration::from_secs(1), longest_delay: Duration::from_secs(4) };
        for _ in 0..20 {
            let (sent, outcome, took) = run(retry.clone(), None, &vec![Error::Connect("no".into()); 4]).await;
            assert_eq!((sent, outcome), (5, Ok(())));
            // 1 + 2 + 4 + 4, or down to half of that.
            assert!((5.5..11.1).contains(&took), "{took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_errors_are_final() {
        for error in [
            refusal(Code::InvalidArgument, Some(1)),
            refusal(Code::Internal, None),
            Error::Lost("broken pipe".into()),
            Error::invalid("no"),
        ] {
            assert_eq!(run(Retry::default(), None, std::slice::from_ref(&error)).await, (1, Err(error), 0.0));
        }
        let busy = refusal(Code::Unavailable, None);
        assert_eq!(run(Retry::NEVER, None, std::slice::from_ref(&busy)).await, (1, Err(busy), 0.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_ends_an_attempt() {
        let start = Instant::now();
        let deadline = Duration::from_secs(3);
        let outcome: Result<(), _> = Retry::default()
            .run(Some(deadline), |left| {
                assert_eq!(left, Some(deadline));
                std::future::pending()
            })
            .await;
        assert_eq!((outcome, start.elapsed()), (Err(Error::Deadline(deadline)), deadline));
        let (sent, outcome, _) = run(Retry::default(), Some(0), &[]).await;
        assert_eq!((sent, outcome), (0, Err(Error::Deadline(Duration::ZERO))));
    }
}
