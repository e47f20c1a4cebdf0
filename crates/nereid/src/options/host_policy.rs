//! `--host-policy`: what operators set for the host policies of instances.

use nereid_core::HostPolicies;

/// A setting of a host policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPolicySetting {
    policy: String,
    setting: String,
    value: String,
}

/// The reference's form: what stands before the first comma is the policy, what follows up to the next equals sign the
/// setting, and the rest its value.
pub(super) fn read(text: &str) -> Result<HostPolicySetting, String> {
    let split = text.split_once(',').and_then(|(policy, rest)| Some((policy, rest.split_once('=')?)));
    let Some((policy, (setting, value))) = split else {
        return Err("it has the form <policy>,<setting>=<value>".into());
    };
    if [policy, setting, value].contains(&"") {
        return Err("none of its parts may be empty: <policy>,<setting>=<value>".into());
    }
    HostPolicies::default().set(policy, setting, value).map_err(|error| error.to_string())?;
    Ok(HostPolicySetting { policy: policy.into(), setting: setting.into(), value: value.into() })
}

/// All settings together.
pub(super) fn all(given: &[HostPolicySetting]) -> Result<HostPolicies, String> {
    let mut policies = HostPolicies::default();
    for HostPolicySetting { policy, setting, value } in given {
        policies.set(policy, setting, value).map_err(|error| error.to_string())?;
    }
    Ok(policies)
}
