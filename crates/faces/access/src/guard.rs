//! The guard of a server: identifies clients, and decides by the policy, whose files it follows.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use nereid_core::backend_api::Flow;
use nereid_core::{ModelId, Principal, Scope};
use nereid_protocol::{
    Action, Admission, Authentication, Authenticator, Authorizer, Denied, Head, Identity, Need,
};
use quick_cache::sync::Cache;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::key::now;
use crate::key_file::KeyFile;
use crate::policy;
use crate::policy::{ANONYMOUS, Policy};
use crate::quota::{Counters, PrincipalUsage, Principals, Quotas};
use crate::stamp::Stamp;
use crate::tokens::{self, FetchKeys, Issuer, KeySource, Keys, RemoteKeys, Token};

/// Interval of the checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The headers that hold an API key.
const AUTHORIZATION: &str = "authorization";
const API_KEY: &str = "x-api-key";

/// How clients present a key, for messages.
const HOW: &str = "send an API key as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'";

/// The prefix of API keys.
const KEY_PREFIX: &[u8] = b"nereid_";

/// Number of tokens that are verified once, as long as they are in use.
const KNOWN_TOKENS: usize = 4096;

/// The policy and keys in use.
struct Rules {
    number: u64,
    policy: Policy,
    keys: KeyFile,
    /// The use of models since the policy was read.
    quotas: Quotas,
    /// The keys of issuers that are in files, by the issuers' names.
    token_keys: BTreeMap<String, Keys>,
    /// Verified tokens, by their hashes.
    tokens: Cache<[u8; 32], Arc<Verified>>,
}

/// A verified token.
struct Verified {
    token: Token,
    name: Principal,
    client: policy::Principal,
    /// The URL and the keys of the issuer, if they are at one. After another fetch, tokens are verified again.
    keys: Option<(String, Arc<Keys>)>,
    /// The number of the rules that the client's rights come from.
    rules: u64,
}

impl Verified {
    /// The rights of the sender. A stream outlives changes of the policy.
    fn client(&self, rules: &Rules) -> Cow<'_, policy::Principal> {
        match self.rules == rules.number {
            true => Cow::Borrowed(&self.client),
            false => Cow::Owned(rules.policy.of_token(&self.token).1),
        }
    }
}

impl Rules {
    fn read(path: &Path) -> Result<Self, String> {
        let policy = Policy::read(path).map_err(|error| error.to_string())?;
        let keys = match policy.keys() {
            None => KeyFile::default(),
            Some(keys) => KeyFile::read(keys).map_err(|error| {
                format!("{error}; 'nereid keys add' makes the file, or remove 'keys' from the policy")
            })?,
        };
        static READ: AtomicU64 = AtomicU64::new(0);
        let token_keys = tokens::keys_in_files(policy.issuers())?;
        Ok(Self {
            number: READ.fetch_add(1, Ordering::Relaxed),
            policy,
            keys,
            quotas: Quotas::default(),
            token_keys,
            tokens: Cache::new(KNOWN_TOKENS),
        })
    }

    /// The URLs of issuers' keys.
    fn key_urls(&self) -> BTreeSet<String> {
        let url = |issuer: &Issuer| match &issuer.keys {
            KeySource::Url(url) => Some(url.clone()),
            KeySource::File(_) => None,
        };
        self.policy.issuers().iter().filter_map(url).collect()
    }

    /// The files' current stamp.
    fn stamp(&self, path: &Path) -> Stamp {
        let of_issuer = |issuer: &'_ Issuer| match &issuer.keys {
            KeySource::File(file) => Some(file.clone()),
            KeySource::Url(_) => None,
        };
        let token_keys: Vec<_> = self.policy.issuers().iter().filter_map(of_issuer).collect();
        let files = [Some(path), self.policy.keys()].into_iter().flatten();
        Stamp::of(files.chain(token_keys.iter().map(PathBuf::as_path)))
    }
}

/// Authenticates and authorizes the clients of a server by a policy.
pub struct Guard {
    path: PathBuf,
    rules: ArcSwap<Rules>,
    remote_keys: RemoteKeys,
    files: Mutex<Files>,
    /// Usage of principals since the start of the server.
    principals: Principals,
}

