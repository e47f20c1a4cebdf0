//! LoRA adapters of models: their names, and who may use them.
//!
//! `MODEL:ADAPTER` names an adapter. A right on the model covers all of its adapters; a right on this name covers this one, through this face
//! only: other protocols know no adapters, so that their requests need the right on the model.

use std::collections::BTreeSet;

use nereid_core::{Model, ModelId, Scope, ScopedName, VersionState};
use nereid_http::{Call, Reply};
use nereid_protocol::Action;

/// The parameter with the names of a model's adapters, separated by commas.
const PARAMETER: &str = "lora_adapters";

/// The sampling parameter that names an adapter.
pub(crate) const FIELD: &str = "lora_name";

/// The adapters that a model lists; `None` if its configuration has no list.
pub(crate) fn listed(model: &Model) -> Option<impl Iterator<Item = &str>> {
    let names = &model.config().parameters.get(PARAMETER)?.string_value;
    Some(names.split(',').map(str::trim).filter(|name| !name.is_empty()))
}

/// The adapters of a model's versions.
pub(crate) fn of_versions<'v>(states: impl Iterator<Item = &'v VersionState>) -> BTreeSet<String> {
    let models = states.filter_map(VersionState::model);
    models.filter_map(|model| listed(model)).flatten().map(str::to_owned).collect()
}

/// An adapter's full name, by the parts of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterName<'a> {
    /// `MODEL:ADAPTER`.
    full: &'a str,
    /// The model's name.
    pub model: &'a str,
    /// The adapter's own name.
    pub adapter: &'a str,
}

impl<'a> AdapterName<'a> {
    /// The parts of a name. `None` if it names no adapter.
    pub(crate) fn parse(full: &'a str) -> Option<Self> {
        let (model, adapter) = full.split_once(':')?;
        Some(Self { full, model, adapter })
    }

    /// Whether the caller may perform an action on the adapter.
    pub(crate) fn is_permitted(self, call: &Call<'_>, action: Action) -> bool {
        call.may(action, Some(self.model)) || call.may(action, Some(self.full))
    }

    /// Like [`is_permitted`](Self::is_permitted), with the reason.
    ///
    /// # Errors
    /// The reply to a request that is refused.
    pub(crate) fn permit(self, call: &Call<'_>, action: Action) -> Result<(), Box<Reply>> {
        match call.may(action, Some(self.model)) {
            true => Ok(()),
            false => call.permit(action, self.full),
        }
    }

    /// The models with whose adapter of this name the caller may perform an action.
    pub(crate) fn scope(self, call: &Call<'_>, action: Action) -> Scope {
        let scope = call.scope_of(action);
        if scope.is_all() {
            return scope;
        }
        let name = format!("{} with adapter {}", scope.name(), self.adapter);
        let adapter = self.adapter.to_owned();
        Scope::of(name, move |model| scope.contains(model) || scope.contains(&id_of(model, &adapter)))
    }

    /// The model as which limits count a request: the adapter, if only a right on its own name permits the request.
    pub(crate) fn counted_as(self, call: &Call<'_>, action: Action, model: &ModelId) -> ModelId {
        let is_on_model = call.may(action, Some(self.model)) && call.scope_of(action).contains(model);
        if is_on_model { model.clone() } else { id_of(model, self.adapter) }
    }

    /// Evaluates `versions` for the adapter's model. `None` if the adapter is hidden from the caller.
    pub(crate) fn shown<T>(
        self,
        call: &Call<'_>,
        versions: impl FnOnce(ScopedName<'_>) -> Option<T>,
    ) -> Option<T> {
        let scope = self.is_permitted(call, Action::Index).then(|| self.scope(call, Action::Index))?;
        versions(ScopedName::new(self.model, &scope))
    }
}

/// The identity of a model's adapter, for rights and limits.
fn id_of(model: &ModelId, adapter: &str) -> ModelId {
    ModelId { name: format!("{}:{adapter}", model.name), namespace: model.namespace.clone() }
}
