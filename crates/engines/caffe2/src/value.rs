//! A tensor of the graph as far as it is known before the graph runs: name, element type, dimensions, perhaps contents.

/// Dimensions, outermost first; `None` for unknown sizes.
pub type Dims = Vec<Option<i64>>;

/// An element type, by its number in ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Element {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Bfloat16 = 16,
}

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) element: Element,
    /// `None` if the rank is unknown.
    pub(crate) dims: Option<Dims>,
    /// The contents, if it is a constant list of integers.
    pub(crate) ints: Option<Vec<i64>>,
}

impl Value {
    pub(crate) fn rank(&self) -> Option<usize> {
        self.dims.as_ref().map(Vec::len)
    }

    /// The size of one dimension, if known.
    pub(crate) fn dim(&self, at: usize) -> Option<i64> {
        self.dims.as_ref()?.get(at).copied().flatten()
    }

    /// All sizes, if known.
    pub(crate) fn shape(&self) -> Option<Vec<i64>> {
        self.dims.as_ref()?.iter().copied().collect()
    }
}
