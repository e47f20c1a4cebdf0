//! Host policies: on which part of the machine the instances that name one run.
//!
//! An instance that names none has the policy of its device: `cpu`, `gpu_0`, `model`.

use std::collections::BTreeMap;
use std::thread;

use nereid_affinity::{Placement, SettingError};
use nereid_backend_api::{Error, InstanceContext, Result};

/// The settings of policies, by the names of policies.
#[derive(Clone, Debug, Default)]
pub struct HostPolicies(BTreeMap<String, Policy>);

#[derive(Clone, Debug, Default)]
struct Policy {
    settings: BTreeMap<String, String>,
    placement: Placement,
    /// Values that no placement can have, by their settings.
    problems: BTreeMap<String, SettingError>,
}

impl HostPolicies {
    /// Takes over a setting of a policy. Of the same setting, the last counts. A value that it cannot have is a
    /// [`problem`](Self::problem) of the policy's instances, and no concern of others.
    ///
    /// # Errors
    /// The setting is unknown.
    pub fn set(&mut self, policy: &str, setting: &str, value: &str) -> std::result::Result<(), SettingError> {
        let policy = self.0.entry(policy.to_owned()).or_default();
        match policy.placement.set(setting, value) {
            Ok(()) => policy.problems.remove(setting),
            Err(unknown @ SettingError::Unknown(_)) => return Err(unknown),
            Err(invalid) => policy.problems.insert(setting.to_owned(), invalid),
        };
        policy.settings.insert(setting.to_owned(), value.to_owned());
        Ok(())
    }

    /// Why instances of a policy cannot be made, if that is so.
    pub fn problem(&self, policy: &str) -> Option<&SettingError> {
        self.0.get(policy)?.problems.values().next()
    }

    /// An instance with the settings of its policy.
    ///
    /// # Errors
    /// The policy's [`problem`](Self::problem).
    pub(crate) fn place(&self, mut context: InstanceContext) -> Result<PlacedInstance> {
        let name = &context.host_policy.name;
        if let Some(problem) = self.problem(name) {
            return Err(Error::invalid_arg(format!("host policy '{name}': {problem}")));
        }
        let policy = self.0.get(name).cloned().unwrap_or_default();
        context.host_policy.settings = policy.settings;
        Ok(PlacedInstance { context, placement: policy.placement })
    }
}

/// An instance to create, and its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedInstance {
    pub context: InstanceContext,
    pub placement: Placement,
}

/// Does something in a place: on a thread of its own, unless any place will do.
///
/// # Errors
/// The system refuses the place.
pub(crate) fn in_place<T: Send>(placement: &Placement, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if placement.is_any() {
        return act();
    }
    let there = || {
        let refused = |error| Error::internal(format!("an instance's host policy: {error}"));
        placement.apply().map_err(refused)?;
        act()
    };
    // Propagates a panic, as without a thread.
    thread::scope(|scope| scope.spawn(there).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
