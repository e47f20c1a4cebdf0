//! The common contents of archive, Debian package and images: the program and the files that belong to it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::elf::{Machine, Program};
use super::tree::Tree;
use super::{components, gzip, notices, output, sbom};
use crate::project::Project;

/// Name of the program and of its packages.
pub const NAME: &str = "nereid";

/// The manual pages.
const MANUAL: &str = "docs/man";

/// The program and its files.
pub struct Contents {
    pub version: String,
    /// Seconds since 1970 of all files.
    pub time: u64,
    pub program: Program,
    /// The third-party notices.
    pub notices: String,
    /// The bill of materials.
    pub sbom: String,
    /// Names and texts of the manual pages.
    pub manual: Vec<(String, Vec<u8>)>,
    root: PathBuf,
}

impl Contents {
    pub fn new(project: &Project, program: &Program, time: u64) -> Result<Self> {
        let components = components::of_program(project, program.machine)?;
        let own = components.iter().find(|component| component.name == components::PROGRAM);
        let version = own.context("the program is not among its components")?.version.clone();
        Ok(Self {
            time,
            notices: notices::text(project, &components)?,
            sbom: sbom::text(NAME, &version, &components, time)?,
            manual: manual(&project.root.join(MANUAL))?,
            program: program.clone(),
            root: project.root.clone(),
            version,
        })
    }

    /// `nereid-0.1.0-linux-x86_64`.
    fn full_name(&self) -> String {
        format!("{NAME}-{}-{}", self.version, self.program.machine.platform())
    }

    pub fn archive_name(&self) -> String {
        format!("{}.tar.gz", self.full_name())
    }

    pub fn sbom_name(&self) -> String {
        format!("{}.cdx.json", self.full_name())
    }

    /// The archive for a machine without a package manager: unpacked anywhere, or below /usr/local.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let mut tree = Tree::default();
        tree.add_program(format!("bin/{NAME}"), self.program.bytes.clone());
        for (name, text) in &self.manual {
            tree.add(format!("share/man/man1/{name}"), text.clone());
        }
        for (path, script) in self.completions()? {
            tree.add(format!("share/{}", path.replace("vendor-completions", "site-functions")), script);
        }
        self.add_documents(&mut tree, &format!("share/doc/{NAME}"))?;
        tree.archive(&self.full_name(), self.time)
    }

    /// The completions of bash, zsh and fish, by their paths below `share`. The program prints them, so it has to run here.
    pub fn completions(&self) -> Result<[(&'static str, Vec<u8>); 3]> {
        completions(&self.program)
    }

    /// Licences and the bill of materials.
    pub fn add_documents(&self, tree: &mut Tree, folder: &str) -> Result<()> {
        tree.add(format!("{folder}/THIRD-PARTY-NOTICES.txt"), self.notices.clone());
        tree.add(format!("{folder}/{NAME}.cdx.json"), self.sbom.clone());
        tree.add_copy(format!("{folder}/CHANGELOG.md"), &self.root.join("CHANGELOG.md"))?;
        tree.add_copy(format!("{folder}/README.md"), &self.root.join("README.md"))?;
        tree.add_copy(format!("{folder}/LICENSE"), &self.root.join("LICENSE"))
    }

    /// The manual pages, compressed as Debian has them.
    pub fn compressed_manual(&self) -> Result<Vec<(String, Vec<u8>)>> {
        self.manual.iter().map(|(name, text)| Ok((format!("{name}.gz"), gzip(text)?))).collect()
    }
}

fn manual(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        pages.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    pages.sort();
    Ok(pages)
}

/// The scripts that the program prints, by their paths below `share`.
fn completions(program: &Program) -> Result<[(&'static str, Vec<u8>); 3]> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&program.bytes)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
    // Closed: a file that is open for writing cannot be executed.
    let path = file.into_temp_path();
    let script = |shell: &str| {
        output(Command::new(&path).args(["completions", shell])).with_context(|| match program.machine {
            Machine::X86_64 | Machine::Aarch64
                if program.machine.target().starts_with(std::env::consts::ARCH) =>
            {
                "the program cannot print its completions".to_owned()
            }
            other => format!("a package for {} is made where its programs run", other.platform()),
        })
    };
    Ok([
        ("bash-completion/completions/nereid", script("bash")?),
        ("zsh/vendor-completions/_nereid", script("zsh")?),
        ("fish/vendor_completions.d/nereid.fish", script("fish")?),
    ])
}
