//! Ensembles with conditions, maps and fallbacks.

mod fallbacks;
mod maps;

use nereid_core::{InferStatistics, ModelControl, ScopedName};
use nereid_model_config::proto::ModelParameter;

use super::*;

/// Further behaviours of members, see [`Members`]:
/// - `odd`: output `C` is whether `X` is odd, in each row;
/// - `range`: output `L` is `X`, `X` + 1, ... in each row, `plus` numbers; if that is negative, `X` of the first row;
/// - `total`: output `Y` is the sum of `L`, in each row;
/// - `fail_odd`: like `add`, but requests with an odd number in `X` fail;
/// - `cancel`: the error of a cancelled request.
pub(super) const ACTS: [&str; 5] = ["odd", "range", "total", "fail_odd", "cancel"];

pub(super) fn answered(request: &Request, plus: i64, act: &str) -> Result<Response> {
    let input = &request.inputs[0];
    let given = numbers(input);
    let rows = input.shape[0];
    Ok(Response::new(vec![match act {
        "odd" => {
            let odd: Vec<u8> = given.iter().map(|number| u8::from(number % 2 != 0)).collect();
            Tensor::new("C", DataType::Bool, input.shape.clone(), odd)
        }
        "range" => {
            let count = if plus < 0 { given[0] } else { plus };
            let all: Vec<_> = given
                .iter()
                .flat_map(|first| (0..count).map(move |number| first.wrapping_add(number)))
                .collect();
            tensor("L", &[rows, count, 1], &all)
        }
        "total" => {
            let of_row = |row: usize| {
                let count = given.len() / rows as usize;
                given[row * count..(row + 1) * count]
                    .iter()
                    .fold(0_i64, |sum, number| sum.wrapping_add(*number))
            };
            let totals: Vec<_> = (0..rows as usize).map(of_row).collect();
            tensor("Y", &[rows, 1], &totals)
        }
        "fail_odd" if given.iter().any(|number| number % 2 != 0) => {
            return Err(Error::unavailable(format!("{given:?} is odd")));
        }
        "cancel" => return Err(Error::cancelled("cancelled on purpose")),
        _ => return Ok(added(request, plus, act)),
    }]))
}

/// A member with one of [`ACTS`].
pub(super) fn flow_member(name: &str, act: &str, plus: i64) -> (String, ModelSpec) {
    let io = match act {
        "odd" => {
            "input { name: 'X' data_type: TYPE_INT64 dims: 1 } output { name: 'C' data_type: TYPE_BOOL dims: 1 }"
        }
        "range" => {
            "input { name: 'X' data_type: TYPE_INT64 dims: 1 } output { name: 'L' data_type: TYPE_INT64 dims: [ -1, 1 ] }"
        }
        "total" => {
            "input { name: 'L' data_type: TYPE_INT64 dims: [ -1, 1 ] } output { name: 'Y' data_type: TYPE_INT64 dims: 1 }"
        }
        _ => {
            "input { name: 'X' data_type: TYPE_INT64 dims: 1 } output { name: 'Y' data_type: TYPE_INT64 dims: 1 }"
        }
    };
    let text = format!(
        "backend: 'members' max_batch_size: 8 {io}
         parameters {{ key: 'act' value {{ string_value: '{act}' }} }}
         parameters {{ key: 'plus' value {{ string_value: '{plus}' }} }}"
    );
    (name.to_owned(), spec(name, &text))
}

pub(super) fn with((name, mut spec): (String, ModelSpec), key: &str, value: &str) -> (String, ModelSpec) {
    spec.config.parameters.insert(key.to_owned(), ModelParameter { string_value: value.to_owned() });
    (name, spec)
}

pub(super) fn column(name: &str, numbers: &[i64]) -> Tensor {
    tensor(name, &[numbers.len() as i64, 1], numbers)
}

pub(super) fn of_rows(numbers: &[i64]) -> InferRequest {
    InferRequest { inputs: vec![column("IN", numbers)], ..InferRequest::default() }
}

/// The numbers of the output `OUT`.
async fn out(server: &Server, request: InferRequest) -> Result<Vec<i64>> {
    let response = ask(server, "e", request).await?;
    let [output] = &response.outputs[..] else { panic!("one output") };
    assert_eq!(output.name, "OUT");
    Ok(numbers(output))
}

fn counted(server: &Server, name: &str) -> InferStatistics {
    server.model(ScopedName::everywhere(name), None).unwrap().statistics().snapshot()
}

/// The number of successful requests of models, and of their rows.
fn counts<const N: usize>(server: &Server, names: [&str; N]) -> [(u64, u64); N] {
    names.map(|name| {
        let statistics = counted(server, name);
        (statistics.success.count, statistics.inference_count)
    })
}

