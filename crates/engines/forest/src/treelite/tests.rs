//! Changes of checkpoints that are refused, or mean the same.

use std::fs;
use std::path::Path;

use super::*;

fn contents(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)).unwrap()
}

fn refusal(contents: &[u8]) -> String {
    read::<f32>(contents).unwrap_err().to_string()
}

/// The contents with these bytes at a place.
fn with(contents: &[u8], place: usize, bytes: &[u8]) -> Vec<u8> {
    let mut contents = contents.to_vec();
    contents[place..place + bytes.len()].copy_from_slice(bytes);
    contents
}

/// The place of the first number of trees, behind the version and the types.
const TREES: usize = 14;
/// The place of the type of task of Treelite 3, and those of its parameters.
const TASK: usize = TREES + 8 + 4;
const INTEGERS: usize = TASK + 2;
const CLASSES: usize = INTEGERS + 4;
const LEAF_SIZE: usize = CLASSES + 4;
const POSTPROCESSOR: usize = LEAF_SIZE + 4;

#[test]
fn versions_without_a_known_form_are_refused_by_name() {
    let old = contents("tl2.4.0_binary.tl");
    for (version, expected) in [
        ([1_i32, 3], "Treelite 1.3; those of 2.4, 3 and 4"),
        ([2, 3], "Treelite 2.3; those of 2.4, 3 and 4"),
        ([5, 0], "Treelite 5.0, which is newer"),
        ([0, 0], "not a checkpoint"),
        ([-1, 0], "not a checkpoint"),
    ] {
        let version = version.map(i32::to_le_bytes).concat();
        let reason = refusal(&with(&old, 0, &version));
        assert!(reason.contains(expected), "{reason}");
    }
    // Version 2.4 lacks the slots of version 3.
    assert!(read::<f32>(&old).is_ok());
    refusal(&with(&old, 0, &3_i32.to_le_bytes()));
}

#[test]
fn tasks_and_parameters_of_version_3_that_do_not_fit_are_refused() {
    let classes = contents("tl3.9.1_forest_classes.tl");
    for (place, bytes, expected) in [
        (12, vec![2, 3], "types [2, 3]"),
        (12, vec![2, 1], "types [2, 1]"),
        (TREES, u64::MAX.to_le_bytes().to_vec(), "trees; at most"),
        (TASK, vec![3], "task 3 is not served"),
        (TASK, vec![0], "num_class 4 and leaf_vector_size 4"),
        (TASK, vec![1], "num_class 4 and leaf_vector_size 4"),
        (INTEGERS, vec![1], "numbers of classes"),
        (CLASSES, 0_u32.to_le_bytes().to_vec(), "num_class"),
        (CLASSES, u32::MAX.to_le_bytes().to_vec(), "num_class"),
        (CLASSES, 3_u32.to_le_bytes().to_vec(), "leaf_vector_size 4"),
        (LEAF_SIZE, 1_u32.to_le_bytes().to_vec(), "leaf_vector_size 1"),
        (POSTPROCESSOR, b"frobnicate\0".to_vec(), "'frobnicate'"),
        (POSTPROCESSOR, vec![0xff], "UTF-8"),
    ] {
        let reason = refusal(&with(&classes, place, &bytes));
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn highest_class_comes_from_scores_in_version_3() {
    let scores = contents("tl3.9.1_boosting_classes.tl");
    let rows: Vec<f32> = (0..80_u16).map(|at| f32::from(at * 37 % 101) / 40.0 - 1.0).collect();
    let predict = |contents: &[u8]| read::<f32>(contents).unwrap().predict::<f32>(&rows, 1);
    let expected = predict(&scores);
    assert_eq!(predict(&with(&scores, POSTPROCESSOR, b"max_index\0")), expected);
    assert_ne!(predict(&with(&scores, POSTPROCESSOR, b"identity_multiclass\0")), expected);
}
