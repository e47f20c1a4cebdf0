//! Limits of the memory of GPUs: models are not loaded onto a GPU that is too full.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use nereid_backend_api::{Error, Result};
use nereid_model_config::ModelConfig;

use crate::instance::gpus_of;

/// The share of a GPU's memory that is in use, from 0 to 1; `None` if it is not known.
type Usage = dyn Fn(i32) -> Option<f64> + Send + Sync;

/// The largest share of a GPU's memory in use at which models are still loaded onto it. Unlimited by default.
#[derive(Clone, Default)]
pub struct GpuLimits {
    limits: BTreeMap<i32, f64>,
    usage: Option<Arc<Usage>>,
}

impl GpuLimits {
    /// Limits from 0 to 1 by GPU. `usage` returns the share of a GPU's memory that is in use, if known.
    pub fn new(
        limits: BTreeMap<i32, f64>,
        usage: impl Fn(i32) -> Option<f64> + Send + Sync + 'static,
    ) -> Self {
        Self { limits, usage: Some(Arc::new(usage)) }
    }

    /// Whether a model may be loaded now, as far as the GPUs go that its instances run on.
    ///
    /// # Errors
    /// `Unavailable` if more of a GPU's memory is in use than its limit.
    pub(crate) fn check(&self, model: &str, config: &ModelConfig, gpus: &[i32]) -> Result<()> {
        let Some(usage) = self.usage.as_ref().filter(|_| !self.limits.is_empty()) else { return Ok(()) };
        for gpu in gpus_of(config, gpus) {
            let limit = self.limits.get(&gpu).copied();
            if let (Some(limit), Some(used)) = (limit, limit.and_then(|_| usage(gpu)))
                && used > limit
            {
                return Err(Error::unavailable(format!(
                    "model '{model}' is not loaded onto GPU {gpu}: {:.1} % of its memory is in use, more than \
                     the limit of {:.1} %",
                    used * 100.0,
                    limit * 100.0
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for GpuLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GpuLimits").field(&self.limits).finish()
    }
}

#[cfg(test)]
mod tests {
    use nereid_testkit::normalised;

    use super::*;

    #[test]
    fn only_limits_of_the_gpus_that_a_model_runs_on_count() {
        // GPU 0 is a quarter full, GPU 1 all but full, and of GPU 2 nothing is known.
        let usage = |gpu| [Some(0.25), Some(0.99), None][gpu as usize];
        let on = |gpus: &str| format!("instance_group {{ kind: KIND_GPU gpus: [ {gpus} ] }}");
        let (first, second, all) = (on("0"), on("1"), "instance_group { kind: KIND_GPU }".to_owned());
        let cpu = "instance_group { kind: KIND_CPU }".to_owned();
        let limits = |limits: &[(i32, f64)]| GpuLimits::new(limits.iter().copied().collect(), usage);
        for (limits, text, refused) in [
            (GpuLimits::default(), &all, None),
            (limits(&[]), &all, None),
            (limits(&[(0, 0.25)]), &first, None),
            (
                limits(&[(0, 0.2)]),
                &first,
                Some("GPU 0: 25.0 % of its memory is in use, more than the limit of 20.0 %"),
            ),
            (limits(&[(0, 0.0)]), &second, None),
            (limits(&[(0, 0.0)]), &cpu, None),
            (limits(&[(0, 0.0)]), &String::new(), None),
            (limits(&[(0, 1.0), (1, 1.0), (2, 0.0)]), &all, None),
            (limits(&[(0, 0.5), (1, 0.5)]), &all, Some("GPU 1: 99.0 %")),
        ] {
            let config = normalised("m", &format!("backend: 'b' {text}"));
            let outcome = limits.check("m", &config, &[0, 1, 2]);
            match (&outcome, refused) {
                (Ok(()), None) => {}
                (Err(error), Some(words)) => assert!(error.message().contains(words), "{text}: {error}"),
                _ => panic!("{limits:?}, {text}: {outcome:?}"),
            }
        }
    }
}
