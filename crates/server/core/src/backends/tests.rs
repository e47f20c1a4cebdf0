//! The choice of a model's backend, and the errors for missing ones.

use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_backend_api::{BackendCapabilities, Model, ModelConfig, NoPeers};

use super::*;

/// A backend that fails every load with its name.
struct Named(&'static str);

impl Backend for Named {
    fn load(&self, _: ModelContext) -> Result<Box<dyn Model>> {
        Err(Error::unsupported(self.0))
    }

    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { completes_config: true, runs_on_gpus: true, ..BackendCapabilities::default() }
    }
}

/// Finds the same for every model.
struct Finder(fn() -> Lookup);

impl Backend for Finder {
    fn load(&self, _: ModelContext) -> Result<Box<dyn Model>> {
        Err(Error::unsupported("library"))
    }
}

impl BackendFinder for Finder {
    fn find(&self, _: &ModelContext) -> Lookup {
        self.0()
    }

    fn installed(&self) -> Vec<String> {
        vec!["python".into(), "own".into()]
    }
}

fn missing() -> Lookup {
    Lookup::Missing { searched: "no 'lib.so' in '/b'".into() }
}

fn model(backend: &str) -> ModelContext {
    ModelContext {
        name: "m".into(),
        version: 1,
        directory: "m".into(),
        config: ModelConfig { backend: backend.into(), ..ModelConfig::default() },
        complete: false,
        peers: Arc::new(NoPeers),
    }
}

fn registry(find: fn() -> Lookup) -> Backends {
    let mut backends = Backends::default();
    backends.register("own", Arc::new(Named("own")));
    backends.refuse("broken", Error::unavailable("its library is too old"));
    backends.set_finder(Arc::new(Finder(find)));
    backends
}

/// The name of the selected backend, or the reason why none was selected.
fn selected(backends: &Backends, backend: &str) -> String {
    let model = model(backend);
    let loaded = backends.select(&model).and_then(|backend| backend.load(model));
    loaded.err().map(|error| error.message().to_owned()).expect("no backend of these tests loads a model")
}

#[test]
fn a_model_gets_what_it_brings_then_what_is_registered_then_what_is_installed() {
    let brought = registry(|| Lookup::WithModel);
    assert_eq!(["own", "broken", "other"].map(|name| selected(&brought, name)), ["library"; 3]);
    let installed = registry(|| Lookup::Installed);
    let expected = ["own", "library", "library"];
    assert_eq!(["own", "broken", "other"].map(|name| selected(&installed, name)), expected);
    assert_eq!(selected(&registry(missing), "own"), "own");
}

#[test]
fn a_backend_that_refuses_gives_its_reason_and_is_not_offered() {
    let backends = registry(missing);
    assert_eq!(selected(&backends, "broken"), "model 'm': backend 'broken': its library is too old");
    assert_eq!(
        selected(&backends, "other"),
        "model 'm': backend 'other' is not installed (available: own, python); no 'lib.so' in '/b'"
    );
    assert_eq!(backends.completes_config("broken"), None);
    assert!(!backends.runs_on_gpus("broken") && backends.runs_on_gpus("own"));
    let refused = backends.check(&model("broken")).unwrap_err();
    assert_eq!(refused.message(), "its library is too old");
    assert!(backends.check(&model("other")).is_err());
}

#[test]
fn without_a_backend_there_is_nothing_to_choose() {
    assert_eq!(selected(&registry(missing), ""), "model 'm': the configuration names no backend");
    let none = Backends::default();
    assert_eq!(selected(&none, "x"), "model 'm': backend 'x' is not installed (available: )");
}

#[test]
fn a_lazy_backend_is_built_once_and_a_panic_refuses() {
    let built = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&built);
    let mut backends = Backends::default();
    backends.register_lazy("lazy", true, move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Named("lazy")))
    });
    backends.register_lazy("panics", false, || panic!("on purpose"));
    assert_eq!(backends.completes_config("lazy"), Some(true));
    assert_eq!(built.load(Ordering::Relaxed), 0);
    assert_eq!([selected(&backends, "lazy"), selected(&backends, "lazy")], ["lazy"; 2]);
    assert_eq!(built.load(Ordering::Relaxed), 1);
    let panics = "model 'm': backend 'panics': the backend panicked while it was opened";
    assert_eq!(selected(&backends, "panics"), panics);
}
