//! Compiles the shim that calls libtorch against the headers of the installed libtorch. The result is cached per user
//! and libtorch, so each is compiled once.
//!
//! Does not know the shim's functions.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Instant;

use nereid_private_folders::cache_folder;

/// The shim's source.
const SOURCE: &str = include_str!("shim.cpp");

/// The C++ standards that libtorch's headers require, the newest first: 2.15 needs the first, 1.13 the second.
const STANDARDS: [&str; 2] = ["-std=c++20", "-std=c++17"];

/// The reason why no shim is available.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The library has no headers.
    #[error("{library} has no headers: {searched} is missing")]
    NoHeaders {
        /// The library.
        library: PathBuf,
        /// The header that is missing.
        searched: PathBuf,
    },
    /// No compiler is installed.
    #[error(
        "the shim for libtorch needs a C++ compiler, but `{compiler}` does not start: {cause} (apt-get install g++)"
    )]
    NoCompiler {
        /// The compiler's command.
        compiler: String,
        /// The error from starting it.
        cause: io::Error,
    },
    /// The compiler rejects the source.
    #[error("`{compiler}` cannot compile the shim for {library}: {reason}")]
    Rejected {
        /// The compiler.
        compiler: String,
        /// The library.
        library: PathBuf,
        /// The first error message.
        reason: String,
    },
    /// The shim cannot be stored.
    #[error("the shim for libtorch cannot be kept: {0}")]
    Cache(String),
}

/// Finds the shim for a libtorch, or compiles it.
///
/// # Errors
/// The shim is not available.
pub(crate) fn shim(library: &Path) -> Result<PathBuf, CompileError> {
    let folder = cache_folder("libtorch").map_err(|error| CompileError::Cache(error.to_string()))?;
    let compiled = folder.join(format!("shim-{:016x}.so", key(library)));
    if compiled.is_file() {
        return Ok(compiled);
    }
    let includes = includes(library)?;
    tracing::info!(
        "compiling the shim for {} with `{}`, once for this libtorch: its models wait for that, usually 10 to 30 seconds",
        library.display(),
        compiler()
    );
    let began = Instant::now();
    // Written under another name first, so that servers that start at the same time never see a partial file.
    let part = folder.join(format!("part-{}-{:016x}", process::id(), key(library)));
    let source = part.with_extension("cpp");
    let kept = |error: io::Error| CompileError::Cache(format!("{}: {error}", folder.display()));
    fs::write(&source, SOURCE).map_err(kept)?;
    let outcome = compile(library, &includes, &source, &part);
    fs::remove_file(&source).map_err(kept)?;
    outcome?;
    fs::rename(&part, &compiled).map_err(kept)?;
    tracing::info!("compiled the shim in {:.1} s", began.elapsed().as_secs_f64());
    Ok(compiled)
}

/// Finds or creates the empty library that replaces `libtorch.so` for a `libtorch_cpu.so`.
///
/// # Errors
/// The library cannot be created.
pub(crate) fn umbrella(library: &Path) -> Result<PathBuf, CompileError> {
    let folder = cache_folder("libtorch").map_err(|error| CompileError::Cache(error.to_string()))?;
    let compiled = folder.join(format!("umbrella-{:016x}.so", key(library)));
    if compiled.is_file() {
        return Ok(compiled);
    }
    let part = folder.join(format!("umbrella-part-{}-{:016x}", process::id(), key(library)));
    let home = library.parent().unwrap_or(Path::new("."));
    let compiler = compiler();
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-Wl,-soname,libtorch.so", "-x", "c++", "/dev/null", "-o"]).arg(&part);
    command.arg("-L").arg(home).arg(format!("-Wl,-rpath,{}", home.display()));
    command.args(["-Wl,--unresolved-symbols=ignore-in-shared-libs", "-Wl,--no-as-needed", "-ltorch_cpu"]);
    let output =
        command.output().map_err(|cause| CompileError::NoCompiler { compiler: compiler.clone(), cause })?;
    if !output.status.success() {
        return Err(CompileError::Rejected {
            compiler,
            library: library.to_owned(),
            reason: first_error(&output.stderr),
        });
    }
    fs::rename(&part, &compiled)
        .map_err(|error| CompileError::Cache(format!("{}: {error}", folder.display())))?;
    Ok(compiled)
}

/// The dependencies of the compiled shim: its source and the library.
fn key(library: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    (SOURCE, library).hash(&mut hasher);
    if let Ok(metadata) = library.metadata() {
        (metadata.len(), metadata.modified().ok()).hash(&mut hasher);
    }
    hasher.finish()
}

