//! The server is ready while every model that should be served is.

use super::*;
use crate::scope::ScopedName;

/// The contents of a model's folder.
#[derive(Clone, Copy, Debug)]
enum Folder {
    /// One that loads.
    Good(u64),
    /// One that its backend cannot load.
    Broken(u64),
    /// One whose configuration cannot be read.
    Unreadable,
    /// A folder without anything to load.
    NoModel,
}
use Folder::{Broken, Good, NoModel, Unreadable};

#[derive(Default)]
struct Folders(Mutex<BTreeMap<String, Folder>>);

impl BlockingSource for Folders {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().unwrap().keys().cloned().collect())
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let fingerprint = self.fingerprint_of(id)?;
        let version = match self.0.lock().unwrap()[&id.name] {
            Good(_) => 1,
            Broken(_) => 2,
            Unreadable => return Err(Error::invalid_arg("its configuration is wrong")),
            NoModel => return Err(Error::not_found("there is no configuration")),
        };
        let (_, spec) = spec(config(), &[version]);
        Ok(ModelSpec { id: id.clone(), fingerprint, ..spec? })
    }

    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint> {
        let found = self.0.lock().unwrap().get(&id.name).copied();
        let whole = match found.ok_or_else(|| Error::not_found("gone"))? {
            Good(number) => number,
            Broken(number) => 1000 + number,
            Unreadable => 2000,
            NoModel => 3000,
        };
        Ok(Fingerprint { whole, ..Fingerprint::default() })
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(&'static str, Folder),
    Remove(&'static str),
    Load(&'static str),
    Unload(&'static str),
    Poll,
}
use Step::{Load, Poll, Put, Remove, Unload};

use ModelControl::{Explicit, None as Never, Poll as Polls};

type Case =
    (ModelControl, Option<&'static [&'static str]>, &'static [(&'static str, Folder)], &'static [Step], bool);

/// How models are controlled, which are loaded at the start, what is in the repository then, what happens later, and
/// whether the server is ready in the end.
#[rustfmt::skip]
const CASES: &[Case] = &[
    // At the start, every model of the repository is required, or those that the operator names.
    (Never, None, &[], &[], true),
    (Never, None, &[("a", Good(1))], &[], true),
    (Never, None, &[("a", Good(1)), ("b", Broken(1))], &[], false),
    (Never, None, &[("a", Good(1)), ("b", Unreadable)], &[], false),
    (Never, None, &[("a", Good(1)), ("b", NoModel)], &[], true),
    (Explicit, Some(&[]), &[("b", Broken(1))], &[], true),
    (Explicit, Some(&["a"]), &[("a", Good(1)), ("b", Broken(1))], &[], true),
    (Explicit, Some(&["b"]), &[("b", Broken(1))], &[], false),
    (Explicit, Some(&["c"]), &[], &[], false),
    // The client knows the outcome of a later load that fails; models required before still count.
    (Explicit, Some(&["a"]), &[("a", Good(1)), ("b", Broken(1))], &[Load("b")], true),
    (Explicit, Some(&["a"]), &[("a", Good(1)), ("b", Unreadable)], &[Load("b")], true),
    (Explicit, Some(&["a"]), &[("a", Good(1))], &[Load("c")], true),
    (Explicit, Some(&["b"]), &[("b", Broken(1))], &[Load("b")], false),
    // What was loaded is served until it is unloaded, also where a reload fails.
    (Explicit, Some(&[]), &[("a", Good(1))], &[Load("a"), Put("a", Broken(1)), Load("a")], true),
    (Explicit, Some(&[]), &[("a", Good(1))], &[Load("a"), Put("a", Unreadable), Load("a")], true),
    (Explicit, Some(&[]), &[("a", Good(1))], &[Load("a"), Remove("a"), Load("a")], true),
    (Explicit, Some(&[]), &[("a", Good(1))], &[Load("a"), Unload("a")], true),
    (Explicit, Some(&["a"]), &[("a", Good(1))], &[Unload("a"), Put("a", Broken(1)), Load("a")], true),
    // Mended, or given up.
    (Explicit, Some(&["b"]), &[("b", Broken(1))], &[Put("b", Good(1)), Load("b")], true),
    (Explicit, Some(&["b"]), &[("b", Broken(1))], &[Unload("b")], true),
    (Explicit, Some(&["c"]), &[], &[Unload("c")], true),
    // The repository determines the required models.
    (Polls, None, &[("a", Good(1))], &[Put("b", Broken(1)), Poll, Poll], false),
    (Polls, None, &[("a", Good(1))], &[Put("b", Unreadable), Poll, Poll], false),
    (Polls, None, &[("a", Good(1))], &[Put("b", NoModel), Poll, Poll], true),
    (Polls, None, &[("a", Good(1))], &[Put("b", Broken(1)), Poll, Poll, Remove("b"), Poll, Poll], true),
    (Polls, None, &[("a", Good(1))], &[Put("b", Broken(1)), Poll, Poll, Put("b", Good(1)), Poll, Poll], true),
    (Polls, None, &[("a", Good(1))], &[Put("a", Broken(2)), Poll, Poll], true),
    (Polls, None, &[("a", Broken(1))], &[Poll, Poll], false),
    (Polls, None, &[("a", Good(1))], &[Remove("a"), Poll, Poll], true),
];

#[test]
fn the_server_is_ready_while_what_was_asked_for_is_served() {
    for case in CASES {
        let (control, at_start, folders, steps, expected) = case;
        for strict_readiness in [true, false] {
            let source = Arc::<Folders>::default();
            let put = |name: &str, folder| source.0.lock().unwrap().insert(name.to_owned(), folder);
            for (name, folder) in *folders {
                put(name, *folder);
            }
            let options = ServerOptions { model_control: *control, strict_readiness, ..options() };
            let server = Server::new(options, backends(scripted(echo)), Arc::clone(&source) as _);
            assert!(!server.is_ready());
            server
                .start(at_start.map(|names| names.iter().map(|name| (*name).to_owned()).collect()))
                .unwrap();
            for step in *steps {
                let (done, outcome) = channel();
                let done = move |result: Result<()>| done.send(result).unwrap();
                match step {
                    Put(name, folder) => {
                        put(name, *folder);
                    }
                    Remove(name) => {
                        source.0.lock().unwrap().remove(*name);
                    }
                    Poll => {
                        server.poll(Duration::MAX).unwrap();
                    }
                    Load(name) => {
                        server.load_model(ScopedName::everywhere(name), Overrides::default(), done).unwrap();
                        let _ = outcome.recv().unwrap();
                    }
                    Unload(name) => {
                        server.unload_model(ScopedName::everywhere(name), done).unwrap();
                        outcome.recv().unwrap().unwrap();
                    }
                }
            }
            assert_eq!(server.is_ready(), *expected || !strict_readiness, "{case:?}: {:?}", index(&server));
        }
    }
}
