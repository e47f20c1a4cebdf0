//! Packages for users: archive, wheel, Debian package, image and bill of materials.
//!
//! All packages share one build, and the same build packaged twice yields the same bytes: files are sorted, and times are
//! `SOURCE_DATE_EPOCH` or the time of the last commit. Images are the exception: they depend on their tool and base. Builds have no paths
//! of this machine in them.

mod components;
mod contents;
mod deb;
mod elf;
mod image;
mod notices;
mod reproducible;
mod sbom;
mod training;
mod tree;
pub mod wheel;
mod zig;

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use self::components::Engine;
use self::contents::Contents;
use self::elf::Program;
use self::training::Build;
use crate::project::{Project, show};

#[derive(Args)]
pub struct Package {
    /// The packages to make; `all` leaves out the images, which need a tool that builds them
    #[arg(value_name = "PACKAGE", required = true)]
    kinds: Vec<Kind>,

    /// The cargo profile of the build
    #[arg(long, default_value = PROFILE)]
    profile: String,

    /// Package this built program instead of building one (not for the wheel)
    #[arg(long, value_name = "PROGRAM")]
    binary: Option<PathBuf>,

    /// Counts that guide the build: `train` takes them from a load on an instrumented build, a file has those of an earlier build
    /// [default: none]
    #[arg(long, value_name = "train|FILE")]
    pgo: Option<PathBuf>,

    /// Build for machines with this release of glibc or a newer one, such as `2.28`; zig links, which pip fetches
    /// [default: the glibc of this machine decides]
    #[arg(long, value_name = "2.N", value_parser = zig::glibc)]
    glibc: Option<u32>,

    /// Folder of the packages [default: `packages` in cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Tool that builds images: podman, docker or buildah [default: the first that is installed]
    #[arg(long, value_name = "TOOL")]
    image_tool: Option<PathBuf>,

    /// Further arguments of the tool that builds images, such as `--volume` or `--build-arg`
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    image_argument: Vec<String>,
}

impl Package {
    /// All packages but the images, as shipped, with both wheels.
    fn complete(out: &Path) -> Self {
        Self {
            kinds: vec![Kind::All, Kind::WheelMinimal],
            profile: PROFILE.to_owned(),
            binary: None,
            pgo: None,
            glibc: None,
            out: Some(out.to_owned()),
            image_tool: None,
            image_argument: Vec::new(),
        }
    }
}

/// The profile of what is shipped.
const PROFILE: &str = "dist";

/// The program, as arguments of cargo.
const PROGRAM: [&str; 2] = ["--bin", contents::NAME];

/// The largest program that is shipped, in bytes; counts that guide a build make it larger.
const LARGEST_PROGRAM: usize = 46_000_000;

/// A package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// Program, manual pages, completions, licences and bill of materials as a .tar.gz
    Tar,
    /// For Python: the program, the server's library, its headers and the modules
    Wheel,
    /// The wheel `nereid-server-minimal`, without the embedded engine for ONNX models
    WheelMinimal,
    /// Debian package with a service of systemd
    Deb,
    /// Images of containers, `nereid` and `nereid:slim`
    Image,
    /// Bill of materials: all crates of the program, in CycloneDX's format
    Sbom,
    /// All of these but the images and the minimal wheel
    All,
}

impl Kind {
    /// The engine of a wheel; `None` for other packages.
    fn wheel(self) -> Option<Engine> {
        match self {
            Self::Wheel => Some(Engine::Embedded),
            Self::WheelMinimal => Some(Engine::None),
            _ => None,
        }
    }
}

/// The packages that `all` makes.
const ALL: [Kind; 4] = [Kind::Tar, Kind::Wheel, Kind::Deb, Kind::Sbom];

/// Makes the packages, and a file with the digests of all files in their folder.
pub fn run(project: &Project, package: &Package) -> Result<()> {
    let out = package.out.clone().unwrap_or_else(|| project.target.join("packages"));
    let mut kinds = package.kinds.clone();
    if kinds.contains(&Kind::All) {
        kinds.extend(ALL);
        kinds.retain(|kind| *kind != Kind::All);
    }
    kinds.sort();
    kinds.dedup();
    let wheels: Vec<_> = kinds.iter().filter_map(|kind| kind.wheel()).collect();
    let has_others = kinds.len() > wheels.len();
    let named = package.binary.as_deref().filter(|_| has_others);
    let mut program = named.map(Program::read).transpose()?;
    let needs_program = has_others && program.is_none();
    if needs_program || !wheels.is_empty() {
        let build = build(project, package)?;
        for engine in [Engine::Embedded, Engine::None] {
            let has_program = needs_program && engine == Engine::Embedded;
            let has_wheel = wheels.contains(&engine);
            let targets = [(has_program, PROGRAM.as_slice()), (has_wheel, &wheel::TARGETS)];
            let targets: Vec<_> = targets.iter().filter(|(is_made, _)| *is_made).map(|(_, it)| *it).collect();
            if targets.is_empty() {
                continue;
            }
            // One call of cargo, so that common dependencies are compiled once.
            show(&mut build.command(project, engine, &targets.concat())?)?;
            if has_program {
                program = Some(built_program(project, package, &build)?);
            }
            if has_wheel {
                let packed = wheel::build(project, &build, engine)?;
                let name = packed.file_name().context("a wheel has no name")?;
                write(&out.join(name), &fs::read(&packed)?)?;
            }
        }
    }
    if let Some(program) = program {
        let contents = Contents::new(project, &program, source_date(project)?)?;
        for kind in kinds {
            match kind {
                Kind::Tar => write(&out.join(contents.archive_name()), &contents.archive()?)?,
                Kind::Deb => deb::build(project, &contents, &out)?,
                Kind::Image => image::build(project, &contents, package)?,
                Kind::Sbom => write(&out.join(contents.sbom_name()), contents.sbom.as_bytes())?,
                Kind::Wheel | Kind::WheelMinimal | Kind::All => {}
            }
        }
    }
    write_digests(&out)
}