/// The include folders: of the package with the library in `lib`, next to the library, or the system's.
fn includes(library: &Path) -> Result<Vec<PathBuf>, CompileError> {
    let package = library.parent().and_then(Path::parent).map(|package| package.join("include"));
    let beside = library.with_file_name("include");
    let roots = package.iter().cloned().chain([beside, PathBuf::from("/usr/include")]);
    for root in roots {
        if root.join("torch/script.h").is_file() {
            let api = root.join("torch/csrc/api/include");
            return Ok(vec![root, api]);
        }
    }
    let searched = package.unwrap_or_default().join("torch/script.h");
    Err(CompileError::NoHeaders { library: library.to_owned(), searched })
}

fn compile(library: &Path, includes: &[PathBuf], source: &Path, target: &Path) -> Result<(), CompileError> {
    let compiler = compiler();
    let folder = library.parent().unwrap_or(Path::new("."));
    let mut reason = String::new();
    for standard in STANDARDS {
        let mut command = Command::new(&compiler);
        command.args([standard, "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden"]);
        command.arg(format!("-D_GLIBCXX_USE_CXX11_ABI={}", u8::from(has_new_strings(library))));
        command.args(includes.iter().flat_map(|include| [Path::new("-isystem"), include]));
        command.arg(source).arg("-o").arg(target).arg("-L").arg(folder);
        command.arg(format!("-Wl,-rpath,{}", folder.display()));
        // Dependencies of libtorch are resolved when it is loaded.
        command.args(["-Wl,--unresolved-symbols=ignore-in-shared-libs", "-ltorch_cpu", "-lc10"]);
        let output = command
            .output()
            .map_err(|cause| CompileError::NoCompiler { compiler: compiler.clone(), cause })?;
        if output.status.success() {
            return Ok(());
        }
        reason = first_error(&output.stderr);
    }
    Err(CompileError::Rejected { compiler, library: library.to_owned(), reason })
}

fn compiler() -> String {
    env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".to_owned())
}

/// The line with the first error of a compiler's output.
fn first_error(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().find(|line| line.contains("error")).or_else(|| text.lines().next());
    line.unwrap_or("it does not say why").to_owned()
}

/// Whether the library is built with the C++11 ABI of strings. PyPI's packages are since 2.7.
///
/// The older packages contain parts of libstdc++ with both ABIs, so only a function of libtorch itself reveals it.
fn has_new_strings(library: &Path) -> bool {
    /// The constructor of `c10::Error` from a `SourceLocation` and a string with the old ABI.
    const OLD: &[u8] = b"_ZN3c105ErrorC2ENS_14SourceLocationESs";
    let core = fs::read(library.with_file_name("libc10.so"));
    core.map_or(true, |bytes| !bytes.windows(OLD.len()).any(|word| word == OLD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_from_the_package() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("torch/lib/libtorch_cpu.so");
        let header = folder.path().join("torch/include/torch/script.h");
        if !Path::new("/usr/include/torch/script.h").exists() {
            let error = includes(&library).unwrap_err().to_string();
            assert!(error.ends_with("torch/include/torch/script.h is missing"), "{error}");
        }
        fs::create_dir_all(header.parent().unwrap()).unwrap();
        fs::write(&header, "").unwrap();
        let include = folder.path().join("torch/include");
        assert_eq!(includes(&library).unwrap(), [include.clone(), include.join("torch/csrc/api/include")]);
        // As `cargo xtask fetch pytorch` leaves them.
        let library = folder.path().join("backends/pytorch/libtorch_cpu.so");
        let include = library.with_file_name("include");
        fs::create_dir_all(include.join("torch")).unwrap();
        fs::write(include.join("torch/script.h"), "").unwrap();
        assert_eq!(includes(&library).unwrap(), [include.clone(), include.join("torch/csrc/api/include")]);
    }

    #[test]
    fn string_abi_is_detected_from_symbols() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libtorch_cpu.so");
        assert!(has_new_strings(&library));
        let of_string =
            "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
        let of_old_string = "_ZN3c105ErrorC2ENS_14SourceLocationESs";
        let of_libstdcxx = "_ZNSt11logic_errorC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
        for (symbols, new) in [
            (of_string.to_owned(), true),
            (of_old_string.to_owned(), false),
            (format!("{of_libstdcxx}\0{of_old_string}\0{of_libstdcxx}"), false),
            (format!("{of_libstdcxx}\0{of_string}"), true),
        ] {
            fs::write(folder.path().join("libc10.so"), &symbols).unwrap();
            assert_eq!(has_new_strings(&library), new, "{symbols}");
        }
    }

    #[test]
    fn shims_differ_by_library() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one.so"), folder.path().join("other.so"));
        assert_ne!(key(&one), key(&other));
        let before = key(&one);
        assert_eq!(before, key(&one));
        fs::write(&one, "a").unwrap();
        let of_a = key(&one);
        fs::write(&one, "ab").unwrap();
        assert!(before != of_a && of_a != key(&one));
    }
}