/// The state of the files.
struct Files {
    /// The stamp when they were last loaded.
    loaded: Stamp,
    /// The stamp at the last check.
    seen: Stamp,
    /// Why they could not be loaded the last time. The rules in use are then an earlier state of them.
    error: Option<String>,
}

impl Guard {
    /// The guard with the policy in a file. Keys of issuers at URLs are fetched while it follows its files.
    ///
    /// # Errors
    /// The policy or its keys cannot be used.
    pub fn open(path: impl Into<PathBuf>, fetcher: Arc<dyn FetchKeys>) -> Result<Arc<Self>, String> {
        let path = path.into();
        // Which file has the keys is known only from the policy, and the stamp must not be newer than what is in use.
        let stamp = Rules::read(&path)?.stamp(&path);
        let rules = Rules::read(&path)?;
        let files = Files { loaded: stamp.clone(), seen: stamp, error: None };
        Ok(Arc::new(Self {
            path,
            rules: ArcSwap::from_pointee(rules),
            remote_keys: RemoteKeys::new(fetcher),
            files: Mutex::new(files),
            principals: Principals::default(),
        }))
    }

    /// Follows the files until the last reference to the guard is dropped. Called within a tokio runtime.
    pub fn follow(self: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let guard = Arc::downgrade(self);
        async move {
            let mut check = interval(CHECK_INTERVAL);
            check.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                check.tick().await;
                let checked = Weak::clone(&guard);
                // Files may be on a network file system.
                let checked = spawn_blocking(move || checked.upgrade().map(|guard| guard.check_files()));
                if let Ok(None) = checked.await {
                    return;
                }
                let Some(guard) = guard.upgrade() else { return };
                let urls = guard.rules.load().key_urls();
                guard.remote_keys.refresh(urls).await;
            }
        }
    }

    /// Whether the files are in use. Otherwise they are broken, and an earlier state of them is.
    pub fn is_valid(&self) -> bool {
        self.files().error.is_none()
    }

    /// Usage of each principal since the start of the server. Token senders outside the policy count as `ISSUER/*`.
    pub fn usage(&self) -> Vec<(String, PrincipalUsage)> {
        self.principals.usage()
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads changed files once two checks in a row find them the same: an editor may still be writing. Broken ones are
    /// tried at each check, since the cause may be in another place than these files, such as a missing file of keys.
    fn check_files(&self) {
        let stamp = self.rules.load().stamp(&self.path);
        {
            let mut files = self.files();
            let settled = files.seen == stamp;
            files.seen = stamp.clone();
            if !settled || (files.loaded == stamp && files.error.is_none()) {
                return;
            }
            files.loaded = stamp;
        }
        match Rules::read(&self.path) {
            Ok(rules) => {
                self.rules.store(Arc::new(rules));
                self.files().error = None;
                tracing::info!("reloaded {self}");
            }
            Err(error) => {
                let known = self.files().error.replace(error.clone());
                if known.as_ref() != Some(&error) {
                    tracing::error!("cannot reload the access policy; keeping the previous one: {error}");
                }
            }
        }
    }

    /// Verifies a token, once for as long as it is in use.
    fn verify(&self, rules: &Rules, token: &[u8]) -> Result<Arc<Verified>, String> {
        let hash = *blake3::hash(token).as_bytes();
        let is_current = |verified: &Arc<Verified>| {
            let keys = verified.keys.as_ref();
            now() < verified.token.end
                && keys.is_none_or(|(url, keys)| self.remote_keys.are_current(url, keys))
        };
        if let Some(verified) = rules.tokens.get(&hash).filter(is_current) {
            return Ok(verified);
        }
        let refused = |refusal| match refusal {
            tokens::Refusal::Invalid(reason) => reason,
            tokens::Refusal::UnknownKey => "the token's issuer has no such key".to_owned(),
        };
        let issuer = tokens::issuer_of(token, rules.policy.issuers()).map_err(refused)?;
        let (outcome, keys) = match &issuer.keys {
            KeySource::File(_) => {
                let keys = rules.token_keys.get(&issuer.name).ok_or("the token's issuer has no keys")?;
                (tokens::verify(token, issuer, keys), None)
            }
            KeySource::Url(url) => {
                let keys = self.remote_keys.get(url)?;
                let outcome = tokens::verify(token, issuer, &keys);
                if outcome == Err(tokens::Refusal::UnknownKey) {
                    self.remote_keys.want(url);
                }
                (outcome, Some((url.clone(), keys)))
            }
        };
        let token = outcome.map_err(refused)?;
        let (name, client) = rules.policy.of_token(&token);
        let verified = Arc::new(Verified { token, name, client, keys, rules: rules.number });
        rules.tokens.insert(hash, Arc::clone(&verified));
        Ok(verified)
    }

    /// The counters of the sender of a token. There are any number of subjects, so those without a principal share some.
    fn counters_of(&self, rules: &Rules, verified: &Verified) -> Arc<Counters> {
        let name = verified.name.name();
        match rules.policy.principals().contains_key(name) {
            true => self.principals.of(name),
            false => self.principals.of(&format!("{}/*", verified.token.issuer)),
        }
    }

    fn decide<'c>(&self, caller: &'c Identity, need: Need, model: Option<&str>) -> Result<(), Refusal<'c>> {
        if matches!((need, model), (Need::Nothing, _) | (Need::Sight, None)) {
            return Ok(());
        }
        if let Some(reason) = caller.rejection() {
            return Err(Refusal::Rejected(reason));
        }
        let rules = self.rules.load();
        if let Some(verified) = caller.evidence::<Verified>() {
            let issuer = &verified.token.issuer;
            let is_known = rules.policy.issuers().iter().any(|known| known.name == *issuer);
            if now() >= verified.token.end || !is_known {
                return Err(Refusal::Ended);
            }
            let may = verified.client(&rules).may(need, model);
            return if may { Ok(()) } else { Err(Refusal::Lacking(&verified.name)) };
        }
        let Some((principal, credential)) = caller.authenticated() else {
            let may = rules.policy.anonymous().may(need, model);
            return if may { Ok(()) } else { Err(Refusal::Anonymous) };
        };
        if credential.is_some_and(|key| !rules.keys.is_valid(key, now())) {
            return Err(Refusal::Ended);
        }
        let known = rules.policy.principals().get(principal.name());
        if known.is_some_and(|known| known.may(need, model)) {
            Ok(())
        } else {
            Err(Refusal::Lacking(principal))
        }
    }
}

