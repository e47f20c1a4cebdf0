//! Splits the bytes of a call into its messages (gRPC over HTTP/2: a flag, a length of four bytes, the message).
//!
//! An announced length reserves no memory: a message occupies only what has arrived of it.

use bytes::{Buf, Bytes};
use nereid_budgets::BodyBudget;
use tonic::Status;

use super::Pieces;
use crate::messages::{HEAD, announced_length};
use crate::status;

/// Finds the messages in what arrived.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// The unread rest of what arrived last.
    rest: Bytes,
    head: [u8; HEAD],
    head_length: usize,
    /// The partial message, and the number of its missing bytes.
    message: Option<(Pieces, usize)>,
}

impl Splitter {
    /// Accepts received bytes. Earlier ones must have been read.
    pub(crate) fn arrived(&mut self, bytes: Bytes) {
        self.rest = bytes;
    }

    /// Reads on: the flag and the bytes of a message, if one is complete.
    ///
    /// # Errors
    /// The message is too long, or the budget has no room for it.
    pub(crate) fn read(&mut self, budget: &BodyBudget) -> Result<Option<(u8, Pieces)>, Status> {
        loop {
            if let Some((pieces, missing)) = &mut self.message {
                let arrived = self.rest.split_to(self.rest.len().min(*missing));
                *missing -= arrived.len();
                if !arrived.is_empty() {
                    pieces.push(arrived);
                    pieces.share.cover(budget, pieces.remaining()).map_err(|error| status::of(&error))?;
                }
                if *missing > 0 {
                    return Ok(None);
                }
                pieces.end_small();
                return Ok(self.message.take().map(|(pieces, _)| (self.head[0], pieces)));
            }
            let room = self.head.get_mut(self.head_length..).unwrap_or_default();
            let length = self.rest.len().min(room.len());
            self.rest.copy_to_slice(room.split_at_mut(length).0);
            self.head_length += length;
            if self.head_length < HEAD {
                return Ok(None);
            }
            self.head_length = 0;
            self.message = Some((Pieces::default(), announced_length(self.head, budget)?));
        }
    }

    /// Whether a message is partially received.
    pub(crate) fn is_within(&self) -> bool {
        self.message.is_some() || self.head_length > 0
    }

    /// The error of a body that ends within a message.
    pub(crate) fn cut_off(&self) -> Option<Status> {
        let missing = match &self.message {
            Some((_, missing)) => *missing,
            None if self.head_length > 0 => HEAD - self.head_length,
            None => return None,
        };
        Some(Status::internal(format!("the last message ends {missing} bytes too early")))
    }
}
