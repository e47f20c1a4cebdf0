//! The policy: roles, and the principals that have them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nereid_core::model_config::nearest_name;
use nereid_core::{ModelId, Scope};
use nereid_protocol::{Need, Right};
use thiserror::Error;

use crate::document::{Table, Text, Toml};
use crate::grants::Grants;
use crate::pattern::Pattern;
use crate::quota::Limits;
use crate::tokens::{self, Issuer, KeySource, Token};

/// The longest name of a principal or role.
const MAX_NAME: usize = 64;

/// The greatest weight in queues.
const MAX_WEIGHT: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// The name of clients without credentials.
pub const ANONYMOUS: &str = "anonymous";

/// The members of a policy.
const MEMBERS: [&str; 5] = ["keys", ANONYMOUS, "roles", "principals", "tokens"];

/// The default for the difference of clocks.
const LEEWAY: Duration = Duration::from_secs(60);

/// Roles and the principals that have them.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The file of API keys, if clients may have any.
    keys: Option<PathBuf>,
    roles: BTreeMap<String, Role>,
    /// Whether any role is on models of some namespaces only.
    has_namespaces: bool,
    principals: BTreeMap<String, Principal>,
    /// Clients without credentials.
    anonymous: Principal,
    /// The principals of certificates, by the name that the connection knows.
    certificates: BTreeMap<String, nereid_core::Principal>,
    /// The principals of users of this machine, by number.
    users: BTreeMap<u32, nereid_core::Principal>,
    issuers: Vec<Issuer>,
    /// The principals of tokens, by the name of the issuer and the subject, separated by a slash.
    subjects: BTreeMap<String, String>,
}

/// Rights on some models.
#[derive(Clone, Debug)]
pub struct Role {
    /// The rights, in the order of [`Right::ALL`].
    pub rights: Vec<Right>,
    pub(crate) models: Vec<Pattern>,
    /// The patterns of the models' namespaces.
    pub(crate) namespaces: Vec<Pattern>,
    limits: Limits,
    weight: NonZeroU32,
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

    /// Bytes of requests in a second, of each principal to each model.
    pub fn bytes_per_second(&self) -> Option<u32> {
        self.limits.bytes.map(NonZeroU32::get)
    }

    /// Seconds of computing in a minute, for each principal by each model.
    pub fn compute_seconds_per_minute(&self) -> Option<u32> {
        self.limits.compute.map(NonZeroU32::get)
    }

    /// Tokens generated in a minute, for each principal by each model.
    pub fn tokens_per_minute(&self) -> Option<u32> {
        self.limits.tokens.map(NonZeroU32::get)
    }

    /// The share of a model's queue that each principal with the role has, compared with others.
    pub fn weight(&self) -> u32 {
        self.weight.get()
    }

    /// The patterns of the models' names.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(Pattern::text)
    }

    /// The patterns of the models' namespaces; empty if the role is on models of all namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let is_limited = !self.namespaces.iter().any(Pattern::is_any);
        self.namespaces.iter().filter(move |_| is_limited).map(Pattern::text)
    }
}

/// The limits and the weight of a role that grants `infer`.
#[derive(Clone, Debug)]
struct RoleLimits {
    models: Vec<Pattern>,
    namespaces: Vec<Pattern>,
    limits: Limits,
    weight: NonZeroU32,
}

impl RoleLimits {
    fn permits(&self, model: &ModelId) -> bool {
        let matches = |patterns: &[Pattern], text: &str| patterns.iter().any(|pattern| pattern.matches(text));
        matches(&self.models, &model.name) && matches(&self.namespaces, &model.namespace)
    }
}

/// A principal of the policy, or the clients without credentials.
#[derive(Clone, Debug, Default)]
pub struct Principal {
    /// The names of its roles.
    pub roles: Vec<String>,
    /// The names in its certificates.
    pub certificates: Vec<String>,
    /// The numbers of its users of this machine.
    pub users: Vec<u32>,
    /// The subjects of its tokens, each behind the name of the issuer and a slash.
    pub subjects: Vec<String>,
    grants: Arc<Grants>,
    /// The limits and the weight of each role that grants `infer`, in the order of the roles.
    limits: Vec<RoleLimits>,
}

impl Principal {
    /// Whether an action with this need is permitted, on this model if the request names one.
    pub fn may(&self, need: Need, model: Option<&str>) -> bool {
        self.grants.permit(need, model)
    }

    /// The models on which an action with this need is permitted, by their namespaces.
    pub(crate) fn scope(&self, name: &str, need: Need) -> Scope {
        if !self.grants.have_namespaces() {
            return Scope::ALL;
        }
        let grants = Arc::clone(&self.grants);
        // A name of its own: loads that requests wait for are shared by clients with the same scope.
        let scope = format!("{need:?} of {name}");
        Scope::of(scope, move |model| grants.permit_in(need, &model.name, &model.namespace))
    }

