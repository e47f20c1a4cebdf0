//! Models that hand requests to others, such as ensembles, follow these members: they are loaded after them, and served as
//! long as they fit them.
//!
//! A model's members are known as soon as its configuration is read. Its load waits for the tasks of these models, and
//! whenever one of them changes, it is checked again. Then it is a changed model itself, so models that depend on it follow
//! in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Error, Result};

use super::members::MemberLoads;
use super::tasks::Done;
use super::{LifeCycle, Record};
use crate::model::Model;
use crate::spec::ModelId;
use crate::spec::ModelSpec;
use crate::table::VersionState;

/// A model that was read and is waiting to be reconciled with its members.
#[derive(Clone)]
pub(super) struct Pending {
    pub spec: ModelSpec,
    /// Whether to reload it even if nothing changed.
    pub anew: bool,
    /// Whether a client sent files or a configuration with the load.
    pub is_overridden: bool,
}

/// Which models depend on which, all by name.
#[derive(Default)]
pub(super) struct Dependencies {
    members: BTreeMap<String, BTreeSet<String>>,
    /// Models loaded only because another needs them.
    implied: BTreeSet<String>,
}

impl Dependencies {
    /// The models of that name depend on these, if on any.
    pub(super) fn set(&mut self, name: &str, members: BTreeSet<String>) {
        if members.is_empty() {
            self.members.remove(name);
        } else {
            self.members.insert(name.to_owned(), members);
        }
    }

    pub(super) fn members(&self, name: &str) -> BTreeSet<String> {
        self.members.get(name).cloned().unwrap_or_default()
    }

    /// Adds these models and all that they depend on, at any depth.
    pub(super) fn add_members<'a>(&'a self, names: &'a BTreeSet<String>, found: &mut BTreeSet<&'a str>) {
        self.add_members_but(names, &BTreeSet::new(), found);
    }

    /// [`add_members`](Self::add_members) without some models, and without what only these depend on.
    pub(super) fn add_members_but<'a>(
        &'a self,
        names: &'a BTreeSet<String>,
        without: &BTreeSet<&str>,
        found: &mut BTreeSet<&'a str>,
    ) {
        for name in names.iter().filter(|name| !without.contains(name.as_str())) {
            if found.insert(name)
                && let Some(members) = self.members.get(name)
            {
                self.add_members_but(members, without, found);
            }
        }
    }

    /// The models that a model is a member of.
    pub(super) fn users(&self, name: &str) -> impl Iterator<Item = &String> {
        self.members.iter().filter(move |(_, members)| members.contains(name)).map(|(user, _)| user)
    }

    /// The models that a model is a member of, at any depth.
    pub(super) fn all_users(&self, name: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut left: Vec<_> = self.users(name).collect();
        while let Some(user) = left.pop() {
            if found.insert(user.clone()) {
                left.extend(self.users(user));
            }
        }
        found
    }

    /// A model and those that it is a member of, at any depth: each after those that depend on it.
    pub(super) fn outermost_first(&self, name: &str) -> Vec<String> {
        let mut left = self.all_users(name);
        left.insert(name.to_owned());
        let mut order = Vec::with_capacity(left.len());
        let is_free = |left: &BTreeSet<String>, name: &str| !self.users(name).any(|user| left.contains(user));
        // Models that depend on each other are not served: their order does not matter.
        while let Some(next) = left.iter().find(|name| is_free(&left, name)).or(left.first()).cloned() {
            left.remove(&next);
            order.push(next);
        }
        order
    }

    /// Marks a model as loaded only because another needs it.
    pub(super) fn imply(&mut self, name: &str) {
        self.implied.insert(name.to_owned());
    }

    /// Marks a model as requested for its own sake, or unloaded.
    pub(super) fn request(&mut self, name: &str) {
        self.implied.remove(name);
    }

    /// Whether a model was loaded only for others, all of which are unloaded.
    pub(super) fn is_left_over(&self, name: &str) -> bool {
        self.implied.contains(name) && self.users(name).next().is_none()
    }

    /// The cycle that leads from a model back to itself, if there is one.
    pub(super) fn circle(&self, name: &str) -> Option<Vec<String>> {
        let mut ways = vec![vec![name.to_owned()]];
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop() {
            for member in way.last().into_iter().flat_map(|last| self.members(last)) {
                let is_back = member == name;
                if is_back || seen.insert(member.clone()) {
                    let mut longer = way.clone();
                    longer.push(member);
                    if is_back {
                        return Some(longer);
                    }
                    ways.push(longer);
                }
            }
        }
        None
    }
}

