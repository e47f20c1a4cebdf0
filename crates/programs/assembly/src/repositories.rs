//! The model repositories of a server: folders on this machine, and in clouds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_core::backend_api::Error;
use nereid_object_stores::{Address, CloudOptions, Clouds, RepositoryStatus, redacted};
use nereid_repository::{LocalStore, ReadOptions, Repositories, Store};

/// The repositories, and what keeps them open.
#[derive(Clone)]
pub(crate) struct OpenRepositories {
    pub source: Repositories,
    /// Repositories in folders on this machine.
    pub folders: Vec<PathBuf>,
    clouds: Arc<LazyClouds>,
}

/// State shared by cloud repositories, created with the first one.
pub(crate) struct LazyClouds {
    options: CloudOptions,
    made: Mutex<Option<Arc<Clouds>>>,
}

impl LazyClouds {
    pub(crate) fn new(options: CloudOptions) -> Self {
        Self { options, made: Mutex::default() }
    }

    fn get(&self) -> Result<Arc<Clouds>, String> {
        let mut made = self.made();
        if let Some(clouds) = &*made {
            return Ok(Arc::clone(clouds));
        }
        Ok(Arc::clone(made.insert(Arc::new(Clouds::new(self.options.clone())?))))
    }

    /// Opens the store at an address in a cloud.
    ///
    /// # Errors
    /// The address is invalid, or its store cannot be used.
    pub(crate) fn open(&self, address: &str) -> Result<Arc<dyn Store>, String> {
        let parsed = Address::parse(address);
        let parsed = parsed.ok_or_else(|| {
            let address = redacted(address);
            format!("'{address}' is not an address of s3://, gs://, as://, hf://, oci:// or https://")
        })?;
        self.get()?.open_for_a_while(parsed.map_err(|error| error.to_string())?)
    }

    fn made(&self) -> MutexGuard<'_, Option<Arc<Clouds>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenRepositories {
    /// Opens the repositories. Duplicates count once. Does not list them yet.
    ///
    /// # Errors
    /// The first repository that cannot be opened, and why.
    pub(crate) fn new(
        locations: &[PathBuf],
        options: CloudOptions,
        reading: ReadOptions,
    ) -> Result<Self, String> {
        let mut seen = BTreeSet::new();
        let (mut stores, mut folders) = (Vec::<Arc<dyn Store>>::new(), Vec::new());
        let clouds = Arc::new(LazyClouds::new(options));
        for location in locations.iter().filter(|location| seen.insert(*location)) {
            let Some(address) = location.to_str().and_then(Address::parse) else {
                check_scheme(location)?;
                stores.push(Arc::new(LocalStore::new(location.clone())));
                folders.push(location.clone());
                continue;
            };
            let address = address.map_err(|error| error.to_string())?;
            stores.push(clouds.get()?.open(address)?);
        }
        Ok(Self { source: Repositories::over(stores, reading), folders, clouds })
    }

    /// The parts shared by repositories in clouds.
    pub(crate) fn clouds(&self) -> &Arc<LazyClouds> {
        &self.clouds
    }

    /// The states of the repositories that are not on this machine.
    pub(crate) fn status(&self) -> Vec<RepositoryStatus> {
        self.clouds.made().iter().flat_map(|clouds| clouds.status()).collect()
    }

    /// Removes sent and fetched files, even those in use. Call it once no model is loaded.
    pub(crate) fn remove_files(&self) {
        self.source.remove_sent_files();
        if let Some(clouds) = &*self.clouds.made() {
            clouds.close();
        }
    }
}

/// Adds repositories to a server, and removes them, while it runs.
#[derive(Clone)]
pub struct Registration(OpenRepositories);

impl Registration {
    pub(crate) fn new(opened: &OpenRepositories) -> Self {
        Self(opened.clone())
    }

