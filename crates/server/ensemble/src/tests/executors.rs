//! Rules for all executors, tested with instances and with graphs.

use nereid_core::ScopedName;
use std::task::{Context, Poll, Waker};

use super::*;

/// Runs a test with a model of each kind, whose requests are held until they are released.
fn with_each_kind(test: impl Fn(&Server, &Members, &str)) {
    for (name, input) in [("hold", "X"), ("e", "IN")] {
        let steps = ["hold: X=IN -> Y=OUT"];
        let (server, members) = serving([member("hold", "X", "hold", 0), ensemble("e", "IN", "OUT", &steps)]);
        assert_eq!(server.model(ScopedName::everywhere(name), None).unwrap().is_composite(), input == "IN");
        test(&server, &members, name);
        server.unload_all();
    }
}

fn submit(server: &Server, name: &str) -> ResponseStream {
    let input = if name == "e" { "IN" } else { "X" };
    infer(server, name, request(&[(input, 5)])).unwrap()
}

fn poll(answers: &mut ResponseStream) -> Poll<Result<i64>> {
    let polled = answers.poll_single(&mut Context::from_waker(Waker::noop()));
    polled.map(|answer| answer.map(|response| numbers(&response.outputs[0])[0]))
}

#[test]
fn a_request_is_executed_answered_and_counted() {
    with_each_kind(|server, members, name| {
        let model = server.model(ScopedName::everywhere(name), None).unwrap();
        let mut answers = submit(server, name);
        let held = members.held(1).remove(0);
        assert!(poll(&mut answers).is_pending());
        assert_eq!(model.pending(), 0);
        members.release(held);
        assert_eq!(poll(&mut answers), Poll::Ready(Ok(5)));
        let counted = model.statistics().snapshot();
        assert_eq!((counted.success.count, counted.inference_count, counted.fail.count), (1, 1, 0));
    });
}

#[test]
fn cancelled_request_is_cancelled_where_it_executes() {
    with_each_kind(|server, members, name| {
        let answers = submit(server, name);
        let held = members.held(1).remove(0);
        drop(answers);
        assert!(held.responder().is_cancelled());
        held.answer(Err(Error::cancelled("taken back")));
        assert_eq!(
            server.model(ScopedName::everywhere(name), None).unwrap().statistics().snapshot().cancel.count,
            1
        );
    });
}

#[test]
fn error_of_a_backend_fails_one_request_only() {
    with_each_kind(|server, members, name| {
        let (mut failing, mut other) = (submit(server, name), submit(server, name));
        let [first, second] = <[_; 2]>::try_from(members.held(2)).ok().unwrap();
        first.answer(Err(Error::unavailable("on purpose")));
        members.release(second);
        let outcomes = [poll(&mut failing), poll(&mut other)];
        let failed = |outcome: &&Poll<Result<i64>>| matches!(outcome, Poll::Ready(Err(error)) if error.code() == ErrorCode::Unavailable);
        assert_eq!(outcomes.iter().filter(failed).count(), 1, "{outcomes:?}");
        assert!(outcomes.contains(&Poll::Ready(Ok(5))), "{outcomes:?}");
    });
}

#[tokio::test]
async fn executor_is_ready_if_its_backends_are() {
    let steps = ["unready: X=IN -> Y=OUT"];
    let (server, _) = serving([member("unready", "X", "unready", 0), ensemble("e", "IN", "OUT", &steps)]);
    for name in ["unready", "e"] {
        let checks = server.model(ScopedName::everywhere(name), None).unwrap().executor().check_ready();
        assert_eq!(checks.len(), 1);
        for check in checks {
            assert_eq!(check.await.unwrap_err().message(), "not ready on purpose");
        }
    }
    server.unload_all();
}

#[test]
fn closed_executor_refuses_new_requests_and_finishes_others() {
    with_each_kind(|server, members, name| {
        let model = server.model(ScopedName::everywhere(name), None).unwrap();
        let mut begun = submit(server, name);
        let held = members.held(1).remove(0);
        thread::scope(|scope| {
            let closing = scope.spawn(|| model.executor().close());
            loop {
                match poll(&mut submit(server, name)) {
                    Poll::Ready(outcome) => {
                        assert_eq!(outcome.unwrap_err().code(), ErrorCode::Unavailable);
                        break;
                    }
                    // The request was taken before the end.
                    Poll::Pending => {}
                }
            }
            members.release(held);
            while !closing.is_finished() {
                let early = std::mem::take(&mut *members.held.lock().unwrap());
                early.into_iter().for_each(|request| members.release(request));
                thread::yield_now();
            }
        });
        assert_eq!(poll(&mut begun), Poll::Ready(Ok(5)));
    });
}