impl LifeCycle {
    /// Serves a model if it fits its serving members; takes it out of service otherwise.
    pub(super) fn reconcile(
        self: &Arc<Self>,
        id: &ModelId,
        known: &mut Record,
        circle: Option<&Error>,
        members: MemberLoads,
    ) -> Result<()> {
        let Some(Pending { spec, anew, is_overridden }) = known.pending.clone() else { return Ok(()) };
        if self.is_left_alone(&spec, members) {
            return Ok(());
        }
        if circle.is_none()
            && let Some(outcome) = self.without_members(&spec, members)
        {
            if outcome.is_ok() {
                known.pending = None;
            } else {
                spec.guard.report(&outcome);
                self.note_outcome(id, &outcome);
            }
            known.note(spec.fingerprint, &outcome);
            return outcome;
        }
        let (mut unfit, mut fits_otherwise) = (Vec::new(), Vec::new());
        for model in self.served(id) {
            let Some(composite) = model.executor().composite() else { continue };
            match composite.still_fits(&model, &self.table.load()) {
                Ok(true) => {}
                Ok(false) => fits_otherwise.push((model.version(), None)),
                Err(error) => {
                    tracing::error!("'{id}' version {} is unloaded: {error}", model.version());
                    unfit.push((model.version(), None));
                }
            }
        }
        self.replace(id, unfit);
        let (fingerprint, guard) = (spec.fingerprint.clone(), spec.guard.clone());
        let outcome = match circle {
            None => self.apply(spec, anew || !fits_otherwise.is_empty(), known.served.as_ref()),
            Some(error) => Err(self.refuse(&spec, error)),
        };
        if outcome.is_err() {
            self.replace(id, fits_otherwise);
        }
        guard.report(&outcome);
        self.note_outcome(id, &outcome);
        known.note(fingerprint, &outcome);
        if outcome.is_ok()
            && let Some(wanted) = &mut known.pending
        {
            wanted.anew = false;
            known.is_overridden = is_overridden;
        }
        outcome
    }

    /// Fails every version of a model's specification.
    pub(super) fn refuse(&self, spec: &ModelSpec, error: &Error) -> Error {
        let id = &spec.id;
        tracing::error!("failed to load '{id}': {error}");
        self.change(|table| {
            for &version in &spec.versions {
                if !matches!(table.version(id, version), Some(VersionState::Ready(_))) {
                    table.set_version(id, version, VersionState::Unavailable(error.clone()));
                }
            }
        });
        error.clone().context(format_args!("load failed for model '{id}'"))
    }

    fn served(&self, id: &ModelId) -> Vec<Arc<Model>> {
        let table = self.table.load();
        let ready = table.versions(id).filter_map(|(_, state)| match state {
            VersionState::Ready(model) => Some(Arc::clone(model)),
            _ => None,
        });
        ready.collect()
    }

    /// The members of a model, both pending and serving.
    pub(super) fn members_of(&self, id: &ModelId, known: &Record) -> BTreeSet<String> {
        let served = self.served(id);
        let pending =
            known.pending.iter().filter_map(|pending| self.services.executors.dependencies(&pending.spec));
        let served = served.iter().map(|model| model.dependencies().clone());
        pending.chain(served).flatten().collect()
    }
}

/// Reports an outcome when its last clone is dropped.
pub(super) struct DeferredOutcome(Mutex<Option<(Done, Result<()>)>>);

impl DeferredOutcome {
    pub(super) fn new(done: Done, outcome: Result<()>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some((done, outcome)))))
    }

    /// Something else that must finish before the outcome is reported.
    pub(super) fn part(self: &Arc<Self>) -> Done {
        let later = Arc::clone(self);
        Box::new(move |_| drop(later))
    }
}

impl Drop for DeferredOutcome {
    fn drop(&mut self) {
        let pending = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((done, outcome)) = pending {
            done(outcome);
        }
    }
}
