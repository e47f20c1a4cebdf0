//! JSON Web Tokens: who issues them, and which principal and roles they prove.
//!
//! The keys of an issuer decide which algorithms its tokens may use: a key is for one family of algorithms, all of them
//! asymmetric.

mod claims;
mod keys;
mod remote;
mod signatures;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::{Validation, decode, decode_header};

pub(crate) use self::claims::Claims;
pub(crate) use self::keys::Keys;
pub use self::remote::FetchKeys;
pub(crate) use self::remote::RemoteKeys;

/// Tokens that are longer are refused unread.
const MAX_TOKEN: usize = 16 << 10;

/// An issuer of tokens.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// The table's name in the policy.
    pub name: String,
    /// The claim `iss` of its tokens.
    pub issuer: String,
    /// The claim `aud` names at least one of these.
    pub audience: Vec<String>,
    /// Where its public keys are.
    pub keys: KeySource,
    /// The roles of each scope.
    pub scopes: BTreeMap<String, Vec<String>>,
    /// The claim that lists a token's scopes.
    pub claim: String,
    /// The difference of clocks that is allowed for.
    pub leeway: Duration,
}

/// Where an issuer's public keys are, as a JSON Web Key Set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In a file.
    File(PathBuf),
    /// At a URL.
    Url(String),
}

/// The content of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The issuer's name in the policy.
    pub issuer: String,
    /// The claim `sub`.
    pub subject: String,
    /// The scopes that the policy has roles for.
    pub scopes: Vec<String>,
    /// The second at which it expires, the leeway included.
    pub end: u64,
}

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Malformed, expired, or not signed by the issuer.
    Invalid(String),
    /// The issuer has no key of this token, as far as is known.
    UnknownKey,
}

impl From<jsonwebtoken::errors::Error> for Refusal {
    fn from(error: jsonwebtoken::errors::Error) -> Self {
        Self::Invalid(format!("the token is refused: {error}"))
    }
}

/// The issuer that a token names.
///
/// # Errors
/// The text is not a token, or of another issuer.
pub(crate) fn issuer_of<'i>(token: &[u8], issuers: &'i [Issuer]) -> Result<&'i Issuer, Refusal> {
    if token.len() > MAX_TOKEN {
        return Err(Refusal::Invalid(format!("a token has at most {MAX_TOKEN} bytes")));
    }
    let claimed = jsonwebtoken::dangerous::insecure_decode_claims::<Claims>(token)?;
    let issuer = issuers.iter().find(|issuer| Some(issuer.issuer.as_str()) == claimed.iss.as_deref());
    issuer.ok_or_else(|| Refusal::Invalid("the token's issuer is unknown".to_owned()))
}

/// The keys of issuers that are in files, by the issuers' names.
///
/// # Errors
/// A file cannot be used.
pub(crate) fn keys_in_files(issuers: &[Issuer]) -> Result<BTreeMap<String, Keys>, String> {
    let mut all = BTreeMap::new();
    for issuer in issuers {
        let KeySource::File(file) = &issuer.keys else { continue };
        let document = fs::read(file).map_err(|error| error.to_string());
        let keys = document.and_then(|document| Keys::parse(&document)).map_err(|error| {
            format!("cannot use the keys of tokens.{} in '{}': {error}", issuer.name, file.display())
        })?;
        all.insert(issuer.name.clone(), keys);
    }
    Ok(all)
}

/// Verifies a token of this issuer.
///
/// # Errors
/// The token is invalid, or its key unknown.
pub(crate) fn verify(token: &[u8], issuer: &Issuer, keys: &Keys) -> Result<Token, Refusal> {
    signatures::install();
    let header = decode_header(token)?;
    let key = keys.find(header.kid.as_deref(), header.alg)?;
    let mut validation = Validation::new(header.alg);
    validation.set_issuer(&[&issuer.issuer]);
    validation.set_audience(&issuer.audience);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.leeway = issuer.leeway.as_secs();
    validation.validate_nbf = true;
    let claims = decode::<Claims>(token, key, &validation)?.claims;
    let subject = claims.sub.clone().filter(|subject| !subject.is_empty());
    let subject = subject.ok_or_else(|| Refusal::Invalid("the token's subject is empty".to_owned()))?;
    let scopes = claims.list(&issuer.claim).into_iter();
    Ok(Token {
        issuer: issuer.name.clone(),
        subject,
        scopes: scopes.filter(|scope| issuer.scopes.contains_key(*scope)).map(str::to_owned).collect(),
        end: claims.exp.unwrap_or_default().saturating_add(issuer.leeway.as_secs()),
    })
}

#[cfg(test)]
pub(crate) mod tests;
