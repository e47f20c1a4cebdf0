//! Explains a policy to its author.

use std::fmt::Write as _;

use nereid_protocol::Right;

use crate::key_file::{KeyEntry, KeyFile};
use crate::policy::{ANONYMOUS, Policy, Principal, Role};
use crate::tokens::Issuer;

/// Why a principal has a right on a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason<'p> {
    /// The right.
    pub right: Right,
    /// The roles that grant it; empty if none does.
    pub roles: Vec<GrantingRole<'p>>,
}

/// A role that grants a right on a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantingRole<'p> {
    /// The role's name.
    pub name: &'p str,
    /// The pattern that matches the model's name.
    pub models: &'p str,
    /// The patterns of the namespaces in which it grants the right; empty for all namespaces.
    pub namespaces: Vec<&'p str>,
}

/// The rights of a principal on a model, with the reason for each. Without a namespace, rights in any namespace count.
pub fn explain<'p>(
    policy: &'p Policy,
    principal: &'p Principal,
    model: &str,
    namespace: Option<&str>,
) -> Vec<Reason<'p>> {
    let reason = |(right, _)| {
        let roles =
            principal.roles.iter().filter_map(|name| Some((name.as_str(), policy.roles().get(name)?)));
        let granting = roles.filter(|(_, role)| role.rights.contains(&right));
        let roles = granting.filter_map(|(name, role)| {
            let matching = role.models.iter().find(|pattern| pattern.matches(model))?;
            let is_in = |namespace| role.namespaces.iter().any(|pattern| pattern.matches(namespace));
            let namespaces = role.namespaces().collect();
            namespace.is_none_or(is_in).then(|| GrantingRole { name, models: matching.text(), namespaces })
        });
        Reason { right, roles: roles.collect() }
    };
    Right::ALL.into_iter().map(reason).collect()
}

