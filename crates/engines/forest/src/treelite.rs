//! Checkpoints of Treelite 4 (`checkpoint.tl`), the form for forests of scikit-learn, cuML and others, little-endian throughout.

use nereid_trees::{
    Description, Forest, FormatError, Kind, Link, MAX_OUTPUTS, MAX_TREES, Node, Split, Task, Test, Tree,
};

/// Types of thresholds and leaves.
const FLOAT: u8 = 2;
const DOUBLE: u8 = 3;

/// Kinds of nodes.
const LEAF: u8 = 0;
const NUMERICAL: u8 = 1;
const CATEGORICAL: u8 = 2;

/// Reads a model.
///
/// # Errors
/// The file is damaged, or the model is not served.
pub(crate) fn read(contents: &[u8]) -> Result<Forest, FormatError> {
    let mut file = File(contents);
    let [major, minor, _patch] = [file.i32()?, file.i32()?, file.i32()?];
    match major {
        4 => {}
        1..=3 => {
            return Err(FormatError::new(format!(
                "a checkpoint of Treelite {major}.{minor}; save it again with Treelite 4"
            )));
        }
        5.. => {
            return Err(FormatError::new(format!(
                "a checkpoint of Treelite {major}.{minor}, which is newer than what is known (4)"
            )));
        }
        _ => return Err(FormatError::new("not a checkpoint of Treelite")),
    }
    let types = [file.byte()?, file.byte()?];
    let double = match types {
        [FLOAT, FLOAT] => false,
        [DOUBLE, DOUBLE] => true,
        _ => return Err(FormatError::new("thresholds and leaves are of unknown types")),
    };
    let count = usize::try_from(file.u64()?).unwrap_or(usize::MAX);
    if count > MAX_TREES {
        return Err(FormatError::new(format!("the model has {count} trees; at most {MAX_TREES} are served")));
    }
    let header = Header::read(&mut file, count)?;
    header.check(count)?;
    let mut forest = Forest::new(header.describe(double)?)?;
    for at in 0..count {
        let within = |error: FormatError| error.within(format_args!("tree {at}"));
        let tree = tree(&mut file, double, header.class_ids[at]).map_err(within)?;
        forest.add(&tree).map_err(within)?;
    }
    Ok(forest)
}

struct Header {
    features: i32,
    task: u8,
    averaged: bool,
    targets: i32,
    classes: Vec<i32>,
    leaf_shape: Vec<i32>,
    class_ids: Vec<i32>,
    postprocessor: String,
    sigmoid_alpha: f32,
    ratio_c: f32,
    base_scores: Vec<f64>,
}

impl Header {
    fn read(file: &mut File<'_>, count: usize) -> Result<Self, FormatError> {
        let features = file.i32()?;
        let task = file.byte()?;
        let averaged = file.byte()? != 0;
        let targets = file.i32()?;
        let classes = file.array(i32::from_le_bytes)?;
        let leaf_shape = file.array(i32::from_le_bytes)?;
        let target_ids = file.array(i32::from_le_bytes)?;
        let class_ids = file.array(i32::from_le_bytes)?;
        let postprocessor = file.text()?;
        let (sigmoid_alpha, ratio_c) = (f32::from_bits(file.u32()?), f32::from_bits(file.u32()?));
        let base_scores = file.array(f64::from_le_bytes)?;
        let _attributes = file.text()?;
        file.no_extensions()?;
        if target_ids.len() != count {
            return Err(FormatError::new("target_id does not have a value for each tree"));
        }
        Ok(Self {
            features,
            task,
            averaged,
            targets,
            classes,
            leaf_shape,
            class_ids,
            postprocessor,
            sigmoid_alpha,
            ratio_c,
            base_scores,
        })
    }

    fn check(&self, count: usize) -> Result<(), FormatError> {
        if self.targets != 1 {
            return Err(FormatError::new(format!(
                "the model has {} targets; only one is served",
                self.targets
            )));
        }
        if self.class_ids.len() != count {
            return Err(FormatError::new("class_id does not have a value for each tree"));
        }
        Ok(())
    }