/// Waits until a held request is cancelled. The thread that polls the ensemble's request may do so a little later than the
/// client.
fn until_cancelled(held: &Request) {
    while !held.responder().is_cancelled() {
        thread::yield_now();
    }
}

fn branches() -> [(String, ModelSpec); 4] {
    [
        flow_member("odd", "odd", 0),
        member("ten", "X", "add", 10),
        member("hundred", "X", "add", 100),
        ensemble(
            "e",
            "IN",
            "OUT",
            &["hundred: X=IN $unless=c -> Y=OUT", "ten: X=IN $if=c -> Y=OUT", "odd: X=IN -> C=c"],
        ),
    ]
}

#[tokio::test]
async fn rows_take_the_branch_of_their_condition() {
    let (server, _) = serving(branches());
    assert_eq!(out(&server, of_rows(&[1, 2, 3, 4])).await.unwrap(), [11, 102, 13, 104]);
    assert_eq!(counts(&server, ["ten", "hundred", "e"]), [(1, 2), (1, 2), (1, 4)]);
    // The other branch is neither executed nor counted.
    assert_eq!(out(&server, of_rows(&[3, 5])).await.unwrap(), [13, 15]);
    assert_eq!(out(&server, of_rows(&[2])).await.unwrap(), [102]);
    assert_eq!(counts(&server, ["ten", "hundred", "odd"]), [(2, 4), (2, 3), (3, 7)]);
    let statistics = counted(&server, "e");
    assert_eq!((statistics.execution_count, statistics.fallback_count, statistics.fail.count), (3, 0, 0));
}

#[tokio::test]
async fn tensors_are_passed_on_without_a_copy() {
    let (server, members) = serving([
        flow_member("odd", "odd", 0),
        member("hold", "X", "hold", 0),
        member("hundred", "X", "add", 100),
        ensemble(
            "e",
            "IN",
            "OUT",
            &["hundred: X=IN $unless=c -> Y=OUT", "hold: X=IN $if=c -> Y=OUT", "odd: X=IN -> C=c"],
        ),
    ]);
    for (rows, offset) in [(&[1, 3][..], 0), (&[2, 3], 8)] {
        let request = of_rows(rows);
        let sent = request.inputs[0].buffers[0].as_host().unwrap().as_ptr();
        let mut answers = infer(&server, "e", request).unwrap();
        let held = members.held(1).remove(0);
        let buffers = &held.inputs[0].buffers;
        assert_eq!((buffers.len(), buffers[0].as_host().unwrap().as_ptr()), (1, sent.wrapping_add(offset)));
        members.release(held);
        answers.single().await.unwrap();
    }
}

#[tokio::test]
async fn values_stand_in_for_skipped_steps() {
    for (value, expected) in
        [("7", [11, 7, 13]), ("[-1]", [11, -1, 13]), ("IN", [11, 2, 13]), ("late", [11, 1002, 13])]
    {
        let mut models = branches();
        let steps = ["ten: X=IN $if=c -> Y=OUT", "odd: X=IN -> C=c", "thousand: X=IN -> Y=late"];
        let steps = if value == "late" { &steps[..] } else { &steps[..2] };
        models[3] = with(ensemble("e", "IN", "OUT", steps), "$if_skipped:OUT", value);
        let [odd, ten, hundred, e] = models;
        let (server, _) = serving([odd, ten, hundred, member("thousand", "X", "add", 1000), e]);
        assert_eq!(out(&server, of_rows(&[1, 2, 3])).await.unwrap(), expected);
        assert_eq!(counts(&server, ["ten"]), [(1, 2)]);
        assert_eq!(out(&server, of_rows(&[2])).await.unwrap(), expected[1..2]);
        assert_eq!(counts(&server, ["ten"]), [(1, 2)]);
    }
}

#[tokio::test]
async fn conditions_within_conditions_apply_to_the_rows_of_both() {
    let (server, _) = serving([
        flow_member("odd", "odd", 0),
        member("one", "X", "add", 1),
        member("ten", "X", "add", 10),
        member("hundred", "X", "add", 100),
        member("halves", "X", "add", 5),
        ensemble(
            "e",
            "IN MORE",
            "OUT",
            &[
                "odd: X=IN -> C=c",
                // Odd rows only: whether the other number is odd, too.
                "odd: X=MORE $if=c -> C=d",
                "halves: X=IN $if=d -> Y=t",
                "one: X=t $if=d -> Y=OUT",
                "ten: X=IN $unless=d -> Y=OUT",
                "hundred: X=IN $unless=c -> Y=OUT",
            ],
        ),
    ]);
    let request = |rows: &[i64], more: &[i64]| InferRequest {
        inputs: vec![column("IN", rows), column("MORE", more)],
        ..InferRequest::default()
    };
    assert_eq!(out(&server, request(&[1, 3, 2, 4], &[1, 2, 1, 2])).await.unwrap(), [7, 13, 102, 104]);
    assert_eq!(counts(&server, ["odd", "one", "ten", "hundred"]), [(2, 6), (1, 1), (1, 1), (1, 2)]);
    // Nothing within the outer condition runs.
    assert_eq!(out(&server, request(&[2], &[1])).await.unwrap(), [102]);
    assert_eq!(counts(&server, ["odd", "one", "ten", "hundred"]), [(3, 7), (1, 1), (1, 1), (2, 3)]);
}

