//! Models that are gone are forgotten, for any number of names.

use super::*;
use crate::scope::ScopedName;

/// A repository that lists the model `kept` alone. Models of all other names come with their load requests; those whose name
/// ends with 7 are broken.
struct Sent;

impl BlockingSource for Sent {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec!["kept".into()])
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let version = if id.name.ends_with('7') { 2 } else { 1 };
        let (_, spec) = spec(config(), &[version]);
        Ok(ModelSpec { id: id.clone(), ..spec? })
    }

    fn fingerprint_of(&self, _: &ModelId) -> Result<Fingerprint> {
        Ok(Fingerprint::default())
    }
}

fn serving() -> Arc<Server> {
    let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
    let server = Server::new(options, backends(scripted(echo)), Arc::new(Sent));
    server.start(Some(vec!["kept".into()])).unwrap();
    server
}

fn change(server: &Server, name: &str, is_load: bool) -> Result<()> {
    let (done, outcome) = channel();
    let done = move |result| done.send(result).unwrap();
    match is_load {
        true => server.load_model(ScopedName::everywhere(name), Overrides::default(), done)?,
        false => server.unload_model(ScopedName::everywhere(name), done)?,
    }
    outcome.recv().unwrap()
}

#[test]
fn the_index_lists_what_is_there_and_what_is_served() {
    let server = serving();
    for name in ["served", "broken7", "unloaded"] {
        assert_eq!(change(&server, name, true).is_ok(), name != "broken7");
    }
    change(&server, "unloaded", false).unwrap();
    change(&server, "kept", false).unwrap();
    loop {
        let index = index(&server);
        if index.iter().all(|line| !line.contains("UNLOADING")) {
            assert_eq!(index, ["kept/1 UNAVAILABLE: unloaded", "served/1 READY"]);
            break;
        }
        thread::yield_now();
    }
    // What is forgotten can come back.
    change(&server, "unloaded", true).unwrap();
    assert!(
        server.model(ScopedName::everywhere("unloaded"), None).is_ok()
            && server.model(ScopedName::everywhere("served"), None).is_ok()
    );
}

#[test]
fn names_are_forgotten_also_where_nobody_asks_for_the_index() {
    let server = serving();
    change(&server, "served", true).unwrap();
    for number in 0..1500 {
        let name = format!("m{number}");
        assert_eq!(change(&server, &name, true).is_ok(), !name.ends_with('7'));
        change(&server, &name, false).unwrap();
    }
    // The last listing may still be in progress.
    while server.models().index().count() > 700 {
        thread::yield_now();
    }
    assert!(server.model(ScopedName::everywhere("served"), None).is_ok() && server.is_ready());
}
