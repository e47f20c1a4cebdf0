//! Which instances of a model stay when its instance groups change.
//!
//! An instance stays if the new configuration has one with the same properties, as in the reference. Names do not count: a
//! group that is renamed or moved keeps its instances, and they keep their names.

use nereid_backend_api::InstanceContext;

use super::Slot;
use crate::host_policies::PlacedInstance;

/// An instance of the new configuration.
pub(super) struct Planned<'a> {
    pub placed: PlacedInstance,
    /// The existing instance to use, if there is one.
    pub kept: Option<&'a Slot>,
}

/// Finds an existing instance for each planned one, by name where possible. New instances get names that no other one has.
pub(super) fn plan(instances: Vec<PlacedInstance>, mut existing: Vec<&Slot>) -> Vec<Planned<'_>> {
    let mut planned: Vec<_> = instances.into_iter().map(|placed| Planned { placed, kept: None }).collect();
    let matches: [fn(&PlacedInstance, &PlacedInstance) -> bool; 2] = [PlacedInstance::eq, is_alike];
    for matches in matches {
        for planned in planned.iter_mut().filter(|planned| planned.kept.is_none()) {
            let found = existing.iter().position(|slot| matches(&slot.placed, &planned.placed));
            planned.kept = found.map(|index| existing.remove(index));
        }
    }
    let mut names: Vec<_> = Vec::new();
    for Planned { placed, kept } in &mut planned {
        if let Some(kept) = kept {
            placed.clone_from(&kept.placed);
            names.push((placed.context.name.clone(), placed.context.kind));
        }
    }
    for Planned { placed, .. } in planned.iter_mut().filter(|planned| planned.kept.is_none()) {
        while names.contains(&(placed.context.name.clone(), placed.context.kind)) {
            placed.context.name = next_name(&placed.context.name);
        }
        names.push((placed.context.name.clone(), placed.context.kind));
    }
    planned
}

/// Whether two instances differ in their names at most.
fn is_alike(one: &PlacedInstance, other: &PlacedInstance) -> bool {
    let context = InstanceContext { name: other.context.name.clone(), ..one.context.clone() };
    context == other.context && one.placement == other.placement
}

/// The name with the next number.
fn next_name(name: &str) -> String {
    let (group, number) = name.rsplit_once('_').unwrap_or((name, ""));
    format!("{group}_{}", number.parse::<u64>().map_or(0, |number| number.saturating_add(1)))
}
