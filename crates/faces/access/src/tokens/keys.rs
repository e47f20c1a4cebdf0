//! The public keys of an issuer.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

use super::Refusal;

/// The public keys of an issuer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

impl Keys {
    /// Parses a JSON Web Key Set. Keys for other purposes are left out.
    ///
    /// # Errors
    /// The document is malformed, or has no key for signatures.
    pub(crate) fn parse(document: &[u8]) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_slice(document)
            .map_err(|error| format!("it is not a JSON Web Key Set: {error}"))?;
        let keys: Vec<_> = set.keys.iter().filter_map(Key::new).collect();
        if keys.is_empty() {
            return Err("it has no public key for RS256, PS256, ES256, ES384, EdDSA or their like".to_owned());
        }
        Ok(Self(keys))
    }

    /// The key that has to have signed a token with this header.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<&DecodingKey, Refusal> {
        let named = |key: &&Key| id.is_none_or(|id| key.id.as_deref() == Some(id));
        let mut of_id = self.0.iter().filter(named).peekable();
        if of_id.peek().is_none() {
            return Err(Refusal::UnknownKey);
        }
        let mut found = of_id.filter(|key| key.algorithms.contains(&algorithm));
        match (found.next(), found.next()) {
            (None, _) => {
                Err(Refusal::Invalid("the issuer does not sign with the token's algorithm".to_owned()))
            }
            (Some(key), None) => Ok(&key.key),
            (Some(_), Some(_)) => Err(Refusal::Invalid(
                "the token does not name which of the issuer's keys signed it".to_owned(),
            )),
        }
    }
}

impl Key {
    fn new(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        if !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => RSA.to_vec(),
            AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
                EllipticCurve::P256 => vec![Algorithm::ES256],
                EllipticCurve::P384 => vec![Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
                vec![Algorithm::EdDSA]
            }
            _ => return None,
        };
        if let Some(only) = common.key_algorithm {
            let only = only.to_string();
            algorithms.retain(|algorithm| format!("{algorithm:?}") == only);
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        (!algorithms.is_empty()).then(|| Self { id: common.key_id.clone(), algorithms, key })
    }
}
