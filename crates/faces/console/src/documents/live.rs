//! Open sequences, and changes of states.

use std::time::Instant;

use nereid_core::backend_api::CorrelationId;
use nereid_core::{Model, ModelId, OpenSequence};
use nereid_http::decode;
use serde::Serialize;

use super::pairs;
use crate::sampling::Sampling;
use crate::states::StateChange;

/// The most sequences in a document.
const MAX_SEQUENCES: usize = 200;

/// The sequences that clients of a version may continue.
#[derive(Serialize)]
pub(crate) struct SequencesDocument {
    count: usize,
    /// The oldest ones, in order.
    oldest: Vec<Sequence>,
}

#[derive(Serialize)]
struct Sequence {
    id: String,
    /// `None` while it waits for a slot.
    instance: Option<usize>,
    slot: Option<usize>,
    seconds: f64,
    waiting: usize,
    state_bytes: usize,
}

impl SequencesDocument {
    pub(crate) fn of(model: &Model, now: Instant) -> Self {
        let (count, oldest) = model.open_sequences(MAX_SEQUENCES);
        let sequence = |open: OpenSequence| Sequence {
            id: match open.id {
                CorrelationId::Text(text) => text,
                number => number.to_string(),
            },
            instance: open.place.map(|(instance, _)| instance),
            slot: open.place.map(|(_, slot)| slot),
            seconds: now.saturating_duration_since(open.began).as_secs_f64(),
            waiting: open.waiting,
            state_bytes: open.state_bytes,
        };
        Self { count, oldest: oldest.into_iter().map(sequence).collect() }
    }
}

/// The model that a client is interested in; `None` for all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelQuery {
    pub model: Option<String>,
}

impl ModelQuery {
    /// Parses `model`. Unknown names are ignored.
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let mut pairs = pairs(query);
        let model = pairs.find(|(name, _)| *name == "model").map(|(_, value)| decode(value).into_owned());
        Self { model }
    }
}

/// The last changes of states, oldest first: of a model, or of the server and all models.
pub(crate) fn states(
    sampling: &Sampling,
    of: Option<&str>,
    may_see: impl Fn(&ModelId) -> bool,
) -> Vec<StateChange> {
    let is_wanted = |change: &&StateChange| match (&change.model, of) {
        (Some(model), of) => {
            let id = ModelId { name: model.clone(), namespace: change.namespace.clone() };
            of.is_none_or(|of| of == model) && may_see(&id)
        }
        (None, of) => of.is_none(),
    };
    sampling.states().changes().filter(is_wanted).cloned().collect()
}