#[tokio::test]
async fn request_is_answered_once_its_outputs_are_complete() {
    let (server, members) = serving([
        flow_member("odd", "odd", 0),
        member("hold", "X", "hold", 0),
        member("gate", "X", "hold", 0),
        member("ten", "X", "add", 10),
        ensemble(
            "e",
            "IN",
            "OUT",
            &[
                "hold: X=IN -> Y=slow",
                "gate: X=IN -> Y=late",
                "odd: X=late -> C=c",
                "ten: X=IN $if=c -> Y=OUT",
                "ten: X=slow $unless=c -> Y=OUT",
            ],
        ),
    ]);
    for number in [1, 2] {
        let mut answers = infer(&server, "e", of_rows(&[number])).unwrap();
        let (slow, gate): (Vec<_>, Vec<_>) =
            members.held(2).into_iter().partition(|held| held.model_name() == "hold");
        gate.into_iter().for_each(|held| members.release(held));
        if number == 2 {
            slow.into_iter().for_each(|held| members.release(held));
            assert_eq!(outputs(&answers.single().await.unwrap()), [("OUT", 12)]);
        } else {
            // Only a skipped step would read the answer of the other one.
            assert_eq!(outputs(&answers.single().await.unwrap()), [("OUT", 11)]);
            assert!(slow[0].responder().is_cancelled());
        }
    }
}

#[tokio::test]
async fn only_steps_for_requested_outputs_run() {
    let [odd, ten, hundred, _] = branches();
    let steps = [
        "odd: X=IN -> C=c",
        "ten: X=IN $if=c -> Y=A",
        "hundred: X=IN $unless=c -> Y=A",
        "hundred: X=IN -> Y=B",
    ];
    let (server, _) = serving([odd, ten, hundred, ensemble("e", "IN", "A B", &steps)]);
    let wanting = |name: &str| InferRequest { outputs: vec![RequestedOutput::new(name)], ..of_rows(&[1]) };
    assert_eq!(outputs(&ask(&server, "e", wanting("B")).await.unwrap()), [("B", 101)]);
    assert_eq!(counts(&server, ["odd", "ten", "hundred"]), [(0, 0), (0, 0), (1, 1)]);
    assert_eq!(outputs(&ask(&server, "e", wanting("A")).await.unwrap()), [("A", 11)]);
    assert_eq!(outputs(&ask(&server, "e", of_rows(&[1])).await.unwrap()), [("A", 11), ("B", 101)]);
    assert_eq!(counts(&server, ["odd", "ten", "hundred"]), [(2, 2), (2, 2), (2, 2)]);
}

#[tokio::test]
async fn rows_that_differ_need_a_model_with_batches() {
    let mut plain = member("plain", "X", "add", 10);
    plain.1.config.max_batch_size = 0;
    let dims = plain.1.config.input.iter_mut().map(|input| &mut input.dims);
    dims.chain(plain.1.config.output.iter_mut().map(|output| &mut output.dims))
        .for_each(|dims| *dims = vec![-1, 1]);
    let steps = ["plain: X=IN $if=c -> Y=OUT", "hundred: X=IN $unless=c -> Y=OUT", "odd: X=IN -> C=c"];
    let [odd, _, hundred, _] = branches();
    let (server, _) = serving([odd, plain, hundred, ensemble("e", "IN", "OUT", &steps)]);
    assert_eq!(out(&server, of_rows(&[1, 3])).await.unwrap(), [11, 13]);
    let error = out(&server, of_rows(&[1, 2])).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (
            ErrorCode::InvalidArg,
            "in ensemble 'e', a condition of step 0 differs between the rows of the request, but model 'plain' has no \
             batch dimension (max_batch_size); send the rows one by one"
        )
    );
    assert_eq!(out(&server, of_rows(&[2, 4])).await.unwrap(), [102, 104]);
}

#[tokio::test]
async fn requests_without_a_batch_dimension_take_one_branch() {
    let [odd, ten, hundred, (name, mut e)] = branches();
    e.config.max_batch_size = 0;
    let (server, _) = serving([odd, ten, hundred, (name, e)]);
    for (number, expected) in [(1, 11), (2, 102)] {
        let request = InferRequest { inputs: vec![tensor("IN", &[1], &[number])], ..InferRequest::default() };
        let response = ask(&server, "e", request).await.unwrap();
        assert_eq!((outputs(&response), &response.outputs[0].shape), (vec![("OUT", expected)], &[1].into()));
    }
}

