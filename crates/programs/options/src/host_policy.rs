//! `--host-policy`: settings of the host policies of instances.

use nereid_core::HostPolicies;

/// A setting of a host policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPolicySetting {
    policy: String,
    setting: String,
    value: String,
}

impl HostPolicySetting {
    /// The reason why no instance can use this setting, if any. Only models of the policy are affected, and this machine
    /// may have none.
    pub(super) fn problem(&self) -> Option<String> {
        let mut policies = HostPolicies::default();
        policies.set(&self.policy, &self.setting, &self.value).ok()?;
        Some(format!(
            "models of policy '{}' cannot be loaded: {}",
            self.policy,
            policies.problem(&self.policy)?
        ))
    }
}

/// Triton's form: the policy up to the first comma, the setting up to the next equals sign, and the value.
pub(super) fn read(text: &str) -> Result<HostPolicySetting, String> {
    let split = text.split_once(',').and_then(|(policy, rest)| Some((policy, rest.split_once('=')?)));
    let Some((policy, (setting, value))) = split else {
        return Err("must be POLICY,SETTING=VALUE".into());
    };
    if [policy, setting, value].contains(&"") {
        return Err("policy, setting and value must not be empty".into());
    }
    HostPolicies::default().set(policy, setting, value).map_err(|error| error.to_string())?;
    Ok(HostPolicySetting { policy: policy.into(), setting: setting.into(), value: value.into() })
}

/// Combines all settings.
pub(super) fn all(given: &[HostPolicySetting]) -> Result<HostPolicies, String> {
    let mut policies = HostPolicies::default();
    for HostPolicySetting { policy, setting, value } in given {
        policies.set(policy, setting, value).map_err(|error| error.to_string())?;
    }
    Ok(policies)
}
