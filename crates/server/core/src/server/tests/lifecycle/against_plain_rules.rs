//! Random changes of a repository, loads, unloads and looks, against the documented rules written down plainly.

use proptest::collection::btree_map;
use proptest::prelude::*;

use super::evicting::FirstRequests;
use super::*;

/// The contents of a version's file. Some cannot be loaded.
type Content = u64;

fn is_broken(content: Content) -> bool {
    content.is_multiple_of(4)
}

/// Serves the content that a version has when it is loaded.
fn reading(source: &Arc<Changing>) -> ScriptedBackend {
    let source = Arc::clone(source);
    ScriptedBackend::new(move |context| {
        let content = source.fingerprint_of(&ModelId::plain("m"))?.versions[&context.version];
        if is_broken(content) {
            return Err(Error::internal("broken"));
        }
        Ok(ScriptedModel::new(move |batch| {
            let output = Tensor::new("OUT", DataType::Uint8, [1, 2], vec![content as u8; 2]);
            let answers: Vec<_> =
                batch.requests().iter().map(|_| Ok(Response::new(vec![output.clone()]))).collect();
            batch.complete(answers);
        }))
    })
}

#[derive(Clone, Debug)]
enum Event {
    /// The folder now holds this: something for all versions, and the versions.
    Changes(Option<(u64, BTreeMap<u64, Content>)>),
    Load,
    Unload,
    Evict,
    EvictNow,
    LoadEvicted,
    Poll,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Serves(Content),
    Unloaded,
    Evicted,
    Failed,
}

/// The rules.
#[derive(Default)]
struct Plain {
    folder: Option<(u64, BTreeMap<u64, Content>)>,
    states: BTreeMap<u64, State>,
    served: Option<(u64, BTreeMap<u64, Content>)>,
    failed: Option<(u64, BTreeMap<u64, Content>)>,
    seen: Option<(u64, BTreeMap<u64, Content>)>,
    /// Whether the last load found no versions at all.
    empty: bool,
    /// Whether the server is not ready without it.
    required: bool,
    /// Whether the model is loaded on demand.
    on_demand: bool,
    /// Whether the last poll found it, where the repository is polled.
    polled: Option<bool>,
}

impl Plain {
    /// Loads the model, and returns whether that succeeds.
    fn load(&mut self) -> bool {
        let Some((whole, versions)) = self.folder.clone() else { return false };
        let serving = self.states.values().any(|state| matches!(state, State::Serves(_)));
        if versions.is_empty() {
            self.failed = self.folder.clone();
            self.empty |= !serving;
            return false;
        }
        self.empty = false;
        let is_served = |version: &u64, content: &Content| {
            let before = self.served.as_ref();
            matches!(self.states.get(version), Some(State::Serves(_)))
                && before.is_some_and(|(w, before)| *w == whole && before.get(version) == Some(content))
        };
        let wanted: Vec<_> = versions
            .iter()
            .filter(|(version, content)| !is_served(version, content))
            .map(|(v, c)| (*v, *c))
            .collect();
        for (version, state) in &mut self.states {
            if matches!(state, State::Failed | State::Evicted) && !versions.contains_key(version) {
                *state = State::Unloaded;
            }
        }
        if wanted.iter().any(|(_, content)| is_broken(*content)) {
            for (version, content) in wanted {
                let state = self.states.entry(version).or_insert(State::Unloaded);
                if !matches!(state, State::Serves(_)) {
                    *state = if is_broken(content) { State::Failed } else { State::Unloaded };
                }
            }
            self.failed = self.folder.clone();
            return false;
        }
        for (version, state) in &mut self.states {
            if matches!(state, State::Serves(_)) && !versions.contains_key(version) {
                *state = State::Unloaded;
            }
        }
        self.states.extend(wanted.into_iter().map(|(version, content)| (version, State::Serves(content))));
        self.served = self.folder.clone();
        self.failed = None;
        self.required |= !self.on_demand;
        true
    }

    fn unload(&mut self) {
        self.states.values_mut().for_each(|state| *state = State::Unloaded);
        (self.served, self.failed, self.seen, self.empty) = (None, None, None, false);
        self.required = false;
    }

    /// Evicts the served versions, and returns whether there are any.
    fn evict(&mut self) -> bool {
        let served = self.states.values_mut().filter(|state| matches!(state, State::Serves(_)));
        served.map(|state| *state = State::Evicted).count() > 0
    }

    /// Whether the model counts as served for the server's readiness.
    fn is_served(&self) -> bool {
        self.states.values().any(|state| match state {
            State::Serves(_) => true,
            State::Evicted => !self.empty,
            State::Unloaded | State::Failed => false,
        })
    }

    fn poll(&mut self) {
        self.polled = Some(self.folder.is_some());
        if self.folder.is_none() {
            return self.unload();
        }
        let serves = self.states.values().any(|state| matches!(state, State::Serves(_)));
        if !serves && self.states.values().any(|state| *state == State::Evicted) {
            return;
        }
        let before = std::mem::replace(&mut self.seen, self.folder.clone());
        let tried = self.failed.as_ref().or(self.served.as_ref());
        if tried != self.folder.as_ref() && before == self.folder {
            self.required |= !self.on_demand;
            if self.on_demand && !serves && self.folder.iter().any(|(_, versions)| !versions.is_empty()) {
                return self.defer();
            }
            self.load();
        }
    }

