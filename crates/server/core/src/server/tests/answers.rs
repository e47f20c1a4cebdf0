//! Answers in every order of backends and readers: each is counted once, before it is read.

use std::sync::mpsc::Receiver;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::*;
use crate::scope::ScopedName;

/// A server whose backend hands its requests to the test.
fn keeping() -> (Arc<Server>, Receiver<nereid_backend_api::Request>) {
    let (kept, requests) = channel();
    let keep = move |batch: Batch| batch.into_requests().into_iter().for_each(|it| kept.send(it).unwrap());
    (server(scripted(keep), vec![spec(config(), &[1])]), requests)
}

#[test]
fn a_plain_request_takes_its_lock_three_times() {
    let (server, requests) = keeping();
    let mut answers = infer(&server, request()).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(answers.poll_single(&mut context).is_pending());
    requests.recv().unwrap().answer(Ok(Response::default()));
    assert!(answers.poll_single(&mut context).is_ready());
    assert_eq!(answers.locks_taken(), 3);
    // Neither the end nor dropping it needs another.
    assert!(answers.poll_next(&mut context).is_ready() && answers.ended_with_answer());
    assert_eq!(answers.locks_taken(), 3);
}

#[test]
fn answers_to_clients_elsewhere_that_find_no_room_fail_their_requests_until_others_are_taken() {
    const LENGTH: usize = 32 << 10;
    let (kept, requests) = channel();
    let keep = move |batch: Batch| batch.into_requests().into_iter().for_each(|it| kept.send(it).unwrap());
    let options = ServerOptions { max_inflight_bytes: 4 * LENGTH, ..options() };
    let server = server_with(options, scripted(keep), vec![spec(config(), &[1])]);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut answered = |caller: Caller| {
        let mut answers = server.infer(&model, request(), caller).unwrap();
        let output = Tensor::new("OUT", DataType::Uint8, [1, LENGTH as i64], vec![7; LENGTH]);
        requests.recv().unwrap().answer(Ok(Response::new(vec![output])));
        match answers.poll_single(&mut context) {
            Poll::Ready(answer) => answer.map(|response| response.outputs[0].buffers[0].to_host().unwrap()),
            Poll::Pending => panic!("it is answered"),
        }
    };
    let remote = || Caller::default().with_body(nereid_budgets::BodyShare::default());
    let mut taken: Vec<_> = (0..4).map(|_| answered(remote()).unwrap()).collect();
    for _ in 0..3 {
        let error = answered(remote()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unavailable);
        assert!(error.message().contains("requests and answers in flight"), "{error}");
        // A program that holds the server inside has its own memory.
        assert!(answered(Caller::default()).is_ok());
        taken.pop();
        taken.push(answered(remote()).unwrap());
    }
    drop(taken);
    server.bodies().hold(vec![0; 4 * LENGTH]).unwrap();
    let statistics = model.statistics().snapshot();
    assert_eq!((statistics.success.count, statistics.fail.count), (4 + 3 + 3, 3));
}

/// The next step of the backend or the reader.
#[derive(Clone, Copy, Debug)]
enum Act {
    Send { fails: bool },
    Finish { answers: bool, fails: bool },
    AwaitReport,
    Report,
    Read,
    Cancel,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        any::<bool>().prop_map(|fails| Act::Send { fails }),
        any::<(bool, bool)>().prop_map(|(answers, fails)| Act::Finish { answers, fails }),
        Just(Act::AwaitReport),
        Just(Act::Report),
        Just(Act::Read),
        Just(Act::Read),
        Just(Act::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_counted_once_and_before_its_last_answer_is_read(
        acts in prop::collection::vec(act(), 1..12)
    ) {
        let (server, requests) = keeping();
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        let mut answers = infer(&server, request()).unwrap();
        let responder = requests.recv().unwrap().into_responder();
        let outcome = |fails| if fails { Err(Error::internal("on purpose")) } else { Ok(Response::default()) };
        let mut context = Context::from_waker(Waker::noop());
        // What was sent and not read, whether all was sent, whether any of it was an error.
        let (mut unread, mut finished, mut failed) = (std::collections::VecDeque::new(), false, false);
        let (mut awaits, mut reported) = (false, false);
        for act in acts {
            let answer = match act {
                Act::Send { fails } => Some((Some(fails), false)),
                Act::Finish { answers, fails } => Some((answers.then_some(fails), true)),
                _ => None,
            };
            if let Some((answer, last)) = answer.filter(|_| !finished) {
                unread.extend(answer);
                failed |= answer == Some(true);
                finished = last;
            }
            match act {
                Act::Send { fails } => responder.send(outcome(fails)),
                Act::Finish { answers: true, fails } => responder.finish_with(outcome(fails)),
                Act::Finish { answers: false, .. } => responder.finish(),
                Act::AwaitReport if !finished => {
                    responder.await_report();
                    awaits = true;
                }
                Act::Report => {
                    let now = Instant::now();
                    responder.report(nereid_backend_api::ExecutionTimes {
                        started: now,
                        inputs_ready: now,
                        outputs_ready: now,
                        ended: now,
                    });
                    reported = true;
                }
                Act::Read => {
                    let expected = match unread.pop_front() {
                        Some(fails) => Poll::Ready(Some(fails)),
                        None if finished => Poll::Ready(None),
                        None => Poll::Pending,
                    };
                    let read = answers.poll_next(&mut context).map(|answer| answer.map(|it| it.is_err()));
                    prop_assert_eq!(read, expected);
                }
                Act::Cancel => answers.canceller().cancel(),
                Act::AwaitReport => {}
            }
            let counted = model.statistics().snapshot();
            let expected = (u64::from(finished && !failed), u64::from(finished && failed));
            prop_assert_eq!((counted.success.count, counted.fail.count), expected);
            let computed = finished && !failed && (!awaits || reported);
            prop_assert_eq!(counted.compute_infer.count, u64::from(computed));
            prop_assert_eq!(answers.ended_with_answer() && !unread.is_empty(), false);
        }
    }
}

#[test]
fn an_answer_that_is_read_on_another_thread_is_counted() {
    let (server, requests) = keeping();
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    for round in 1..=200 {
        let mut answers = infer(&server, request()).unwrap();
        let held = requests.recv().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| held.answer(Ok(Response::default())));
            let mut context = Context::from_waker(Waker::noop());
            while answers.poll_single(&mut context).is_pending() {
                thread::yield_now();
            }
            assert_eq!(model.statistics().snapshot().success.count, round);
        });
    }
}
