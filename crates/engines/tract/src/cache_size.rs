//! How many plans of a model are kept.

use std::num::NonZeroUsize;

use nereid_backend_api::{ModelConfig, Result};

use crate::limits::parameter;

/// The parameter of a model's configuration for the number of cached plans.
const PLAN_CACHE_SIZE: &str = "plan_cache_size";
const MOST_PLANS: NonZeroUsize = NonZeroUsize::new(32).unwrap();
const FEWEST_PLANS: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// Each plan has its own copy of the weights, in the layout of its kernels. By default, fewer plans are kept of a large
/// model, so that the copies stay below this many bytes.
const PLANS_MEMORY: usize = 1 << 30;

/// How many plans to keep: the parameter `plan_cache_size`, or else a number that suits a model with `weights` bytes of
/// weights.
pub(crate) fn plan_cache_size(config: &ModelConfig, weights: usize) -> Result<NonZeroUsize> {
    if let Some(plans) = parameter(config, PLAN_CACHE_SIZE)? {
        let plans = usize::try_from(plans).unwrap_or(usize::MAX);
        return Ok(NonZeroUsize::new(plans).unwrap_or(FEWEST_PLANS));
    }
    let fitting = NonZeroUsize::new(PLANS_MEMORY / weights.max(1));
    Ok(fitting.map_or(FEWEST_PLANS, |plans| plans.clamp(FEWEST_PLANS, MOST_PLANS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_plans_are_kept_of_a_large_model() {
        let plans = |weights| plan_cache_size(&ModelConfig::default(), weights).unwrap().get();
        assert_eq!([0, 1 << 20, 1 << 25, 1 << 26, 1 << 40].map(plans), [32, 32, 32, 16, 4]);
    }
}
