//! Models of the same name in several namespaces.

use nereid_backend_api::block_on;

use super::*;
use crate::scope::{Scope, ScopedName};

/// Models named `m` in namespaces, each with a number for its contents; 9 cannot be read.
#[derive(Default)]
struct Spaces(Mutex<BTreeMap<String, u64>>);

impl Spaces {
    fn set(&self, spaces: &[(&str, u64)]) {
        *self.0.lock().unwrap() =
            spaces.iter().map(|(space, contents)| ((*space).into(), *contents)).collect();
    }
}

impl BlockingSource for Spaces {
    fn names(&self) -> Result<Vec<String>> {
        let any = self.0.lock().unwrap().keys().next().map(|_| "m".to_owned());
        Ok(any.into_iter().collect())
    }

    fn ids(&self, name: &str) -> Result<Vec<ModelId>> {
        let id = |namespace: &String| ModelId { name: name.into(), namespace: namespace.clone() };
        Ok(self.0.lock().unwrap().keys().map(id).filter(|id| id.name == "m").collect())
    }

    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec> {
        let sent = (!overrides.files.is_empty()).then(Fingerprint::default);
        let fingerprint = sent.map_or_else(|| self.fingerprint_of(id), Ok)?;
        if fingerprint.whole == 9 || overrides.config.as_deref() == Some("broken") {
            return Err(Error::invalid_arg("its configuration is wrong"));
        }
        let (_, spec) = spec(config(), &[1]);
        Ok(ModelSpec { id: id.clone(), fingerprint, ..spec? })
    }

    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint> {
        let spaces = self.0.lock().unwrap();
        let contents = spaces.get(&id.namespace).filter(|_| id.name == "m");
        let whole = *contents.ok_or_else(|| Error::not_found(format!("there is no '{id}'")))?;
        Ok(Fingerprint { whole, versions: BTreeMap::from([(1, whole)]), config: 0 })
    }
}

fn serving(control: ModelControl, spaces: &[(&str, u64)]) -> (Arc<Spaces>, Arc<Server>) {
    let source = Arc::<Spaces>::default();
    source.set(spaces);
    let options = ServerOptions { model_control: control, ..options() };
    let server = Server::new(options, backends(scripted(echo)), Arc::clone(&source) as _);
    let none = (control == ModelControl::Explicit).then(Vec::new);
    server.start(none).unwrap();
    (source, server)
}

fn done(begin: impl FnOnce(Box<dyn FnOnce(Result<()>) + Send>) -> Result<()>) -> Result<()> {
    let (sender, outcome) = channel();
    begin(Box::new(move |result| sender.send(result).unwrap()))?;
    outcome.recv().unwrap()
}

fn load(server: &Server, overrides: Overrides) -> Result<()> {
    done(|done| server.load_model(ScopedName::everywhere("m"), overrides, done))
}

/// The namespace of the model that a request by name goes to.
fn reached(server: &Server) -> Result<String> {
    server.model(ScopedName::everywhere("m"), None).map(|model| model.id().namespace.clone())
}

#[test]
fn a_name_that_two_namespaces_have_is_ambiguous_and_all_are_served() {
    let (_, server) = serving(ModelControl::None, &[("one", 1), ("two", 2)]);
    assert!(server.is_ready());
    assert_eq!(index(&server), ["m/1 READY", "m/1 READY"]);
    let error = reached(&server).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert!(error.message().contains("2 models, those of 'one', 'two'"), "{error}");
    assert_eq!(server.models().ready().count(), 2);
    assert_eq!(server.models().ready_versions(ScopedName::everywhere("m")).count(), 0);
}

