//! The policy: roles, and the principals that have them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use nereid_core::model_config::nearest_name;
use nereid_protocol::{Need, Right};
use thiserror::Error;

use crate::document::{Table, Text, Toml};
use crate::grants::Grants;
use crate::pattern::Pattern;
use crate::quota::Limits;

/// The longest name of a principal or role.
const MAX_NAME: usize = 64;

/// The name of clients without credentials.
pub const ANONYMOUS: &str = "anonymous";

/// The members of a policy.
const MEMBERS: [&str; 4] = ["keys", ANONYMOUS, "roles", "principals"];

/// Roles and the principals that have them.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The file of API keys, if clients may have any.
    keys: Option<PathBuf>,
    roles: BTreeMap<String, Role>,
    principals: BTreeMap<String, Principal>,
    /// Clients without credentials.
    anonymous: Principal,
    /// The principals of certificates, by the name that the connection knows.
    certificates: BTreeMap<String, nereid_core::Principal>,
}

/// Rights on some models.
#[derive(Clone, Debug)]
pub struct Role {
    /// The rights, in the order of [`Right::ALL`].
    pub rights: Vec<Right>,
    pub(crate) models: Vec<Pattern>,
    limits: Limits,
}

impl Role {
    /// Requests a second of each principal to each model.
    pub fn requests_per_second(&self) -> Option<u32> {
        self.limits.per_second.map(NonZeroU32::get)
    }

    /// Requests in progress of each principal to each model.
    pub fn concurrent_requests(&self) -> Option<u32> {
        self.limits.concurrent.map(NonZeroU32::get)
    }

    /// The patterns of the models' names.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(Pattern::text)
    }
}

/// A principal of the policy, or the clients without credentials.
#[derive(Clone, Debug, Default)]
pub struct Principal {
    /// The names of its roles.
    pub roles: Vec<String>,
    /// The names in its certificates.
    pub certificates: Vec<String>,
    grants: Grants,
    /// The limits of each role that grants `infer`, in the order of the roles.
    limits: Vec<(Vec<Pattern>, Limits)>,
}

impl Principal {
    /// Whether an action with this need is permitted, on this model if the request names one.
    pub fn may(&self, need: Need, model: Option<&str>) -> bool {
        self.grants.permit(need, model)
    }

    /// The limits of requests to a model, from the first role that permits them.
    pub(crate) fn limits(&self, model: &str) -> Limits {
        let permits = |models: &[Pattern]| models.iter().any(|pattern| pattern.matches(model));
        let found = self.limits.iter().find(|(models, _)| permits(models));
        found.map_or_else(Limits::default, |(_, limits)| *limits)
    }
}

/// The policy cannot be used.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the access policy '{}': {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is wrong.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// The file has no client at all, as a truncated file would.
    #[error("{}: the access policy has neither principals nor [anonymous], so nobody could do anything", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Whether a text can name a principal or a role. Names are words in the file of keys and in the log.
