//! How many plans are made and kept, and that a plan serves several instances.

use std::time::Duration;

use super::*;
use crate::tests::onnx;
use tract_onnx::prelude::tensor1;

fn plans(limit: usize) -> Plans {
    plans_within(limit, Limits::default())
}

fn plans_within(limit: usize, limits: Limits) -> Plans {
    let file = onnx::add(&[-1]);
    let folder = crate::tests::server::folder(&file);
    let file = crate::graph::OnnxFile::read(&folder.path().join("1"), "model.onnx").unwrap();
    let inputs = ["X", "Y"].map(|name| (name.to_owned(), DatumType::F32)).to_vec();
    Plans::new(
        file.into_graph(&["Z".to_owned()]).unwrap(),
        inputs,
        limit.try_into().unwrap(),
        limits,
        Bounded::default(),
    )
}

fn shapes(dim: i64) -> Case {
    Shapes::from_iter([Shape::from([dim]), Shape::from([dim])]).into()
}

#[test]
fn a_plan_is_built_once_for_its_shapes() {
    let plans = plans(2);
    let first = plans.get(&shapes(3)).unwrap();
    assert!(!Arc::ptr_eq(&first, &plans.get(&shapes(4)).unwrap()));
    assert!(Arc::ptr_eq(&first, &plans.get(&shapes(3)).unwrap()));
}

#[test]
fn the_plan_not_used_for_longest_goes_first() {
    let plans = plans(2);
    let first = plans.get(&shapes(1)).unwrap();
    let second = plans.get(&shapes(2)).unwrap();
    plans.get(&shapes(1)).unwrap();
    plans.get(&shapes(3)).unwrap();
    assert_eq!(lock(&plans.kept).len(), 2);
    assert!(Arc::ptr_eq(&first, &plans.get(&shapes(1)).unwrap()));
    assert!(!Arc::ptr_eq(&second, &plans.get(&shapes(2)).unwrap()));
}

#[test]
fn shapes_that_cannot_work_leave_the_plans_alone() {
    let plans = plans(1);
    let kept = plans.get(&shapes(3)).unwrap();
    let clash = Shapes::from_iter([Shape::from([3]), Shape::from([-1])]).into();
    assert!(plans.get(&clash).is_err());
    assert!(Arc::ptr_eq(&kept, &plans.get(&shapes(3)).unwrap()));
}

#[test]
fn a_plan_is_built_once_for_all_instances_that_want_it() {
    let plans = plans(2);
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| plans.get(&shapes(5)).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(found.iter().all(|plan| Arc::ptr_eq(plan, &found[0])));
}

#[test]
fn a_run_ends_at_its_limit() {
    let slow = Limits { execution: Duration::ZERO, ..Limits::default() };
    let plan = plans_within(1, slow).get(&shapes(2)).unwrap();
    let input = tensor1(&[1.0_f32, 2.0]);
    let error = plan.run([input.clone().into(), input.into()].into_iter().collect()).unwrap_err();
    assert!(error.message().contains("ran for 0 s"), "{error}");
}

#[test]
fn tensors_are_held_to_their_limit() {
    // Z, X and Y at once; 4 bytes each element.
    for (memory, most) in [(1200, 100), (120, 10), (12, 1)] {
        let limits = Limits { memory, ..Limits::default() };
        let plans = plans_within(1, limits);
        assert!(plans.get(&shapes(most)).is_ok(), "{most} of {memory}");
        for more in [most + 1, 2 * most, 1 << 40, i64::MAX] {
            assert!(plans.get(&shapes(more)).is_err(), "{more} of {memory}");
        }
    }
}

#[test]
fn a_plan_runs_for_several_instances_at_once() {
    let plans = plans(1);
    let plan = plans.get(&shapes(2)).unwrap();
    std::thread::scope(|scope| {
        for start in [1.0_f32, 100.0] {
            let plan = &plan;
            scope.spawn(move || {
                for _ in 0..50 {
                    let input = tensor1(&[start, start + 1.0]);
                    let outputs =
                        plan.run([input.clone().into(), input.into()].into_iter().collect()).unwrap();
                    assert_eq!(*outputs[0], tensor1(&[2.0 * start, 2.0 * start + 2.0]));
                }
            });
        }
    });
    assert!((1..=2).contains(&lock(&plan.idle).len()));
}
