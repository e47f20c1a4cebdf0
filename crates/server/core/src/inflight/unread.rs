//! The unread answers to one request, and how much memory they take.

use std::collections::VecDeque;

use nereid_backend_api::{Answer, ParameterValue, Tensor};

/// Estimated size of an answer without its contents, so that many empty answers count too.
const OVERHEAD: usize = 512;

/// Answers in the order they were given.
#[derive(Default)]
pub(super) struct UnreadAnswers {
    /// The first one. Nearly always the only one, so it costs no allocation and is not weighed.
    next: Option<Answer>,
    later: VecDeque<Answer>,
    /// The size of the later ones, in bytes.
    weight: usize,
}

impl UnreadAnswers {
    /// Whether the answer may wait with the others: it is the first, or the later ones together have at most `limit` bytes.
    /// With limit 0, any number may wait.
    pub(super) fn has_room(&self, answer: &Answer, limit: usize) -> bool {
        self.next.is_none() || limit == 0 || self.weight.saturating_add(weight(answer)) <= limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    /// Whether there is more than one.
    pub(super) fn has_several(&self) -> bool {
        !self.later.is_empty()
    }

    pub(super) fn push(&mut self, answer: Answer) {
        if self.next.is_none() {
            self.next = Some(answer);
        } else {
            self.weight = self.weight.saturating_add(weight(&answer));
            self.later.push_back(answer);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Answer> {
        let first = self.next.take()?;
        self.next = self.later.pop_front();
        if let Some(next) = &self.next {
            self.weight = self.weight.saturating_sub(weight(next));
        }
        Some(first)
    }
}

/// The approximate memory that an answer takes, in bytes.
fn weight(answer: &Answer) -> usize {
    let contents = match answer {
        Ok(response) => {
            let outputs = response.outputs.iter().map(|output| OVERHEAD + Tensor::byte_size(output));
            let parameters = response.parameters.iter().map(|(_, value)| match value {
                ParameterValue::String(text) => OVERHEAD + text.len(),
                _ => OVERHEAD,
            });
            outputs.chain(parameters).fold(0, usize::saturating_add)
        }
        Err(error) => error.message().len(),
    };
    contents.saturating_add(OVERHEAD)
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::{DataType, Error, Parameters, Response};

    use super::*;

    fn answer(size: usize) -> Answer {
        Ok(Response::new(vec![Tensor::new("X", DataType::Uint8, [size as i64], vec![0; size])]))
    }

    #[test]
    fn the_first_answer_may_be_of_any_size_and_the_later_ones_share_the_limit() {
        let limit = weight(&answer(100)) + weight(&answer(10));
        let mut unread = UnreadAnswers::default();
        assert!(unread.has_room(&answer(1 << 20), limit));
        unread.push(answer(1 << 20));
        for size in [100, 10] {
            assert!(unread.has_room(&answer(size), limit));
            unread.push(answer(size));
        }
        assert!(!unread.has_room(&answer(0), limit));
        assert!(unread.has_room(&answer(1 << 20), 0));
        unread.pop().unwrap().unwrap();
        assert!(unread.has_room(&answer(100), limit) && !unread.has_room(&answer(101), limit));
        unread.pop().unwrap().unwrap();
        assert_eq!(unread.weight, 0);
        assert!(unread.pop().is_some() && unread.pop().is_none());
    }

    #[test]
    fn parameters_and_errors_weigh_too() {
        let mut parameters = Parameters::default();
        parameters.set("p", ParameterValue::String("x".repeat(5000).into()));
        assert!(weight(&Ok(Response { outputs: Vec::new(), parameters })) > 5000);
        assert!(weight(&Err(Error::internal("x".repeat(3000)))) > 3000);
        assert!(weight(&Ok(Response::default())) > 0);
    }
}
