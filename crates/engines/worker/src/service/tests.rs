//! Inner requests against a scripted server.

use nereid_backend_api::{MetricRegistry, NoPeers, PeerModel};
use nereid_worker_protocol::Channel;
use nereid_worker_protocol::tensor::Request as WireRequest;

use super::*;

/// A server whose models are still being loaded.
struct Loading;

impl Peers for Loading {
    fn resolve(&self, _: &str, _: Option<u64>) -> Pending<Result<Arc<dyn PeerModel>>> {
        Box::pin(std::future::pending())
    }

    fn load(&self, model: &str, overrides: Overrides) -> Pending<Result<()>> {
        NoPeers.load(model, overrides)
    }

    fn unload(&self, model: &str, dependents: bool) -> Pending<Result<()>> {
        NoPeers.unload(model, dependents)
    }

    fn ready(&self) -> Pending<Result<bool>> {
        NoPeers.ready()
    }

    fn model_ready(&self, model: &str, version: Option<u64>) -> Pending<Result<()>> {
        NoPeers.model_ready(model, version)
    }

    fn model(&self, model: &str, version: Option<u64>) -> Result<Arc<dyn PeerModel>> {
        NoPeers.model(model, version)
    }

    fn metrics(&self) -> Result<MetricRegistry> {
        NoPeers.metrics()
    }
}

#[test]
fn inner_request_that_waits_for_its_model_can_be_cancelled() {
    let (ours, theirs) = Channel::pair().unwrap();
    let (Channel { sender, mut receiver }, mut process) = (ours, Channel::new(theirs));
    let mut tasks = Tasks::new().unwrap();
    let mut service = Service::new(Label::new("test"), Arc::default(), Arc::new(Loading), sender, &mut tasks);
    let mut exchange = |runs: [bool; 2], number: u64| {
        let mut infer = process.sender.message(side::INFER);
        infer.u64(number);
        infer.u64(0);
        infer.text("model");
        infer.i64(-1);
        infer.bool(true);
        infer.request(&WireRequest::default());
        infer.count(0);
        infer.send().unwrap();
        for kind in [side::INFER, side::CANCEL] {
            if kind == side::CANCEL {
                let mut cancel = process.sender.message(kind);
                cancel.u64(number);
                cancel.send().unwrap();
            }
            service.handle(&receiver.receive().unwrap().unwrap(), &mut tasks).unwrap();
            if runs[usize::from(kind == side::CANCEL)] {
                tasks.run();
            }
        }
        tasks.run();
        let answer = process.receiver.receive().unwrap().unwrap();
        let mut reader = answer.reader();
        assert_eq!((reader.u64().unwrap(), reader.bool().unwrap()), (number, true));
        let Reply::Failure(failure) = reader.reply().unwrap() else { panic!("no failure") };
        assert_eq!((failure.code, failure.message), (7, "the request was cancelled before it was queued"));
    };
    // The cancellation may arrive with the request, or later.
    for (number, runs) in (1..).zip([[false, false], [false, true], [true, false], [true, true]]) {
        exchange(runs, number);
    }
    assert!(service.answers.inner.borrow().is_empty());
}
