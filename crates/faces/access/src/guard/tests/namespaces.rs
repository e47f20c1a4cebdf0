//! Rights on models of some namespaces only.

use super::*;

const TEAMS: &str = "
    keys = 'keys'
    [roles.a]
    rights = ['infer', 'read']
    models = ['a-*', 'shared']
    namespaces = ['/models/a', '/more/*']
    concurrent-requests = 1
    [roles.b]
    rights = ['infer']
    models = ['*']
    namespaces = ['/models/b']
    concurrent-requests = 2
    [roles.all]
    rights = ['read']
    models = ['*']
    namespaces = ['*']
    [principals.alice]
    roles = ['a', 'b']
    [principals.root]
    roles = ['all']
";

fn id(name: &str, namespace: &str) -> ModelId {
    ModelId { name: name.to_owned(), namespace: namespace.to_owned() }
}

#[test]
fn rights_are_on_models_of_the_namespaces_of_the_role() {
    let place = Place::new();
    fs::write(place.policy(), TEAMS).unwrap();
    let guard = place.guard();
    let access = access(&guard);
    let alice = identified(&guard, None, &head([("x-api-key", &place.alice.text)]));
    let root = identified(&guard, None, &head([("x-api-key", &place.root.text)]));
    for (name, namespace, infer, read) in [
        ("a-1", "/models/a", true, true),
        ("a-1", "/more/x", true, true),
        ("a-1", "/models/b", true, false),
        ("a-1", "/models/c", false, false),
        ("a-1", "", false, false),
        ("shared", "/models/a", true, true),
        ("c", "/models/a", false, false),
        ("c", "/models/b", true, false),
    ] {
        let found = [Action::Infer, Action::Metadata].map(|action| access.scope(&alice, action));
        let found = found.map(|scope| scope.contains(&id(name, namespace)));
        assert_eq!(found, [infer, read], "{name} in '{namespace}'");
        let seen = access.scope(&alice, Action::Health).contains(&id(name, namespace));
        assert_eq!(seen, infer || read);
        assert_eq!(access.shows(&alice, Action::Index, &id(name, namespace)), read);
        assert!(access.shows(&root, Action::Index, &id(name, namespace)));
        assert!(access.scope(&Identity::default(), Action::Infer).is_all(), "no right has to be limited");
    }
    // A name that the client may use in no namespace is refused before any model is looked for.
    assert!(access.permits(&alice, Action::Metadata, Some("a-1")));
    assert!(!access.permits(&alice, Action::Metadata, Some("c")));
    assert!(access.permits(&alice, Action::Infer, Some("c")));
    // Rights on all models need all namespaces.
    assert!(!access.permits(&alice, Action::MachineMetrics, None));
    assert!(
        access.permits(&root, Action::MachineMetrics, None) && access.scope(&root, Action::Index).is_all()
    );
    // Scopes of the same clients and rights have one name, by which loads for their requests are shared.
    let names =
        [Action::Metadata, Action::Statistics, Action::Infer].map(|action| access.scope(&alice, action));
    assert_eq!(names[0].name(), names[1].name());
    assert_ne!(names[0].name(), names[2].name());
}

#[test]
fn limits_are_those_of_the_role_of_the_namespace() {
    let place = Place::new();
    fs::write(place.policy(), TEAMS).unwrap();
    let guard = place.guard();
    let access = access(&guard);
    let alice = identified(&guard, None, &head([("x-api-key", &place.alice.text)]));
    for (namespace, places) in [("/models/a", 1), ("/models/b", 2), ("/more/x", 1)] {
        let held: Vec<_> =
            (0..places).map(|_| access.admit(&alice, &id("shared", namespace), 1).unwrap()).collect();
        assert!(access.admit(&alice, &id("shared", namespace), 1).is_err(), "{namespace}");
        drop(held);
        assert!(access.admit(&alice, &id("shared", namespace), 1).is_ok(), "{namespace}");
    }
}

#[test]
fn namespaces_that_follow_a_change_of_the_policy() {
    let place = Place::new();
    let guard = place.guard();
    let access = access(&guard);
    let alice = identified(&guard, None, &head([("x-api-key", &place.alice.text)]));
    assert!(access.scope(&alice, Action::Infer).is_all());
    for text in [TEAMS, TEAMS] {
        fs::write(place.policy(), text).unwrap();
        guard.check_files();
        guard.check_files();
    }
    assert!(!access.scope(&alice, Action::Infer).contains(&id("a-1", "/models/c")));
    fs::write(place.policy(), TEAMS.replace("[principals.alice]", "[principals.alicia]")).unwrap();
    guard.check_files();
    guard.check_files();
    assert!(!access.scope(&alice, Action::Infer).contains(&id("a-1", "/models/a")), "the principal is gone");
}

#[test]
fn mistakes_in_namespaces_are_found() {
    for (namespaces, expected) in [
        ("[]", "'namespaces' is empty"),
        ("['']", "the pattern of a namespace is empty"),
        ("'/models'", "'namespaces' must be a list of strings"),
        ("[1]", "'namespaces' must be a list of strings"),
    ] {
        let text = TEAMS.replace("['/models/b']", namespaces);
        let error = Policy::parse(Path::new("p"), &text).unwrap_err().to_string();
        assert!(error.contains(expected) && error.starts_with("p:"), "{error}");
    }
}