    /// Adds the repository in a folder or at an address, with all its models. `names` maps names of models to their
    /// folders, where they differ.
    ///
    /// # Errors
    /// `InvalidArg` if it cannot be read or a name is not valid for a model; `AlreadyExists` if the repository is
    /// present or another one was registered under one of these names.
    pub async fn add(&self, location: &Path, names: &BTreeMap<String, String>) -> Result<(), Error> {
        self.0.source.register_all(self.open(location)?, names).await
    }

    /// Removes a repository, whether added at run time or configured at startup. Models from it stay available until
    /// they are unloaded.
    ///
    /// # Errors
    /// `InvalidArg` for an unknown repository.
    pub fn remove(&self, location: &Path) -> Result<(), Error> {
        self.0.source.unregister_all(self.open(location)?.location())
    }

    fn open(&self, location: &Path) -> Result<Arc<dyn Store>, Error> {
        match location.to_str().filter(|location| Address::parse(location).is_some()) {
            Some(address) => self.0.clouds.open(address).map_err(Error::invalid_arg),
            None => {
                check_scheme(location).map_err(Error::invalid_arg)?;
                Ok(Arc::new(LocalStore::new(location.to_owned())))
            }
        }
    }
}

/// Refuses addresses with an unknown scheme, which would otherwise be reported as missing folders.
fn check_scheme(location: &Path) -> Result<(), String> {
    let Some((scheme, rest)) = location.to_str().and_then(|location| location.split_once(":/")) else {
        return Ok(());
    };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if !is_scheme || location.exists() {
        return Ok(());
    }
    let rest = rest.trim_start_matches('/');
    let whole = format!("{scheme}://{rest}");
    let hint = if scheme == "file" {
        format!("did you mean '/{rest}'?")
    } else if Address::parse(&whole).is_some() {
        format!("did you mean '{}'?", redacted(&whole))
    } else {
        format!(
            "addresses with '{scheme}://' are not supported (supported: folders, s3://, gs://, as://, hf://, oci://, \
             https://)"
        )
    };
    Err(format!("model repository '{}': {hint}", redacted(&location.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(locations: &[&str]) -> Result<OpenRepositories, String> {
        let locations: Vec<_> = locations.iter().map(PathBuf::from).collect();
        OpenRepositories::new(&locations, CloudOptions::default(), ReadOptions::default())
    }

    #[test]
    fn address_selects_folder_or_cloud() {
        for (locations, folders, has_clouds) in [
            (&["models"][..], 1, false),
            (&["models", "models"], 1, false),
            (&["s3://bucket"], 0, true),
            (&["models", "gs://bucket/models", "more", "as://account/container"], 2, true),
        ] {
            let opened = open(locations).unwrap();
            assert_eq!(
                (opened.folders.len(), opened.clouds.made().is_some()),
                (folders, has_clouds),
                "{locations:?}"
            );
        }
    }

    #[test]
    fn unusable_address_is_reported() {
        for (location, expected) in [
            ("s3://", "model repository 's3://': the name of the bucket or container is missing"),
            ("hdfs://node/models", "addresses with 'hdfs://' are not supported (supported: folders, s3://, "),
            ("ftp://node/models", "addresses with 'ftp://' are not supported"),
            ("file:///no/such/models", "did you mean '/no/such/models'?"),
            ("s3:/bucket/models", "model repository 's3:/bucket/models': did you mean 's3://bucket/models'?"),
            ("gs:/bucket", "did you mean 'gs://bucket'?"),
            ("https:/host/models.zip", "did you mean 'https://host/models.zip'?"),
            (
                "https:/me:secret@host/models.zip?sig=secret",
                "'https:/host/models.zip?sig=***': did you mean 'https://host/models.zip?sig=***'?",
            ),
            ("ftp://me:secret@host/x?secret", "model repository 'ftp://host/x?***'"),
            ("https://me:secret@host/x?sig=secret", "model repository 'https://host/x?sig=***'"),
        ] {
            let error = open(&["models", location]).err().unwrap();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }
}
