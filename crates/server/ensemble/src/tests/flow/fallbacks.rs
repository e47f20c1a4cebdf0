//! Steps that are replaced if they fail.

use super::*;

fn replaced(steps: &[&str]) -> [(String, ModelSpec); 6] {
    [
        flow_member("odd", "odd", 0),
        flow_member("fail_odd", "fail_odd", 1),
        member("fail", "X", "fail", 0),
        member("ten", "X", "add", 10),
        member("hold", "X", "hold", 0),
        ensemble("e", "IN", "OUT", steps),
    ]
}

/// Successful requests, failed requests, and fallbacks.
fn ends(server: &Server, name: &str) -> (u64, u64, u64) {
    let statistics = counted(server, name);
    (statistics.success.count, statistics.fail.count, statistics.fallback_count)
}

#[tokio::test]
async fn fallback_runs_only_if_the_step_fails() {
    let (server, _) = serving(replaced(&["fail_odd: X=IN -> Y=OUT", "ten: X=IN $on_error=OUT -> Y=OUT"]));
    assert_eq!(out(&server, of_rows(&[2])).await.unwrap(), [3]);
    assert_eq!((counts(&server, ["ten"]), ends(&server, "e")), ([(0, 0)], (1, 0, 0)));
    assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [11]);
    // All rows of the request are replaced.
    assert_eq!(out(&server, of_rows(&[1, 2])).await.unwrap(), [11, 12]);
    assert_eq!((counts(&server, ["ten"]), ends(&server, "e")), ([(2, 3)], (3, 0, 2)));
    assert_eq!(ends(&server, "fail_odd"), (1, 2, 0));
}

#[tokio::test]
async fn fallbacks_are_tried_in_order_and_then_the_value() {
    let steps =
        ["fail: X=IN -> Y=OUT", "fail_odd: X=IN $on_error=OUT -> Y=OUT", "fail: X=IN $on_error=OUT -> Y=OUT"];
    let models = replaced(&steps);
    let (server, _) = serving(models.clone());
    assert_eq!(out(&server, of_rows(&[2])).await.unwrap(), [3]);
    assert_eq!(ends(&server, "e"), (1, 0, 1));
    let error = out(&server, of_rows(&[1])).await.unwrap_err();
    assert_eq!(error.message(), "in ensemble 'e', failed on purpose");
    assert_eq!(ends(&server, "e"), (1, 1, 3));
    for (value, expected) in [("5", [5, 5]), ("IN", [1, 3])] {
        let [odd, fail_odd, fail, ten, hold, e] = models.clone();
        let (server, _) = serving([odd, fail_odd, fail, ten, hold, with(e, "$on_error:OUT", value)]);
        assert_eq!(out(&server, of_rows(&[1, 3])).await.unwrap(), expected);
        assert_eq!(ends(&server, "e"), (1, 0, 3));
    }
}

#[tokio::test]
async fn fallback_waits_for_its_own_tensors() {
    let (server, members) = serving(replaced(&[
        "fail: X=IN -> Y=OUT",
        "hold: X=IN -> Y=slow",
        "ten: X=slow $on_error=OUT -> Y=OUT",
    ]));
    let mut answers = infer(&server, "e", of_rows(&[1])).unwrap();
    let held = members.held(1).remove(0);
    while ends(&server, "e") != (0, 0, 1) {
        thread::yield_now();
    }
    members.release(held);
    assert_eq!(outputs(&answers.single().await.unwrap()), [("OUT", 11)]);
}

#[tokio::test]
async fn fallback_of_a_branch_runs_with_the_rows_of_the_branch() {
    let (server, _) = serving(replaced(&[
        "odd: X=IN -> C=c",
        "fail: X=IN $if=c -> Y=OUT",
        "ten: X=IN $if=c $on_error=OUT -> Y=OUT",
        "fail_odd: X=IN $unless=c -> Y=OUT",
    ]));
    assert_eq!(out(&server, of_rows(&[1, 2, 3, 4])).await.unwrap(), [11, 3, 13, 5]);
    assert_eq!(counts(&server, ["ten", "fail_odd"]), [(1, 2), (1, 2)]);
}

