//! Adds models to a repository in a folder: in one step, so that no server ever sees half a model.
//!
//! A model is staged in its final layout in a hidden folder of the repository, which servers ignore. Checks run on the staged
//! repository. A rename then moves the folder of the model, or of its new version, to its place.

mod formats;
mod layout;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nereid_model_config::{ModelConfig, complete_backend};
use nereid_private_folders::PrivateFolder;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

pub use self::formats::{ExternalData, LocalModel};
pub use self::layout::Transfer;
use self::layout::{Placement, copy_file, copy_folder};
use crate::model_folder::{CONFIG, entries};
use crate::source::is_model_name;
use crate::version_number;

/// The prefix of the hidden folder.
const STAGING: &str = ".nereid-add-";

/// A repository that models are added to.
#[derive(Debug)]
pub struct Additions {
    repository: PathBuf,
    /// Whether the repository's folder was made for the models.
    is_new: bool,
    /// Removed on drop, with all that was not placed.
    staging: Option<PrivateFolder>,
}

/// The files of this machine that a model was made of, each with its path in the model's folder.
#[derive(Debug)]
pub struct Sources(Vec<(PathBuf, PathBuf)>);

/// A model in the staged repository.
#[derive(Debug)]
pub struct StagedModel {
    /// The model's name.
    pub name: String,
    /// The version that is added.
    pub version: i64,
    /// Whether the repository has the model already, with other versions.
    pub exists: bool,
    /// The model's folder in the staged repository.
    pub folder: PathBuf,
}

impl Additions {
    /// Opens the repository in a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn new(repository: &Path) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("cannot write to '{}': {error}", repository.display());
        let is_new = !repository.exists();
        fs::create_dir_all(repository).map_err(cannot)?;
        PrivateFolder::remove_left_over(repository, STAGING);
        let mut additions = Self { repository: repository.to_owned(), is_new, staging: None };
        additions.staging = Some(PrivateFolder::new(repository, STAGING).map_err(cannot)?);
        fs::create_dir(additions.staged_repository()).map_err(cannot)?;
        Ok(additions)
    }

    /// The folder of the staged repository.
    pub fn staged_repository(&self) -> PathBuf {
        self.staging.as_ref().map_or_else(PathBuf::new, |staging| staging.path().join("models"))
    }

    /// Puts a model of this machine into the staged repository, under a name or its own.
    ///
    /// # Errors
    /// A file cannot be read or written, or the name is not one of a model.
    pub fn add(&self, model: &LocalModel, name: Option<&str>, transfer: Transfer) -> Result<Sources, String> {
        let name = name.unwrap_or(&model.name);
        check_name(name)?;
        let folder = self.staged_repository().join(name);
        fs::create_dir(&folder).map_err(|error| self.cannot_write(&error))?;
        let mut placement = Placement::new(transfer);
        for (source, target) in &model.files {
            let placed = match source.is_dir() {
                true => placement.folder(source, &folder.join(target)),
                false => placement.file(source, &folder.join(target)),
            };
            placed.map_err(|error| error.replace(&folder.display().to_string(), &self.shown(name)))?;
        }
        let in_model = |target: PathBuf| target.strip_prefix(&folder).map(Path::to_owned).unwrap_or(target);
        let placed = placement.into_placed().into_iter();
        Ok(Sources(placed.map(|(source, target)| (source, in_model(target))).collect()))
    }

    /// Makes a model without files in the staged repository.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn make(&self, name: &str) -> Result<StagedModel, String> {
        let folder = self.staged_repository().join(name);
        fs::create_dir_all(folder.join("1")).map_err(|error| self.cannot_write(&error))?;
        Ok(StagedModel { name: name.to_owned(), version: 1, exists: false, folder })
    }

    /// The models in the staged repository, each with one version. Those that the repository has already get the next version
    /// number, and the configuration and the other files that they have there. `name` renames the only one.
    ///
    /// # Errors
    /// The source has no model or several versions of an existing one, or a file cannot be read or written.
    pub fn staged(&self, name: Option<&str>) -> Result<Vec<StagedModel>, String> {
        let staged = self.staged_repository();
        let mut names = names(&staged).map_err(|error| self.cannot_write(&error))?;
        names.retain(|name| is_model_name(name));
        names.sort();
        if let Some(name) = name {
            check_name(name)?;
            let [only] = &names[..] else {
                return Err(format!(
                    "--name is for one model, not for {}: {}",
                    names.len(),
                    names.join(", ")
                ));
            };
            if only != name {
                fs::rename(staged.join(only), staged.join(name))
                    .map_err(|error| self.cannot_write(&error))?;
                names = vec![name.to_owned()];
            }
        }
        names.into_iter().map(|name| self.stage(name)).collect()
    }

    fn stage(&self, name: String) -> Result<StagedModel, String> {
        let cannot = |error: io::Error| self.cannot_write(&error);
        let folder = self.staged_repository().join(&name);
        let versions = versions(&folder).map_err(cannot)?;
        let existing = self.repository.join(&name);
        if !existing.exists() {
            let version = versions.last().copied();
            let version = version.ok_or_else(|| format!("model '{name}' has no folder of a version"))?;
            return Ok(StagedModel { name, version, exists: false, folder });
        }
        let [version] = versions[..] else {
            return Err(format!(
                "'{}' exists, and the source has {} versions: --name=NAME adds it as another model",
                existing.display(),
                versions.len()
            ));
        };
        let cannot_read = |error: io::Error| format!("cannot read '{}': {error}", existing.display());
        let next = self::versions(&existing).map_err(cannot_read)?.last().map_or(1, |last| last + 1);
        if next != version {
            let at = |version: i64| folder.join(version.to_string());
            fs::rename(at(version), at(next)).map_err(cannot)?;
        }
        // The model keeps its own configuration, labels and so on: the version has to fit them.
        for other in names(&folder).map_err(cannot)?.into_iter().filter(|name| version_number(name).is_none())
        {
            let other = folder.join(other);
            let removed = if other.is_dir() { fs::remove_dir_all(&other) } else { fs::remove_file(&other) };
            removed.map_err(cannot)?;
        }
        for kept in names(&existing).map_err(cannot_read)? {
            if version_number(&kept).is_some() || kept.starts_with('.') {
                continue;
            }
            let source = existing.join(&kept);
            let copied = if source.is_dir() { copy_folder } else { copy_file }(&source, &folder.join(&kept));
            copied?;
        }
        Ok(StagedModel { name, version: next, exists: true, folder })
    }

    /// Writes the configuration of a staged model.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_config(&self, model: &StagedModel, text: &str) -> Result<(), String> {
        let write = || {
            let path = model.folder.join(CONFIG);
            // The file may be a second name of the source's.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::write(&path, text)?,
            }
            File::open(path)?.sync_all()
        };
        write().map_err(|error| self.cannot_write(&error))
    }

    /// Moves a staged model to its place. Returns the new path of the model's folder, or of the version's folder.
    ///
    /// # Errors
    /// The repository got a model or a version of this name in the meantime, or cannot be written to.
    pub fn place(&self, model: &StagedModel) -> Result<PathBuf, String> {
        let target = self.repository.join(&model.name);
        let version = model.version.to_string();
        let (source, target) = match model.exists {
            true => (model.folder.join(&version), target.join(&version)),
            false => (model.folder.clone(), target),
        };
        match rename_new(&source, &target) {
            Ok(()) => Ok(target),
            // The model's folder is a link to another file system, or is one.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                let hidden = target.with_file_name(format!("{STAGING}{version}-{}", std::process::id()));
                let moved = copy_folder(&source, &hidden)
                    .and_then(|()| rename_new(&hidden, &target).map_err(|error| self.cannot_write(&error)));
                if moved.is_err() {
                    // Report the first error.
                    let _ = fs::remove_dir_all(&hidden);
                }
                moved.map(|()| target)
            }
            Err(error) => Err(format!("cannot make '{}': {error}", target.display())),
        }
    }

    fn cannot_write(&self, error: &io::Error) -> String {
        format!("cannot write to '{}': {error}", self.repository.display())
    }

    /// Replaces the paths of the staged repository in a text by those in the repository.
    pub fn named(&self, text: &str) -> String {
        text.replace(&*self.staged_repository().to_string_lossy(), &self.repository.to_string_lossy())
    }

    fn shown(&self, name: &str) -> String {
        self.repository.join(name).display().to_string()
    }
}