/// Why a request is refused.
enum Refusal<'c> {
    /// The credentials prove nothing.
    Rejected(&'c str),
    /// The credential was valid when the request arrived.
    Ended,
    /// A client without credentials lacks the right.
    Anonymous,
    /// The principal lacks the right.
    Lacking(&'c Principal),
}

/// The number of a principal's flow. A hash, because senders of tokens are not listed anywhere; 0 is for unknown senders.
fn flow_of(principal: &str) -> u64 {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHER.hash_one(principal).max(1)
}

/// The right that is missing, without the model: nothing about models may show in a refusal.
fn wanted(need: Need) -> String {
    match need.right() {
        Some(right) => format!("the right '{}'", right.name()),
        None => "a right on the model".to_owned(),
    }
}

/// The key in the head of a request.
///
/// # Errors
/// The credentials are of another kind, or contradict each other.
fn key(head: &dyn Head) -> Result<Option<&[u8]>, &'static str> {
    let bearer = match head.header(AUTHORIZATION) {
        None => None,
        Some(value) => Some(bearer(value).ok_or("'Authorization' is not of the form 'Bearer <key>'")?),
    };
    match (bearer, head.header(API_KEY)) {
        (Some(bearer), Some(key)) if bearer != key => {
            Err("'Authorization' and 'X-API-Key' hold different keys")
        }
        (bearer, key) => Ok(bearer.or(key)),
    }
}

/// The token of a bearer. The case of the scheme's name does not matter.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii_start())
}

