//! The guard: who a client is, what it may do, and files that change while the server runs.

mod flows;
mod namespaces;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::pin::Pin;

use nereid_protocol::{Access, Origin, Right};
use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::*;
use crate::key::{Expiry, NewKey};
use crate::tokens::tests::{Signer, changed, key_set};

const POLICY: &str = "
    keys = 'keys'
    [anonymous]
    roles = ['watch']
    [roles.watch]
    rights = ['read']
    models = ['public-*']
    [roles.a]
    rights = ['infer', 'read']
    models = ['a-*']
    [principals.alice]
    roles = ['a']
    certificates = ['spiffe://x/alice']
    uids = [1000]
    [principals.root]
    roles = ['all']
    [roles.all]
    rights = ['infer', 'read', 'control', 'files', 'admin']
    models = ['*']
";

struct Place {
    folder: TempDir,
    alice: NewKey,
    root: NewKey,
    expired: NewKey,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("access.toml"), POLICY).unwrap();
        let keys = folder.path().join("keys");
        let add = |principal, expiry: &str| {
            KeyFile::add(&keys, principal, expiry.parse::<Expiry>().unwrap(), "").unwrap()
        };
        let (alice, root, expired) = (add("alice", "never"), add("root", "30d"), add("alice", "2020-01-01"));
        Self { folder, alice, root, expired }
    }

    fn policy(&self) -> PathBuf {
        self.folder.path().join("access.toml")
    }

    fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    fn open(&self) -> Result<Arc<Guard>, String> {
        Guard::open(self.policy(), Arc::new(Published::default()))
    }

    fn guard(&self) -> Arc<Guard> {
        self.open().unwrap()
    }
}

/// A document that an issuer publishes, and how often it was fetched.
#[derive(Clone, Debug, Default)]
struct Published(Arc<Mutex<(Option<Vec<u8>>, usize)>>);

impl Published {
    fn publish(&self, document: Option<Vec<u8>>) {
        self.0.lock().unwrap().0 = document;
    }

