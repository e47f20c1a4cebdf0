//! Notes of the index on models, whose sources are outside of the model table.

use super::Server;
use crate::table::ModelStatus;

impl Server {
    /// Announces a change of such a note, for example by a release.
    pub fn announce_change(&self) {
        self.models.events().notify();
    }

    /// The [reason](ModelStatus::reason) for a state, and the note of [`Residency`](crate::Residency) on a model that is not in memory.
    pub fn reason(&self, status: &ModelStatus) -> Option<String> {
        let reason = status.reason()?;
        let note = || self.options.residency.as_ref()?.note(&status.id.name);
        match note().filter(|_| status.state.is_evicted()) {
            Some(note) => Some(format!("{reason}, {note}")),
            None => Some(reason),
        }
    }
}
