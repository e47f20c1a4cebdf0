//! Builds that are guided by a profile: an instrumented program serves a load, and what it counted decides what the build that
//! ships is fast at.
//!
//! Knows how to count and how to use the counts, not the load.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::components::{Engine, LIBRARY, PROGRAM};
use super::reproducible::set_flags;
use super::zig::Zig;
use super::{PROFILE, output};
use crate::bench;
use crate::project::{Project, rustc, show};

/// The crates of all packages, except for the module for Python: maturin builds it.
const BUILT: [&str; 2] = [PROGRAM, LIBRARY];

/// How cargo builds what a package contains.
pub struct Build {
    /// The profile.
    pub profile: String,
    /// The counts that guide the build.
    counts: Option<PathBuf>,
    /// The platform, which is named where only the program's crates get the compiler's flags.
    target: String,
    /// The linker for an older glibc, if any.
    pub zig: Option<Zig>,
}

impl Build {
    /// A build that no profile guides.
    pub fn plain(profile: &str) -> Self {
        Self { profile: profile.to_owned(), counts: None, target: String::new(), zig: None }
    }

    /// A build that is guided by these counts, or by those of an instrumented program that runs now.
    pub fn guided(project: &Project, profile: &str, counts: Option<&Path>) -> Result<Self> {
        let target = host()?;
        let counts = match counts {
            Some(file) => file.canonicalize().with_context(|| format!("cannot read {}", file.display()))?,
            None => count(project, &target)?,
        };
        Ok(Self { profile: profile.to_owned(), counts: Some(counts), target, zig: None })
    }

    /// Makes this a build for machines with this release of glibc 2 or a newer one.
    pub fn for_glibc(mut self, project: &Project, glibc: u32) -> Result<Self> {
        self.target = host()?;
        self.zig = Some(Zig::new(project, glibc)?);
        Ok(self)
    }

    /// The command that builds these targets (arguments of cargo). It always names the crates of all packages: their features decide
    /// how the dependencies are compiled, so all packages share them.
    pub fn command(&self, project: &Project, engine: Engine, targets: &[&str]) -> Result<Command> {
        let mut command = match &self.zig {
            Some(zig) => zig.cargo(project, &self.target)?,
            None => project.cargo(&["build"]),
        };
        command.args(["--locked", "--profile", &self.profile]);
        command.args(BUILT.iter().flat_map(|name| ["--package", name]));
        command.args(targets);
        if engine == Engine::None {
            command.arg("--no-default-features");
        }
        if self.zig.is_none() && !self.target.is_empty() {
            command.args(["--target", &self.target]);
        }
        let guide = self.counts.as_deref().map(|counts| flag("-Cprofile-use=", counts));
        set_flags(&mut command, project, guide.as_slice());
        Ok(command)
    }

    /// Lets maturin build the module for Python in the same way.
    pub fn set_module(&self, project: &Project, maturin: &mut Command) -> Result<()> {
        set_flags(maturin, project, &[]);
        if let Some(zig) = &self.zig {
            maturin.args(["--zig", "--target", &self.target]);
            // Maturin's wrapper of the linker has another path, so cargo would build everything again after each change between the two.
            maturin.env("CARGO_TARGET_DIR", project.scratch("zig-module"));
            zig.add_to_path(maturin)?;
        }
        Ok(())
    }

    /// The folder of what was built.
    pub fn folder(&self, project: &Project) -> PathBuf {
        let folder = if self.profile == "dev" { "debug" } else { &self.profile };
        project.target.join(&self.target).join(folder)
    }
}

/// Builds an instrumented program, sends it the load, and returns the file with its counts.
fn count(project: &Project, target: &str) -> Result<PathBuf> {
    let merge = profdata(target)?;
    let folder = project.scratch("training");
    let (build, raw) = (folder.join("build"), folder.join("counts"));
    for old in [&raw, &folder.join("models")] {
        match fs::remove_dir_all(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    // Functions are instrumented before anything that these settings change, and are built sooner.
    let mut cargo = project.cargo(&["build", "--locked", "--profile", PROFILE, "--target", target]);
    cargo.args(["--package", PROGRAM]).arg("--target-dir").arg(&build);
    cargo.env("CARGO_PROFILE_DIST_LTO", "off").env("CARGO_PROFILE_DIST_CODEGEN_UNITS", "16");
    // As in the build that the counts guide: functions are found by their names, which depend on the flags.
    set_flags(&mut cargo, project, &[flag("-Cprofile-generate=", &raw)]);
    show(&mut cargo)?;
    println!("training: the instrumented program serves a load");
    bench::train(project, &build.join(target).join(PROFILE).join("nereid"), &folder)?;
    let files: Vec<_> = fs::read_dir(&raw)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .context("the instrumented program left no counts")?;
    let counts = folder.join("nereid.profdata");
    let mut command = project.command(merge);
    show(command.args(["merge", "-o"]).arg(&counts).args(files.iter().map(fs::DirEntry::path)))?;
    Ok(counts)
}

/// A flag of the compiler with a file.
fn flag(name: &str, file: &Path) -> OsString {
    let mut flag = OsString::from(name);
    flag.push(file);
    flag
}

/// The compiler's own platform.
fn host() -> Result<String> {
    let text = String::from_utf8(output(Command::new(rustc()).args(["--version", "--verbose"]))?)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.with_context(|| format!("rustc does not name its platform:\n{text}"))?.to_owned())
}

/// The program that merges counts, of the compiler's own version.
fn profdata(target: &str) -> Result<PathBuf> {
    let root = String::from_utf8(output(Command::new(rustc()).args(["--print", "sysroot"]))?)?;
    let program = Path::new(root.trim()).join("lib/rustlib").join(target).join("bin/llvm-profdata");
    if !program.is_file() {
        bail!(
            "{} is missing, which a build guided by a profile needs: `rustup component add llvm-tools`",
            program.display()
        );
    }
    Ok(program)
}
