//! The options about how models execute: the rate limiter, and where instances run.

use clap::{ArgAction, Args, ValueEnum};
use nereid_core::{HostPolicies, LoadShedding, RateLimit, ResourceLimit};

use super::host_policy::{self, HostPolicySetting};
use super::values::{boolean, int};
use super::without_effect;

/// Options of model execution.
#[derive(Debug, Args)]
#[command(next_help_heading = "Execution")]
pub(crate) struct ExecutionOptions {
    /// Limit executions over all models by the resources that instance groups need.
    #[arg(long, value_name = "MODE", value_enum, default_value_t, ignore_case = true)]
    rate_limit: RateLimitMode,

    /// Amount of a resource, on each device or on one, as NAME:COUNT or NAME:COUNT:DEVICE. May be given several times.
    /// Default: of each resource, what the instance with the greatest need takes.
    #[arg(long, value_name = "RESOURCE", value_parser = resource, action = ArgAction::Append)]
    rate_limit_resource: Vec<ResourceLimit>,

    /// Refuse requests at once that would wait in a queue for longer than their deadline, timeout or queue timeout allows, by the
    /// recent execution times of their model.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    shed_load: bool,

    /// Setting of a host policy. An instance uses the policy that its group names, or by default the policy of its device:
    /// cpu, gpu_0 and so on, model. cpu-cores (0-3,8-11) pins instances to these processors, numa-node allocates their
    /// memory on this node. May be given several times.
    #[arg(long, value_name = "POLICY,SETTING=VALUE", value_parser = host_policy::read, action = ArgAction::Append)]
    host_policy: Vec<HostPolicySetting>,

    /// Accepted, without effect: no separate threads copy tensors.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = int::<u32>())]
    buffer_manager_thread_count: u32,
}

/// Modes of the limit on executions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum RateLimitMode {
    /// No limit
    #[default]
    Off,
    /// By resources; instances with fewer executions go first
    ExecutionCount,
}

impl ExecutionOptions {
    /// The rate limiter's configuration.
    pub(super) fn rate_limit(&self) -> RateLimit {
        match self.rate_limit {
            RateLimitMode::Off => RateLimit::Off,
            RateLimitMode::ExecutionCount => RateLimit::ExecutionCount(self.rate_limit_resource.clone()),
        }
    }

    /// Whether requests that would wait too long are refused.
    pub(super) fn load_shedding(&self) -> LoadShedding {
        if self.shed_load { LoadShedding::On } else { LoadShedding::Off }
    }

    /// Settings that have no effect, or that no instance can have.
    pub(super) fn advice(&self) -> impl Iterator<Item = String> {
        let copies = without_effect(
            "tensors are not copied by threads of their own",
            [(self.buffer_manager_thread_count > 0, "--buffer-manager-thread-count")],
        );
        let wrong = self
            .host_policy
            .iter()
            .filter_map(|setting| Some(format!("--host-policy: {}", setting.problem()?)));
        copies.chain(wrong)
    }

    /// The placement of instances.
    ///
    /// # Errors
    /// An unknown setting; the parser has already refused those.
    pub(super) fn host_policies(&self) -> Result<HostPolicies, String> {
        host_policy::all(&self.host_policy)
    }
}

/// Reads `NAME:COUNT` or `NAME:COUNT:DEVICE`.
pub(super) fn resource(text: &str) -> Result<ResourceLimit, String> {
    const FORM: &str = "must be NAME:COUNT or NAME:COUNT:DEVICE";
    let (name, count, device) = match text.split(':').collect::<Vec<_>>()[..] {
        [name, count] => (name, count, None),
        [name, count, device] => (name, count, Some(device)),
        _ => return Err(FORM.into()),
    };
    if name.is_empty() {
        return Err(format!("the name is missing; {FORM}"));
    }
    let count = count.parse().map_err(|_| format!("count '{count}': must be a non-negative integer"))?;
    let device = device.map(|device| {
        let number = device.parse().ok().filter(|number| *number >= 0);
        number.ok_or_else(|| format!("device '{device}': must be a non-negative integer"))
    });
    Ok(ResourceLimit { name: name.to_owned(), count, device: device.transpose()? })
}
