//! Libraries in C that are not backends, compiled and loaded into the test process.

use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nereid_plugin::{HostFunction, Kind, PluginError, SearchPath};

/// The host's side of the agents' API.
///
/// # Safety
/// The pointers are valid to write.
#[unsafe(no_mangle)]
unsafe extern "C" fn TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        *major = 1;
        *minor = 2;
    }
    std::ptr::null_mut()
}

const API_VERSION: unsafe extern "C" fn(*mut u32, *mut u32) -> *mut c_void = TRITONREPOAGENT_ApiVersion;

fn host() -> [HostFunction; 1] {
    [("TRITONREPOAGENT_ApiVersion", API_VERSION as *const ())]
}

fn compile(library: &Path, flags: &[&str]) {
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-Wall", "-Werror", source, "-o"]).arg(library).args(flags);
    assert!(command.status().unwrap().success());
}

/// Compiles a library that depends on another one called `dependency`, and then removes the latter.
fn compile_with_lost(library: &Path, define: &str, dependency: &str) {
    let lost = library.with_file_name(dependency);
    compile(&lost, &["-DOTHER", &format!("-Wl,-soname,{dependency}")]);
    compile(library, &[define, "-Wl,--no-as-needed", lost.to_str().unwrap()]);
    fs::remove_file(lost).unwrap();
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

#[test]
fn repository_agent_is_found_loaded_and_called() {
    let (_folder, agents) = folder();
    let file = Kind::REPOSITORY_AGENT.library_name("checksum");
    compile_with_lost(&agents.join("checksum").join(&file), "-DAGENT", "libtritonserver-1a2b.so");
    let found = SearchPath::in_directory(&agents, "checksum").find(&file).unwrap();
    let agent = Kind::REPOSITORY_AGENT.load(&found.library, &[&host()]).unwrap();
    type Action = unsafe extern "C" fn(*mut c_void, *mut c_void, u32) -> *mut c_void;
    // SAFETY: the type matches the function in plugin.c.
    let action = unsafe { agent.require::<Action>("TRITONREPOAGENT_ModelAction") }.unwrap();
    // SAFETY: the function does not use its pointers.
    let outcome = unsafe { action(std::ptr::null_mut(), std::ptr::null_mut(), 3) };
    assert_eq!(outcome.addr(), 1023);
    // SAFETY: as above; any type is allowed.
    assert!(unsafe { agent.function::<Action>("TRITONREPOAGENT_Initialize") }.is_none());
}

#[test]
fn plugin_of_another_kind_is_refused_for_its_missing_function() {
    let (_folder, folder) = folder();
    let library = folder.join(Kind::BACKEND.library_name("x"));
    compile(&library, &["-DOTHER"]);
    let error = Kind::REPOSITORY_AGENT.load(&library, &[&host()]).unwrap_err();
    let expected = format!(
        "{} is not a Triton repository agent: it does not export TRITONREPOAGENT_ModelAction",
        library.display()
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn host_without_the_api_of_the_kind_loads_nothing() {
    let error = Kind::CACHE.load(Path::new("/no/such/libtritoncache_x.so"), &[&host()]).unwrap_err();
    assert!(matches!(&error, PluginError::NotExported(name) if name == "TRITONCACHE_ApiVersion"), "{error}");
}

#[test]
fn missing_dependency_is_reported_by_name() {
    let (_folder, folder) = folder();
    let library = folder.join(Kind::REPOSITORY_AGENT.library_name("x"));
    compile_with_lost(&library, "-DNEEDS_OTHER", "libother-of-a-test.so.13");
    let error = Kind::REPOSITORY_AGENT.load(&library, &[&host()]).unwrap_err();
    let start = format!(
        "cannot load {}: libother-of-a-test.so.13: cannot open shared object file",
        library.display()
    );
    assert!(error.to_string().starts_with(&start), "{error}");
}
