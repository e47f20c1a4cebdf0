//! Conformance tests for sources of models, over any kind of store.

#![allow(clippy::unwrap_used, reason = "a suite of tests")]

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::{ErrorCode, block_on};
use nereid_core::{Fingerprint, ModelId, ModelSource, ModelSpec, Overrides, Progress};

use super::Repositories;
use crate::model_folder::ReadOptions;
use crate::store::conformance::StoreUnderTest;

const CONFIG: &str = r#"backend: "identity"
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }"#;

/// Checks the source over empty stores from `make`.
pub fn check_source<T: StoreUnderTest>(make: impl Fn() -> T)
where
    T::Store: 'static,
{
    lists_models_and_reads_them(&make());
    fetches_the_files_of_served_versions(&make());
    fingerprints_differ_where_files_do(&make());
    takes_a_configuration_in_place_of_the_models_own(&make());
    refuses_unknown_models(&make());
    sees_current_files_at_each_call(&make());
    names_belong_to_one_repository(&make(), &make());
}

fn source(tests: &[&impl StoreUnderTest<Store: 'static>]) -> Repositories {
    let stores = tests.iter().map(|test| Arc::new(test.store()) as _).collect();
    Repositories::over(stores, ReadOptions::default())
}

fn names(source: &Repositories) -> Vec<String> {
    block_on(source.list()).unwrap().into_iter().map(|listed| listed.name).collect()
}

fn read(
    source: &Repositories,
    name: &str,
    overrides: &Overrides,
) -> nereid_core::backend_api::Result<ModelSpec> {
    let (id, progress) = (ModelId::plain(name), Progress::default());
    let files = block_on(source.fetch(&id, overrides, &progress, Instant::now()))?;
    let (done, total) = progress.bytes();
    assert_eq!(done, total);
    files.read()
}

fn look(source: &Repositories, name: &str) -> nereid_core::backend_api::Result<Fingerprint> {
    block_on(source.fingerprint(&ModelId::plain(name), Instant::now()))
}

fn lists_models_and_reads_them(test: &impl StoreUnderTest<Store: 'static>) {
    for (path, contents) in [
        ("b/config.pbtxt", CONFIG),
        ("b/1/model", "b"),
        ("a/config.pbtxt", CONFIG),
        ("a/3/model", "a"),
        ("README", "x"),
    ] {
        test.put(path, contents.as_bytes());
    }
    let source = source(&[test]);
    assert_eq!(names(&source), ["a", "b"]);
    assert_eq!(block_on(source.find("a", Instant::now())).unwrap(), [ModelId::plain("a")]);
    let spec = read(&source, "a", &Overrides::default()).unwrap();
    assert_eq!((spec.config.name.as_str(), spec.versions.as_slice()), ("a", &[3][..]));
    assert_eq!(fs::read_to_string(spec.directory.join("3/model")).unwrap(), "a");
    assert_eq!(spec.fingerprint, look(&source, "a").unwrap());
}

fn fetches_the_files_of_served_versions(test: &impl StoreUnderTest<Store: 'static>) {
    for version in [1, 2, 10] {
        test.put(&format!("m/{version}/deep/model"), format!("{version}").as_bytes());
    }
    test.put("m/labels.txt", b"one\ntwo");
    for (policy, versions) in [
        ("", &[10][..]),
        ("version_policy { latest { num_versions: 2 } }", &[2, 10]),
        ("version_policy { specific { versions: [1] } }", &[1]),
        ("version_policy { all { } }", &[1, 2, 10]),
    ] {
        test.put("m/config.pbtxt", format!("{CONFIG}\n{policy}").as_bytes());
        let spec = read(&source(&[test]), "m", &Overrides::default()).unwrap();
        assert_eq!(spec.versions, versions, "{policy}");
        for version in versions {
            let path = spec.directory.join(format!("{version}/deep/model"));
            assert_eq!(fs::read_to_string(path).unwrap(), format!("{version}"));
        }
        assert!(spec.directory.join("labels.txt").exists());
    }
}

fn fingerprints_differ_where_files_do(test: &impl StoreUnderTest<Store: 'static>) {
    for (path, contents) in [("m/config.pbtxt", CONFIG), ("m/1/model", "one"), ("m/2/model", "two")] {
        test.put(path, contents.as_bytes());
    }
    let source = source(&[test]);
    let before = look(&source, "m").unwrap();
    assert_eq!(look(&source, "m").unwrap(), before);
    test.put("m/2/model", b"owt");
    let after = look(&source, "m").unwrap();
    assert_eq!(
        (after.config, after.whole, after.versions[&1]),
        (before.config, before.whole, before.versions[&1])
    );
    assert_ne!(after.versions[&2], before.versions[&2]);
    test.remove("m/2/model");
    assert_ne!(look(&source, "m").unwrap().versions.get(&2), after.versions.get(&2));
}

fn takes_a_configuration_in_place_of_the_models_own(test: &impl StoreUnderTest<Store: 'static>) {
    test.put("m/config.pbtxt", b"not a configuration {");
    for version in [1, 2] {
        test.put(&format!("m/{version}/model"), b"x");
    }
    let source = source(&[test]);
    assert_eq!(read(&source, "m", &Overrides::default()).unwrap_err().code(), ErrorCode::InvalidArg);
    let config = r#"{"backend": "identity", "version_policy": {"specific": {"versions": [1]}},
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}"#;
    let overrides = Overrides { config: Some(config.into()), files: Vec::new() };
    let spec = read(&source, "m", &overrides).unwrap();
    assert_eq!(spec.versions, [1]);
    assert!(spec.directory.join("1/model").exists());
}

