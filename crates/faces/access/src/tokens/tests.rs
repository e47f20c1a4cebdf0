//! Tokens: which are valid, and what each variation of one is refused for.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};

use super::*;
use crate::key::now;

/// A private key of an issuer.
pub(crate) enum Signer {
    Ed(Ed25519KeyPair),
    Curve(EcdsaKeyPair, &'static str),
}

impl Signer {
    pub(crate) fn ed() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn curve(scheme: &'static EcdsaSigningAlgorithm, name: &'static str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(scheme, &random).unwrap();
        Self::Curve(EcdsaKeyPair::from_pkcs8(scheme, document.as_ref(), &random).unwrap(), name)
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed(_) => "EdDSA",
            Self::Curve(_, "P-256") => "ES256",
            Self::Curve(..) => "ES384",
        }
    }

    fn jwk(&self, id: &str) -> Value {
        match self {
            Self::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": BASE64.encode(pair.public_key())})
            }
            Self::Curve(pair, curve) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
                json!({"kty": "EC", "crv": curve, "kid": id, "x": BASE64.encode(x), "y": BASE64.encode(y)})
            }
        }
    }

    /// A token with this header and these claims.
    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        let encode = |part: &Value| BASE64.encode(part.to_string());
        let text = format!("{}.{}", encode(header), encode(claims));
        let signature = match self {
            Self::Ed(pair) => pair.sign(text.as_bytes()).as_ref().to_vec(),
            Self::Curve(pair, _) => {
                pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap().as_ref().to_vec()
            }
        };
        format!("{text}.{}", BASE64.encode(signature))
    }

    /// A token of the key with this id.
    pub(crate) fn token(&self, id: &str, claims: &Value) -> String {
        self.sign(&json!({"alg": self.algorithm(), "kid": id}), claims)
    }
}

/// The document of these keys.
pub(crate) fn key_set(keys: &[(&str, &Signer)]) -> Vec<u8> {
    let keys: Vec<_> = keys.iter().map(|(id, signer)| signer.jwk(id)).collect();
    json!({ "keys": keys }).to_string().into_bytes()
}

/// The claims of a valid token.
pub(crate) fn claims() -> Value {
    json!({"iss": "https://login.x/", "aud": "nereid", "sub": "ann", "exp": now() + 600, "scope": "run watch other"})
}

