//! Access by keys, by authenticators that answer at once or later, and by authorizers.

use std::collections::BTreeMap;

use nereid_core::Principal;

use super::*;

struct Headers(BTreeMap<&'static str, &'static str>);

impl Head for Headers {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }
}

fn head<const N: usize>(headers: [(&'static str, &'static str); N]) -> Headers {
    Headers(headers.into())
}

/// Reads the principal from a header; asynchronously, if another header requests that.
#[derive(Debug)]
struct ByHeader;

impl Authenticator for ByHeader {
    fn authenticate<'a>(&'a self, identity: Identity, head: &'a dyn Head) -> Authentication<'a> {
        let outcome = match head.header("user") {
            Some(b"") => Err(Denied::Unauthenticated("the user is empty".to_owned())),
            Some(user) => Ok(identity.with_principal(Principal::new(String::from_utf8_lossy(user)))),
            None => Ok(identity),
        };
        match head.header("later") {
            Some(_) => Authentication::Pending(Box::pin(async { outcome })),
            None => Authentication::Done(outcome),
        }
    }
}

/// Permits each principal the models whose names begin with its own.
#[derive(Debug)]
struct OwnModels;

impl Authorizer for OwnModels {
    fn check(&self, caller: &Identity, _: Action, model: Option<&str>) -> Result<(), Denied> {
        let name = caller.principal.as_ref().map_or("", Principal::name);
        match model {
            Some(model) if !model.starts_with(name) => Err(Denied::Forbidden("not yours".to_owned())),
            _ => Ok(()),
        }
    }
}

fn identified(access: &Access, head: &Headers) -> Result<Identity, Denied> {
    let outcome = nereid_backend_api::block_on(access.identify(Identity::default(), head));
    match access.identify_now(Identity::default(), head) {
        Some(Ok(now)) => assert_eq!(Ok(now.principal), outcome.clone().map(|identity| identity.principal)),
        Some(Err(denied)) => assert_eq!(outcome.as_ref().err(), Some(&denied)),
        None => assert!(head.header("later").is_some()),
    }
    outcome
}

#[test]
fn restricted_group_opens_to_its_key_alone() {
    let restrictions = ["trace,logging:k1=v1", "inference:k2=v2"].map(|text| text.parse().unwrap());
    let access = Access::from(Restrictions::new(restrictions).unwrap());
    let denied = |header: &str| Err(Denied::Restricted { header: header.to_owned() });
    for (head, infer, change_log) in [
        (head([]), denied("k2"), denied("k1")),
        (head([("k1", "v1")]), denied("k2"), Ok(())),
        (head([("k2", "v2")]), Ok(()), denied("k1")),
        (head([("k1", "v2"), ("k2", "v1")]), denied("k2"), denied("k1")),
        (head([("k1", "v1"), ("k2", "v2")]), Ok(()), Ok(())),
    ] {
        let caller = identified(&access, &head).unwrap();
        assert_eq!(access.check(&caller, Action::Infer, Some("m")), infer);
        assert_eq!(access.check(&caller, Action::ChangeLog, None), change_log);
        assert_eq!(access.check(&caller, Action::Health, None), Ok(()));
        assert_eq!(access.check(&caller, Action::Metrics, None), Ok(()));
    }
}

/// The identity of a connection with a certificate of this name.
fn named(name: &str, remote: bool) -> Identity {
    let certificate = Some(Principal::new(name));
    Identity::of_connection(Origin { certificate, remote, ..Origin::default() })
}

#[test]
fn port_without_restrictions_is_open() {
    let access = Access::from(Restrictions::default());
    assert!(access.is_open_to(&Identity::of_connection(Origin { remote: true, ..Origin::default() })));
    assert_eq!(access.check(&Identity::default(), Action::Load, Some("m")), Ok(()));
}

#[test]
fn authenticators_and_authorizers_apply_in_order() {
    let access =
        Access::default().with_authenticator(Arc::new(ByHeader)).with_authorizer(Arc::new(OwnModels));
    for later in [&[][..], &[("later", "")]] {
        let with = |user: &'static str| Headers(later.iter().copied().chain([("user", user)]).collect());
        let caller = identified(&access, &with("ann")).unwrap();
        assert_eq!(caller.principal, Some(Principal::new("ann")));
        assert_eq!(access.check(&caller, Action::Infer, Some("ann-1")), Ok(()));
        assert_eq!(
            access.check(&caller, Action::Infer, Some("bob-1")),
            Err(Denied::Forbidden("not yours".to_owned()))
        );
        assert!(matches!(identified(&access, &with("")), Err(Denied::Unauthenticated(_))));
    }
}

#[test]
fn connection_identity_reaches_authorizers() {
    let access = Access::default().with_authorizer(Arc::new(OwnModels));
    let caller = named("bob", false);
    assert_eq!(access.check(&caller, Action::Load, Some("bob")), Ok(()));
    assert!(access.check(&caller, Action::Load, Some("ann")).is_err());
}

