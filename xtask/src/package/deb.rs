//! The Debian package: the program, a service of systemd with a user of its own, and a configuration that upgrades keep.
//!
//! The service, its configuration and the scripts are in `deploy/debian`. dpkg-deb packs them.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use time::OffsetDateTime;

use super::contents::{Contents, NAME};
use super::tree::Tree;
use super::{gzip, output, report};
use crate::project::Project;

/// The maintainer unless Debian's variables name one. Mail to the address goes nowhere.
const MAINTAINER: [&str; 2] = ["Nereid's maintainers", "maintainers@nereid.invalid"];

/// Debian's variables for the maintainer's name and address.
const MAINTAINER_VARIABLES: [&str; 2] = ["DEBFULLNAME", "DEBEMAIL"];

/// Sources of the service and of the scripts.
const SOURCE: &str = "deploy/debian";

/// Files of the source folder, and their places in the system.
const INSTALLED: [(&str, &str); 3] = [
    ("nereid.service", "usr/lib/systemd/system/nereid.service"),
    ("nereid.sysusers", "usr/lib/sysusers.d/nereid.conf"),
    ("nereid.toml", CONFIGURATION),
];

/// The file that upgrades keep.
const CONFIGURATION: &str = "etc/nereid/nereid.toml";

/// Scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package in a folder.
pub fn build(project: &Project, contents: &Contents, out: &Path) -> Result<()> {
    let source = project.root.join(SOURCE);
    let work = tempfile::tempdir()?;
    let maintainer = maintainer(MAINTAINER_VARIABLES.map(|name| env::var(name).ok()));
    let tree = installed(&source, contents, &maintainer)?;
    let mut control = Tree::default();
    for script in SCRIPTS {
        control.add_program(script, read(&source.join(script))?);
    }
    control.add("conffiles", format!("/{CONFIGURATION}\n"));
    control.add("md5sums", digests(&tree, work.path())?);
    control.add("control", fields(contents, &tree, &maintainer));
    tree.write(work.path())?;
    control.write(&work.path().join("DEBIAN"))?;
    set_modes(work.path())?;

    fs::create_dir_all(out)?;
    let file = out.join(file_name(contents));
    // All times that are newer become this one.
    let mut pack = project.command("dpkg-deb");
    pack.env("SOURCE_DATE_EPOCH", contents.time.to_string());
    pack.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).arg(work.path()).arg(&file);
    output(&mut pack).context("cannot make the Debian package")?;
    report(&file)
}

/// Name and address of the maintainer.
fn maintainer(named: [Option<String>; 2]) -> String {
    let [name, address] = named.map(|text| text.filter(|text| !text.trim().is_empty()));
    let [other_name, other_address] = MAINTAINER;
    format!("{} <{}>", name.as_deref().unwrap_or(other_name), address.as_deref().unwrap_or(other_address))
}

fn file_name(contents: &Contents) -> String {
    format!("{NAME}_{}_{}.deb", contents.version, contents.program.machine.debian())
}

/// The files of the package.
fn installed(source: &Path, contents: &Contents, maintainer: &str) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.add_program(format!("usr/bin/{NAME}"), contents.program.bytes.clone());
    for (name, text) in contents.compressed_manual()? {
        tree.add(format!("usr/share/man/man1/{name}"), text);
    }
    for (path, script) in contents.completions()? {
        tree.add(format!("usr/share/{path}"), script);
    }
    for (file, place) in INSTALLED {
        tree.add(place, read(&source.join(file))?);
    }
    let documents = format!("usr/share/doc/{NAME}");
    tree.add(format!("{documents}/copyright"), copyright());
    tree.add(format!("{documents}/THIRD-PARTY-NOTICES.txt.gz"), gzip(contents.notices.as_bytes())?);
    tree.add(format!("{documents}/changelog.gz"), gzip(changelog(contents, maintainer)?.as_bytes())?);
    tree.add(format!("{documents}/{NAME}.cdx.json.gz"), gzip(contents.sbom.as_bytes())?);
    Ok(tree)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Debian's file about licences. The system has the text of ours.
fn copyright() -> String {
    "Copyright 2026 the authors of Nereid.\n\nNereid is licensed under the Apache License, Version 2.0: see\n/usr/share/common-licenses/Apache-2.0.\n\nIt contains code \
     of other projects, whose licences are in THIRD-PARTY-NOTICES.txt.gz.\n"
        .to_owned()
}

/// Debian's list of changes: one entry, for this release.
fn changelog(contents: &Contents, maintainer: &str) -> Result<String> {
    let time = OffsetDateTime::from_unix_timestamp(contents.time.try_into()?)?;
    let (weekday, month) = (time.weekday().to_string(), time.month().to_string());
    let (year, day, (hour, minute, second)) = (time.year(), time.day(), time.to_hms());
    Ok(format!(
        "{NAME} ({}) unstable; urgency=medium\n\n  * Release {0}.\n\n -- {maintainer}  {:.3}, {day:02} {:.3} {year} \
         {hour:02}:{minute:02}:{second:02} +0000\n",
        contents.version, weekday, month
    ))
}