impl Sources {
    /// Removes what is in the repository now, once the model was placed there, and folders below `source` that are empty then. A model
    /// that existed took nothing but a version.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(self, source: &Path, model: &StagedModel) -> Result<(), String> {
        let is_of_version = |target: &Path| {
            let first = target.components().next();
            first.is_some_and(|first| version_number(&first.as_os_str().to_string_lossy()).is_some())
        };
        for (path, target) in self.0 {
            if model.exists && !is_of_version(&target) {
                continue;
            }
            fs::remove_file(&path).map_err(|error| format!("cannot remove '{}': {error}", path.display()))?;
            for folder in path.ancestors().skip(1).take_while(|folder| folder.starts_with(source)) {
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl StagedModel {
    /// Sets the backend and the platform that follow from the names of the model's files.
    ///
    /// # Errors
    /// The version's folder cannot be read.
    pub fn complete_backend(&self, config: &mut ModelConfig) -> Result<(), String> {
        let entries = entries(&self.folder.join(self.version.to_string()));
        complete_backend(config, [entries.map_err(|error| error.message().to_owned())?]);
        Ok(())
    }
}

impl Drop for Additions {
    fn drop(&mut self) {
        self.staging = None;
        if self.is_new {
            // Fails if a model was placed.
            let _ = fs::remove_dir(&self.repository);
        }
    }
}

/// Checks the name of a model.
///
/// # Errors
/// Why it is not one.
fn check_name(name: &str) -> Result<(), String> {
    if is_model_name(name) && !name.contains('/') && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(format!(
        "'{}' is not a name for a model: it must be that of a visible folder; set --name=NAME",
        name.escape_debug()
    ))
}

/// Renames a folder, unless the target exists.
fn rename_new(source: &Path, target: &Path) -> io::Result<()> {
    match renameat_with(CWD, source, CWD, target, RenameFlags::NOREPLACE) {
        // Not every file system has it.
        Err(Errno::INVAL | Errno::NOSYS) if !target.exists() => fs::rename(source, target),
        outcome => Ok(outcome?),
    }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The versions in a model's folder, ascending.
fn versions(folder: &Path) -> io::Result<Vec<i64>> {
    let names = names(folder)?;
    let mut versions: Vec<_> = names.iter().filter_map(|name| version_number(name)).collect();
    versions.sort_unstable();
    Ok(versions)
}

#[cfg(test)]
mod tests;
