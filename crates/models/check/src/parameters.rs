//! Checks the parameters of a configuration that the server itself reads, by the declarations of the crates that read them.

use nereid_core::model_config::{LATENCY_OBJECTIVE, ParameterSet, nearest_name};

use super::config::CheckedConfig;
use super::report::Finding;

/// The parameters of the server, except those that the rules of configurations check.
const SETS: [ParameterSet; 3] =
    [nereid_residency::PARAMETERS, nereid_scaling::PARAMETERS, nereid_releases::PARAMETERS];

/// Reports parameters with invalid values, which keep the model from being loaded, and names that were probably mistyped. `explains`:
/// whether a problem of the text is the cause of one in a field.
pub(crate) fn check(checked: &CheckedConfig, explains: impl Fn(&str) -> bool, findings: &mut Vec<Finding>) {
    let config = &checked.config;
    let invalid = SETS.iter().flat_map(|set| (set.check)(config));
    findings.extend(
        invalid
            .filter(|error| !explains(&error.field()))
            .map(|error| checked.error(&error.field(), error.reason())),
    );
    for name in config.parameters.keys().filter(|name| !names().any(|known| known == **name)) {
        if let Some(nearest) = intended(name) {
            let message = "no part of the server reads this parameter";
            findings.push(checked.warning(&format!("parameters[{name:?}]"), message).meaning(Some(nearest)));
        }
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    SETS.into_iter().flat_map(|set| set.names).copied().chain([LATENCY_OBJECTIVE])
}

/// The parameter of the server that this name resembles or is the beginning of. Backends have parameters of their own, so a similar
/// end is not enough.
fn intended(name: &str) -> Option<&'static str> {
    let first = name.chars().next().filter(|_| name.contains('_'))?;
    let candidates = || names().filter(|known| known.starts_with(first.to_ascii_lowercase()));
    let is_beginning = |known: &&str| known.starts_with(&format!("{name}_"));
    nearest_name(name, candidates()).or_else(|| candidates().find(is_beginning))
}