#[tokio::test]
async fn ensembles_with_conditions_are_members_of_others() {
    let [odd, ten, hundred, inner] = branches();
    let outer = ensemble(
        "outer",
        "IN",
        "OUT",
        &[
            "odd: X=IN -> C=c",
            "e: IN=IN $if=c -> OUT=OUT",
            "e: IN=between $unless=c -> OUT=OUT",
            "ten: X=IN -> Y=between",
        ],
    );
    let (server, _) = serving([odd, ten, hundred, inner, outer]);
    let response = ask(&server, "outer", of_rows(&[1, 2, 3])).await.unwrap();
    assert_eq!(numbers(&response.outputs[0]), [11, 112, 13]);
    assert_eq!(counts(&server, ["e"]), [(2, 3)]);
}

#[tokio::test]
async fn failed_step_without_a_fallback_fails_the_request_and_cancels_the_others() {
    let (server, members) = serving([
        flow_member("odd", "odd", 0),
        member("hold", "X", "hold", 0),
        member("gate", "X", "hold", 0),
        flow_member("fail_odd", "fail_odd", 0),
        member("two", "X W", "add", 0),
        ensemble(
            "e",
            "IN",
            "OUT",
            &[
                "hold: X=IN -> Y=a",
                "gate: X=IN -> Y=late",
                "odd: X=late -> C=c",
                "fail_odd: X=IN $if=c -> Y=b",
                "hold: X=IN $unless=c -> Y=b",
                "two: X=a W=b -> Y=OUT",
            ],
        ),
    ]);
    let mut answers = infer(&server, "e", of_rows(&[1])).unwrap();
    let (gate, held): (Vec<_>, Vec<_>) =
        members.held(2).into_iter().partition(|held| held.model_name() == "gate");
    gate.into_iter().for_each(|held| members.release(held));
    let error = answers.single().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::Unavailable, "in ensemble 'e', [1] is odd"));
    assert!(held[0].responder().is_cancelled());
    let statistics = counted(&server, "e");
    assert_eq!((statistics.fail.count, statistics.success.count, statistics.fallback_count), (1, 0, 0));
}

#[test]
fn wrong_conditions_are_refused_at_load() {
    let [odd, ten, ..] = branches();
    for (steps, reason) in [
        (&["ten: X=IN $if=c -> Y=OUT"][..], "no step writes tensor 'c'"),
        (&["ten: X=IN $if=IN -> Y=OUT"], "output 'OUT' exists only where 'IN' is true"),
        (&["odd: X=IN -> C=c", "ten: X=IN $if=c -> Y=OUT"], "output 'OUT' exists only where 'c' is true"),
    ] {
        let models = [odd.clone(), ten.clone(), ensemble("e", "IN", "OUT", steps)];
        let models: BTreeMap<_, _> = models.into_iter().map(|(name, spec)| (name, Ok(spec))).collect();
        let server = server_of(&Members::default(), options(), Arc::new(models));
        let failures = server.start(None).unwrap();
        assert!(failures[0].1.message().contains(reason), "{failures:?}");
    }
}

#[tokio::test]
async fn constants_follow_the_dimensions_of_reloaded_members() {
    let wide = |(name, mut spec): (String, ModelSpec), size: i64| {
        let dims = spec.config.input.iter_mut().map(|input| &mut input.dims);
        let dims = dims.chain(spec.config.output.iter_mut().map(|output| &mut output.dims));
        dims.for_each(|dims| *dims = vec![size]);
        (name, spec)
    };
    let steps = ["ten: X=IN $if=COND -> Y=made", "any: X=made -> Y=OUT"];
    let mut e = wide(ensemble("e", "IN COND", "OUT", &steps), -1);
    e.1.config.input[1].data_type = nereid_model_config::proto::DataType::TypeBool as i32;
    e.1.config.input[1].dims = vec![1];
    let ten = |size| wide(member("ten", "X", "add", 10), size);
    let any = wide(member("any", "X", "add", 0), -1);
    let world = lifecycle::world(ModelControl::Explicit, [ten(1), any, with(e, "$if_skipped:made", "7")]);
    world.load("e").unwrap();
    for size in [1, 2] {
        world.source.set(ten(size));
        world.load("ten").unwrap();
        let inputs = vec![
            tensor("IN", &[1, size], &vec![1; size as usize]),
            Tensor::new("COND", DataType::Bool, [1, 1], vec![0]),
        ];
        let request = InferRequest { inputs, ..InferRequest::default() };
        assert_eq!(out(&world.server, request).await.unwrap(), vec![7; size as usize]);
    }
}