pub(crate) fn is_name(text: &str) -> bool {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_sound)
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// The file cannot be read, or the first mistake, with its line.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let text =
            fs::read_to_string(path).map_err(|error| PolicyError::Read { path: path.to_owned(), error })?;
        Self::parse(path, &text)
    }

    /// Parses the policy in a file with this text. The file of keys is relative to the policy's folder.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, PolicyError> {
        let file = Toml::parse(path, text)?;
        let root = file.root();
        root.only(&MEMBERS)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let keys = root.text("keys")?;
        if let Some(empty) = keys.as_ref().filter(|keys| keys.text.is_empty()) {
            return Err(empty.error("'keys' is empty; expected a file".to_owned()));
        }
        let mut policy = Self {
            keys: keys.map(|keys| folder.join(keys.text)),
            roles: BTreeMap::new(),
            principals: BTreeMap::new(),
            anonymous: Principal::default(),
            certificates: BTreeMap::new(),
        };
        for (name, table) in named(&root, "roles")? {
            policy.roles.insert(name.to_owned(), role(&table)?);
        }
        for (name, table) in named(&root, "principals")? {
            policy.add_principal(name, &table)?;
        }
        let anonymous = root.table(ANONYMOUS)?;
        if policy.principals.is_empty() && anonymous.is_none() {
            return Err(PolicyError::Empty { path: path.to_owned() });
        }
        if let Some(table) = anonymous {
            table.only(&["roles"])?;
            policy.anonymous = policy.with_roles(&table.list("roles")?)?;
        }
        Ok(policy)
    }

    fn add_principal(&mut self, name: &str, table: &Table<'_>) -> Result<(), PolicyError> {
        table.only(&["roles", "certificates"])?;
        if name == ANONYMOUS {
            return Err(table.error("clients without credentials have a table of their own, [anonymous]"));
        }
        let mut principal = self.with_roles(&table.list("roles")?)?;
        for certificate in table.list("certificates")? {
            let shared = nereid_core::Principal::new(name);
            if certificate.text.is_empty() {
                return Err(
                    certificate.error(format!("principals.{name}: the name in a certificate is empty"))
                );
            }
            if let Some(other) = self.certificates.insert(certificate.text.to_owned(), shared) {
                let reason =
                    format!("principals.{name}: certificate '{}' is also of '{other}'", certificate.text);
                return Err(certificate.error(reason));
            }
            principal.certificates.push(certificate.text.to_owned());
        }
        self.principals.insert(name.to_owned(), principal);
        Ok(())
    }

    /// A client with these roles.
    fn with_roles(&self, names: &[Text<'_>]) -> Result<Principal, PolicyError> {
        let mut principal = Principal::default();
        for name in names {
            let role = self.roles.get(name.text).ok_or_else(|| {
                let nearest = nearest_name(name.text, self.roles.keys().map(String::as_str));
                let hint = nearest.map_or_else(
                    || format!("; add a table [roles.{}]", name.text),
                    |nearest| format!("; did you mean '{nearest}'?"),
                );
                name.error(format!("unknown role '{}'{hint}", name.text))
            })?;
            for models in &role.models {
                principal.grants.add(role.rights.iter().copied().collect(), models);
            }
            if role.rights.contains(&Right::Infer) {
                principal.limits.push((role.models.clone(), role.limits));
            }
            principal.roles.push(name.text.to_owned());
        }
        // Without any limit, requests are not counted.
        if principal.limits.iter().all(|(_, limits)| limits.is_unlimited()) {
            principal.limits.clear();
        }
        Ok(principal)
    }

    /// The file of API keys.
    pub fn keys(&self) -> Option<&Path> {
        self.keys.as_deref()
    }

    /// The roles, by name.
    pub fn roles(&self) -> &BTreeMap<String, Role> {
        &self.roles
    }

    /// The principals, by name.
    pub fn principals(&self) -> &BTreeMap<String, Principal> {
        &self.principals
    }

    /// Clients without credentials.
    pub fn anonymous(&self) -> &Principal {
        &self.anonymous
    }

    /// The principal of clients with a certificate of this name.
    pub(crate) fn of_certificate(&self, name: &str) -> Option<&nereid_core::Principal> {
        self.certificates.get(name)
    }

    /// Checks the name of a principal that a command line names.
    ///
    /// # Errors
    /// The policy has no such principal.
    pub fn find(&self, name: &str) -> Result<&Principal, String> {
        self.principals.get(name).ok_or_else(|| {
            let nearest = nearest_name(name, self.principals.keys().map(String::as_str));
            let hint = nearest.map_or_else(
                || format!("; add a table [principals.{name}]"),
                |nearest| format!("; did you mean '{nearest}'?"),
            );
            format!("the policy has no principal '{name}'{hint}")
        })
    }
}

/// The tables of a member, whose names must be sound.
fn named<'t>(root: &Table<'t>, member: &str) -> Result<Vec<(&'t str, Table<'t>)>, PolicyError> {
    let Some(all) = root.table(member)? else { return Ok(Vec::new()) };
    let tables = all.tables()?;
    match tables.iter().find(|(name, _)| !is_name(name)) {
        None => Ok(tables),
        Some((_, table)) => {
            let reason =
                format!("expected a name of up to {MAX_NAME} letters, digits and the characters . _ @ -");
            Err(table.error(&reason))
        }
    }
}

fn role(table: &Table<'_>) -> Result<Role, PolicyError> {
    table.only(&["rights", "models", "requests-per-second", "concurrent-requests"])?;
    let (names, models) = (table.list("rights")?, table.list("models")?);
    if names.is_empty() || models.is_empty() {
        let rights = Right::ALL.map(|(_, name)| name).join(", ");
        return Err(table
            .error(&format!("a role needs 'rights' (of {rights}) and 'models' (patterns such as \"a-*\")")));
    }
    let mut rights = Vec::new();
    for given in &names {
        let found = Right::ALL.into_iter().find(|(_, name)| *name == given.text);
        let (right, _) = found.ok_or_else(|| {
            let known = Right::ALL.map(|(_, name)| name);
            let nearest = nearest_name(given.text, known.into_iter());
            let hint = nearest.map_or_else(
                || format!(" (known: {})", known.join(", ")),
                |nearest| format!("; did you mean '{nearest}'?"),
            );
            given.error(format!("unknown right '{}'{hint}", given.text))
        })?;
        if !rights.contains(&right) {
            rights.push(right);
        }
    }
    rights.sort_by_key(|right| *right as usize);
    if let Some(empty) = models.iter().find(|model| model.text.is_empty()) {
        return Err(empty.error("the pattern of a model's name is empty; '*' matches every name".to_owned()));
    }
    let limits = Limits {
        per_second: table.count("requests-per-second")?,
        concurrent: table.count("concurrent-requests")?,
    };
    if !limits.is_unlimited() && !rights.contains(&Right::Infer) {
        return Err(table.error("limits of requests have no effect without the right 'infer'"));
    }
    Ok(Role { rights, models: models.iter().map(|model| Pattern::new(model.text)).collect(), limits })
}

#[cfg(test)]
mod tests;
