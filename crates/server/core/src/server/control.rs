//! Loads and unloads of single models, as clients or the server itself decide.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nereid_backend_api::{Error, Result};

use super::{ModelControl, Server};
use crate::lifecycle::{LoadReason, Task};
use crate::model::Model;
use crate::scope::ScopedName;
use crate::source::Overrides;
use crate::spec::ModelId;
use crate::table::ModelStatus;
use crate::versions::ModelMemory;

impl Server {
    /// Loads a model, or reloads it if it has changed or something is overridden, and calls `done` with the outcome. The members
    /// of an ensemble are loaded, too.
    ///
    /// # Errors
    /// `Unavailable` where clients do not control models, `InvalidArg` for a name that no model can have.
    pub fn load_model(
        &self,
        name: ScopedName<'_>,
        overrides: Overrides,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        let ScopedName { name, scope } = name;
        self.check_control(name)?;
        let (scope, as_of) = (scope.clone(), Instant::now());
        let task = Task::Load { overrides, scope, with_members: true, reason: LoadReason::Request, as_of };
        self.models.submit(name.to_owned(), task, Box::new(done));
        Ok(())
    }

    /// Unloads a model, and the ensembles that it is part of. Calls `done` once they take no further requests; requests in
    /// progress are still answered.
    ///
    /// # Errors
    /// `Unavailable` where clients do not control models, `InvalidArg` for a name that no model can have.
    pub fn unload_model(
        &self,
        name: ScopedName<'_>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.unload(name, false, done)
    }

    /// Unloads a model like [`unload_model`](Self::unload_model), and those of its members that were loaded only for it and that
    /// no other ensemble uses.
    ///
    /// # Errors
    /// `Unavailable` where clients do not control models, `InvalidArg` for a name that no model can have.
    pub fn unload_model_and_dependents(
        &self,
        name: ScopedName<'_>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.unload(name, true, done)
    }

    fn unload(
        &self,
        ScopedName { name, scope }: ScopedName<'_>,
        with_members: bool,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.check_control(name)?;
        self.models.submit(
            name.to_owned(),
            Task::Unload { scope: scope.clone(), with_members },
            Box::new(done),
        );
        Ok(())
    }

    /// Unloads a model to free its memory, and the models that consist of it. Requests in progress are still answered. The models
    /// stay wanted: the server is as ready as before, and [`load_on_demand`](Self::load_on_demand) loads them again. For the
    /// server's own decisions, in every model control mode. Never blocks.
    ///
    /// Returns the names of the models that left, `name` last.
    ///
    /// # Errors
    /// The model is not loaded, is being loaded or unloaded, could not be loaded again, consists of others, or is a member of one
    /// that requests still hold; that one may have left.
    pub fn evict_model(&self, name: &str) -> Result<Vec<String>> {
        self.models.evict(name)
    }

    /// [`evict_model`](Self::evict_model) on a thread that may block, such as one that loads models. Waits a few seconds for the end
    /// of requests, and until the model's memory is free.
    ///
    /// # Errors
    /// As there.
    pub fn evict_model_and_wait(&self, name: &str) -> Result<Vec<String>> {
        self.models.evict_and_wait(name)
    }

    /// Changes the number of a version's instances, and calls `done` with the outcome. For the server's own decisions, about models
    /// whose configuration has the parameter `instances_max`, in every model control mode.
    pub fn change_instances(
        &self,
        id: &ModelId,
        version: u64,
        instances: usize,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let task = Task::Resize { id: id.clone(), version, instances };
        self.models.submit(id.name.clone(), task, Box::new(done));
    }

    /// Whether there is memory for this number of instances of a model.
    pub fn has_room_for_instances(&self, model: &Model, instances: usize) -> bool {
        let residency = self.options.residency.as_ref();
        residency.is_none_or(|residency| residency.has_room_for_instances(model, instances))
    }

    /// The memory of each entry of an index. A model in memory is divided equally among its versions there; one that is not has
    /// what it would take divided among its entries.
    pub fn memory(&self, index: &[(ModelId, Option<ModelStatus>)]) -> Vec<Option<ModelMemory>> {
        let Some(residency) = &self.options.residency else { return vec![None; index.len()] };
        let models = self.models();
        let is_resident = |status: &Option<ModelStatus>| {
            status.as_ref().is_some_and(|status| status.state.model().is_some())
        };
        // The entries of each model, and those in memory.
        let mut entries: BTreeMap<&ModelId, (u64, u64)> = BTreeMap::new();
        for (id, status) in index {
            let counts = entries.entry(id).or_default();
            counts.0 += 1;
            counts.1 += u64::from(is_resident(status));
        }
        let ids: Vec<_> = entries.keys().map(|id| (*id).clone()).collect();
        let memory: BTreeMap<_, _> = ids.iter().zip(residency.memory(&ids)).collect();
        let of_entry = |(id, status): &(ModelId, Option<ModelStatus>)| {
            let memory = memory.get(id).cloned().flatten()?;
            match (is_resident(status), entries.get(id)?) {
                (true, _) => Some(memory.divided_by(models.resident_versions(id.name.as_str()))),
                (false, (count, 0)) => Some(memory.divided_by(*count)),
                (false, _) => None,
            }
        };
        index.iter().map(of_entry).collect()
    }

    /// Loads a model that was evicted, or that was never loaded, as it is in the source now, and calls `done` with the outcome. The
    /// members of an ensemble are loaded, too. For the server's own decisions, in every model control mode.
    pub fn load_on_demand(&self, name: ScopedName<'_>, done: impl FnOnce(Result<()>) + Send + 'static) {
        let ScopedName { name, scope } = name;
        let (overrides, scope, as_of) = (Overrides::default(), scope.clone(), Instant::now());
        let task = Task::Load { overrides, scope, with_members: true, reason: LoadReason::Request, as_of };
        self.models.submit(name.to_owned(), task, Box::new(done));
    }

    fn check_control(&self, name: &str) -> Result<()> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::unavailable("Server is stopping: it takes no further loads and unloads"));
        }
        match self.options.model_control {
            ModelControl::Explicit | ModelControl::OnDemand if is_folder_name(name) => Ok(()),
            ModelControl::Explicit | ModelControl::OnDemand => Err(Error::invalid_arg(format!(
                "invalid model name '{name}': it must be the name of a folder, not a path"
            ))),
            ModelControl::None | ModelControl::Poll => Err(Error::unavailable(
                "explicit model load / unload is not allowed if polling is enabled, or if models are loaded only at \
                 the start; --model-control-mode=explicit allows it",
            )),
        }
    }
}

/// Whether a model's folder may be called so.
fn is_folder_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}
