//! Steps that run once for each element of a tensor.

use nereid_model_config::proto::model_config::SchedulingChoice;

use super::*;

fn mapped(mapped: (String, ModelSpec), plus: i64) -> [(String, ModelSpec); 4] {
    let step = format!("{}: $each:X=list -> Y=made", mapped.0);
    [
        flow_member("range", "range", plus),
        flow_member("total", "total", 0),
        mapped,
        ensemble("e", "IN", "OUT", &["total: L=made -> Y=OUT", &step, "range: X=IN -> L=list"]),
    ]
}

#[tokio::test]
async fn step_runs_once_for_each_element() {
    let (server, _) = serving(mapped(member("ten", "X", "add", 10), -1));
    let mut all = 0;
    for count in [0, 1, 2, 63, 64, 65, 10_000] {
        // The elements are `count`, `count` + 1, ...
        let sum = (0..count).map(|number| count + number + 10).sum::<i64>();
        assert_eq!(out(&server, of_rows(&[count])).await.unwrap(), [sum]);
        all += count as u64;
        assert_eq!(counts(&server, ["ten"]), [(all, all)]);
    }
    let error = out(&server, of_rows(&[16_385])).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (
            ErrorCode::InvalidArg,
            "in ensemble 'e', step 1: input 'X' has 16385 elements, but at most 16384 are allowed (parameter \
             '$each_max_elements')"
        )
    );
    assert_eq!(counts(&server, ["ten"]), [(all, all)]);
    assert_eq!(out(&server, of_rows(&[1])).await.unwrap(), [11]);
}

#[tokio::test]
async fn each_row_has_elements_of_its_own() {
    let (server, _) = serving(mapped(member("ten", "X", "add", 10), 3));
    assert_eq!(out(&server, of_rows(&[0, 100, 200])).await.unwrap(), [33, 333, 633]);
    assert_eq!(counts(&server, ["ten"]), [(9, 9)]);
}

#[tokio::test]
async fn elements_are_gathered_in_order_with_their_rows_and_whole_inputs() {
    let mut models = mapped(member("two", "X W", "add", 0), 2);
    models[3] =
        ensemble("e", "IN MORE", "OUT", &["range: X=IN -> L=list", "two: $each:X=list W=MORE -> Y=OUT"]);
    models[3].1.config.output[0].dims = vec![-1, 1];
    let (server, _) = serving(models);
    let mut request = of_rows(&[10, 20]);
    request.inputs.push(column("MORE", &[1000, 2000]));
    let response = ask(&server, "e", request).await.unwrap();
    assert_eq!(response.outputs[0].shape, [2, 2, 1].into());
    assert_eq!(numbers(&response.outputs[0]), [1010, 1011, 2020, 2021]);
}

#[tokio::test]
async fn no_element_gives_an_empty_tensor_of_the_right_type_and_shape() {
    let mut models = mapped(flow_member("odd", "odd", 0), -1);
    models[3] = ensemble("e", "IN", "OUT", &["range: X=IN -> L=list", "odd: $each:X=list -> C=OUT"]);
    models[3].1.config.output[0].dims = vec![-1, 1];
    models[3].1.config.output[0].data_type = nereid_model_config::proto::DataType::TypeBool as i32;
    let (server, _) = serving(models);
    for (count, values) in [(0, vec![]), (3, vec![1, 0, 1])] {
        let response = ask(&server, "e", of_rows(&[count])).await.unwrap();
        let output = &response.outputs[0];
        assert_eq!((output.data_type, &output.shape), (DataType::Bool, &[1, count, 1].into()));
        assert_eq!(*output.contiguous().unwrap(), values);
    }
}

#[tokio::test]
async fn elements_in_progress_are_limited() {
    for (limited, key, value) in [(3, "$each_max_in_flight", "3"), (5, "mine", "")] {
        let [range, total, hold, e] = mapped(member("hold", "X", "hold", 0), 20);
        let mut e = with(e, key, value);
        if key == "mine"
            && let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &mut e.1.config.scheduling_choice
        {
            ensemble.max_inflight_requests = 5;
        }
        let (server, members) = serving([range, total, hold, e]);
        let mut answers = infer(&server, "e", of_rows(&[0])).unwrap();
        let mut taken = 0;
        while taken < 20 {
            let mut held = members.held(1);
            let pending = server.model(ScopedName::everywhere("hold"), None).unwrap().pending();
            assert!(held.len() + pending <= limited, "{} and {pending}", held.len());
            taken += held.len();
            held.reverse();
            held.into_iter().for_each(|request| members.release(request));
        }
        assert_eq!(outputs(&answers.single().await.unwrap()), [("OUT", 190)]);
    }
}

