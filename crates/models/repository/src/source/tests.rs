//! Models from folders, with and without replacements sent by a client.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use nereid_core::ModelSpec;
use nereid_core::backend_api::{Error, ErrorCode, block_on};
use tempfile::TempDir;

use super::*;
use crate::store::{Entry, Fetch, FetchedFolder, Object};

/// Runs all stages of a load at once.
impl Repositories {
    fn all_names(&self) -> Result<Vec<String>> {
        let listed = block_on(self.list())?;
        Ok(listed.into_iter().map(|listed| listed.name).collect())
    }

    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec> {
        block_on(self.fetch(id, overrides, &Progress::default(), Instant::now()))?.read()
    }

    fn look(&self, id: &ModelId) -> Result<Fingerprint> {
        block_on(self.fingerprint(id, Instant::now()))
    }
}

const CONFIG: &str = r#"backend: "identity"
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }"#;
const JSON: &str = r#"{"backend": "identity", "max_batch_size": 2,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}"#;

fn folder(models: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for model in models {
        fs::create_dir_all(folder.path().join(model).join("1")).unwrap();
        fs::write(folder.path().join(model).join("config.pbtxt"), CONFIG).unwrap();
    }
    folder
}

fn repositories(folders: &[&TempDir]) -> Repositories {
    let paths = folders.iter().map(|folder| folder.path().to_owned()).collect();
    Repositories::new(paths, ReadOptions::default())
}

fn config(json: &str) -> Overrides {
    Overrides { config: Some(json.into()), files: Vec::new() }
}

fn file(path: &str) -> Overrides {
    Overrides { config: Some(JSON.into()), files: vec![(path.into(), Bytes::from_static(b"contents"))] }
}

#[test]
fn hidden_folders_are_not_models() {
    let first = folder(&["m", ".git"]);
    fs::write(first.path().join("README"), "").unwrap();
    // One of the repositories was deleted.
    let source = repositories(&[&first, &folder(&["n"])]);
    assert_eq!(source.all_names().unwrap_err().code(), ErrorCode::NotFound);
    let second = folder(&["n", "m"]);
    let source = repositories(&[&first, &second]);
    assert_eq!(source.all_names().unwrap(), ["m", "n"]);
    assert_eq!(source.read(&ModelId::plain("n"), &Overrides::default()).unwrap().versions, [1]);
}

#[test]
fn duplicate_and_missing_models_are_refused() {
    let (first, second) = (folder(&["m"]), folder(&["m"]));
    let source = repositories(&[&first, &second]);
    let error = source.read(&ModelId::plain("m"), &Overrides::default()).err().unwrap();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert!(error.message().contains("model appears in two or more repositories"), "{error}");
    for name in ["nope", "", ".", "..", "../m", "m/1", "/etc", ".git"] {
        let error = source.look(&ModelId::plain(name)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound, "{name}");
    }
}

