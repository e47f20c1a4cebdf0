//! Compression of answers.
//!
//! tonic compresses on the connection's thread, which a large answer would occupy for seconds. Here, large messages are
//! compressed as [long work](long_work).

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression as Level;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::HeaderMap;
use nereid_budgets::BodyBudget;
use nereid_tasks::long_work;
use tonic::Status;
use tonic::codegen::BoxFuture;

use crate::messages::{Format, HEAD};
use crate::{Compression, status};

/// Messages up to this size are compressed inline.
const SHORT: usize = 64 << 10;

/// Compresses the answers to a call.
#[derive(Clone, Debug)]
pub(crate) struct Compressor {
    format: Format,
    /// The budget of compressed messages.
    budget: BodyBudget,
}

impl Compressor {
    /// A compressor for the first enabled format that the call's headers accept, if any.
    pub(crate) fn new(headers: &HeaderMap, enabled: Compression, budget: &BodyBudget) -> Option<Self> {
        // Clients list their formats in each call, also if the server compresses nothing.
        if enabled == Compression::None {
            return None;
        }
        let is_enabled = |format: &Format| enabled == Compression::Any || *format == Format::Gzip;
        let accepted = headers.get("grpc-accept-encoding")?.to_str().ok()?;
        let formats = accepted.split(',').filter_map(|name| Format::named(name.trim().as_bytes()));
        Some(Self { format: { formats }.find(is_enabled)?, budget: budget.clone() })
    }

    /// The value of the header `grpc-encoding`.
    pub(super) fn encoding(&self) -> &'static str {
        self.format.name()
    }

    /// Whether a message of this length is compressed inline.
    pub(super) fn is_short(length: usize) -> bool {
        length <= SHORT
    }

    /// Compresses a message and adds its head.
    ///
    /// # Errors
    /// `Internal` if the library fails.
    pub(super) fn compress(&self, message: &[Bytes]) -> Result<Bytes, Status> {
        let failed = |error: io::Error| Status::internal(format!("cannot compress the answer: {error}"));
        let length: usize = message.iter().map(Bytes::len).sum();
        let mut target = Vec::with_capacity(HEAD + length / 2 + 64);
        target.extend_from_slice(&[1; HEAD]);
        let mut compressed = match self.format {
            Format::Gzip => {
                let mut encoder = GzEncoder::new(target, Level::default());
                message.iter().try_for_each(|piece| encoder.write_all(piece)).map_err(failed)?;
                encoder.finish()
            }
            Format::Deflate => {
                let mut encoder = ZlibEncoder::new(target, Level::default());
                message.iter().try_for_each(|piece| encoder.write_all(piece)).map_err(failed)?;
                encoder.finish()
            }
        }
        .map_err(failed)?;
        // Incompressible contents grow by less than a thousandth, and messages have 2 GiB at most.
        let length = (compressed.len() - HEAD) as u32;
        if let Some([_, bytes @ ..]) = compressed.first_chunk_mut::<HEAD>() {
            *bytes = length.to_be_bytes();
        }
        Ok(self.budget.hold_anyway(compressed.into()))
    }

    /// Compresses a message on another thread.
    pub(super) fn compress_elsewhere(&self, message: Vec<Bytes>) -> BoxFuture<Bytes, Status> {
        let this = self.clone();
        Box::pin(async move {
            long_work::run(move || this.compress(&message)).await.map_err(|error| status::of(&error))?
        })
    }
}