impl Authenticator for Guard {
    fn authenticate<'a>(&'a self, identity: Identity, head: &'a dyn Head) -> Authentication<'a> {
        let identity = match key(head) {
            Err(reason) => identity.rejected(reason),
            Ok(Some(key)) => {
                let rules = self.rules.load();
                if rules.policy.issuers().is_empty() || key.starts_with(KEY_PREFIX) {
                    match rules.keys.verify(key, now()) {
                        Ok(entry) => identity.with_credential(entry.principal.clone(), entry.id),
                        Err(reason) => identity.rejected(reason),
                    }
                } else {
                    match self.verify(&rules, key) {
                        Ok(verified) => identity.with_evidence(verified.name.clone(), verified),
                        Err(reason) => identity.rejected(reason),
                    }
                }
            }
            Ok(None) => {
                let rules = self.rules.load();
                let certificate = identity.principal.as_ref();
                let certified = certificate.and_then(|name| rules.policy.of_certificate(name.name()));
                let user = || rules.policy.of_user(identity.user()?);
                match certified.or_else(user) {
                    Some(principal) => identity.with_principal(principal.clone()),
                    None => identity,
                }
            }
        };
        Authentication::Done(Ok(identity))
    }

    fn is_secret(&self, name: &str) -> bool {
        [AUTHORIZATION, API_KEY].contains(&name)
    }
}

impl Authorizer for Guard {
    fn check(&self, caller: &Identity, action: Action, model: Option<&str>) -> Result<(), Denied> {
        let need = action.need();
        self.decide(caller, need, model).map_err(|refusal| match refusal {
            Refusal::Rejected(reason) => Denied::Unauthenticated(format!("{reason}; {HOW}")),
            Refusal::Ended => {
                Denied::Unauthenticated("the API key or the token has expired or was revoked".to_owned())
            }
            Refusal::Anonymous => Denied::Unauthenticated(format!("this needs {}; {HOW}", wanted(need))),
            Refusal::Lacking(principal) => {
                Denied::Forbidden(format!("this needs {}, which '{principal}' does not have", wanted(need)))
            }
        })
    }

    fn scope(&self, caller: &Identity, action: Action) -> Scope {
        let rules = self.rules.load();
        if !rules.policy.has_namespaces() {
            return Scope::ALL;
        }
        let need = action.need();
        if let Some(verified) = caller.evidence::<Verified>() {
            return verified.client(&rules).scope(verified.name.name(), need);
        }
        match caller.authenticated() {
            None => rules.policy.anonymous().scope(ANONYMOUS, need),
            Some((principal, _)) => match rules.policy.principals().get(principal.name()) {
                Some(client) => client.scope(principal.name(), need),
                // Removed from the policy since the check of its rights.
                None => Scope::of("nobody", |_| false),
            },
        }
    }

    fn admit(&self, caller: &Identity, model: &ModelId, bytes: usize) -> Result<Option<Admission>, Denied> {
        let rules = self.rules.load();
        let (name, (limits, weight), counters) = if let Some(verified) = caller.evidence::<Verified>() {
            let name = verified.name.name();
            (name, verified.client(&rules).limits(model), self.counters_of(&rules, verified))
        } else {
            let (name, client) = match caller.authenticated() {
                Some((principal, _)) => (principal.name(), rules.policy.principals().get(principal.name())),
                None => (ANONYMOUS, Some(rules.policy.anonymous())),
            };
            let limits = client.unwrap_or(&policy::Principal::default()).limits(model);
            (name, limits, self.principals.of(name))
        };
        let flow = Flow { id: flow_of(name), weight };
        let admitted = match limits.is_unlimited() {
            true => Ok(Admission { permit: None, usage: Some(Arc::clone(&counters) as _), flow }),
            false => rules
                .quotas
                .admit(name, &model.to_string(), bytes, limits, &counters)
                .map(|admission| Admission { flow, ..admission }),
        };
        counters.count(admitted.is_ok(), bytes);
        admitted.map(Some).map_err(Denied::Exhausted)
    }

    fn permits(&self, caller: &Identity, action: Action, model: Option<&str>) -> bool {
        self.decide(caller, action.need(), model).is_ok()
    }

    fn trouble(&self) -> Option<&'static str> {
        (!self.is_valid()).then_some("the files of the access policy are unusable; earlier rules are in use")
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.load();
        let (principals, keys) = (rules.policy.principals().len(), rules.keys.entries().len());
        write!(f, "the access policy '{}': {principals} principals, {keys} keys", self.path.display())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
