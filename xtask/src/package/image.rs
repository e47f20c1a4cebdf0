//! Images of containers, by the tool that the machine has: podman, docker or buildah.
//!
//! The steps are in `deploy/image/Containerfile`. Here is the folder that they copy from.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::Package;
use super::contents::{Contents, NAME};
use super::tree::Tree;
use crate::project::{Project, show};

/// The steps.
const STEPS: &str = "deploy/image/Containerfile";

/// The tools, the preferred one first. They take the same arguments, but for docker's format of images.
const TOOLS: [&str; 3] = ["podman", "docker", "buildah"];

/// The stages that are images, and what their tags add to the version.
const TARGETS: [(&str, &str); 2] = [("slim", "-slim"), ("nereid", "")];

/// Builds the images into the storage of the tool.
pub fn build(project: &Project, contents: &Contents, package: &Package) -> Result<()> {
    let tool = match &package.image_tool {
        Some(tool) => tool.clone(),
        None => {
            find().with_context(|| format!("no tool builds images; install one of {}", TOOLS.join(", ")))?
        }
    };
    let context = project.scratch("image");
    match fs::remove_dir_all(&context) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => files(contents)?.write(&context)?,
    }
    for (target, suffix) in TARGETS {
        let tag = format!("{NAME}:{}{suffix}", contents.version);
        let platform = format!("linux/{}", contents.program.machine.debian());
        let mut build = project.command(&tool);
        build.args(["build", "--file", STEPS, "--target", target, "--tag", &tag, "--platform", &platform]);
        if tool.file_name().is_none_or(|name| name != "docker") {
            // OCI's format has no health checks.
            build.args(["--format", "docker", "--timestamp", &contents.time.to_string()]);
        }
        show(build.args(&package.image_argument).arg(&context))?;
        println!("image {tag}");
    }
    Ok(())
}

/// The files that the steps copy.
fn files(contents: &Contents) -> Result<Tree> {
    let mut tree = Tree::default();
    let folder = contents.program.machine.debian();
    tree.add_program(format!("{folder}/{NAME}"), contents.program.bytes.clone());
    contents.add_documents(&mut tree, "documents")?;
    Ok(tree)
}

/// The first tool on the path.
fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let folders: Vec<_> = env::split_paths(&path).collect();
    TOOLS
        .iter()
        .flat_map(|tool| folders.iter().map(move |folder| folder.join(tool)))
        .find(|tool| tool.is_file())
}

#[cfg(test)]
mod tests {
    use super::super::elf::{Machine, Program};
    use super::*;

    fn steps() -> Vec<String> {
        let text = fs::read_to_string(Project::find().unwrap().root.join(STEPS)).unwrap();
        let joined = text.replace("\\\n", " ");
        joined.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
    }

    /// The steps of a stage.
    fn stage(name: &str) -> Vec<String> {
        let all = steps();
        let start =
            all.iter().position(|step| step.starts_with("FROM ") && step.ends_with(&format!(" AS {name}")));
        let stage = all.into_iter().skip(start.unwrap() + 1);
        stage.take_while(|step| !step.starts_with("FROM ")).collect()
    }

    #[test]
    fn both_images_are_stages_that_run_the_server_as_a_user_with_a_health_check() {
        for (target, _) in TARGETS {
            let stage = stage(target);
            let step = |name: &str| {
                let mut found = stage.iter().rev().filter_map(|step| step.strip_prefix(&format!("{name} ")));
                found.next().unwrap_or_else(|| panic!("{target} has no {name}")).to_owned()
            };
            assert_ne!(step("USER").split(':').next(), Some("0"), "{target}");
            assert_eq!(step("STOPSIGNAL"), "SIGTERM");
            assert!(step("HEALTHCHECK").ends_with(r#"CMD ["nereid", "health"]"#), "{target}");
            assert_eq!(step("CMD"), r#"["nereid", "--model-repository=/models"]"#);
        }
    }

    #[test]
    fn image_for_another_architecture_takes_a_program_that_does_not_run_here() {
        let (machine, folder) = match env::consts::ARCH {
            "aarch64" => (Machine::X86_64, "amd64"),
            _ => (Machine::Aarch64, "arm64"),
        };
        let program = Program { bytes: b"for another machine".to_vec(), machine };
        let contents = Contents::new(&Project::find().unwrap(), &program, 0).unwrap();
        let tree = files(&contents).unwrap();
        let path = format!("{folder}/{NAME}");
        let (_, entry) = tree.iter().find(|(found, _)| *found == path).unwrap();
        assert!(entry.is_program && entry.bytes == program.bytes);
        // Other packages have the completions, which the program prints.
        let error = format!("{:#}", contents.archive().unwrap_err());
        assert!(error.contains("is made where its programs run"), "{error}");
    }

    #[test]
    fn copied_files_are_in_the_folder_that_is_filled() {
        let project = Project::find().unwrap();
        let mut tree = Tree::default();
        tree.add("amd64/nereid", "");
        let contents = ["documents/LICENSE", "documents/THIRD-PARTY-NOTICES.txt"];
        contents.iter().for_each(|path| tree.add(*path, ""));
        let copied =
            steps().into_iter().filter(|step| step.starts_with("COPY ") && !step.contains("--from="));
        let mut count = 0;
        for step in copied {
            let source = step.split_whitespace().nth(1).unwrap().replace("${TARGETARCH}", "amd64");
            let is_there = |path: &str| path == source || path.starts_with(&format!("{source}/"));
            assert!(tree.iter().any(|(path, _)| is_there(path)), "{step}");
            count += 1;
        }
        assert_eq!(count, 4);
        assert!(project.root.join(STEPS).is_file());
    }
}