#[tokio::test]
async fn failed_map_is_replaced_as_a_whole() {
    let [_, fail_odd, fail, ten, hold, _] = replaced(&["ten: X=IN -> Y=OUT"]);
    let steps = [
        "range: X=IN -> L=list",
        "fail_odd: $each:X=list -> Y=made",
        "ten: $each:X=list $on_error=made -> Y=made",
        "total: L=made -> Y=OUT",
    ];
    let members = [flow_member("range", "range", 3), flow_member("total", "total", 0)];
    let [range, total] = members;
    let (server, _) = serving([range, total, fail_odd, fail, ten, hold, ensemble("e", "IN", "OUT", &steps)]);
    assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [36]);
    assert_eq!((counts(&server, ["ten"]), ends(&server, "e")), ([(3, 3)], (1, 0, 1)));
}

#[tokio::test]
async fn unanswered_and_refused_requests_are_failures_too() {
    let steps = ["hold: X=IN -> Y=OUT", "ten: X=IN $on_error=OUT -> Y=OUT"];
    let (server, members) = serving(replaced(&steps));
    let mut answers = infer(&server, "e", of_rows(&[1])).unwrap();
    drop(members.held(1));
    assert_eq!(outputs(&answers.single().await.unwrap()), [("OUT", 11)]);
    assert_eq!(ends(&server, "e"), (1, 0, 1));
    // The model takes two numbers in each row, its fallback any.
    let sized = |(name, mut spec): (String, ModelSpec), size: i64| {
        let dims = spec.config.input.iter_mut().map(|input| &mut input.dims);
        let dims = dims.chain(spec.config.output.iter_mut().map(|output| &mut output.dims));
        dims.for_each(|dims| *dims = vec![size]);
        (name, spec)
    };
    let [odd, fail_odd, fail, ten, hold, e] = replaced(&["two: X=IN -> Y=OUT", steps[1]]);
    let two = sized(member("two", "X", "add", 2), 2);
    let (server, _) = serving([odd, fail_odd, fail, sized(ten, -1), hold, two, sized(e, -1)]);
    assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [11]);
    assert_eq!((ends(&server, "e"), ends(&server, "two")), ((1, 0, 1), (0, 0, 0)));
    let two_numbers =
        InferRequest { inputs: vec![tensor("IN", &[1, 2], &[1, 2])], ..InferRequest::default() };
    assert_eq!(out(&server, two_numbers).await.unwrap(), [3, 4]);
}

#[tokio::test]
async fn cancellation_is_not_a_failure() {
    for steps in [
        &["hold: X=IN -> Y=OUT", "ten: X=IN $on_error=OUT -> Y=OUT"][..],
        &["fail: X=IN -> Y=OUT", "hold: X=IN $on_error=OUT -> Y=OUT", "ten: X=IN $on_error=OUT -> Y=OUT"],
    ] {
        let before = steps.len() as u64 - 2;
        let (server, members) = serving(replaced(steps));
        let answers = infer(&server, "e", of_rows(&[1])).unwrap();
        let held = members.held(1).remove(0);
        drop(answers);
        until_cancelled(&held);
        held.answer(Err(Error::internal("failed after it was cancelled")));
        assert_eq!(ends(&server, "e"), (0, 1, before));
        assert_eq!((counted(&server, "e").cancel.count, counts(&server, ["ten"])), (1, [(0, 0)]));
    }
    let [odd, fail_odd, fail, ten, hold, e] =
        replaced(&["cancel: X=IN -> Y=OUT", "ten: X=IN $on_error=OUT -> Y=OUT"]);
    let (server, _) = serving([odd, fail_odd, fail, ten, hold, flow_member("cancel", "cancel", 0), e]);
    let error = out(&server, of_rows(&[1])).await.unwrap_err();
    assert_eq!((error.code(), ends(&server, "e").2), (ErrorCode::Cancelled, 0));
}