#[test]
fn configuration_override_replaces_the_models_own() {
    let folder = folder(&["m"]);
    let source = repositories(&[&folder]);
    let spec = source.read(&ModelId::plain("m"), &config(JSON)).unwrap();
    assert_eq!((spec.config.max_batch_size, spec.config.name.as_str(), spec.versions), (2, "m", vec![1]));
    assert_eq!(spec.fingerprint, source.look(&ModelId::plain("m")).unwrap());
    for wrong in
        ["{", r#"{"name": "other"}"#, r#"{"nothing": 1}"#, r#"{"backend": "identity", "max_batch_size": -1}"#]
    {
        assert_eq!(
            source.read(&ModelId::plain("m"), &config(wrong)).err().unwrap().code(),
            ErrorCode::InvalidArg,
            "{wrong}"
        );
    }
}

#[test]
fn file_overrides_replace_the_models_own_until_unload() {
    let source = repositories(&[&folder(&["m"])]);
    let spec = source.read(&ModelId::plain("m"), &file("7/model.onnx")).unwrap();
    assert_eq!(spec.versions, [7]);
    let path = spec.directory.join("7/model.onnx");
    assert_eq!(fs::read(&path).unwrap(), b"contents");
    drop(spec);
    assert!(!path.exists());
    let without = Overrides { config: None, ..file("7/model.onnx") };
    assert!(
        source.read(&ModelId::plain("m"), &without).err().unwrap().message().contains("set 'config' as well")
    );
}

#[test]
fn file_overrides_cannot_escape_the_model_folder() {
    let source = repositories(&[&folder(&["m"])]);
    for path in ["../evil", "1/../../evil", "/etc/evil", "", ".", "1/./../.."] {
        let error = source.read(&ModelId::plain("m"), &file(path)).err().unwrap();
        assert_eq!(error.code(), ErrorCode::InvalidArg, "{path}");
    }
}

#[test]
fn namespaces_separate_models_of_equal_names() {
    let (first, second) = (folder(&["m", "n"]), folder(&["m"]));
    let paths = [&first, &second].map(|folder| folder.path().to_owned());
    let source = Repositories::new(paths.to_vec(), ReadOptions::default()).with_namespacing(true);
    assert_eq!(source.all_names().unwrap(), ["m", "n"]);
    let ids = block_on(source.find("m", Instant::now())).unwrap();
    let spaces: Vec<_> = ids.iter().map(|id| Path::new(&id.namespace)).collect();
    assert_eq!(spaces, [first.path(), second.path()]);
    for (id, folder) in ids.iter().zip([&first, &second]) {
        let model = source.read(id, &Overrides::default()).unwrap();
        assert_eq!((&model.id, model.directory), (id, folder.path().join("m")));
    }
    assert_ne!(source.look(&ids[0]).unwrap(), source.look(&ids[1]).unwrap());
    assert_eq!(block_on(source.find("n", Instant::now())).unwrap().len(), 1);
    assert_eq!(block_on(source.find("../m", Instant::now())).unwrap(), []);
    let elsewhere = ModelId { name: "m".into(), namespace: "elsewhere".into() };
    assert_eq!(source.read(&elsewhere, &Overrides::default()).unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn names_are_unique_without_namespaces() {
    let (first, second) = (folder(&["m"]), folder(&["m", "n"]));
    let source = repositories(&[&first, &second]);
    assert_eq!(block_on(source.find("n", Instant::now())).unwrap(), [ModelId::plain("n")]);
    let error = block_on(source.find("m", Instant::now())).unwrap_err();
    assert!(error.message().contains("model appears in two or more repositories"), "{error}");
    assert!(error.message().contains("--model-namespacing=true"), "{error}");
    // A repository that is listed twice counts once.
    let twice = repositories(&[&first, &first]);
    assert_eq!(block_on(twice.find("m", Instant::now())).unwrap(), [ModelId::plain("m")]);
    twice.look(&ModelId::plain("m")).unwrap();
}

#[test]
fn oddities_report_empty_repositories_and_stray_model_files() {
    let of = |paths: &[&str], files: &[&str]| {
        let folder = folder(paths);
        files.iter().for_each(|file| fs::write(folder.path().join(file), "").unwrap());
        repositories(&[&folder])
            .oddities(Instant::now())
            .join("; ")
            .replace(folder.path().to_str().unwrap(), "R")
    };
    assert_eq!(of(&["m"], &["README.md", "LICENSE", ".hidden.onnx"]), "");
    let empty =
        "model repository 'R' has no models: each needs a folder of its own, such as <model>/1/model.onnx";
    assert_eq!(of(&[], &[]), empty);
    assert_eq!(of(&[".git"], &[]), empty);
    let model = "model repository 'R' looks like a model: name the folder above it, which is the repository";
    assert_eq!(of(&[], &["config.pbtxt"]), model);
    let stray = of(&["m"], &["b.onnx", "a.onnx", "config.pbtxt"]);
    assert!(stray.starts_with("model repository 'R': 'a.onnx', 'b.onnx', 'config.pbtxt' beside"), "{stray}");
    let many: Vec<_> = (0..9).map(|number| format!("{number}.py")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(of(&[], &many).contains("'4.py', ... beside"));
}

#[test]
fn repositories_register_and_unregister_under_a_model_name() {
    let (first, second) = (folder(&["inner"]), folder(&["inner"]));
    let named = format!("name: \"inner\" {CONFIG}");
    fs::write(second.path().join("inner/config.pbtxt"), named).unwrap();
    let repositories = repositories(&[]).with_namespacing(true);
    let register = |folder: &TempDir, name| repositories.register(folder.path(), name);
    assert_eq!(register(&first, "a").unwrap(), first.path());
    let path = register(&second, "b").unwrap();
    assert_eq!(repositories.all_names().unwrap(), ["a", "b"]);
    for (name, folder) in [("a", &first), ("b", &second)] {
        let [id] = block_on(repositories.find(name, Instant::now())).unwrap().try_into().unwrap();
        assert_eq!(id.namespace, folder.path().to_str().unwrap());
        let spec = repositories.read(&id, &Overrides::default()).unwrap();
        assert_eq!((spec.id.name.as_str(), spec.config.name.as_str()), (name, name));
    }
    for (folder, name, code) in [
        (&first, "c", ErrorCode::AlreadyExists),
        (&folder(&["inner"]), "a", ErrorCode::AlreadyExists),
        (&folder(&["inner"]), "../a", ErrorCode::InvalidArg),
        (&folder(&[]), "c", ErrorCode::InvalidArg),
    ] {
        assert_eq!(register(folder, name).unwrap_err().code(), code, "{name}");
    }
    repositories.unregister(&path);
    assert_eq!(repositories.all_names().unwrap(), ["a"]);
    assert!(register(&second, "b").is_ok());
}

/// A store that takes some time for each answer.
#[derive(Debug)]
struct Slow {
    location: &'static str,
    takes: Duration,
    /// `None` if the repository is unavailable.
    models: Option<&'static [&'static str]>,
}

impl Store for Slow {
    fn location(&self) -> &str {
        self.location
    }

    fn list<'a>(&'a self, folder: &'a str, _: Instant) -> SourceFuture<'a, Vec<Entry>> {
        Box::pin(async move {
            tokio::time::sleep(self.takes).await;
            let models = self.models.ok_or_else(|| Error::unavailable("away"))?;
            if !folder.is_empty() && !models.contains(&folder) {
                return Err(Error::not_found("no such folder"));
            }
            Ok(models.iter().map(|name| Entry { name: (*name).to_owned(), is_folder: true }).collect())
        })
    }

    fn stat<'a>(&'a self, _: &'a str, _: Instant) -> SourceFuture<'a, Vec<Object>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn fetch<'a>(&'a self, _: Fetch<'a>) -> SourceFuture<'a, FetchedFolder> {
        Box::pin(async { Err(Error::unavailable("nothing to fetch")) })
    }
}

fn slow(stores: &[(&'static str, u64, Option<&'static [&'static str]>)]) -> Repositories {
    let slow = |&(location, seconds, models)| {
        Arc::new(Slow { location, takes: Duration::from_secs(seconds), models }) as Arc<dyn Store>
    };
    Repositories::over(stores.iter().map(slow).collect(), ReadOptions::default())
}

#[tokio::test(start_paused = true)]
async fn repositories_are_queried_concurrently() {
    let source = slow(&[("a", 15, Some(&["m"])), ("b", 3, Some(&["n"])), ("c", 15, Some(&["o"]))]);
    let began = tokio::time::Instant::now();
    assert_eq!(source.list().await.unwrap().len(), 3);
    assert_eq!(began.elapsed().as_secs(), 15);
    assert_eq!(source.find("n", Instant::now()).await.unwrap(), [ModelId::plain("n")]);
    assert_eq!(began.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn unavailable_repository_does_not_hide_models_of_others() {
    let away = ("away", 3, None);
    let found = |name| async move {
        let source = slow(&[away, ("b", 0, Some(&["m"])), away]);
        let plain = source.place(&ModelId::plain(name), Instant::now()).await;
        let named = source.with_namespacing(true).find(name, Instant::now()).await.unwrap().len();
        (plain.unwrap().location().to_owned(), named)
    };
    assert_eq!(found("m").await, ("b".to_owned(), 1));
    // A model found in no other repository may be in the unavailable one: fetching it reports the reason.
    assert_eq!(found("n").await, ("away".to_owned(), 2));
}
