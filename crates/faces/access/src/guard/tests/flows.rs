//! The flows of requests: each sender has one of its own, with the weight of its role.

use nereid_core::backend_api::Flow;

use super::*;

#[test]
fn each_sender_is_a_flow_with_the_weight_of_the_role_that_permits_the_request() {
    let place = Place::new();
    let weighted = POLICY.replace("models = ['a-*']", "models = ['a-*']\nweight = 3").replace(
        "roles = ['all']",
        "roles = ['heavy', 'all']\n[roles.heavy]\nrights = ['infer']\nmodels = ['b*']\nweight = 1000",
    );
    fs::write(place.policy(), weighted.replace("['read']", "['read', 'infer']")).unwrap();
    let guard = place.guard();
    let access = access(&guard);
    let alice = identified(&guard, None, &head([("x-api-key", &place.alice.text)]));
    let certified = identified(&guard, Some("spiffe://x/alice"), &head([]));
    let root = identified(&guard, None, &head([("x-api-key", &place.root.text)]));
    let anonymous = Identity::default();
    let flow = |caller, model: &str| access.admit(caller, &ModelId::plain(model), 1).unwrap().unwrap().flow;
    let mut ids = Vec::new();
    for (caller, models) in [
        (&alice, [("a-1", 3), ("a-2", 3)]),
        (&root, [("b-1", 1000), ("c", 1)]),
        (&anonymous, [("public-1", 1), ("public-2", 1)]),
    ] {
        for (model, weight) in models {
            assert_eq!(flow(caller, model).weight.get(), weight, "{model}");
        }
        let [first, second] = models.map(|(model, _)| flow(caller, model).id);
        assert_eq!(first, second);
        ids.push(first);
    }
    assert_eq!(flow(&certified, "a-1"), flow(&alice, "a-1"));
    ids.push(Flow::default().id);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{ids:?}");
}