fn refuses_unknown_models(test: &impl StoreUnderTest<Store: 'static>) {
    test.put("m/config.pbtxt", CONFIG.as_bytes());
    test.put("m/1/model", b"x");
    let source = source(&[test]);
    for name in ["nope", "", ".", "..", "../m", "m/1", "/etc", ".git"] {
        assert_eq!(look(&source, name).unwrap_err().code(), ErrorCode::NotFound, "{name}");
        let error = read(&source, name, &Overrides::default()).err().unwrap();
        assert_eq!(error.code(), ErrorCode::NotFound, "{name}");
    }
}

fn sees_current_files_at_each_call(test: &impl StoreUnderTest<Store: 'static>) {
    test.put("m/config.pbtxt", CONFIG.as_bytes());
    test.put("m/1/model", b"before");
    let source = source(&[test]);
    assert_eq!(names(&source), ["m"]);
    let guarded = read(&source, "m", &Overrides::default()).unwrap();
    test.put("m/1/model", b"now");
    test.put("n/config.pbtxt", CONFIG.as_bytes());
    test.put("n/1/model", b"n");
    let spec = read(&source, "m", &Overrides::default()).unwrap();
    assert_eq!(fs::read(spec.directory.join("1/model")).unwrap(), b"now");
    assert_ne!(spec.fingerprint, guarded.fingerprint);
    assert!(read(&source, "n", &Overrides::default()).is_ok());
    assert_eq!(names(&source), ["m", "n"]);
}

fn names_belong_to_one_repository<T: StoreUnderTest<Store: 'static>>(first: &T, second: &T) {
    for (test, name) in [(first, "m"), (second, "m"), (second, "n")] {
        test.put(&format!("{name}/config.pbtxt"), CONFIG.as_bytes());
        test.put(&format!("{name}/1/model"), name.as_bytes());
    }
    let both = source(&[first, second]);
    assert_eq!(names(&both), ["m", "n"]);
    assert_eq!(read(&both, "m", &Overrides::default()).unwrap_err().code(), ErrorCode::InvalidArg);
    assert!(read(&both, "n", &Overrides::default()).is_ok());
    let apart = source(&[first, second]).with_namespacing(true);
    let ids = block_on(apart.find("m", Instant::now())).unwrap();
    assert_eq!(ids.len(), 2);
    for id in &ids {
        let files = block_on(apart.fetch(id, &Overrides::default(), &Progress::default(), Instant::now()));
        assert_eq!(files.unwrap().read().unwrap().id, *id);
    }
}
