//! Threads of models: all models of a backend together have at most as many as there are processors, and each instance at least one.
//! For backends whose threads wait for each other without sleeping.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use nereid_backend_api::ModelConfig;

/// The threads of a backend's models.
pub(crate) struct ThreadBudget {
    /// The parameter of a model with the threads of each of its instances.
    parameter: &'static str,
    processors: usize,
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    last: u64,
    /// The number, the model and the threads of each.
    held: Vec<(u64, String, usize)>,
}

/// The threads of a model, until it is dropped.
pub(crate) struct ThreadLease {
    budget: Arc<ThreadBudget>,
    number: u64,
}

impl ThreadBudget {
    /// A budget of all processors, for models that name their threads by this parameter.
    pub(crate) fn new(parameter: &'static str) -> Self {
        Self::of(parameter, available_parallelism().map_or(1, usize::from))
    }

    fn of(parameter: &'static str, processors: usize) -> Self {
        Self { parameter, processors, leases: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Leases> {
        // Nothing panics under this lock.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases the threads of a model, and lowers the parameter if there are fewer. An earlier load of the same model is about to end,
    /// so its threads do not count.
    pub(crate) fn lease(self: &Arc<Self>, model: &str, config: &mut ModelConfig) -> ThreadLease {
        let count = |number: i32| usize::try_from(number).unwrap_or(1).max(1);
        let groups = config.instance_group.iter();
        let instances =
            groups.map(|group| count(group.count) * group.gpus.len().max(1)).sum::<usize>().max(1);
        let parameter = config.parameters.get_mut(self.parameter);
        let wanted = parameter.as_ref().and_then(|value| value.string_value.trim().parse::<usize>().ok());
        let wanted = wanted.unwrap_or(1).clamp(1, self.processors);
        let mut leases = self.lock();
        let others = leases.held.iter().filter(|(_, other, _)| other != model);
        let taken: usize = others.map(|(.., threads)| threads).sum();
        let room = self.processors.saturating_sub(taken) / instances;
        let granted = wanted.min(room).max(1);
        if granted < wanted
            && let Some(value) = parameter
        {
            tracing::warn!(
                "model '{model}' has {granted} thread(s) for each of its {instances} instance(s) instead of {wanted}: other models have \
                 {taken} of the {} processors",
                self.processors
            );
            value.string_value = granted.to_string();
        }
        leases.last += 1;
        let number = leases.last;
        leases.held.push((number, model.to_owned(), granted * instances));
        ThreadLease { budget: Arc::clone(self), number }
    }
}

impl Drop for ThreadLease {
    fn drop(&mut self) {
        self.budget.lock().held.retain(|(number, ..)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use nereid_testkit::normalised;

    use super::*;

    /// Leases threads, and returns those that each instance gets.
    fn lease(
        budget: &Arc<ThreadBudget>,
        model: &str,
        threads: &str,
        instances: usize,
    ) -> (ThreadLease, String) {
        let mut config = normalised(
            model,
            &format!(
                "backend: 'x' instance_group {{ kind: KIND_CPU count: {instances} }}
                 parameters {{ key: 'threads' value {{ string_value: '{threads}' }} }}"
            ),
        );
        let lease = budget.lease(model, &mut config);
        (lease, config.parameters["threads"].string_value.clone())
    }

    #[test]
    fn models_share_the_processors() {
        let budget = Arc::new(ThreadBudget::of("threads", 8));
        let (a, threads) = lease(&budget, "a", "4", 1);
        assert_eq!(threads, "4");
        let (b, threads) = lease(&budget, "b", " 3 ", 1);
        assert_eq!(threads.trim(), "3");
        // One is left, and each instance has one at least.
        let (c, threads) = lease(&budget, "c", "4", 2);
        assert_eq!(threads, "1");
        drop(a);
        let (d, threads) = lease(&budget, "d", "8", 1);
        assert_eq!(threads, "3");
        drop((b, c, d));
        assert!(budget.lock().held.is_empty());
        let (_e, threads) = lease(&budget, "e", "1000", 1);
        assert_eq!(threads, "1000", "the backend has a limit of its own");
    }

    #[test]
    fn instances_of_a_model_share_them_too() {
        for (threads, instances, expected) in
            [("4", 2, "4"), ("5", 2, "4"), ("8", 8, "1"), ("2", 100, "1"), ("many", 2, "many"), ("0", 2, "0")]
        {
            let budget = Arc::new(ThreadBudget::of("threads", 8));
            assert_eq!(lease(&budget, "m", threads, instances).1, expected, "{threads} of {instances}");
        }
    }

    #[test]
    fn a_reload_has_the_threads_of_the_load_before() {
        let budget = Arc::new(ThreadBudget::of("threads", 8));
        let (first, _) = lease(&budget, "m", "8", 1);
        let (second, threads) = lease(&budget, "m", "8", 1);
        assert_eq!(threads, "8");
        drop(first);
        assert_eq!(lease(&budget, "other", "2", 1).1, "1");
        drop(second);
        assert_eq!(lease(&budget, "other", "2", 1).1, "2");
    }

    #[test]
    fn models_without_the_parameter_have_one_thread_for_each_instance() {
        let budget = Arc::new(ThreadBudget::of("threads", 8));
        let mut config = normalised("m", "backend: 'x' instance_group { kind: KIND_CPU count: 3 }");
        let before = config.clone();
        let _lease = budget.lease("m", &mut config);
        assert_eq!(config, before);
        assert_eq!(lease(&budget, "other", "8", 1).1, "5");
    }
}