    fn describe(&self, double: bool) -> Result<Description, FormatError> {
        let outputs = match self.classes.as_slice() {
            &[classes] if classes >= 1 && classes as usize <= MAX_OUTPUTS => classes as usize,
            classes => return Err(FormatError::new(format!("num_class is {classes:?}"))),
        };
        if self.base_scores.len() != outputs {
            return Err(FormatError::new(format!("base_scores has {} values", self.base_scores.len())));
        }
        let features =
            usize::try_from(self.features).map_err(|_| FormatError::new("num_feature is negative"))?;
        let alpha = f64::from(self.sigmoid_alpha);
        let link = match self.postprocessor.as_str() {
            "identity" | "identity_multiclass" => Link::Identity,
            "signed_square" => Link::SignedSquare,
            "hinge" => Link::Hinge,
            "sigmoid" | "multiclass_ova" => Link::Sigmoid(alpha),
            "exponential" => Link::Exponential,
            "exponential_standard_ratio" => Link::AnomalyScore(self.ratio_c.into()),
            "logarithm_one_plus_exp" => Link::SoftPlus,
            "softmax" => Link::Softmax,
            other => return Err(FormatError::new(format!("the postprocessor '{other}' is not known"))),
        };
        let task = match self.task {
            0 => Task::Binary,
            2 => Task::Classes,
            1 | 3 | 4 => Task::Numbers,
            other => return Err(FormatError::new(format!("the type of task {other} is not known"))),
        };
        // Trees whose leaves are vectors are for all classes.
        if task == Task::Classes && self.class_ids.contains(&-1) && self.leaf_shape != [1, outputs as i32] {
            return Err(FormatError::new(format!("leaf_vector_shape is {:?}", self.leaf_shape)));
        }
        let (base, averaged) = (self.base_scores.clone(), self.averaged);
        Ok(Description { features, base, averaged, double, link, task, truncates: false })
    }
}

/// The arrays of a tree.
struct Arrays {
    kinds: Vec<u8>,
    left: Vec<i32>,
    right: Vec<i32>,
    features: Vec<i32>,
    default_left: Vec<u8>,
    leaf_values: Vec<f64>,
    thresholds: Vec<f64>,
    operators: Vec<u8>,
    listed_go_right: Vec<u8>,
    vectors: Segments<f64>,
    categories: Segments<u32>,
    covers: Vec<f64>,
}

/// Lists of different lengths, one behind the other.
struct Segments<T> {
    values: Vec<T>,
    begins: Vec<u64>,
    ends: Vec<u64>,
}

impl<T> Segments<T> {
    fn get(&self, at: usize) -> Result<&[T], FormatError> {
        let bound = |bounds: &[u64]| bounds.get(at).and_then(|&bound| usize::try_from(bound).ok());
        let range = bound(&self.begins).zip(bound(&self.ends));
        range
            .and_then(|(begin, end)| self.values.get(begin..end))
            .ok_or_else(|| FormatError::new(format!("the list of node {at} is damaged")))
    }
}

fn tree(file: &mut File<'_>, double: bool, class: i32) -> Result<Tree, FormatError> {
    let count = file.i32()?;
    let _has_categories = file.byte()?;
    let arrays = Arrays {
        kinds: file.array(u8::from_le_bytes)?,
        left: file.array(i32::from_le_bytes)?,
        right: file.array(i32::from_le_bytes)?,
        features: file.array(i32::from_le_bytes)?,
        default_left: file.array(u8::from_le_bytes)?,
        leaf_values: file.floats(double)?,
        thresholds: file.floats(double)?,
        operators: file.array(u8::from_le_bytes)?,
        listed_go_right: file.array(u8::from_le_bytes)?,
        vectors: Segments {
            values: file.floats(double)?,
            begins: file.array(u64::from_le_bytes)?,
            ends: file.array(u64::from_le_bytes)?,
        },
        categories: Segments {
            values: file.array(u32::from_le_bytes)?,
            begins: file.array(u64::from_le_bytes)?,
            ends: file.array(u64::from_le_bytes)?,
        },
        covers: file.covers()?,
    };
    file.no_extensions()?;
    file.no_extensions()?;
    let count = usize::try_from(count).map_err(|_| FormatError::new("it has less than no nodes"))?;
    if arrays.kinds.len() != count {
        return Err(FormatError::new("its arrays differ in length"));
    }
    let nodes = (0..count).map(|at| arrays.node(at, class)).collect::<Result<_, _>>()?;
    Ok(Tree { nodes, output: usize::try_from(class).ok() })
}

impl Arrays {
    fn node(&self, at: usize, class: i32) -> Result<Node, FormatError> {
        let kind = match self.kinds[at] {
            LEAF if class < 0 => Kind::Vector(self.vectors.get(at)?.to_vec()),
            LEAF => Kind::Leaf(entry(&self.leaf_values, at)?),
            NUMERICAL | CATEGORICAL => Kind::Split(self.split(at)?),
            other => return Err(FormatError::new(format!("node {at} is of unknown type {other}"))),
        };
        Ok(Node { kind, cover: self.covers.get(at).copied().unwrap_or(0.0) })
    }