    fn add(&mut self, name: &str, role: &Role) {
        let grants = Arc::make_mut(&mut self.grants);
        for models in &role.models {
            grants.add(role.rights.iter().copied().collect(), models, &role.namespaces);
        }
        if role.rights.contains(&Right::Infer) {
            let (models, namespaces) = (role.models.clone(), role.namespaces.clone());
            let (limits, weight) = (role.limits, role.weight);
            self.limits.push(RoleLimits { models, namespaces, limits, weight });
        }
        self.roles.push(name.to_owned());
    }

    /// Without any limit or weight, no role has to be found.
    fn compiled(mut self) -> Self {
        let is_plain = |role: &RoleLimits| role.limits.is_unlimited() && role.weight == NonZeroU32::MIN;
        if self.limits.iter().all(is_plain) {
            self.limits.clear();
        }
        self
    }

    /// The limits of requests to a model and their weight in its queue, from the first role that permits them.
    pub(crate) fn limits(&self, model: &ModelId) -> (Limits, NonZeroU32) {
        let found = self.limits.iter().find(|role| role.permits(model));
        found.map_or((Limits::default(), NonZeroU32::MIN), |role| (role.limits, role.weight))
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
    #[error("{}: the access policy has neither principals, nor issuers of tokens, nor [anonymous], so nobody could do anything", path.display())]
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
            has_namespaces: false,
            principals: BTreeMap::new(),
            anonymous: Principal::default(),
            certificates: BTreeMap::new(),
            users: BTreeMap::new(),
            issuers: Vec::new(),
            subjects: BTreeMap::new(),
        };
        for (name, table) in named(&root, "roles")? {
            policy.roles.insert(name.to_owned(), role(&table)?);
        }
        policy.has_namespaces = policy.roles.values().any(|role| role.namespaces().next().is_some());
        for (name, table) in named(&root, "tokens")? {
            let issuer = policy.issuer(name, &table, folder)?;
            policy.issuers.push(issuer);
        }
        for (name, table) in named(&root, "principals")? {
            policy.add_principal(name, &table)?;
        }
        let anonymous = root.table(ANONYMOUS)?;
        if policy.principals.is_empty() && policy.issuers.is_empty() && anonymous.is_none() {
            return Err(PolicyError::Empty { path: path.to_owned() });
        }
        if let Some(table) = anonymous {
            table.only(&["roles"])?;
            policy.anonymous = policy.with_roles(&table.list("roles")?)?;
        }
        Ok(policy)
    }

    fn add_principal(&mut self, name: &str, table: &Table<'_>) -> Result<(), PolicyError> {
        table.only(&["roles", "certificates", "uids", "subjects"])?;
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
        for user in table.numbers("uids")? {
            let shared = nereid_core::Principal::new(name);
            if let Some(other) = self.users.insert(user, shared) {
                return Err(table.error(&format!("user {user} is also of '{other}'")));
            }
            principal.users.push(user);
        }
        for subject in table.list("subjects")? {
            let issuer = subject.text.split_once('/').filter(|(_, subject)| !subject.is_empty());
            if !issuer.is_some_and(|(issuer, _)| self.issuers.iter().any(|known| known.name == issuer)) {
                let reason = format!(
                    "principals.{name}: expected the name of a table in [tokens], a slash and a subject, got '{}'",
                    subject.text
                );
                return Err(subject.error(reason));
            }
            if let Some(other) = self.subjects.insert(subject.text.to_owned(), name.to_owned()) {
                let reason = format!("principals.{name}: subject '{}' is also of '{other}'", subject.text);
                return Err(subject.error(reason));
            }
            principal.subjects.push(subject.text.to_owned());
        }
        self.principals.insert(name.to_owned(), principal);
        Ok(())
    }

    fn issuer(&self, name: &str, table: &Table<'_>, folder: &Path) -> Result<Issuer, PolicyError> {
        table.only(&["issuer", "audience", "keys", "scopes", "claim", "leeway-seconds"])?;
        let needed = |member: &str, example: &str| {
            let text = table.text(member)?.filter(|text| !text.text.is_empty());
            text.ok_or_else(|| table.error(&format!("needs '{member}', such as \"{example}\"")))
        };
        let issuer = needed("issuer", "https://login.example.com/")?;
        if self.issuers.iter().any(|known| known.issuer == issuer.text) {
            return Err(issuer.error(format!("tokens.{name}: another table has this issuer")));
        }
        let keys = needed("keys", "https://login.example.com/keys.json")?;
        let source = match keys.text.split_once("://") {
            None => KeySource::File(folder.join(keys.text)),
            Some(("https", _)) => KeySource::Url(keys.text.to_owned()),
            Some(("http", rest)) if is_local(rest) => KeySource::Url(keys.text.to_owned()),
            Some(_) => {
                return Err(keys.error(format!("tokens.{name}: expected a file or an https:// address")));
            }
        };
        let audience: Vec<_> = table.list("audience")?.iter().map(|text| text.text.to_owned()).collect();
        if audience.is_empty() {
            return Err(table.error(
                "needs 'audience', such as [\"nereid\"], so that tokens for other services are refused",
            ));
        }
        let mut scopes = BTreeMap::new();
        if let Some(all) = table.table("scopes")? {
            for scope in all.names() {
                let roles = all.list(scope)?;
                self.with_roles(&roles)?;
                scopes.insert(scope.to_owned(), roles.iter().map(|role| role.text.to_owned()).collect());
            }
        }
        let leeway = table.count("leeway-seconds")?.map(|seconds| Duration::from_secs(seconds.get().into()));
        Ok(Issuer {
            name: name.to_owned(),
            issuer: issuer.text.to_owned(),
            audience,
            keys: source,
            scopes,
            claim: table.text("claim")?.map_or("scope", |claim| claim.text).to_owned(),
            leeway: leeway.unwrap_or(LEEWAY),
        })
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
            principal.add(name.text, role);
        }
        Ok(principal.compiled())
    }

    /// The issuers of tokens.
    pub fn issuers(&self) -> &[Issuer] {
        &self.issuers
    }

    /// Checks the issuers' keys that are in files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn check_token_keys(&self) -> Result<(), String> {
        tokens::keys_in_files(&self.issuers).map(drop)
    }

    /// The sender of a token: the name, and the rights of the principal and of the token's scopes.
    pub(crate) fn of_token(&self, token: &Token) -> (nereid_core::Principal, Principal) {
        let subject = format!("{}/{}", token.issuer, token.subject);
        let known = self.subjects.get(&subject);
        let own = known.and_then(|name| self.principals.get(name)).into_iter().flat_map(|known| &known.roles);
        let issuer = self.issuers.iter().find(|issuer| issuer.name == token.issuer);
        let granted = token.scopes.iter().filter_map(|scope| issuer?.scopes.get(scope)).flatten();
        let mut client = Principal::default();
        for name in own.chain(granted) {
            if let Some(role) = self.roles.get(name).filter(|_| !client.roles.contains(name)) {
                client.add(name, role);
            }
        }
        (nereid_core::Principal::new(known.unwrap_or(&subject).as_str()), client.compiled())
    }

    /// Whether any role is on models of some namespaces only.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.has_namespaces
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

    /// The principal of clients at a Unix socket whose process is of this user.
    pub(crate) fn of_user(&self, user: u32) -> Option<&nereid_core::Principal> {
        self.users.get(&user)
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

/// Whether a URL without its scheme is of this machine, which no network is in front of.
fn is_local(rest: &str) -> bool {
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    ["localhost", "127.0.0.1", "[::1]"].contains(&host)
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
    table.only(&[
        "rights",
        "models",
        "namespaces",
        "requests-per-second",
        "concurrent-requests",
        "bytes-per-second",
        "compute-seconds-per-minute",
        "tokens-per-minute",
        "weight",
    ])?;
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
    let namespaces = table.list("namespaces")?;
    if let Some(empty) = namespaces.iter().find(|namespace| namespace.text.is_empty()) {
        return Err(
            empty.error("the pattern of a namespace is empty; '*' matches every namespace".to_owned())
        );
    }
    if namespaces.is_empty() && table.names().any(|name| name == "namespaces") {
        return Err(table.error(
            "'namespaces' is empty; expected repositories such as \"/models/vision\", or leave it out",
        ));
    }
    let limits = Limits {
        per_second: table.count("requests-per-second")?,
        concurrent: table.count("concurrent-requests")?,
        bytes: table.count("bytes-per-second")?,
        compute: table.count("compute-seconds-per-minute")?,
        tokens: table.count("tokens-per-minute")?,
    };
    if !limits.is_unlimited() && !rights.contains(&Right::Infer) {
        return Err(table.error("limits of requests have no effect without the right 'infer'"));
    }
    let weight = table.count("weight")?;
    if weight.is_some() && !rights.contains(&Right::Infer) {
        return Err(table.error("a weight has no effect without the right 'infer'"));
    }
    let weight = weight.unwrap_or(NonZeroU32::MIN);
    if weight > MAX_WEIGHT {
        return Err(table.error(&format!("'weight' is {weight}; expected 1 to {MAX_WEIGHT}")));
    }
    let patterns = |texts: &[Text<'_>]| texts.iter().map(|text| Pattern::new(text.text)).collect();
    let namespaces = if namespaces.is_empty() { vec![Pattern::new("*")] } else { patterns(&namespaces) };
    Ok(Role { rights, models: patterns(&models), namespaces, limits, weight })
}

#[cfg(test)]
mod tests;