/// The package's description for dpkg.
fn fields(contents: &Contents, tree: &Tree, maintainer: &str) -> String {
    let size: usize = tree.iter().map(|(_, entry)| entry.bytes.len().div_ceil(1024)).sum();
    let depends = format!(
        "libc6 (>= 2.{}), libgcc-s1 (>= 4.2), init-system-helpers (>= 1.54~), systemd | systemd-standalone-sysusers | \
         systemd-sysusers",
        contents.program.glibc()
    );
    let mut text = String::new();
    for (field, value) in [
        ("Package", NAME),
        ("Version", &contents.version),
        ("Architecture", contents.program.machine.debian()),
        ("Maintainer", maintainer),
        ("Installed-Size", &size.to_string()),
        ("Depends", &depends),
        ("Recommends", "ca-certificates, python3"),
        ("Section", "net"),
        ("Priority", "optional"),
        ("Description", "inference server that takes the place of NVIDIA Triton"),
    ] {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{field}: {value}");
    }
    text.push_str(
        " Serves models in ONNX, OpenVINO, TensorFlow, PyTorch and Python over HTTP\n and gRPC, with Triton's protocol, repositories \
         and options. ONNX models need\n nothing else; other frameworks are found where they are installed.\n",
    );
    text
}

/// The digests that `dpkg --verify` compares.
fn digests(tree: &Tree, work: &Path) -> Result<Vec<u8>> {
    let scratch = tempfile::tempdir_in(work)?;
    tree.write(scratch.path())?;
    let names = tree.iter().map(|(path, _)| path).filter(|path| *path != CONFIGURATION);
    output(std::process::Command::new("md5sum").arg("--").args(names).current_dir(scratch.path()))
}

/// Gives all folders the usual mode, independent of this process's umask.
fn set_modes(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            set_modes(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn source() -> std::path::PathBuf {
        Project::find().unwrap().root.join(SOURCE)
    }

    /// The settings of a section of the service, with all values of each.
    fn service(section: &str) -> BTreeMap<String, Vec<String>> {
        let text = fs::read_to_string(source().join("nereid.service")).unwrap();
        let mut settings: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut inside = false;
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            if line.starts_with('[') {
                inside = line == format!("[{section}]");
            } else if inside {
                let (name, value) = line.split_once('=').unwrap();
                settings.entry(name.to_owned()).or_default().push(value.to_owned());
            }
        }
        settings
    }

    #[test]
    fn the_service_runs_the_packaged_program_with_the_packaged_configuration_as_the_packaged_user() {
        let service = service("Service");
        let only = |name: &str| service[name].join("");
        assert_eq!(only("ExecStart"), format!("/usr/bin/{NAME} --config-file=/{CONFIGURATION}"));
        let user = fs::read_to_string(source().join("nereid.sysusers")).unwrap();
        assert!(user.starts_with(&format!("u {} ", only("User"))), "{user}");
        assert!(user.contains(&format!(" /var/lib/{} ", only("StateDirectory"))), "{user}");
        for script in SCRIPTS {
            let text = fs::read_to_string(source().join(script)).unwrap();
            assert!(text.starts_with("#!/bin/sh\nset -e\n"), "{script}");
        }
    }

    #[test]
    fn the_maintainer_is_the_one_of_debians_variables() {
        let text = |text: &str| Some(text.to_owned());
        for (named, expected) in [
            ([text("Ada"), text("ada@example.org")], "Ada <ada@example.org>"),
            ([text("Ada"), None], "Ada <maintainers@nereid.invalid>"),
            ([text(""), text(" ")], "Nereid's maintainers <maintainers@nereid.invalid>"),
            ([None, None], "Nereid's maintainers <maintainers@nereid.invalid>"),
        ] {
            assert_eq!(maintainer(named), expected);
        }
    }

    #[test]
    fn the_service_may_do_little() {
        let service = service("Service");
        for (name, value) in [
            ("CapabilityBoundingSet", ""),
            ("NoNewPrivileges", "yes"),
            ("PrivateTmp", "yes"),
            ("ProtectHome", "yes"),
            ("ProtectKernelTunables", "yes"),
            ("ProtectSystem", "strict"),
            ("RestrictNamespaces", "yes"),
            ("SystemCallArchitectures", "native"),
        ] {
            assert_eq!(service[name], [value], "{name}");
        }
        assert_eq!(service["SystemCallFilter"], ["@system-service", "~@privileged"]);
        // Engines compile code at run time and read /proc/cpuinfo, and the access policy knows users of Unix sockets.
        for broken in ["MemoryDenyWriteExecute", "ProcSubset", "PrivateDevices", "PrivateUsers"] {
            assert!(!service.contains_key(broken), "{broken}");
        }
    }

    #[test]
    fn the_service_waits_longer_than_the_server_takes_to_stop() {
        let longest: u64 = service("Service")["TimeoutStopSec"][0].parse().unwrap();
        assert!(longest > 31, "--exit-timeout-secs is 30 by default");
    }

    #[test]
    fn the_server_of_the_package_is_reached_from_its_machine_only() {
        let text = fs::read_to_string(source().join("nereid.toml")).unwrap();
        let options: toml_edit::DocumentMut = text.parse().unwrap();
        for port in ["http", "grpc", "metrics"] {
            assert_eq!(options[&format!("{port}-address")].as_str(), Some("127.0.0.1"));
        }
        let state = service("Service")["StateDirectory"][0].clone();
        let repositories = options["model-repository"].as_array().unwrap();
        assert_eq!(repositories.get(0).unwrap().as_str(), Some(format!("/var/lib/{state}/models").as_str()));
    }
}