/// Makes all packages but the images, twice, and fails if their bytes differ. Returns their folder.
pub fn for_tests(project: &Project) -> Result<PathBuf> {
    let folders = ["packages", "packages-again"].map(|name| project.scratch(name));
    for folder in &folders {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => run(project, &Package::complete(folder))?,
        }
    }
    // The lists of digests are equal if all packages are.
    let [first, second] = folders.each_ref().map(|folder| fs::read_to_string(folder.join(DIGESTS)));
    let (first, second) = (first?, second?);
    if first != second {
        bail!("the same build gave different packages:\n{first}\n{second}");
    }
    let [first, _] = folders;
    Ok(first)
}

/// How to build what the packages contain.
fn build(project: &Project, package: &Package) -> Result<Build> {
    let profile = package.profile.as_str();
    let build = match package.pgo.as_deref() {
        None => Build::plain(profile),
        Some(train) if train == Path::new("train") => Build::guided(project, profile, None)?,
        counts => Build::guided(project, profile, counts)?,
    };
    match package.glibc {
        None => Ok(build),
        Some(glibc) => build.for_glibc(project, glibc),
    }
}

/// The program that was built.
fn built_program(project: &Project, package: &Package, build: &Build) -> Result<Program> {
    let program = Program::read(&build.folder(project).join(contents::NAME))?;
    if let Some(zig) = &build.zig {
        zig.check("the program", program.glibc())?;
    }
    if package.profile == PROFILE && package.pgo.is_none() {
        check_size(program.bytes.len())?;
    }
    Ok(program)
}

/// Fails, before anything is packed, if the program is too large for the image `slim`.
fn check_size(bytes: usize) -> Result<()> {
    println!("the program has {:.1} MB", bytes as f64 / 1e6);
    if bytes > LARGEST_PROGRAM {
        bail!(
            "the program has {:.1} MB, but at most {} MB leave the image `slim` below 51 MB: docs/deployment.md lists what it is made of",
            bytes as f64 / 1e6,
            LARGEST_PROGRAM / 1_000_000
        );
    }
    Ok(())
}

/// Seconds since 1970 of all files in packages.
fn source_date(project: &Project) -> Result<u64> {
    if let Some(set) = env::var_os("SOURCE_DATE_EPOCH") {
        let set = set.to_string_lossy().into_owned();
        return set.parse().with_context(|| format!("SOURCE_DATE_EPOCH is '{set}', not a number of seconds"));
    }
    let seconds = output(project.command("git").args(["log", "-1", "--format=%ct"]))
        .context("SOURCE_DATE_EPOCH is not set, and git does not know the time of the last commit")?;
    Ok(String::from_utf8(seconds)?.trim().parse()?)
}

/// Runs a command and returns its output.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let line = crate::project::line_of(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// Compresses, without names and times.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Writes a package, and prints its path and size.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    tree::write_new(path, bytes)?;
    report(path)
}

fn report(path: &Path) -> Result<()> {
    println!("{} ({:.1} MB)", path.display(), fs::metadata(path)?.len() as f64 / 1e6);
    Ok(())
}

/// The file with the digests of all packages, for `sha256sum --check`.
const DIGESTS: &str = "SHA256SUMS";

fn write_digests(out: &Path) -> Result<()> {
    if !out.is_dir() {
        // Images are in the storage of their tool.
        return Ok(());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.path().is_file() && name != DIGESTS {
            names.push(name);
        }
    }
    names.sort();
    let digests = output(Command::new("sha256sum").arg("--").args(names).current_dir(out))?;
    tree::write_new(&out.join(DIGESTS), &digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_cover_all_files_but_their_own() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        write_digests(folder.path()).unwrap();
        // The file of digests exists now.
        write_digests(folder.path()).unwrap();
        let digests = fs::read_to_string(folder.path().join(DIGESTS)).unwrap();
        let names: Vec<_> = digests.lines().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(names, ["a", "b"]);
        output(Command::new("sha256sum").args(["--check", "--quiet", DIGESTS]).current_dir(folder.path()))
            .unwrap();
        fs::write(folder.path().join("a"), "changed").unwrap();
        output(Command::new("sha256sum").args(["--check", "--quiet", DIGESTS]).current_dir(folder.path()))
            .unwrap_err();
    }

    #[test]
    fn program_that_grew_too_much_is_not_packed() {
        check_size(LARGEST_PROGRAM).unwrap();
        let error = check_size(LARGEST_PROGRAM + 100_000).unwrap_err().to_string();
        assert!(error.starts_with("the program has 46.1 MB, but at most 46 MB"), "{error}");
    }

    #[test]
    fn compression_depends_on_the_contents_alone() {
        let bytes = vec![3; 10_000];
        assert_eq!(gzip(&bytes).unwrap(), gzip(&bytes).unwrap());
        // Bytes 4 to 7 are the time.
        assert_eq!(gzip(&bytes).unwrap()[4..8], [0; 4]);
    }
}
