//! The binary form of models that XGBoost wrote before version 3.1, little-endian throughout.

use nereid_trees::{Forest, FormatError, Kind, Node, Split, Test, Tree};

use super::{describe, linear};

/// The first bytes of newer versions.
const MAGIC: &[u8] = b"binf";

/// The bytes of fixed structures.
const LEARNER: usize = 136;
const BOOSTER: usize = 160;
const LINEAR: usize = 136;
const TREE: usize = 148;
const NODE: usize = 20;
const STATISTICS: usize = 16;

/// The flag in a node's feature that sends missing values left.
const DEFAULT_LEFT: u32 = 1 << 31;

/// Reads a model.
///
/// # Errors
/// The file is damaged, or the model is not served.
pub(crate) fn read(contents: &[u8]) -> Result<Forest, FormatError> {
    let mut file = File(contents.strip_prefix(MAGIC).unwrap_or(contents));
    let learner = file.bytes(LEARNER)?;
    let base = f64::from(f32::from_bits(word(learner, 0)));
    let (features, classes) = (word(learner, 1) as usize, word(learner, 2) as i32);
    // Since version 1.0 the score is a result of the link; before, it was an input of it.
    let (major, targets) = (word(learner, 5), word(learner, 7));
    let objective = file.text()?;
    let booster = file.text()?;
    if !["gbtree", "dart", "gblinear"].contains(&booster.as_str()) {
        return Err(FormatError::new(format!(
            "not a model of XGBoost in binary form, or one of booster '{booster}'"
        )));
    }
    let groups = usize::try_from(classes).unwrap_or(0).max(if major >= 1 { targets as usize } else { 0 });
    let description = describe(&objective, groups, features, &[base], major >= 1)?;
    if booster == "gblinear" {
        let _parameters = file.bytes(LINEAR)?;
        return linear(description, &file.numbers()?);
    }
    let mut forest = Forest::new(description)?;
    let parameters = file.bytes(BOOSTER)?;
    let count = word(parameters, 0) as usize;
    let leaf_vector = word(parameters, 7);
    if leaf_vector > 1 {
        return Err(FormatError::new("its leaves have several values, which are not served"));
    }
    let mut trees = Vec::new();
    for at in 0..count {
        trees.push(tree(&mut file).map_err(|error| error.within(format_args!("tree {at}")))?);
    }
    let groups = (0..count).map(|_| file.word()).collect::<Result<Vec<_>, _>>()?;
    let weights = if booster == "dart" { file.numbers()? } else { vec![1.0; count] };
    if weights.len() != count {
        return Err(FormatError::new("weight_drop does not have a value for each tree"));
    }
    for (at, ((mut tree, group), weight)) in trees.into_iter().zip(groups).zip(weights).enumerate() {
        tree.output = Some(group as usize);
        for node in &mut tree.nodes {
            if let Kind::Leaf(value) = &mut node.kind {
                *value = f64::from(*value as f32 * weight);
            }
        }
        forest.add(&tree).map_err(|error| error.within(format_args!("tree {at}")))?;
    }
    Ok(forest)
}

fn tree(file: &mut File<'_>) -> Result<Tree, FormatError> {
    let parameters = file.bytes(TREE)?;
    let (count, leaf_vector) = (word(parameters, 1) as usize, word(parameters, 5));
    let nodes = file.bytes(count.checked_mul(NODE).ok_or_else(File::ends)?)?;
    let statistics = file.bytes(count.checked_mul(STATISTICS).ok_or_else(File::ends)?)?;
    if leaf_vector > 1 {
        return Err(FormatError::new("its leaves have several values, which are not served"));
    }
    let node = |(node, statistics): (&[u8], &[u8])| {
        let (left, right, feature) = (word(node, 1) as i32, word(node, 2) as i32, word(node, 3));
        let value = f64::from(f32::from_bits(word(node, 4)));
        let kind = if left < 0 {
            Kind::Leaf(value)
        } else {
            let no = usize::try_from(right).map_err(|_| FormatError::new("a split has one node only"))?;
            Kind::Split(Split {
                feature: (feature & !DEFAULT_LEFT) as usize,
                test: Test::Below(value),
                yes: left as usize,
                no,
                missing_passes: feature & DEFAULT_LEFT != 0,
                zero_is_missing: false,
            })
        };
        Ok(Node { kind, cover: f32::from_bits(word(statistics, 1)).into() })
    };
    let nodes = nodes.chunks_exact(NODE).zip(statistics.chunks_exact(STATISTICS)).map(node);
    Ok(Tree { nodes: nodes.collect::<Result<_, _>>()?, output: None })
}

/// The rest of a file.
struct File<'a>(&'a [u8]);

impl<'a> File<'a> {
    fn ends() -> FormatError {
        FormatError::new("not a model of XGBoost in binary form: the file ends too early")
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(Self::ends)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u32, FormatError> {
        self.bytes(4).map(|bytes| word(bytes, 0))
    }

    fn length(&mut self) -> Result<usize, FormatError> {
        let (low, high) = (self.word()?, self.word()?);
        usize::try_from(u64::from(high) << 32 | u64::from(low)).map_err(|_| Self::ends())
    }

    /// A list of numbers in single precision.
    fn numbers(&mut self) -> Result<Vec<f32>, FormatError> {
        let length = self.length()?;
        let numbers = self.bytes(length.checked_mul(4).ok_or_else(Self::ends)?)?;
        Ok((0..length).map(|at| f32::from_bits(word(numbers, at))).collect())
    }

    fn text(&mut self) -> Result<String, FormatError> {
        let length = self.length()?;
        let text = self.bytes(length)?;
        String::from_utf8(text.to_vec())
            .map_err(|_| FormatError::new("not a model of XGBoost in binary form"))
    }
}

/// The word at this number; 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at * 4..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}