/// Answers requests that the model `hold` has, which have to be cancelled, until this number has failed. One that was cancelled in
/// the queue is never held.
fn all_are_cancelled(server: &Server, members: &Members, failed: u64) {
    while ends(server, "hold").1 < failed {
        for held in members.held(0) {
            until_cancelled(&held);
            held.answer(Err(Error::internal("too late")));
        }
        thread::yield_now();
    }
}

#[tokio::test]
async fn a_step_that_takes_too_long_is_cancelled_and_replaced() {
    let steps = ["hold: X=IN $timeout=2ms -> Y=OUT", "ten: X=IN $on_error=OUT -> Y=OUT"];
    let (server, members) = serving(replaced(&steps));
    for number in 1..=3 {
        assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [11]);
        all_are_cancelled(&server, &members, number);
        assert_eq!((ends(&server, "e"), counts(&server, ["ten"])), ((number, 0, number), [(number, number)]));
    }
    // Without a replacement, the request fails; with a value, that is used.
    let steps = ["hold: X=IN $timeout=2ms -> Y=OUT"];
    let (server, members) = serving(replaced(&steps));
    let error = out(&server, of_rows(&[1])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    let expected = "in ensemble 'e', step 0 (model 'hold') took longer than its time limit of 2ms";
    assert_eq!(error.message(), expected);
    all_are_cancelled(&server, &members, 1);
    let [odd, fail_odd, fail, ten, hold, e] = replaced(&steps);
    let (server, members) = serving([odd, fail_odd, fail, ten, hold, with(e, "$on_error:OUT", "IN")]);
    assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [1]);
    all_are_cancelled(&server, &members, 1);
}

#[tokio::test]
async fn a_step_in_time_is_not_disturbed_and_each_fallback_has_its_own_time() {
    let steps = [
        "hold: X=IN $timeout=1ms -> Y=OUT",
        "hold: X=IN $on_error=OUT $timeout=1ms -> Y=OUT",
        "ten: X=IN $on_error=OUT $timeout=10m -> Y=OUT",
    ];
    let (server, members) = serving(replaced(&steps));
    assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [11]);
    all_are_cancelled(&server, &members, 2);
    let steps = ["ten: X=IN $timeout=10m -> Y=t", "hold: X=t $timeout=10m -> Y=OUT"];
    let (server, members) = serving(replaced(&steps));
    let mut answers = infer(&server, "e", of_rows(&[1])).unwrap();
    let held = members.held(1).remove(0);
    members.release(held);
    assert_eq!(outputs(&answers.single().await.unwrap()), [("OUT", 11)]);
    assert_eq!(ends(&server, "e"), (1, 0, 0));
    // A client that leaves ends the step, whose time would not have been over.
    let answers = infer(&server, "e", of_rows(&[1])).unwrap();
    let held = members.held(1).remove(0);
    drop(answers);
    until_cancelled(&held);
}

#[tokio::test]
async fn the_time_of_a_map_is_that_of_all_its_elements() {
    let [_, fail_odd, fail, ten, hold, _] = replaced(&["ten: X=IN -> Y=OUT"]);
    let steps = [
        "range: X=IN -> L=list",
        "hold: $each:X=list $timeout=2ms -> Y=made",
        "ten: $each:X=list $on_error=made -> Y=made",
        "total: L=made -> Y=OUT",
    ];
    let members = [flow_member("range", "range", 3), flow_member("total", "total", 0)];
    let [range, total] = members;
    let (server, members) =
        serving([range, total, fail_odd, fail, ten, hold, ensemble("e", "IN", "OUT", &steps)]);
    assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [36]);
    all_are_cancelled(&server, &members, 3);
    assert_eq!(ends(&server, "e"), (1, 0, 1));
}