#[test]
fn a_name_is_loaded_and_unloaded_in_all_namespaces_that_have_it() {
    let (source, server) = serving(ModelControl::Explicit, &[("one", 1), ("two", 2)]);
    assert_eq!(index(&server), ["m", "m"]);
    load(&server, Overrides::default()).unwrap();
    assert_eq!(reached(&server).unwrap_err().code(), ErrorCode::InvalidArg);
    done(|done| server.unload_model(ScopedName::everywhere("m"), done)).unwrap();
    assert_eq!(reached(&server).unwrap_err().code(), ErrorCode::NotFound);
    // The name is no longer ambiguous.
    source.set(&[("two", 2)]);
    load(&server, Overrides::default()).unwrap();
    assert_eq!(reached(&server).unwrap(), "two");
    source.set(&[("one", 9), ("two", 2)]);
    let error = load(&server, Overrides::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert_eq!(reached(&server).unwrap(), "two");
    // The version that was unloaded before may still be ending.
    while index(&server).iter().any(|line| line.contains("UNLOADING")) {
        thread::yield_now();
    }
    assert!(index(&server).contains(&"m/1 UNAVAILABLE: its configuration is wrong".to_owned()));
    assert_eq!(
        load(&serving(ModelControl::Explicit, &[]).1, Overrides::default()).unwrap_err().code(),
        ErrorCode::Internal
    );
}

#[test]
fn files_that_come_with_a_request_are_a_model_of_no_namespace() {
    let (_, server) = serving(ModelControl::Explicit, &[("one", 1)]);
    let sent = Overrides { config: Some(String::new()), files: vec![("1/model".into(), "".into())] };
    load(&server, sent).unwrap();
    assert_eq!(reached(&server).unwrap(), "");
    load(&server, Overrides::default()).unwrap();
    assert_eq!(reached(&server).unwrap_err().code(), ErrorCode::InvalidArg);
    done(|done| server.unload_model(ScopedName::everywhere("m"), done)).unwrap();
    assert_eq!(server.models().ready().count(), 0);
}

#[test]
fn files_of_a_request_that_cannot_be_loaded_leave_nothing_in_the_index() {
    for spaces in [&[("one", 1)][..], &[("one", 1), ("two", 2)], &[]] {
        let (_, server) = serving(ModelControl::Explicit, spaces);
        let before = index(&server);
        for loaded_before in [false, !spaces.is_empty()] {
            if loaded_before {
                load(&server, Overrides::default()).unwrap();
            }
            let before = if loaded_before { index(&server) } else { before.clone() };
            let sent =
                Overrides { config: Some("broken".into()), files: vec![("1/model".into(), "".into())] };
            assert_eq!(load(&server, sent).unwrap_err().code(), ErrorCode::Internal);
            assert_eq!(index(&server), before);
        }
    }
}

#[test]
fn a_model_that_leaves_its_namespace_leaves_the_name_to_the_other() {
    let (source, server) = serving(ModelControl::Poll, &[("one", 1), ("two", 2)]);
    assert!(reached(&server).is_err());
    source.set(&[("two", 2)]);
    server.poll(Duration::MAX).unwrap();
    assert_eq!(reached(&server).unwrap(), "two");
    source.set(&[("two", 2), ("three", 3)]);
    assert!(server.poll(Duration::MAX).unwrap(), "a change waits for another look");
    assert_eq!(reached(&server).unwrap(), "two");
    assert!(!server.poll(Duration::MAX).unwrap());
    assert_eq!(reached(&server).unwrap_err().code(), ErrorCode::InvalidArg);
}

/// The models of one namespace.
fn only(namespace: &'static str) -> Scope {
    Scope::of(namespace, move |id| id.namespace == namespace)
}

#[test]
fn a_name_means_the_model_of_its_scope() {
    let (_, server) = serving(ModelControl::None, &[("one", 1), ("two", 2), ("three", 3)]);
    for (scope, expected) in [
        (only("one"), Ok("one")),
        (only("two"), Ok("two")),
        (only("two").and(only("one")), Err("Request for unknown model: 'm' is not found")),
        (only("four"), Err("Request for unknown model: 'm' is not found")),
        (
            Scope::of("t", |id| id.namespace.starts_with('t')),
            Err("Request for unknown model: 'm' is the name of 2 models, those of 'three', 'two'"),
        ),
    ] {
        let name = ScopedName::new("m", &scope);
        let found = [
            server.model(name, None),
            server.model(name, Some(1)),
            block_on(server.resolve(name, None)).map(|found| Arc::clone(found.model())),
        ];
        for found in found {
            let found = found.map(|model| model.id().namespace.clone());
            assert_eq!(found.as_deref().map_err(Error::message), expected, "{scope:?}");
        }
        assert_eq!(block_on(server.model_ready(name, None)).is_ok(), expected.is_ok());
        assert_eq!(server.models().ready_versions(name).count(), usize::from(expected.is_ok()));
        let visible = ["one", "two", "three"].into_iter().filter(|namespace| scope.has("m", namespace));
        assert_eq!(server.models().states_of(name).count(), visible.count());
    }
}

#[test]
fn loads_and_unloads_in_a_scope_concern_its_models_alone() {
    let (source, server) = serving(ModelControl::Explicit, &[("one", 1), ("two", 2)]);
    let (one, none) = (only("one"), only("three"));
    let in_scope = |name: &str, scope: &Scope, overrides: Overrides| {
        done(|done| server.load_model(ScopedName::new(name, scope), overrides, done))
    };
    in_scope("m", &one, Overrides::default()).unwrap();
    assert_eq!(reached(&server).unwrap(), "one");
    load(&server, Overrides::default()).unwrap();
    done(|done| server.unload_model(ScopedName::new("m", &none), done)).unwrap();
    assert_eq!(server.models().ready().count(), 2);
    done(|done| server.unload_model_and_dependents(ScopedName::new("m", &one), done)).unwrap();
    assert_eq!(reached(&server).unwrap(), "two");
    // What the other namespace serves is still known: a load finds it unchanged.
    let served =
        |server: &Server| server.models().ready().map(|model| model.load_number()).collect::<Vec<_>>();
    let before = served(&server);
    in_scope("m", &only("two"), Overrides::default()).unwrap();
    assert_eq!(served(&server), before);
    // A model of another scope is as unknown as one that no repository has, with and without overrides.
    let sent = || Overrides { config: None, files: vec![("1/model".into(), "".into())] };
    let changed = || Overrides { config: Some("other".into()), files: Vec::new() };
    for overrides in [Overrides::default(), sent(), changed()] {
        let hidden = in_scope("m", &none, overrides.clone()).unwrap_err();
        let unknown = in_scope("n", &none, overrides).unwrap_err();
        assert_eq!(hidden.code(), unknown.code());
        assert_eq!(hidden.message().replace("'m'", "'n'").replace("::m", "::n"), unknown.message());
    }
    assert_eq!(served(&server), before);
    assert!(index(&server).iter().all(|line| !line.contains("UNAVAILABLE: its")), "{:?}", index(&server));
    source.set(&[("one", 9), ("two", 2)]);
    assert!(in_scope("m", &only("two"), Overrides::default()).is_ok(), "the other one is broken");
}