    fn fetches(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

impl FetchKeys for Published {
    fn fetch(&self, url: &str) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> {
        assert_eq!(url, "https://login.x/keys");
        let mut state = self.0.lock().unwrap();
        state.1 += 1;
        let outcome = state.0.clone().ok_or_else(|| "refused".to_owned());
        Box::pin(async { outcome })
    }
}

#[derive(Default)]
struct Headers(BTreeMap<String, Vec<u8>>);

impl Head for Headers {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

fn head<const N: usize>(headers: [(&str, &str); N]) -> Headers {
    Headers(headers.into_iter().map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect())
}

fn access(guard: &Arc<Guard>) -> Access {
    Access::default().with_authenticator(Arc::clone(guard) as _).with_authorizer(Arc::clone(guard) as _)
}

fn identified(guard: &Arc<Guard>, certificate: Option<&str>, head: &Headers) -> Identity {
    let certificate = certificate.map(Principal::new);
    let connection = Identity::of_connection(Origin { certificate, remote: true, ..Origin::default() });
    access(guard).identify_now(connection, head).unwrap().unwrap()
}

/// The principal that a request proves, or why its credentials prove nothing.
fn proven(guard: &Arc<Guard>, certificate: Option<&str>, head: &Headers) -> Result<Option<String>, String> {
    let identity = identified(guard, certificate, head);
    match identity.rejection() {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(identity.authenticated().map(|(principal, _)| principal.to_string())),
    }
}

#[test]
fn client_is_who_its_key_or_its_certificate_proves() {
    let place = Place::new();
    let guard = place.guard();
    let (alice, root) = (place.alice.text.as_str(), place.root.text.as_str());
    let bearer = |key: &str| format!("Bearer {key}");
    let certificate = Some("spiffe://x/alice");
    for (certificate, head, expected) in [
        (None, head([]), Ok(None)),
        (None, head([("authorization", &bearer(alice))]), Ok(Some("alice"))),
        (None, head([("authorization", &format!("bEARER   {alice}"))]), Ok(Some("alice"))),
        (None, head([("x-api-key", root)]), Ok(Some("root"))),
        (None, head([("x-api-key", root), ("authorization", &bearer(root))]), Ok(Some("root"))),
        (None, head([("x-api-key", root), ("authorization", &bearer(alice))]), Err("different keys")),
        (certificate, head([]), Ok(Some("alice"))),
        (certificate, head([("x-api-key", root)]), Ok(Some("root"))),
        (certificate, head([("x-api-key", "wrong")]), Err("unknown or was revoked")),
        // A name in a certificate is not the name of a principal.
        (Some("root"), head([]), Ok(None)),
        (Some("alice"), head([]), Ok(None)),
        (None, head([("x-api-key", &place.expired.text)]), Err("has expired")),
        (None, head([("x-api-key", "")]), Err("unknown or was revoked")),
        (None, head([("x-api-key", &format!("{root} "))]), Err("unknown or was revoked")),
        (None, head([("x-api-key", &root[..root.len() - 1])]), Err("unknown or was revoked")),
        (None, head([("x-api-key", &root.repeat(10_000))]), Err("unknown or was revoked")),
        (None, head([("authorization", root)]), Err("'Bearer <key>'")),
        (None, head([("authorization", "Basic cm9vdDo=")]), Err("'Bearer <key>'")),
        (None, head([("authorization", "Bearer")]), Err("'Bearer <key>'")),
        (None, head([("authorization", "")]), Err("'Bearer <key>'")),
        (None, head([("authorization", "Bearer  ")]), Err("unknown or was revoked")),
    ] {
        match (proven(&guard, certificate, &head), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), expected, "{:?}", head.0),
            (Err(found), Err(reason)) => assert!(found.contains(reason), "{found}: {:?}", head.0),
            (found, _) => panic!("{found:?}: {:?}", head.0),
        }
    }
}

#[test]
fn user_at_a_unix_socket_is_a_principal_unless_the_request_has_credentials() {
    let place = Place::new();
    let guard = place.guard();
    let root = place.root.text.as_str();
    for (user, head, expected) in [
        (Some(1000), head([]), Some("alice")),
        (Some(1000), head([("x-api-key", root)]), Some("root")),
        (Some(1000), head([("x-api-key", "wrong")]), None),
        (Some(0), head([]), None),
        (None, head([]), None),
    ] {
        let connection = Identity::of_connection(Origin { user, ..Origin::default() });
        let identity = access(&guard).identify_now(connection, &head).unwrap().unwrap();
        let found = identity.authenticated().map(|(principal, _)| principal.name());
        assert_eq!(found, expected, "{user:?} {:?}", head.0);
        assert_eq!(access(&guard).permits(&identity, Action::Infer, Some("a-1")), expected.is_some());
    }
}

#[test]
fn decision_follows_from_the_need_of_the_action() {
    let place = Place::new();
    let guard = place.guard();
    let access = access(&guard);
    let anonymous = Identity::default();
    let alice = identified(&guard, None, &head([("x-api-key", &place.alice.text)]));
    let root = identified(&guard, None, &head([("x-api-key", &place.root.text)]));
    let wrong = identified(&guard, None, &head([("x-api-key", "wrong")]));
    let unknown = identified(&guard, Some("eve"), &head([]));
    let code = |caller: &Identity, action, model| match access.check(caller, action, model) {
        Ok(()) => 200,
        Err(Denied::Unauthenticated(_)) => 401,
        Err(_) => 403,
    };
    for (action, model, expected) in [
        (Action::Health, None, [200, 200, 200, 200]),
        (Action::Health, Some("a-1"), [401, 200, 200, 401]),
        (Action::Health, Some("b"), [401, 403, 200, 401]),
        (Action::Page, None, [200, 200, 200, 200]),
        (Action::Infer, Some("a-1"), [401, 200, 200, 401]),
        (Action::Infer, Some("public-1"), [401, 403, 200, 401]),
        (Action::Infer, None, [401, 200, 200, 401]),
        (Action::Metadata, None, [200, 200, 200, 401]),
        (Action::Metadata, Some("public-1"), [200, 403, 200, 401]),
        (Action::ModelConfig, Some("a-1"), [401, 200, 200, 401]),
        (Action::Statistics, Some("b"), [401, 403, 200, 401]),
        (Action::Metrics, None, [200, 200, 200, 401]),
        (Action::MachineMetrics, None, [401, 403, 200, 401]),
        (Action::Load, Some("a-1"), [401, 403, 200, 401]),
        (Action::LoadFiles, Some("a-1"), [401, 403, 200, 401]),
        (Action::ChangeRegions, None, [401, 403, 200, 401]),
        (Action::UseRegions, None, [401, 403, 200, 401]),
        (Action::ReadTrace, Some("a-1"), [401, 403, 200, 401]),
        (Action::ChangeLog, None, [401, 403, 200, 401]),
    ] {
        let found = [&anonymous, &alice, &root, &wrong].map(|caller| code(caller, action, model));
        assert_eq!(found, expected, "{action:?} {model:?}");
        // Whom the policy does not know has the rights of everybody.
        assert_eq!(code(&unknown, action, model), expected[0], "{action:?} {model:?}");
    }
}

#[test]
fn refusal_names_the_right_and_neither_model_nor_key() {
    let place = Place::new();
    let guard = place.guard();
    let access = access(&guard);
    let alice = identified(&guard, None, &head([("x-api-key", &place.alice.text)]));
    let wrong = identified(&guard, None, &head([("x-api-key", "nereid_abc_secret-part")]));
    let text = |caller: &Identity, action, model| match access.check(caller, action, model).unwrap_err() {
        Denied::Unauthenticated(text) | Denied::Forbidden(text) => text,
        other => panic!("{other:?}"),
    };
    for (action, right) in [
        (Action::Infer, Right::Infer),
        (Action::ModelConfig, Right::Read),
        (Action::Unload, Right::Control),
        (Action::LoadFiles, Right::Files),
        (Action::ChangeTrace, Right::Admin),
    ] {
        // Equal for all models, whether they exist or not.
        let refusals = ["b-secret", "c-secret", ""].map(|model| text(&alice, action, Some(model)));
        assert!(refusals.iter().all(|refusal| *refusal == refusals[0]), "{refusals:?}");
        assert!(refusals[0].contains(&format!("'{}'", right.name())) && !refusals[0].contains("secret"));
        let anonymous = text(&Identity::default(), action, Some("b-secret"));
        assert!(
            anonymous.contains(right.name())
                && anonymous.contains("X-API-Key")
                && !anonymous.contains("secret")
        );
        assert!(!text(&wrong, action, Some("b-secret")).contains("secret"));
    }
}

#[test]
fn limits_hold_for_each_client_and_start_anew_with_a_new_policy() {
    let place = Place::new();
    let limited = POLICY
        .replace("models = ['a-*']", "models = ['a-*']\nconcurrent-requests = 1")
        .replace("rights = ['read']", "rights = ['read', 'infer']\nconcurrent-requests = 2");
    fs::write(place.policy(), &limited).unwrap();
    let guard = place.guard();
    let access = access(&guard);
    let alice = identified(&guard, None, &head([("x-api-key", &place.alice.text)]));
    let root = identified(&guard, None, &head([("x-api-key", &place.root.text)]));
    let anonymous = Identity::default();
    let held: Vec<_> = [
        (&alice, "a-1"),
        (&alice, "a-2"),
        (&anonymous, "public-1"),
        (&anonymous, "public-1"),
        (&root, "a-1"),
    ]
    .into_iter()
    .map(|(caller, model)| access.admit(caller, &ModelId::plain(model), 1).unwrap())
    .collect();
    let has_place =
        |admission: &Option<Admission>| admission.as_ref().is_some_and(|held| held.permit.is_some());
    assert_eq!(held.iter().map(has_place).collect::<Vec<_>>(), [true, true, true, true, false]);
    for (caller, model) in [(&alice, "a-1"), (&alice, "a-2"), (&anonymous, "public-1")] {
        assert!(
            matches!(access.admit(caller, &ModelId::plain(model), 1), Err(Denied::Exhausted(_))),
            "{model}"
        );
    }
    assert!(access.admit(&root, &ModelId::plain("a-1"), 1).is_ok_and(|admission| !has_place(&admission)));
    fs::write(place.policy(), limited.replace("concurrent-requests = 1", "concurrent-requests = 3")).unwrap();
    checked(&guard);
    let a_1 = ModelId::plain("a-1");
    let again: Vec<_> = (0..3).map(|_| access.admit(&alice, &a_1, 1)).collect();
    assert!(again.iter().all(Result::is_ok) && access.admit(&alice, &a_1, 1).is_err());
    // Counts outlive the policy.
    let used: BTreeMap<_, _> = guard.usage().into_iter().collect();
    assert_eq!(
        used["alice"],
        PrincipalUsage { admitted: 5, refused: 3, bytes: 5, ..PrincipalUsage::default() }
    );
    assert_eq!((used[ANONYMOUS].refused, used["root"].admitted), (1, 2));
}

#[test]
fn credentials_are_secret_from_models() {
    let access = access(&Place::new().guard());
    for (name, expected) in [
        ("authorization", true),
        ("Authorization", true),
        ("X-API-Key", true),
        ("x-api", false),
        ("x-request", false),
    ] {
        assert_eq!(access.is_secret(name), expected, "{name}");
        assert!(!Access::default().is_secret(name));
    }
}

/// Two checks, after which a change is in use.
fn checked(guard: &Guard) {
    guard.check_files();
    guard.check_files();
}

#[test]
fn key_ends_with_its_revocation_even_on_an_open_stream() {
    let place = Place::new();
    let guard = place.guard();
    let head = head([("x-api-key", &place.alice.text)]);
    let stream = identified(&guard, None, &head);
    assert_eq!(guard.check(&stream, Action::Infer, Some("a-1")), Ok(()));
    KeyFile::revoke(&place.keys(), &crate::key::id_digits(place.alice.id)).unwrap();
    checked(&guard);
    assert!(guard.is_valid());
    assert!(matches!(guard.check(&stream, Action::Infer, Some("a-1")), Err(Denied::Unauthenticated(_))));
    assert!(proven(&guard, None, &head).unwrap_err().contains("revoked"));
    let new = KeyFile::add(&place.keys(), "alice", Expiry::Never, "").unwrap();
    checked(&guard);
    assert_eq!(proven(&guard, None, &self::head([("x-api-key", &new.text)])), Ok(Some("alice".to_owned())));
}

#[test]
fn broken_files_keep_the_previous_rules() {
    type Damage = fn(&Place);
    let damages: [(&str, Damage); 9] = [
        ("no TOML", |place| fs::write(place.policy(), "[roles").unwrap()),
        ("empty", |place| fs::write(place.policy(), "").unwrap()),
        ("cut", |place| fs::write(place.policy(), POLICY.split_once("a-*").unwrap().0).unwrap()),
        ("missing", |place| fs::remove_file(place.policy()).unwrap()),
        ("a folder", |place| {
            fs::remove_file(place.policy()).unwrap();
            fs::create_dir(place.policy()).unwrap();
        }),
        ("other keys", |place| fs::write(place.policy(), "keys = 'none'\n[anonymous]").unwrap()),
        ("keys empty", |place| fs::write(place.keys(), "").unwrap()),
        ("keys missing", |place| fs::remove_file(place.keys()).unwrap()),
        ("keys broken", |place| fs::write(place.keys(), [0xff; 10]).unwrap()),
    ];
    for (what, damage) in damages {
        let place = Place::new();
        let guard = place.guard();
        let keys = fs::read(place.keys()).unwrap();
        let head = head([("x-api-key", &place.alice.text)]);
        damage(&place);
        for _ in 0..3 {
            checked(&guard);
            assert!(!guard.is_valid(), "{what}");
            let alice = identified(&guard, None, &head);
            assert_eq!(guard.check(&alice, Action::Infer, Some("a-1")), Ok(()), "{what}");
            assert!(guard.check(&alice, Action::Infer, Some("b")).is_err(), "{what}");
        }
        let _ = fs::remove_dir(place.policy());
        fs::write(place.keys(), keys).unwrap();
        fs::write(place.policy(), POLICY.replace("a-*", "b")).unwrap();
        checked(&guard);
        assert!(guard.is_valid(), "{what}");
        let alice = identified(&guard, None, &head);
        assert_eq!(guard.check(&alice, Action::Infer, Some("b")), Ok(()), "{what}");
    }
}

#[test]
fn missing_file_of_keys_is_found_once_it_is_there() {
    let place = Place::new();
    let guard = place.guard();
    fs::write(place.policy(), POLICY.replace("'keys'", "'new-keys'")).unwrap();
    checked(&guard);
    assert!(!guard.is_valid());
    let key = KeyFile::add(&place.folder.path().join("new-keys"), "root", Expiry::Never, "").unwrap();
    checked(&guard);
    assert!(guard.is_valid());
    assert_eq!(proven(&guard, None, &head([("x-api-key", &key.text)])), Ok(Some("root".to_owned())));
}

#[test]
fn change_is_used_only_once_it_has_settled() {
    let place = Place::new();
    let guard = place.guard();
    let may_read = || guard.check(&Identity::default(), Action::Metadata, Some("new")).is_ok();
    fs::write(place.policy(), POLICY.replace("public-*", "new")).unwrap();
    guard.check_files();
    assert!(!may_read());
    fs::write(place.policy(), POLICY.replace("public-*", "new*")).unwrap();
    guard.check_files();
    assert!(!may_read());
    guard.check_files();
    assert!(may_read());
    // Changed permissions are a change, too.
    fs::set_permissions(place.policy(), fs::Permissions::from_mode(0o600)).unwrap();
    checked(&guard);
    assert!(may_read() && guard.is_valid());
}

#[test]
fn unusable_files_are_refused_at_the_start() {
    let place = Place::new();
    let error = |text: &str| {
        fs::write(place.policy(), text).unwrap();
        place.open().unwrap_err()
    };
    assert!(error("[anonymous").contains("access.toml:1: "));
    assert!(error("").contains("neither principals"));
    let missing = error("keys = 'none'\n[anonymous]");
    assert!(missing.contains("none") && missing.contains("nereid keys add"), "{missing}");
    assert!(
        Guard::open(place.folder.path().join("none"), Arc::new(Published::default()))
            .unwrap_err()
            .contains("cannot read the access policy")
    );
}

#[tokio::test(start_paused = true)]
async fn files_are_followed_until_the_guard_is_dropped() {
    let place = Place::new();
    let guard = place.guard();
    let following = tokio::spawn(guard.follow());
    fs::write(place.policy(), POLICY.replace("public-*", "new")).unwrap();
    let start = Instant::now();
    while guard.check(&Identity::default(), Action::Metadata, Some("new")).is_err() {
        assert!(start.elapsed() < CHECK_INTERVAL * 5);
        sleep(CHECK_INTERVAL / 10).await;
    }
    drop(guard);
    following.await.unwrap();
}

proptest! {
    /// Headers without a valid key authenticate no client.
    #[test]
    fn garbage_proves_nothing(authorization in prop::option::of(prop::collection::vec(any::<u8>(), 0..80)), key: Vec<u8>) {
        let place = Place::new();
        let guard = place.guard();
        let mut head = Headers([("x-api-key".to_owned(), key)].into());
        if let Some(authorization) = authorization {
            head.0.insert("authorization".to_owned(), authorization);
        }
        prop_assert!(proven(&guard, None, &head).is_err());
    }
}

const TOKENS: &str = "
    [tokens.x]
    issuer = 'https://login.x/'
    audience = ['nereid']
    keys = 'KEYS'
    [tokens.x.scopes]
    watch = ['watch']
    [roles.watch]
    rights = ['read']
    models = ['public-*']
    [roles.a]
    rights = ['infer', 'read']
    models = ['a-*']
    concurrent-requests = 1
    [principals.alice]
    roles = ['a']
    subjects = ['x/ann']
    [principals.bob]
    roles = ['a']
";

/// A guard with a policy for tokens, whose keys are at this place.
fn with_tokens(keys: &str, published: &Published) -> (TempDir, Arc<Guard>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.toml");
    fs::write(&file, TOKENS.replace("KEYS", keys)).unwrap();
    if keys == "keys.json" {
        fs::write(folder.path().join(keys), published.0.lock().unwrap().0.as_ref().unwrap()).unwrap();
    }
    let guard = Guard::open(file, Arc::new(published.clone())).unwrap();
    (folder, guard)
}

#[test]
fn tokens_have_the_rights_of_their_principal_and_of_their_scopes() {
    let (signer, published) = (Signer::ed(), Published::default());
    published.publish(Some(key_set(&[("1", &signer)])));
    let (_folder, guard) = with_tokens("keys.json", &published);
    let right = |right, model| (Action::Metadata, right, model);
    for (changes, name, rights) in [
        // Bob is a principal, and a subject that is called so is not.
        (json!({"sub": "bob", "scope": ""}), "x/bob", vec![]),
        (json!({"sub": "bob"}), "x/bob", vec![right("read", "public-1")]),
        (json!({}), "alice", vec![right("read", "public-1"), right("read", "a-1")]),
        (json!({"scope": "admin"}), "alice", vec![right("read", "a-1")]),
    ] {
        let token = format!("Bearer {}", signer.token("1", &changed(&changes)));
        for header in [("authorization", token.as_str()), ("x-api-key", &token[7..])] {
            let caller = identified(&guard, None, &head([header]));
            assert_eq!(caller.authenticated().map(|(name, _)| name.name()), Some(name), "{changes}");
            for model in ["public-1", "a-1", "b"] {
                let expected = rights.iter().any(|(_, _, permitted)| *permitted == model);
                assert_eq!(
                    guard.check(&caller, Action::Metadata, Some(model)).is_ok(),
                    expected,
                    "{changes} {model}"
                );
            }
            let refused = guard.check(&caller, Action::Infer, Some("b"));
            assert!(matches!(refused, Err(Denied::Forbidden(reason)) if reason.contains(name)));
            let permit = guard.admit(&caller, &ModelId::plain("a-1"), 1);
            // All tokens of a principal share the limits of its roles.
            assert_eq!(guard.admit(&caller, &ModelId::plain("a-1"), 1).is_err(), name == "alice");
            drop(permit);
        }
    }
    for (token, reason) in [
        (signer.token("1", &changed(&json!({"exp": 7}))), "ExpiredSignature"),
        (signer.token("2", &changed(&json!({}))), "has no such key"),
        ("x.y.z".to_owned(), "the token is refused"),
    ] {
        let found = proven(&guard, None, &head([("authorization", &format!("Bearer {token}"))]));
        assert!(found.as_ref().is_err_and(|found| found.contains(reason)), "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_at_a_url_are_fetched_when_they_rotate_and_kept_while_it_is_away() {
    let (old, new, published) = (Signer::ed(), Signer::ed(), Published::default());
    let (_folder, guard) = with_tokens("https://login.x/keys", &published);
    let following = tokio::spawn(guard.follow());
    let valid = |signer: &Signer, id: &str| {
        let token = format!("Bearer {}", signer.token(id, &changed(&json!({}))));
        proven(&guard, None, &head([("authorization", &token)])).map(drop)
    };
    assert!(valid(&old, "old").unwrap_err().contains("has not fetched"));
    sleep(Duration::from_secs(2)).await;
    assert!(valid(&old, "old").unwrap_err().contains("cannot fetch"));
    published.publish(Some(key_set(&[("old", &old)])));
    sleep(Duration::from_secs(12)).await;
    assert_eq!(valid(&old, "old"), Ok(()));
    // Any number of tokens with an unknown key causes one fetch in ten seconds.
    let before = published.fetches();
    for _ in 0..5 {
        assert!(valid(&new, "new").unwrap_err().contains("no such key"));
        sleep(Duration::from_secs(2)).await;
    }
    published.publish(Some(key_set(&[("new", &new)])));
    assert!(published.fetches() - before <= 2, "{}", published.fetches() - before);
    assert!(valid(&new, "new").is_err());
    sleep(Duration::from_secs(12)).await;
    assert_eq!(valid(&new, "new"), Ok(()));
    assert!(valid(&old, "old").unwrap_err().contains("no such key"));
    // The issuer is away for an hour.
    published.publish(None);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(valid(&new, "new"), Ok(()));
    following.abort();
}

#[test]
fn a_streams_token_follows_changes_of_the_policy() {
    let (signer, published) = (Signer::ed(), Published::default());
    published.publish(Some(key_set(&[("1", &signer)])));
    let (folder, guard) = with_tokens("keys.json", &published);
    let token = format!("Bearer {}", signer.token("1", &changed(&json!({}))));
    let caller = identified(&guard, None, &head([("authorization", &token)]));
    let may = || guard.check(&caller, Action::Infer, Some("a-1"));
    assert_eq!(may(), Ok(()));
    let change = |from: &str, to: &str| {
        let text = fs::read_to_string(folder.path().join("access.toml")).unwrap();
        fs::write(folder.path().join("access.toml"), text.replace(from, to)).unwrap();
        (0..2).for_each(|_| guard.check_files());
        assert!(guard.is_valid());
    };
    change("['a-*']", "['c-*']");
    assert!(matches!(may(), Err(Denied::Forbidden(_))));
    change("['c-*']", "['a-*']");
    assert_eq!(may(), Ok(()));
    change("subjects = ['x/ann']", "");
    change("tokens.x", "tokens.y");
    assert!(matches!(may(), Err(Denied::Unauthenticated(_))));
}