/// Every principal with its roles and its number of keys, and what the author may have meant otherwise.
pub fn overview(policy: &Policy, keys: &KeyFile) -> String {
    let mut text = String::new();
    let roles = |principal: &Principal| {
        let named = principal.roles.iter().filter_map(|name| Some((name, policy.roles().get(name)?)));
        let line = |(name, role): (&String, &Role)| {
            let rights: Vec<_> = role.rights.iter().map(|right| right.name()).collect();
            let models: Vec<_> = role.models().collect();
            let limits = [
                (role.requests_per_second(), "requests a second"),
                (role.concurrent_requests(), "in progress"),
                (role.bytes_per_second(), "bytes a second"),
                (role.compute_seconds_per_minute(), "seconds of computing a minute"),
                (role.tokens_per_minute(), "generated tokens a minute"),
            ];
            let limits =
                limits.into_iter().filter_map(|(limit, what)| Some(format!(", at most {} {what}", limit?)));
            let limits: String = limits.collect();
            let weight = match role.weight() {
                1 => String::new(),
                weight => format!(", weight {weight}"),
            };
            let namespaces: Vec<_> = role.namespaces().collect();
            let namespaces = match namespaces.as_slice() {
                [] => String::new(),
                namespaces => format!(" in {}", namespaces.join(", ")),
            };
            let (rights, models) = (rights.join(", "), models.join(", "));
            format!("  {name}: {rights} on {models}{namespaces}{limits}{weight}\n")
        };
        if principal.roles.is_empty() { "  no rights\n".to_owned() } else { named.map(line).collect() }
    };
    for (name, principal) in policy.principals() {
        let is_valid = |key: &&KeyEntry| key.principal.name() == name && !key.is_expired();
        let (valid, certificates) =
            (keys.entries().into_iter().filter(is_valid).count(), principal.certificates.len());
        let subjects = match principal.subjects.as_slice() {
            [] => String::new(),
            subjects => format!(", subjects: {}", subjects.join(" ")),
        };
        let users = match principal.users.as_slice() {
            [] => String::new(),
            users => {
                let users: Vec<_> = users.iter().map(u32::to_string).collect();
                format!(", users: {}", users.join(" "))
            }
        };
        let client = format!("{name} (keys: {valid}, certificates: {certificates}{users}{subjects})");
        let _ = write!(text, "{client}\n{}", roles(principal));
    }
    for issuer in policy.issuers() {
        let _ = writeln!(text, "tokens.{} of {}", issuer.name, issuer.issuer);
        for (scope, roles) in &issuer.scopes {
            let _ = writeln!(text, "  {scope}: {}", roles.join(", "));
        }
    }
    let _ = write!(text, "{ANONYMOUS}\n{}", roles(policy.anonymous()));
    for role in policy.roles().keys().filter(|role| {
        let has = |principal: &Principal| principal.roles.contains(role);
        let is_scope = |issuer: &Issuer| issuer.scopes.values().flatten().any(|granted| granted == *role);
        !policy.principals().values().chain([policy.anonymous()]).any(has)
            && !policy.issuers().iter().any(is_scope)
    }) {
        let _ = writeln!(text, "warning: nobody has the role '{role}'");
    }
    for key in keys.entries() {
        if !policy.principals().contains_key(key.principal.name()) {
            let (id, principal) = (key.id_text(), &key.principal);
            let _ = writeln!(text, "warning: key {id} is of '{principal}', whom the policy does not have");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nereid_core::ModelId;

    use super::*;
    use crate::key::Expiry;

    const POLICY: &str = "
        [roles.watch]
        rights = ['read']
        models = ['*']
        [roles.a]
        rights = ['infer', 'read']
        models = ['b', 'a-*']
        namespaces = ['/a', '/b/*']
        concurrent-requests = 4
        bytes-per-second = 5
        compute-seconds-per-minute = 6
        tokens-per-minute = 7
        weight = 8
        [roles.unused]
        rights = ['admin']
        models = ['*']
        [principals.alice]
        roles = ['watch', 'a']
        certificates = ['x']
        [principals.bob]
        uids = [0, 1000]
        [roles.scoped]
        rights = ['read']
        models = ['c']
        [tokens.x]
        issuer = 'https://login.x/'
        audience = ['nereid']
        keys = 'https://login.x/keys'
        scopes = { 'models.read' = ['scoped', 'watch'] }
    ";

    #[test]
    fn each_right_is_explained_by_the_roles_that_grant_it() {
        let policy = Policy::parse(Path::new("p"), POLICY).unwrap();
        let watch = || GrantingRole { name: "watch", models: "*", namespaces: vec![] };
        let a = || GrantingRole { name: "a", models: "a-*", namespaces: vec!["/a", "/b/*"] };
        for (principal, model, namespace, expected) in [
            ("alice", "a-1", None, [vec![a()], vec![watch(), a()]]),
            ("alice", "a-1", Some("/b/x"), [vec![a()], vec![watch(), a()]]),
            ("alice", "a-1", Some("/c"), [vec![], vec![watch()]]),
            ("alice", "c", None, [vec![], vec![watch()]]),
            ("bob", "a-1", None, [vec![], vec![]]),
        ] {
            let client = policy.find(principal).unwrap();
            let reasons = explain(&policy, client, model, namespace);
            let roles: Vec<_> = reasons.iter().take(2).map(|reason| reason.roles.clone()).collect();
            assert_eq!(roles, expected, "{principal} {model} {namespace:?}");
            for Reason { right, roles } in &reasons {
                // The explanation agrees with the decision.
                let need = nereid_protocol::Need::Any(*right);
                let id =
                    |namespace: &str| ModelId { name: model.to_owned(), namespace: namespace.to_owned() };
                let may = match namespace {
                    None => client.may(need, Some(model)),
                    Some(namespace) => client.scope(principal, need).contains(&id(namespace)),
                };
                assert_eq!(!roles.is_empty(), may);
            }
        }
    }

    #[test]
    fn overview_lists_clients_and_warns_of_what_has_no_effect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        for (principal, expiry) in [("alice", "never"), ("alice", "2001-01-01"), ("eve", "never")] {
            KeyFile::add(&path, principal, expiry.parse::<Expiry>().unwrap(), "").unwrap();
        }
        let policy = Policy::parse(Path::new("p"), POLICY).unwrap();
        let text = overview(&policy, &KeyFile::read(&path).unwrap());
        for line in [
            "alice (keys: 1, certificates: 1)\n  watch: read on *\n  a: infer, read on b, a-* in /a, /b/*, at most 4 in progress, at most 5 bytes a second, at most 6 seconds of computing a minute, at most 7 generated tokens a minute, weight 8\n",
            "bob (keys: 0, certificates: 0, users: 0 1000)\n  no rights\n",
            "\nanonymous\n  no rights\n",
            "\ntokens.x of https://login.x/\n  models.read: scoped, watch\n",
            "warning: nobody has the role 'unused'\n",
            " is of 'eve', whom the policy does not have\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(text.matches("nobody has").count(), 1);
    }
}