    /// Leaves the model to its first request.
    fn defer(&mut self) {
        let versions = self.folder.as_ref().map(|(_, versions)| versions.clone()).unwrap_or_default();
        self.states
            .values_mut()
            .filter(|state| **state == State::Failed)
            .for_each(|state| *state = State::Unloaded);
        self.states.extend(versions.into_keys().map(|version| (version, State::Evicted)));
        (self.served, self.failed) = (self.folder.clone(), None);
        (self.empty, self.required) = (false, false);
    }

    fn index(&mut self) -> Vec<String> {
        let is_listed = self.polled.unwrap_or(self.folder.is_some());
        let is_served = self.states.values().any(|state| matches!(state, State::Serves(_)));
        if !is_listed && !is_served && !self.required {
            self.states.clear();
            (self.served, self.failed, self.seen, self.empty) = (None, None, None, false);
        }
        let mut lines: Vec<_> = self
            .states
            .iter()
            .map(|(version, state)| match state {
                State::Serves(_) => format!("m/{version} READY"),
                _ if self.empty => format!("m/{version} UNAVAILABLE: model 'm' has no version to serve"),
                State::Unloaded => format!("m/{version} UNAVAILABLE: unloaded"),
                State::Evicted => format!("m/{version} UNLOADED: loaded on demand"),
                State::Failed => format!("m/{version} UNAVAILABLE: broken"),
            })
            .collect();
        if self.empty && lines.is_empty() {
            lines.push("m UNAVAILABLE: model 'm' has no version to serve".into());
        }
        if lines.is_empty() && is_listed {
            lines.push("m".into());
        }
        lines
    }
}

fn folders() -> impl Strategy<Value = Option<(u64, BTreeMap<u64, Content>)>> {
    let versions = btree_map(1..5_u64, 1..9_u64, 0..4);
    prop_oneof![1 => Just(None), 6 => (1..3_u64, versions).prop_map(Some)]
}

fn events(control: ModelControl) -> impl Strategy<Value = Vec<Event>> {
    let event = match control {
        ModelControl::Explicit => prop_oneof![
            4 => folders().prop_map(Event::Changes),
            5 => Just(Event::Load),
            2 => Just(Event::Unload),
            2 => Just(Event::Evict),
            1 => Just(Event::EvictNow),
            1 => Just(Event::LoadEvicted),
        ]
        .boxed(),
        _ => prop_oneof![
            2 => folders().prop_map(Event::Changes),
            5 => Just(Event::Poll),
            1 => Just(Event::Evict),
            1 => Just(Event::EvictNow),
            1 => Just(Event::LoadEvicted),
        ]
        .boxed(),
    };
    proptest::collection::vec(event, 1..24)
}

fn check(control: ModelControl, on_demand: bool, events: &[Event]) {
    let source = Arc::new(Changing::default());
    let residency = on_demand.then(|| Arc::new(FirstRequests) as _);
    let options = ServerOptions { model_control: control, residency, ..options() };
    let server = Server::new(options, backends(reading(&source)), Arc::clone(&source) as _);
    server.start(None).unwrap();
    let world = World { server, source, backend: Counting::default() };
    let polled = (control == ModelControl::Poll).then_some(false);
    let mut plain = Plain { polled, on_demand, ..Plain::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for event in events {
        match event {
            Event::Changes(None) => {
                world.source.remove();
                plain.folder = None;
            }
            Event::Changes(Some((whole, versions))) => {
                world.source.set(*whole, &versions.iter().map(|(v, c)| (*v, *c)).collect::<Vec<_>>());
                plain.folder = Some((*whole, versions.clone()));
            }
            Event::Load => assert_eq!(world.load().is_ok(), plain.load()),
            Event::Unload => {
                world.unload().unwrap();
                plain.unload();
            }
            Event::Evict => assert_eq!(world.evict().is_ok(), plain.evict()),
            Event::EvictNow => {
                assert_eq!(world.server.evict_model_and_wait("m").is_ok(), plain.evict());
                // Its memory is free, not only on the way.
                assert!(index(&world.server).iter().all(|line| !line.contains("UNLOADING")));
            }
            Event::LoadEvicted => assert_eq!(world.load_on_demand().is_ok(), plain.load()),
            Event::Poll => {
                world.server.poll(Duration::MAX).unwrap();
                plain.poll();
            }
        }
        assert_eq!(world.settled(), plain.index(), "after {event:?}");
        for (version, state) in &plain.states {
            let answer = infer_version(&world.server, Some(*version), request())
                .and_then(|mut answers| runtime.block_on(answers.single()));
            let served = answer.ok().map(|answer| u64::from(answer.outputs[0].contiguous().unwrap()[0]));
            let expected = match state {
                State::Serves(content) => Some(*content),
                _ => None,
            };
            assert_eq!(served, expected, "version {version} after {event:?}");
        }
        assert_eq!(world.server.is_ready(), plain.is_served() || !plain.required, "after {event:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn loads_and_unloads_go_by_the_rules(events in events(ModelControl::Explicit), on_demand: bool) {
        check(ModelControl::Explicit, on_demand, &events);
    }

    #[test]
    fn a_repository_that_is_followed_goes_by_the_rules(events in events(ModelControl::Poll), on_demand: bool) {
        check(ModelControl::Poll, on_demand, &events);
    }
}