#[test]
fn clients_of_other_machines_need_a_reason_for_what_could_give_them_this_machine() {
    let restricted = Restrictions::new(["shared-memory:s=k".parse().unwrap()]).unwrap();
    let wary = Access::default().wary();
    let keyed = Access::from(restricted).wary();
    let local = Identity::default();
    let remote = Identity::of_connection(Origin { remote: true, ..Origin::default() });
    let certified = named("ann", true);
    let opened = keyed.identify_now(remote.clone(), &head([("s", "k")])).unwrap().unwrap();
    for action in [
        Action::Health,
        Action::Infer,
        Action::Load,
        Action::LoadFiles,
        Action::Unload,
        Action::ChangeRelease,
        Action::ListRegions,
        Action::ChangeRegions,
        Action::UseRegions,
        Action::ChangeTrace,
        Action::ChangeLog,
    ] {
        let files = action == Action::LoadFiles;
        let guarded = files || matches!(action, Action::ChangeRegions | Action::UseRegions);
        for (access, caller, expected) in [
            (&Access::default(), &remote, true),
            (&wary, &local, true),
            (&wary, &certified, true),
            (&wary, &remote, !guarded),
            (&keyed, &opened, !files),
        ] {
            let outcome = access.check(caller, action, Some("m"));
            assert_eq!(outcome.is_ok(), expected, "{action:?} {caller:?}");
            assert_eq!(access.permits(caller, action, Some("m")), expected);
            assert!(matches!(outcome, Ok(()) | Err(Denied::Forbidden(_))));
        }
    }
    assert!(wary.is_open_to(&local) && !wary.is_open_to(&remote) && !keyed.is_open_to(&local));
}

/// Keeps the events as texts.
#[derive(Debug, Default)]
struct Recorded(std::sync::Mutex<Vec<String>>);

impl Audit for Recorded {
    fn record(&self, event: &AuditEvent<'_>) {
        let AuditEvent { caller, action, subject, request, outcome, .. } = event;
        let who = caller.unwrap().principal.as_ref().map_or("nobody", Principal::name);
        let outcome = match outcome {
            AuditOutcome::Done => "done".to_owned(),
            AuditOutcome::Failed(status) => format!("failed {status}"),
            AuditOutcome::Abandoned => "abandoned".to_owned(),
            AuditOutcome::Refused(_) => "refused".to_owned(),
        };
        let (subject, request) = (subject.unwrap_or("-"), request.unwrap_or("-"));
        self.0.lock().unwrap().push(format!("{who} {} {subject} {request} {outcome}", action.name()));
    }
}

#[test]
fn refusals_are_recorded_and_lists_are_not() {
    let recorded = Arc::<Recorded>::default();
    let access =
        Access::default().with_authorizer(Arc::new(OwnModels)).with_audit(Arc::clone(&recorded) as _).wary();
    let (bob, stranger) =
        (named("bob", false), Identity::of_connection(Origin { remote: true, ..Origin::default() }));
    assert!(access.check(&bob, Action::Infer, Some("bob-1")).is_ok());
    assert!(access.check(&bob, Action::Infer, Some("ann-1")).is_err());
    assert!(!access.permits(&bob, Action::Index, Some("ann-1")));
    assert!(access.check(&stranger, Action::ChangeRegions, None).is_err());
    let events = recorded.0.lock().unwrap();
    assert_eq!(*events, ["bob infer ann-1 - refused", "nobody change-regions - - refused"]);
}

#[test]
fn each_change_is_recorded_once_with_its_outcome() {
    let recorded = Arc::<Recorded>::default();
    let access = Access::default().with_audit(Arc::clone(&recorded) as _);
    let ann = named("ann", false);
    let begin = |action| access.audited(&ann, action, || "X".to_owned());
    assert!(begin(Action::Infer).is_none() && begin(Action::Index).is_none());
    let load = begin(Action::Load).unwrap();
    load.note(Action::Load, Some("m"));
    load.note(Action::LoadFiles, None);
    load.answered(None);
    drop(load);
    let failed = begin(Action::Unload).unwrap();
    failed.answered(Some("404"));
    drop(failed);
    drop(begin(Action::ChangeTrace));
    let refused = begin(Action::ChangeLog).unwrap();
    refused.refused();
    refused.answered(Some("403"));
    drop(refused);
    // A call that may change settings, and only reads them.
    let read = begin(Action::ReadLog).unwrap();
    read.answered(None);
    let changed = begin(Action::ReadTrace).unwrap();
    changed.note(Action::ChangeTrace, Some("m"));
    changed.answered(None);
    drop((read, changed));
    assert!(Access::default().audited(&ann, Action::Load, String::new).is_none());
    assert_eq!(
        *recorded.0.lock().unwrap(),
        [
            "ann load-files m X done",
            "ann unload - X failed 404",
            "ann change-trace - X abandoned",
            "ann change-trace m X done",
        ]
    );
}
