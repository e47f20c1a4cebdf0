//! Policies: what they mean, and what is refused in them.

use proptest::prelude::*;

use super::*;

const TEAMS: &str = r#"
keys = "keys"

[anonymous]
roles = ["watch"]

[roles.watch]
rights = ["read"]
models = ["*"]

[roles.a]
rights = ["control", "infer"]
models = ["a-*", "shared"]

[principals.alice]
roles = ["a", "watch"]
certificates = ["spiffe://x/alice", "alice"]
uids = [0, 1000]

[principals."bob@example.com"]
"#;

fn parsed(text: &str) -> Result<Policy, String> {
    Policy::parse(Path::new("/etc/nereid/access.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn principals_have_the_rights_of_their_roles() {
    let policy = parsed(TEAMS).unwrap();
    assert_eq!(policy.keys(), Some(Path::new("/etc/nereid/keys")));
    let alice = policy.find("alice").unwrap();
    let bob = policy.find("bob@example.com").unwrap();
    let of = |principal: &Principal, right, model| principal.may(Need::Any(right), Some(model));
    for (right, model, alices, anonymous) in [
        (Right::Infer, "a-1", true, false),
        (Right::Infer, "shared", true, false),
        (Right::Infer, "shared-2", false, false),
        (Right::Control, "a-", true, false),
        (Right::Control, "b", false, false),
        (Right::Read, "b", true, true),
        (Right::Files, "a-1", false, false),
        (Right::Admin, "a-1", false, false),
    ] {
        assert_eq!(of(alice, right, model), alices, "{right:?} {model}");
        assert_eq!(of(policy.anonymous(), right, model), anonymous, "{right:?} {model}");
        assert!(!of(bob, right, model) && !bob.may(Need::Sight, Some(model)));
    }
    assert!(alice.may(Need::Every(Right::Read), None) && !alice.may(Need::Every(Right::Infer), None));
    assert!(alice.may(Need::Any(Right::Infer), None) && !alice.may(Need::Any(Right::Admin), None));
    let of_certificate = |name| policy.of_certificate(name).map(nereid_core::Principal::name);
    assert_eq!(of_certificate("alice"), Some("alice"));
    assert_eq!(of_certificate("spiffe://x/alice"), Some("alice"));
    assert_eq!(of_certificate("bob@example.com"), None);
    let of_user = |user| policy.of_user(user).map(nereid_core::Principal::name);
    assert_eq!((of_user(0), of_user(1000), of_user(1001)), (Some("alice"), Some("alice"), None));
    assert_eq!(policy.roles()["a"].rights, [Right::Infer, Right::Control]);
}

#[test]
fn limits_and_weights_are_those_of_the_first_role_that_permits_the_request() {
    let text = "
        [roles.small]
        rights = ['infer']
        models = ['a-*']
        requests-per-second = 2
        [roles.large]
        rights = ['infer', 'read']
        models = ['*']
        concurrent-requests = 9
        weight = 5
        [roles.free]
        rights = ['infer']
        models = ['free']
        [roles.fast]
        rights = ['infer']
        models = ['f*']
        weight = 1000
        [principals.p]
        roles = ['free', 'small', 'large']
        [principals.q]
        roles = ['free']
        [principals.r]
        roles = ['fast', 'large']
    ";
    let policy = parsed(text).unwrap();
    for (principal, model, per_second, concurrent, expected) in [
        ("p", "a-1", 2, 0, 1),
        ("p", "b", 0, 9, 5),
        ("p", "free", 0, 0, 1),
        ("q", "free", 0, 0, 1),
        ("q", "a-1", 0, 0, 1),
        ("r", "free", 0, 0, 1000),
        ("r", "a-1", 0, 9, 5),
    ] {
        let (limits, weight) = policy.find(principal).unwrap().limits(&ModelId::plain(model));
        let count = |limit: Option<NonZeroU32>| limit.map_or(0, NonZeroU32::get);
        assert_eq!(
            (count(limits.per_second), count(limits.concurrent), weight.get()),
            (per_second, concurrent, expected),
            "{principal} {model}"
        );
    }
}

#[test]
fn absolute_file_of_keys_stays_as_it_is() {
    for (keys, expected) in [("/run/keys", "/run/keys"), ("../keys", "/etc/nereid/../keys")] {
        let policy = parsed(&format!("keys = '{keys}'\n[anonymous]")).unwrap();
        assert_eq!(policy.keys(), Some(Path::new(expected)));
    }
}

#[test]
fn errors_name_the_line_and_what_would_be_right() {
    for (text, line, reason) in [
        ("key = 'x'\n[anonymous]", 1, "unknown name 'key'; did you mean 'keys'?"),
        ("\nkeys = 3\n[anonymous]", 2, "'keys' must be a string"),
        ("keys = ''\n[anonymous]", 1, "'keys' is empty"),
        ("[anonymous]\nroles = ['x']", 2, "unknown role 'x'; add a table [roles.x]"),
        (
            "[roles.watch]\nrights=['read']\nmodels=['*']\n[anonymous]\nroles = [\n 'wach']",
            6,
            "did you mean 'watch'?",
        ),
        ("[anonymous]\nroles = 'x'", 2, "anonymous: 'roles' must be a list of strings"),
        ("[anonymous]\nroles = [\n1]", 3, "anonymous: 'roles' must be a list of strings"),
        ("[anonymous]\nrights = ['read']", 2, "anonymous: unknown name 'rights' (known: roles)"),
        ("anonymous = 1", 1, "'anonymous' must be a table, [anonymous]"),
        ("[roles]\na = 1", 2, "'roles.a' must be a table, [roles.a]"),
        ("[roles.a]\nrights = ['infr']\nmodels = ['*']", 2, "unknown right 'infr'; did you mean 'infer'?"),
        ("[roles.a]\nrights = ['x']\nmodels = ['*']", 2, "(known: infer, read, control, files, admin)"),
        (
            "[roles.a]\nrights = ['infer']\nmodels = ['*']\nweight = 1001",
            1,
            "roles.a: 'weight' is 1001; expected 1 to 1000",
        ),
        (
            "[roles.a]\nrights = ['read']\nmodels = ['*']\nweight = 2",
            1,
            "a weight has no effect without the right 'infer'",
        ),
        ("[roles.a]\nrights = ['infer']", 1, "roles.a: a role needs 'rights'"),
        ("[roles.a]\nrights = []\nmodels = ['*']", 1, "roles.a: a role needs 'rights'"),
        ("[roles.a]\nrights = ['infer']\nmodels = ['']", 3, "'*' matches every name"),
        ("[roles.a]\nrights = ['infer']\nmodels = ['*']\nmodel = []", 4, "did you mean 'models'?"),
        (
            "[roles.a]\nrights = ['infer']\nmodels = ['*']\nrequests-per-second = 0",
            4,
            "must be a positive integer",
        ),
        (
            "[roles.a]\nrights = ['infer']\nmodels = ['*']\nconcurrent-requests = '3'",
            4,
            "must be a positive integer",
        ),
        (
            "[roles.a]\nrights = ['infer']\nmodels = ['*']\nconcurent-requests = 3",
            4,
            "did you mean 'concurrent-requests'?",
        ),
        (
            "[roles.a]\nrights = ['read']\nmodels = ['*']\nconcurrent-requests = 3",
            1,
            "no effect without the right 'infer'",
        ),
        ("[roles.'a b']\nrights = ['infer']\nmodels = ['*']", 1, "expected a name"),
        ("[principals.anonymous]", 1, "have a table of their own, [anonymous]"),
        ("[principals.'']", 1, "expected a name"),
        ("[principals.a]\ncertificates = ['x']\n[principals.b]\ncertificates = ['x']", 4, "is also of 'a'"),
        ("[principals.a]\ncertificates = ['']", 2, "is empty"),
        ("[principals.a]\nuids = [7]\n[principals.b]\nuids = [8, 7]", 3, "user 7 is also of 'a'"),
        ("[principals.a]\nuids = 7", 2, "'uids' must be a list of numbers"),
        ("[principals.a]\nuids = ['root']", 2, "'uids' must be a list of numbers"),
        ("[principals.a]\nuids = [-1]", 2, "'uids' must be a list of numbers"),
        ("[principals.a]\nuids = [4294967296]", 2, "'uids' must be a list of numbers"),
        ("[principals.a]\nkeys = []", 2, "unknown name 'keys'"),
        ("[principals.a]\nsubjects = ['x/ann']", 2, "expected the name of a table in [tokens]"),
        ("[tokens.x]\naudience = ['a']\nkeys = 'k'", 1, "tokens.x: needs 'issuer'"),
        ("[tokens.x]\nissuer = 'i'\naudience = ['a']", 1, "tokens.x: needs 'keys'"),
        ("[tokens.x]\nissuer = 'i'\nkeys = 'k'", 1, "tokens.x: needs 'audience'"),
        ("[tokens.x]\nissuer = 'i'\naudience = []\nkeys = 'k'", 1, "tokens.x: needs 'audience'"),
        (
            "[tokens.x]\nissuer = 'i'\naudience = ['a']\nkeys = 'http://x/k'",
            4,
            "expected a file or an https:// address",
        ),
        ("[tokens.x]\nissuer = 'i'\naudience = ['a']\nkeys = 'http://localhost.x/k'", 4, "https:// address"),
        (
            "[tokens.x]\nissuer = 'i'\naudience = ['a']\nkeys = 'k'\nscopes = { s = ['r'] }",
            5,
            "unknown role 'r'",
        ),
        ("[tokens.x]\nissuer = 'i'\naudience = ['a']\nkeys = 'k'\nleeway = 3", 5, "unknown name 'leeway'"),
        (
            "[tokens.x]\nissuer = 'i'\naudience = ['a']\nkeys = 'k'\n\
             [principals.a]\nsubjects = ['x/s']\n[principals.b]\nsubjects = ['x/s']",
            8,
            "is also of 'a'",
        ),
        (
            "[tokens.x]\nissuer = 'i'\naudience = ['a']\nkeys = 'k'\n[tokens.y]\nissuer = 'i'",
            6,
            "another table has this issuer",
        ),
        ("[principals.a]\n[principals.a]", 2, "duplicate key"),
        ("[principals.a", 1, "expected"),
    ] {
        let error = parsed(text).unwrap_err();
        assert!(error.starts_with(&format!("/etc/nereid/access.toml:{line}: ")), "{text}: {error}");
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn policy_without_any_client_is_refused_as_truncated() {
    for text in ["", "\n# all gone\n", "keys = 'keys'", "[roles.a]\nrights=['read']\nmodels=['*']"] {
        assert!(
            parsed(text).unwrap_err().contains("neither principals, nor issuers of tokens, nor [anonymous]"),
            "{text}"
        );
    }
    for text in ["[anonymous]", "[principals.a]"] {
        assert!(parsed(text).is_ok(), "{text}");
    }
}

proptest! {
    #[test]
    fn parts_of_a_policy_are_read_or_refused(end in 0..TEAMS.len()) {
        if let Err(error) = parsed(&TEAMS[..end]) {
            prop_assert!(error.starts_with("/etc/nereid/access.toml:"), "{}", error);
        }
    }
}