#[tokio::test]
async fn failed_element_fails_the_step_and_cancels_the_other_elements() {
    let (server, members) = serving(mapped(member("hold", "X", "hold", 0), 4));
    let mut answers = infer(&server, "e", of_rows(&[0])).unwrap();
    let mut held = Vec::new();
    while held.len() < 4 {
        held.extend(members.held(1));
    }
    held.remove(2).answer(Err(Error::internal("failed on purpose")));
    assert_eq!(answers.single().await.unwrap_err().message(), "in ensemble 'e', failed on purpose");
    assert!(held.iter().all(|request| request.responder().is_cancelled()));
}

#[tokio::test]
async fn cancelled_request_cancels_its_elements() {
    let (server, members) = serving(mapped(member("hold", "X", "hold", 0), 100));
    let answers = infer(&server, "e", of_rows(&[0])).unwrap();
    let held = members.held(1);
    drop(answers);
    held.iter().for_each(until_cancelled);
    assert_eq!((counted(&server, "e").cancel.count, counted(&server, "e").fallback_count), (1, 0));
    held.into_iter().for_each(|request| members.release(request));
    // No further element begins.
    let seen = counted(&server, "hold").fail.count + counted(&server, "hold").success.count;
    assert!(seen <= 64, "{seen}");
}

#[tokio::test]
async fn outputs_of_different_shapes_are_refused_by_element() {
    let mut models = mapped(flow_member("lists", "range", -1), -1);
    models[3] = ensemble("e", "IN", "OUT", &["range: X=IN -> L=list", "lists: $each:X=list -> L=OUT"]);
    models[3].1.config.output[0].dims = vec![-1, -1, 1];
    let (server, _) = serving(models);
    let error = ask(&server, "e", of_rows(&[2])).await.unwrap_err();
    assert_eq!(
        error.message(),
        "in ensemble 'e', output 'L' has the shapes [1,2,1] and [1,3,1] for elements 0 and 1, which cannot be gathered in \
         one tensor; let the model pad it"
    );
}

#[tokio::test]
async fn conditions_apply_to_mapped_steps_by_row() {
    let mut models = mapped(member("ten", "X", "add", 10), 2);
    let steps = [
        "range: X=IN -> L=list",
        "odd: X=IN -> C=c",
        "ten: $if=c $each:X=list -> Y=made",
        "total: L=made $if=c -> Y=OUT",
        "total: L=list $unless=c -> Y=OUT",
    ];
    models[3] = ensemble("e", "IN", "OUT", &steps);
    let [range, total, ten, e] = models;
    let (server, _) = serving([range, total, ten, flow_member("odd", "odd", 0), e]);
    assert_eq!(out(&server, of_rows(&[1, 2, 3])).await.unwrap(), [23, 5, 27]);
    assert_eq!(counts(&server, ["ten", "total"]), [(4, 4), (2, 3)]);
}

#[tokio::test]
async fn elements_without_contents_are_limited_too() {
    let [_, total, mut ten, _] = mapped(member("ten", "X", "add", 10), 0);
    let mut e = ensemble("e", "IN", "OUT", &["ten: $each:X=IN -> Y=made", "total: L=made -> Y=OUT"]);
    e.1.config.max_batch_size = 0;
    e.1.config.input[0].dims = vec![-1, -1];
    ten.1.config.input[0].dims = vec![-1];
    let (server, _) = serving([total, ten, e]);
    let huge = InferRequest { inputs: vec![tensor("IN", &[1 << 40, 0], &[])], ..InferRequest::default() };
    let error = ask(&server, "e", huge).await.unwrap_err();
    assert!(error.message().contains("has 1099511627776 elements, but at most 16384"), "{error}");
}

#[tokio::test]
async fn cancelled_elements_that_wait_for_a_permit_leave_it_to_others() {
    let [range, total, hold, mut e] = mapped(member("hold", "X", "hold", 0), 3);
    if let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &mut e.1.config.scheduling_choice {
        ensemble.max_inflight_requests = 1;
    }
    let (server, members) = serving([range, total, hold, e]);
    let first = infer(&server, "e", of_rows(&[0])).unwrap();
    let held = members.held(1).remove(0);
    let mut second = infer(&server, "e", of_rows(&[10])).unwrap();
    drop(first);
    until_cancelled(&held);
    members.release(held);
    for expected in [10, 11, 12] {
        let held = members.held(1).remove(0);
        assert_eq!(numbers(&held.inputs[0]), [expected]);
        members.release(held);
    }
    assert_eq!(outputs(&second.single().await.unwrap()), [("OUT", 33)]);
}