    fn split(&self, at: usize) -> Result<Split, FormatError> {
        let child = |children: &[i32]| {
            usize::try_from(entry(children, at)?).map_err(|_| FormatError::new("a split has one node only"))
        };
        let (left, right) = (child(&self.left)?, child(&self.right)?);
        let feature = usize::try_from(entry(&self.features, at)?)
            .map_err(|_| FormatError::new(format!("node {at} tests no feature")))?;
        let default_left = entry(&self.default_left, at)? != 0;
        let straight = |test, passes_left: bool| {
            let (yes, no) = if passes_left { (left, right) } else { (right, left) };
            let missing_passes = default_left == passes_left;
            Split { feature, test, yes, no, missing_passes, zero_is_missing: false }
        };
        if self.kinds[at] == CATEGORICAL {
            let categories = self.categories.get(at)?.to_vec();
            return Ok(straight(Test::In(categories), entry(&self.listed_go_right, at)? == 0));
        }
        let bound = entry(&self.thresholds, at)?;
        Ok(match entry(&self.operators, at)? {
            2 => straight(Test::Below(bound), true),
            3 => straight(Test::AtMost(bound), true),
            // The opposites: what passes goes right.
            4 => straight(Test::AtMost(bound), false),
            5 => straight(Test::Below(bound), false),
            other => {
                return Err(FormatError::new(format!("the comparison {other} of node {at} is not served")));
            }
        })
    }
}

fn entry<T: Copy>(array: &[T], at: usize) -> Result<T, FormatError> {
    array.get(at).copied().ok_or_else(|| FormatError::new("its arrays differ in length"))
}

/// The rest of a file.
struct File<'a>(&'a [u8]);

impl<'a> File<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (bytes, rest) =
            self.0.split_at_checked(count).ok_or_else(|| FormatError::new("the file ends too early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let bytes = self.bytes(N)?;
        bytes.first_chunk().copied().ok_or_else(|| FormatError::new("the file ends too early"))
    }

    fn byte(&mut self) -> Result<u8, FormatError> {
        self.word().map(|[byte]| byte)
    }

    fn i32(&mut self) -> Result<i32, FormatError> {
        self.word().map(i32::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        self.word().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        self.word().map(u64::from_le_bytes)
    }

    /// The bytes of an array.
    fn array_bytes(&mut self, element: usize) -> Result<&'a [u8], FormatError> {
        let size = usize::try_from(self.u64()?).ok().and_then(|length| length.checked_mul(element));
        self.bytes(size.ok_or_else(|| FormatError::new("the file ends too early"))?)
    }

    fn array<const N: usize, T>(&mut self, decode: impl Fn([u8; N]) -> T) -> Result<Vec<T>, FormatError> {
        let bytes = self.array_bytes(N)?;
        Ok(bytes.as_chunks().0.iter().map(|&word| decode(word)).collect())
    }

    fn floats(&mut self, double: bool) -> Result<Vec<f64>, FormatError> {
        if double {
            self.array(f64::from_le_bytes)
        } else {
            self.array(|word| f32::from_le_bytes(word).into())
        }
    }

    fn text(&mut self) -> Result<String, FormatError> {
        let bytes = self.array_bytes(1)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| FormatError::new("a text is not UTF-8"))
    }

    /// How much of the training data passed each node: by weight, or else by number.
    fn covers(&mut self) -> Result<Vec<f64>, FormatError> {
        let counts = self.array(u64::from_le_bytes)?;
        let has_counts = self.array(u8::from_le_bytes)?;
        let weights = self.array(f64::from_le_bytes)?;
        let has_weights = self.array(u8::from_le_bytes)?;
        let _gains = self.array(f64::from_le_bytes)?;
        let _has_gains = self.array(u8::from_le_bytes)?;
        let all = |present: &[u8]| !present.is_empty() && present.iter().all(|&flag| flag != 0);
        Ok(if all(&has_weights) {
            weights
        } else if all(&has_counts) {
            counts.into_iter().map(|count| count as f64).collect()
        } else {
            Vec::new()
        })
    }

    fn no_extensions(&mut self) -> Result<(), FormatError> {
        match self.i32()? {
            0 => Ok(()),
            _ => Err(FormatError::new("it has fields that are not known")),
        }
    }
}
