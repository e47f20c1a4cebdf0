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
/// The places of the type of task and of the parameters of Treelite 3.
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

/// A model of Treelite 4 with a tree that has two leaves.
#[derive(Clone)]
struct Stump {
    classes: Vec<i32>,
    leaf_shape: Vec<i32>,
    place: [i32; 2],
    operator: u8,
    values: [f32; 2],
    vectors: Vec<f32>,
    /// The beginning and the end of the list of each node.
    bounds: [[u64; 2]; 3],
}

impl Stump {
    fn new() -> Self {
        Self {
            classes: vec![1],
            leaf_shape: vec![1, 1],
            place: [0, 0],
            operator: 2,
            values: [1.0, 2.0],
            vectors: Vec::new(),
            bounds: [[0; 2]; 3],
        }
    }

    /// Two classes of two targets, with all their values in a leaf.
    fn of_targets() -> Self {
        let vectors = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let bounds = [[0, 0], [0, 4], [4, 8]];
        let (classes, leaf_shape, place) = (vec![2, 2], vec![2, 2], [-1, -1]);
        Self { classes, leaf_shape, place, vectors, bounds, ..Self::new() }
    }

    fn contents(&self) -> Vec<u8> {
        fn array<const N: usize, T: Copy>(values: &[T], encode: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            let words = values.iter().flat_map(|&value| encode(value));
            (values.len() as u64).to_le_bytes().into_iter().chain(words).collect()
        }
        let integers = |values: &[i32]| array(values, i32::to_le_bytes);
        let floats = |values: &[f32]| array(values, f32::to_le_bytes);
        let words = |values: &[u64]| array(values, u64::to_le_bytes);
        let bytes = |values: &[u8]| array(values, |byte| [byte]);
        let number = |value: i32| value.to_le_bytes().to_vec();
        let most = self.classes.iter().max().copied().unwrap_or(0);
        let scores = vec![0.0; self.classes.len() * most as usize];
        let parts = [
            [4, 8, 1].map(i32::to_le_bytes).concat(),
            vec![FLOAT, FLOAT],
            1_u64.to_le_bytes().to_vec(),
            // One feature, of a model for regression whose trees are summed up.
            number(1),
            vec![1, 0],
            number(self.classes.len() as i32),
            integers(&self.classes),
            integers(&self.leaf_shape),
            integers(&self.place[..1]),
            integers(&self.place[1..]),
            bytes(b"identity"),
            [1.0_f32, 1.0].map(f32::to_le_bytes).concat(),
            array(&scores, f64::to_le_bytes),
            bytes(b"{}"),
            number(0),
            number(3),
            vec![0],
            bytes(&[1, 0, 0]),
            integers(&[1, -1, -1]),
            integers(&[2, -1, -1]),
            integers(&[0, -1, -1]),
            bytes(&[0, 0, 0]),
            floats(&[0.0, self.values[0], self.values[1]]),
            floats(&[0.5, 0.0, 0.0]),
            bytes(&[self.operator, 0, 0]),
            bytes(&[0, 0, 0]),
            floats(&self.vectors),
            words(&self.bounds.map(|[begin, _]| begin)),
            words(&self.bounds.map(|[_, end]| end)),
            // No categories, and none of the three kinds of statistics.
            words(&[]),
            words(&[0; 3]),
            words(&[0; 3]),
            [words(&[]), bytes(&[])].concat().repeat(3),
            number(0),
            number(0),
        ];
        parts.concat()
    }

    fn results(&self, feature: f32) -> Vec<f32> {
        read::<f32>(&self.contents()).unwrap().predict(&[feature], 1)
    }
}

#[test]
fn comparisons_of_all_kinds_are_served() {
    // Below, equal to and above the threshold: 1 is the left leaf.
    for (operator, expected) in [
        (1, [2.0, 1.0, 2.0]),
        (2, [1.0, 2.0, 2.0]),
        (3, [1.0, 1.0, 2.0]),
        (4, [2.0, 2.0, 1.0]),
        (5, [2.0, 1.0, 1.0]),
    ] {
        let stump = Stump { operator, ..Stump::new() };
        let own = [0.25, 0.5, 0.75].map(|feature| stump.results(feature)[0]);
        assert_eq!(own, expected, "{operator}");
        // A missing value goes right.
        assert_eq!(stump.results(f32::NAN), [2.0], "{operator}");
    }
    for operator in [0, 6, 255] {
        let reason = refusal(&Stump { operator, ..Stump::new() }.contents());
        assert!(reason.contains(&format!("node 0: the comparison {operator}")), "{reason}");
    }
}

#[test]
fn leaves_have_a_value_for_one_output_or_for_all() {
    assert_eq!(Stump::of_targets().results(0.0), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(Stump::of_targets().results(1.0), [5.0, 6.0, 7.0, 8.0]);
    let one = Stump { classes: vec![2, 2], place: [1, 0], ..Stump::new() };
    assert_eq!(one.results(0.0), [0.0, 0.0, 1.0, 0.0]);
    // The numbers for all targets and classes stand for the only one.
    assert_eq!(Stump { place: [-1, -1], ..Stump::new() }.results(0.0), [1.0]);
    let of = Stump::of_targets;
    for (stump, expected) in [
        (
            Stump { place: [0, -1], leaf_shape: vec![1, 2], ..of() },
            "[1, 2]; leaves with a value for one output",
        ),
        (
            Stump { place: [-1, 0], leaf_shape: vec![2, 1], ..of() },
            "[2, 1]; leaves with a value for one output",
        ),
        (Stump { leaf_shape: vec![1, 1], ..of() }, "[1, 1]; leaves with a value for one output or for all 4"),
        (Stump { leaf_shape: vec![-2, -2], ..of() }, "[-2, -2]"),
        (Stump { leaf_shape: vec![4], ..of() }, "leaf_vector_shape is [4]"),
        (Stump { place: [2, 0], leaf_shape: vec![1, 1], ..of() }, "class 0 of target 2"),
        (Stump { place: [0, 2], leaf_shape: vec![1, 1], ..of() }, "class 2 of target 0"),
        (Stump { classes: vec![], ..of() }, "num_class is []"),
        (Stump { classes: vec![2, 0], ..of() }, "num_class is [2, 0]"),
        (Stump { classes: vec![2, -1], ..of() }, "num_class is [2, -1]"),
        (Stump { classes: vec![1 << 16, 1], ..of() }, "num_class is [65536, 1]"),
        (Stump { bounds: [[0, 0], [0, 3], [4, 8]], ..of() }, "3 values"),
    ] {
        let reason = refusal(&stump.contents());
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn lists_that_overlap_are_refused() {
    for bounds in [[[0, 0], [0, 8], [0, 8]], [[0, 0], [1, 8], [0, 4]], [[0, 0], [0, 4], [4, 9]]] {
        let reason = refusal(&Stump { bounds, ..Stump::of_targets() }.contents());
        assert!(reason.contains("the list of node 2 is damaged"), "{reason}");
    }
    // Lists of splits are not read.
    assert!(
        read::<f32>(&Stump { bounds: [[9, 3], [0, 4], [4, 8]], ..Stump::of_targets() }.contents()).is_ok()
    );
}
