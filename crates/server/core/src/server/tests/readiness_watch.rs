//! Clients that watch readiness: which backends are polled for them, and when.

use std::sync::atomic::Ordering::SeqCst;

use nereid_backend_api::ReadinessAnnouncer;

use super::*;
use crate::scope::ScopedName;
use crate::source::Overrides;

/// A model whose readiness the test sets.
#[derive(Clone, Default)]
struct Patient {
    is_ill: Arc<AtomicBool>,
    announcers: Arc<Mutex<Vec<ReadinessAnnouncer>>>,
}

impl Patient {
    /// A server of this model, which announces changes or has to be polled.
    fn serve(&self, announces: bool, strict_readiness: bool) -> Arc<Server> {
        let is_ill = Arc::clone(&self.is_ill);
        let model = ScriptedModel::new(echo).ready(move || match is_ill.load(SeqCst) {
            true => Err(Error::unavailable("ill")),
            false => Ok(()),
        });
        let announcers = Arc::clone(&self.announcers);
        let model = match announces {
            true => model.announcing(move |announcer| announcers.lock().unwrap().push(announcer)),
            false => model,
        };
        let model_control = ModelControl::Explicit;
        let options = ServerOptions { strict_readiness, model_control, ..options() };
        server_with(options, with_model(model), vec![spec(config(), &[1])])
    }

    fn set(&self, is_ready: bool) {
        self.is_ill.store(!is_ready, SeqCst);
        self.announcers.lock().unwrap().iter().for_each(ReadinessAnnouncer::changed);
    }
}

#[tokio::test]
async fn every_watch_hears_each_change_whether_it_is_announced_or_found_by_polling() {
    for announces in [true, false] {
        let patient = Patient::default();
        let server = patient.serve(announces, true);
        let mut watches = [server.watch_readiness(), server.watch_readiness()];
        for is_ready in [true, false, true, false] {
            patient.set(is_ready);
            for watch in &mut watches {
                assert_eq!(watch.next().await, is_ready, "announced: {announces}");
            }
        }
    }
}

#[test]
fn only_backends_that_announce_nothing_are_polled_and_only_while_a_strict_server_is_watched() {
    for (announces, strict, watches, polled) in [
        (false, true, 1, 1),
        (false, true, 3, 1),
        (false, true, 0, 0),
        (true, true, 1, 0),
        (false, false, 1, 0),
        (true, false, 1, 0),
    ] {
        let server = Patient::default().serve(announces, strict);
        let poll = server.models.readiness_poll();
        let watching: Vec<_> = (0..watches).map(|_| server.watch_readiness()).collect();
        drop(server.watch_readiness());
        assert_eq!(poll.poll(), polled, "{announces} {strict} {watches}");
        drop(watching);
        assert_eq!(poll.poll(), 0);
    }
}

#[tokio::test]
async fn a_model_that_is_loaded_while_a_client_watches_is_polled_too() {
    let patient = Patient::default();
    let server = patient.serve(false, true);
    let (done, outcome) = channel();
    let sent = done.clone();
    server.unload_model(ScopedName::everywhere("m"), move |outcome| sent.send(outcome).unwrap()).unwrap();
    outcome.recv().unwrap().unwrap();
    let mut watch = server.watch_readiness();
    assert!(watch.next().await);
    server
        .load_model(ScopedName::everywhere("m"), Overrides::default(), move |outcome| {
            done.send(outcome).unwrap()
        })
        .unwrap();
    let loaded = async {
        while server.models().ready().next().is_none() {
            tokio::task::yield_now().await;
        }
        patient.set(false);
    };
    let (is_ready, ()) = tokio::join!(watch.next(), loaded);
    assert!(!is_ready);
    outcome.recv().unwrap().unwrap();
}
