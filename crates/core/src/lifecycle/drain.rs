//! The end of a version that is no longer in the table.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::LifeCycle;
use crate::model::Model;
use crate::table::VersionState;

/// How often to look whether a version is still held, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// Waits until nobody holds the version any more: those who found it while it was in the table may still bring it
/// requests, and every request holds it until it is answered. Then ends its instances. If a follower has other instances
/// of the same model, sequences go on here as long as the follower is there; otherwise they end.
pub(super) fn drain(
    lifecycle: Arc<LifeCycle>,
    model: Arc<Model>,
    follower: Option<Weak<Model>>,
    number: u64,
) {
    let name = model.id().to_string();
    let spawned = thread::Builder::new().name("nereid-drain".into()).spawn(move || {
        let [mut pause, most] = PAUSES;
        let is_followed = || follower.as_ref().is_some_and(|follower| follower.strong_count() > 0);
        loop {
            let goes_on = is_followed() && model.has_sequences();
            if !goes_on {
                model.end_sequences();
                if Arc::strong_count(&model) == 1 {
                    break;
                }
            }
            thread::sleep(pause);
            pause = (pause * 2).min(most);
        }
        model.unload();
        let (id, version) = (model.id(), model.version());
        tracing::info!("unloaded '{id}' version {version}");
        lifecycle.change(|table| {
            // Unless it was loaded again meanwhile.
            if matches!(table.version(id, version), Some(VersionState::Unloading(other)) if *other == number)
            {
                table.set_version(id, version, VersionState::Unloaded);
            }
        });
    });
    if let Err(error) = spawned {
        tracing::error!("cannot start a thread to unload '{name}', which stays in memory: {error}");
    }
}