/// The claims of a valid token, with these changes; null removes one.
pub(crate) fn changed(changes: &Value) -> Value {
    let mut claims = claims();
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

fn issuer() -> Issuer {
    Issuer {
        name: "x".into(),
        issuer: "https://login.x/".into(),
        audience: vec!["nereid".into(), "other".into()],
        keys: KeySource::File("keys.json".into()),
        scopes: [("run", "a"), ("watch", "b")].map(|(scope, role)| (scope.into(), vec![role.into()])).into(),
        claim: "scope".into(),
        leeway: Duration::from_secs(60),
    }
}

fn outcome(token: &str, keys: &Keys) -> Result<Token, String> {
    let issuers = [issuer()];
    let outcome = issuer_of(token.as_bytes(), &issuers).and_then(|it| verify(token.as_bytes(), it, keys));
    outcome.map_err(|refusal| match refusal {
        Refusal::Invalid(reason) => reason,
        Refusal::UnknownKey => "unknown key".to_owned(),
    })
}

#[test]
fn tokens_of_every_curve_are_verified() {
    let (p256, p384) = (&ECDSA_P256_SHA256_FIXED_SIGNING, &ECDSA_P384_SHA384_FIXED_SIGNING);
    let signers = [Signer::ed(), Signer::curve(p256, "P-256"), Signer::curve(p384, "P-384")];
    let all: Vec<_> = ["1", "2", "3"].into_iter().zip(&signers).collect();
    let keys = Keys::parse(&key_set(&all)).unwrap();
    for (id, signer) in &all {
        let token = outcome(&signer.token(id, &claims()), &keys).unwrap();
        assert_eq!((token.issuer.as_str(), token.subject.as_str()), ("x", "ann"));
        assert_eq!(token.scopes, ["run", "watch"]);
        assert!((now() + 650..=now() + 660).contains(&token.end));
        // A key does not vouch for another one's tokens.
        for (other, _) in all.iter().filter(|(other, _)| other != id) {
            assert!(outcome(&signer.token(other, &claims()), &keys).is_err());
        }
        assert_eq!(outcome(&signer.token("4", &claims()), &keys), Err("unknown key".to_owned()));
        // The algorithm selects the key of a token without an id.
        let unnamed = signer.sign(&json!({"alg": signer.algorithm()}), &claims());
        assert!(outcome(&unnamed, &keys).is_ok());
    }
}

#[test]
fn each_variation_of_a_valid_token_is_refused() {
    let signer = Signer::ed();
    let keys = Keys::parse(&key_set(&[("1", &signer)])).unwrap();
    for (changes, expected) in [
        (json!({}), ""),
        (json!({"aud": ["nereid", "more"]}), ""),
        (json!({"exp": now() - 30}), ""),
        (json!({"nbf": now() + 30}), ""),
        (json!({"scope": null}), ""),
        (json!({"scope": ["run"]}), ""),
        (json!({"scope": 7}), ""),
        (json!({"exp": now() - 90}), "ExpiredSignature"),
        (json!({"nbf": now() + 90}), "ImmatureSignature"),
        (json!({"exp": null}), "Missing required claim: exp"),
        (json!({"aud": null}), "Missing required claim: aud"),
        (json!({"sub": null}), "Missing required claim: sub"),
        (json!({"sub": ""}), "the token's subject is empty"),
        (json!({"aud": "elsewhere"}), "InvalidAudience"),
        (json!({"iss": "https://login.y/"}), "the token's issuer is unknown"),
        (json!({"iss": null}), "the token's issuer is unknown"),
        (json!({"exp": "soon"}), "JSON error"),
    ] {
        let found = outcome(&signer.token("1", &changed(&changes)), &keys);
        let reason = found.as_ref().err().map(String::as_str).unwrap_or_default();
        assert_eq!(
            (reason.is_empty(), reason.contains(expected)),
            (expected.is_empty(), true),
            "{changes}: {found:?}"
        );
    }
    // Headers with an algorithm that is not the key's.
    for header in [
        json!({"alg": "none", "kid": "1"}),
        json!({"alg": "HS256", "kid": "1"}),
        json!({"alg": "RS256", "kid": "1"}),
        json!({"alg": "ES256", "kid": "1"}),
        json!({"kid": "1"}),
        json!([]),
    ] {
        assert!(outcome(&signer.sign(&header, &claims()), &keys).is_err(), "{header}");
    }
    let valid = signer.token("1", &claims());
    let (text, _) = valid.rsplit_once('.').unwrap();
    let endless = signer.token("1", &changed(&json!({"pad": "x".repeat(1 << 20)})));
    for token in [text, &format!("{text}."), &format!("{valid}."), "", ".", "..", "a.b.c", &endless] {
        assert!(outcome(token, &keys).is_err(), "{:.40}", token);
    }
}

#[test]
fn documents_without_public_keys_for_signatures_are_refused() {
    let signer = Signer::ed();
    for (document, expected) in [
        ("", "it is not a JSON Web Key Set"),
        ("{}", "it is not a JSON Web Key Set"),
        (r#"{"keys": []}"#, "it has no public key"),
        (r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "1"}]}"#, "it has no public key"),
        (r#"{"keys": [{"kty": "OKP", "crv": "X25519", "x": "AAAA"}]}"#, "it has no public key"),
        (r#"{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "use": "enc"}]}"#, "it has no public key"),
        (r#"{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "alg": "HS256"}]}"#, "it has no public key"),
    ] {
        let error = Keys::parse(document.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{document}: {error}");
    }
    // What is unknown does not hide the rest.
    let mut set: Value = serde_json::from_slice(&key_set(&[("1", &signer)])).unwrap();
    set["keys"].as_array_mut().unwrap().insert(0, json!({"kty": "new", "crv": "P-9000"}));
    let keys = Keys::parse(set.to_string().as_bytes()).unwrap();
    assert!(outcome(&signer.token("1", &claims()), &keys).is_ok());
}

proptest! {
    /// No changed byte of a token leaves it valid.
    #[test]
    fn a_changed_token_is_refused(place in 0_usize..400, by in 1_u8..=255) {
        let signer = Signer::ed();
        let keys = Keys::parse(&key_set(&[("1", &signer)])).unwrap();
        let mut token = signer.token("1", &claims()).into_bytes();
        let place = place % token.len();
        token[place] ^= by;
        let issuers = [issuer()];
        let valid = issuer_of(&token, &issuers).and_then(|it| verify(&token, it, &keys));
        prop_assert!(valid.is_err());
    }
}
