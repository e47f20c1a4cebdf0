//! The cost of a policy for a request: who sends it, and whether the sender may run the model.
//!
//! `cargo xtask bench access` prints nanoseconds for each step, with 100 principals, a key for each, and patterns for
//! 1,000 models, and fails if a step is over its target.

use std::fmt::Write as _;
use std::hint::black_box;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use nereid_access::{Expiry, FetchKeys, Guard, KeyFile};
use nereid_protocol::{Access, Action, Head, Identity, ModelId};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

const PRINCIPALS: usize = 100;
const MODELS: usize = 1000;
const REQUESTS: u32 = 10_000;
const ROUNDS: u32 = 50;

/// The most nanoseconds of each step.
const KEY: u32 = 500;
const TOKEN: u32 = 1000;
const RULES: u32 = 500;

/// A request with an API key.
struct Request(String);

impl Head for Request {
    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == "authorization").then_some(self.0.as_bytes())
    }
}

/// No issuer of tokens has its keys elsewhere.
#[derive(Debug)]
struct Unpublished;

impl FetchKeys for Unpublished {
    fn fetch(&self, _: &str) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> {
        Box::pin(async { Err("nothing is published".to_owned()) })
    }
}

/// Each principal may run ten models by name and ten more by a pattern.
fn policy() -> String {
    let mut text = "keys = 'keys'\n".to_owned();
    for principal in 0..PRINCIPALS {
        let models: Vec<_> =
            (0..MODELS / PRINCIPALS).map(|model| format!("'model-{principal}-{model}'")).collect();
        let models = models.join(", ");
        let _ = write!(
            text,
            "[principals.p{principal}]\nroles = ['r{principal}']\n[roles.r{principal}]\n\
             rights = ['infer', 'read']\nmodels = [{models}, 'team-{principal}-*']\n"
        );
    }
    text
}

/// An issuer whose tokens have the rights of all principals.
fn issuer() -> String {
    let roles: Vec<_> = (0..PRINCIPALS).map(|principal| format!("'r{principal}'")).collect();
    format!(
        "[tokens.x]\nissuer = 'https://login.x/'\naudience = ['nereid']\nkeys = 'keys.json'\nscopes = {{ run = [{}] }}\n",
        roles.join(", ")
    )
}

/// Tokens of different subjects, and the keys of their issuer.
fn tokens() -> (Vec<Request>, Value) {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key is made");
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("the key is sound");
    let encode = |part: &Value| BASE64.encode(part.to_string());
    let token = |subject: usize| {
        let claims = json!({
            "iss": "https://login.x/", "aud": "nereid", "sub": subject.to_string(), "exp": u32::MAX, "scope": "run",
        });
        let text = format!("{}.{}", encode(&json!({"alg": "EdDSA", "kid": "1"})), encode(&claims));
        Request(format!("Bearer {text}.{}", BASE64.encode(pair.sign(text.as_bytes()))))
    };
    let key = json!({"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": BASE64.encode(pair.public_key())});
    ((0..PRINCIPALS).map(token).collect(), json!({"keys": [key]}))
}

/// Prints the nanoseconds of a step; whether they are within the target.
fn measure(what: &str, target: Option<u32>, mut step: impl FnMut(usize)) -> bool {
    let mut round = || {
        let start = Instant::now();
        for request in 0..REQUESTS {
            step(request as usize);
        }
        start.elapsed().as_nanos() as f64 / f64::from(REQUESTS)
    };
    // The least of several, because the machine may do other work, too.
    let least = (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
    let target_text = target.map_or_else(String::new, |target| format!(" of {target}"));
    println!("{what}: {least:.0}{target_text} ns");
    target.is_none_or(|target| least <= f64::from(target))
}

fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, keys) = (folder.path().join("access.toml"), folder.path().join("keys"));
    let (tokens, published) = tokens();
    std::fs::write(&file, policy() + &issuer()).expect("the policy is written");
    std::fs::write(folder.path().join("keys.json"), published.to_string()).expect("the keys are written");
    let key = |principal| {
        let key = KeyFile::add(&keys, &format!("p{principal}"), Expiry::Never, "").expect("a key");
        Request(format!("Bearer {}", key.text))
    };
    let requests: Vec<_> = (0..PRINCIPALS).map(key).collect();
    let guard = Guard::open(file, Arc::new(Unpublished)).expect("the policy is sound");
    let access = Access::default().with_authenticator(Arc::clone(&guard) as _).with_authorizer(guard);
    let identify = |request: &Request| {
        access
            .identify_now(Identity::default(), request)
            .expect("keys need no wait")
            .expect("keys are not refused")
    };
    let callers: Vec<_> = requests.iter().map(identify).collect();
    let models: Vec<_> =
        (0..PRINCIPALS).map(|principal| ModelId::plain(format!("model-{principal}-7"))).collect();
    let patterns: Vec<_> =
        (0..PRINCIPALS).map(|principal| ModelId::plain(format!("team-{principal}-x"))).collect();
    let run = |access: &Access, caller: &Identity, model: &ModelId| {
        assert_eq!(access.check(caller, Action::Infer, Some(&model.name)), Ok(()));
        black_box(access.scope(caller, Action::Infer).is_all());
        black_box(access.admit(caller, model, 1).is_ok());
    };
    let open = Access::default();
    let all = [
        measure("a request without a policy", Some(20), |_| {
            assert!(black_box(&open).is_open_to(&Identity::default()));
        }),
        measure("who sends a request, by its key", Some(KEY), |request| {
            black_box(identify(&requests[request % PRINCIPALS]));
        }),
        measure("who sends a request, by a token that was seen before", Some(TOKEN), |request| {
            black_box(identify(&tokens[request % PRINCIPALS]));
        }),
        measure("whether the sender may run a model, by its name", Some(RULES), |request| {
            run(&access, &callers[request % PRINCIPALS], &models[request % PRINCIPALS]);
        }),
        measure("whether the sender may run a model, by a pattern", Some(RULES), |request| {
            run(&access, &callers[request % PRINCIPALS], &patterns[request % PRINCIPALS]);
        }),
        measure("whether the sender may use shared memory: no", None, |request| {
            assert!(!access.permits(&callers[request % PRINCIPALS], Action::UseRegions, None));
        }),
    ];
    match all.contains(&false) {
        false => ExitCode::SUCCESS,
        true => {
            println!("a step is over its target");
            ExitCode::FAILURE
        }
    }
}
