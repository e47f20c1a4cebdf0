//! Ensembles with decoupled members, and limits of the requests in progress per step.

use nereid_core::ScopedName;
use nereid_model_config::proto::model_config::SchedulingChoice;

use super::*;

/// All answers: the first number of the first output of each.
async fn stream(server: &Server, model: &str, request: InferRequest) -> Result<Vec<i64>> {
    let mut answers = infer(server, model, request)?;
    let mut all = Vec::new();
    while let Some(answer) = answers.next().await {
        all.push(numbers(&answer?.outputs[0])[0]);
    }
    Ok(all)
}

fn limited((name, mut spec): (String, ModelSpec), most: u32) -> (String, ModelSpec) {
    if let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &mut spec.config.scheduling_choice {
        ensemble.max_inflight_requests = most;
    }
    (name, spec)
}

#[tokio::test]
async fn each_response_of_a_decoupled_step_drives_the_rest_once() {
    let (server, _) = serving([
        member("repeat", "X", "repeat", 0),
        member("two", "X W", "add", 0),
        member("ten", "X", "add", 10),
        // Tensors of one response are joined with each other only.
        ensemble("e", "IN", "OUT", &["repeat: X=IN -> Y=a", "ten: X=a -> Y=b", "two: X=a W=b -> Y=OUT"]),
        ensemble("nested", "IN", "OUT", &["e: IN=IN -> OUT=a", "repeat: X=a -> Y=OUT"]),
    ]);
    let model = server.model(ScopedName::everywhere("e"), None).unwrap();
    assert!(
        model.is_decoupled() && server.model(ScopedName::everywhere("nested"), None).unwrap().is_decoupled()
    );
    // In the order of the responses, since each member keeps the order of its requests.
    for (times, answers) in [(0, vec![]), (1, vec![10]), (100, (0..100).map(|it| 10 + 2 * it).collect())] {
        assert_eq!(stream(&server, "e", request(&[("IN", times)])).await.unwrap(), answers);
    }
    let statistics = model.statistics().snapshot();
    assert_eq!((statistics.success.count, statistics.execution_count, statistics.responses.len()), (3, 3, 0));
    let mut answers = stream(&server, "nested", request(&[("IN", 2)])).await.unwrap();
    answers.sort_unstable();
    let mut expected: Vec<_> = (0..10).chain(0..12).collect();
    expected.sort_unstable();
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn answer_is_sent_while_others_are_pending() {
    let (server, members) = serving([
        member("count", "X", "count", 0),
        member("hold", "X", "hold", 0),
        ensemble("e", "IN", "OUT", &["count: X=IN -> Y=a", "hold: X=a -> Y=OUT"]),
    ]);
    let mut answers = infer(&server, "e", request(&[("IN", 2)])).unwrap();
    let mut held = members.held(2);
    members.release(held.remove(1));
    assert_eq!(outputs(&answers.next().await.unwrap().unwrap()), [("OUT", 1)]);
    members.release(held.remove(0));
    assert_eq!(outputs(&answers.next().await.unwrap().unwrap()), [("OUT", 0)]);
    assert!(answers.ended_with_answer());
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn step_keeps_its_limit_of_requests_in_progress_over_all_requests() {
    let (server, members) = serving([
        member("repeat", "X", "repeat", 0),
        member("hold", "X", "hold", 0),
        limited(ensemble("e", "IN", "OUT", &["repeat: X=IN -> Y=a", "hold: X=a -> Y=OUT"]), 2),
    ]);
    let mut first = infer(&server, "e", request(&[("IN", 5)])).unwrap();
    let mut second = infer(&server, "e", request(&[("IN", 1)])).unwrap();
    let mut taken = 0;
    while taken < 6 {
        let held = members.held(1);
        let pending = server.model(ScopedName::everywhere("hold"), None).unwrap().pending();
        assert!(held.len() + pending <= 2, "{} and {pending}", held.len());
        taken += held.len();
        held.into_iter().for_each(|request| members.release(request));
    }
    let mut count = 0;
    while let Some(answer) = first.next().await {
        answer.unwrap();
        count += 1;
    }
    assert_eq!(count, 5);
    assert_eq!(outputs(&second.next().await.unwrap().unwrap()), [("OUT", 0)]);
}

#[tokio::test]
async fn successive_decoupled_steps_finish_with_a_limit_of_one() {
    let (server, _) = serving([
        member("repeat", "X", "repeat", 0),
        member("ten", "X", "add", 10),
        limited(
            ensemble(
                "e",
                "IN",
                "OUT",
                &["repeat: X=IN -> Y=a", "ten: X=a -> Y=b", "repeat: X=b -> Y=c", "ten: X=c -> Y=OUT"],
            ),
            1,
        ),
    ]);
    let asked = (0..8).map(|_| {
        let server = Arc::clone(&server);
        tokio::spawn(async move { stream(&server, "e", request(&[("IN", 4)])).await.unwrap() })
    });
    for answers in asked.collect::<Vec<_>>() {
        assert_eq!(answers.await.unwrap().len(), 10 + 11 + 12 + 13);
    }
}

#[tokio::test]
async fn cancelled_request_that_waits_for_a_permit_leaves_it_to_others() {
    let (server, members) = serving([
        member("hold", "X", "hold", 0),
        limited(ensemble("e", "IN", "OUT", &["hold: X=IN -> Y=OUT"]), 1),
    ]);
    let mut first = infer(&server, "e", request(&[("IN", 1)])).unwrap();
    let held = members.held(1).remove(0);
    let second = infer(&server, "e", request(&[("IN", 2)])).unwrap();
    let mut third = infer(&server, "e", request(&[("IN", 3)])).unwrap();
    drop(second);
    assert_eq!(
        server.model(ScopedName::everywhere("e"), None).unwrap().statistics().snapshot().cancel.count,
        1
    );
    members.release(held);
    assert_eq!(outputs(&first.single().await.unwrap()), [("OUT", 1)]);
    members.release(members.held(1).remove(0));
    assert_eq!(outputs(&third.single().await.unwrap()), [("OUT", 3)]);
    assert_eq!(
        server.model(ScopedName::everywhere("hold"), None).unwrap().statistics().snapshot().success.count,
        2
    );
}

#[tokio::test]
async fn a_member_that_fails_in_the_middle_ends_the_stream() {
    let (server, _) = serving([
        member("repeat", "X", "repeat", 0),
        member("fail", "X", "fail", 0),
        ensemble("e", "IN", "OUT", &["repeat: X=IN -> Y=a", "fail: X=a -> Y=OUT"]),
    ]);
    let error = stream(&server, "e", request(&[("IN", 3)])).await.unwrap_err();
    assert_eq!(error.message(), "in ensemble 'e', failed on purpose");
    let statistics = server.model(ScopedName::everywhere("e"), None).unwrap().statistics().snapshot();
    assert_eq!((statistics.fail.count, statistics.success.count), (1, 0));
}
