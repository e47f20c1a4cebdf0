//! Files of NumPy arrays (`.npy`, format versions 1 to 3).

use serde_json::Value;
use tensor_types::DataType;

use super::tensor::{Element, Values, elements};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The shape and the elements of an array.
///
/// # Errors
/// The file is not of an array, or of one with objects, records or other elements than tensors have.
pub(super) fn read(file: &[u8]) -> Result<Values, String> {
    parse(file).unwrap_or_else(|| Err("is not a .npy file, or a damaged one".into()))
}

fn parse(file: &[u8]) -> Option<Result<Values, String>> {
    let rest = file.strip_prefix(MAGIC)?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    let (length, rest) = match version[0] {
        1 => {
            rest.split_first_chunk::<2>().map(|(length, rest)| (u16::from_le_bytes(*length).into(), rest))?
        }
        _ => rest.split_first_chunk::<4>().map(|(length, rest)| (u32::from_le_bytes(*length), rest))?,
    };
    let (header, content) = rest.split_at_checked(length as usize)?;
    let header = Header::parse(str::from_utf8(header).ok()?)?;
    let Some(kind) = Kind::of(&header.description) else {
        let description = &header.description;
        return Some(Err(format!(
            "has elements of type '{description}', which no tensor has in this byte order"
        )));
    };
    let count = header.shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size))?;
    let wanted = usize::try_from(count).ok()?.checked_mul(kind.size())?;
    let elements = kind.elements(content.get(..wanted)?)?;
    let elements = if header.is_column_major { row_major(&header.shape, &elements) } else { elements };
    Some(Ok((header.shape, elements)))
}

/// The header: a dictionary of Python.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    description: String,
    is_column_major: bool,
    shape: Vec<u64>,
}

impl Header {
    fn parse(text: &str) -> Option<Self> {
        // The literal differs from JSON in tuples, quotes and booleans alone.
        let json = text.trim().replace('\'', "\"").replace('(', "[").replace(')', "]");
        let json = json.replace("True", "true").replace("False", "false");
        let json: String = json.split_whitespace().collect();
        let json = json.replace(",]", "]").replace(",}", "}");
        let header: Value = serde_json::from_str(&json).ok()?;
        let shape = header["shape"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
        Some(Self {
            description: header["descr"].as_str()?.to_owned(),
            is_column_major: header["fortran_order"].as_bool()?,
            shape,
        })
    }
}

/// The type of an array's elements.
enum Kind {
    Number(DataType),
    /// Bytes of this length, with zeros at the end.
    Bytes(usize),
    /// Texts of this many code points, of four bytes each.
    Text(usize),
}

impl Kind {
    fn of(description: &str) -> Option<Self> {
        let (order, name) = description.split_at_checked(1)?;
        if !matches!(order, "<" | "|" | "=") {
            return None;
        }
        let (letter, size) = name.split_at_checked(1)?;
        let size: usize = size.parse().ok()?;
        Some(Self::Number(match (letter, size) {
            ("b", 1) => DataType::Bool,
            ("u", 1) => DataType::Uint8,
            ("u", 2) => DataType::Uint16,
            ("u", 4) => DataType::Uint32,
            ("u", 8) => DataType::Uint64,
            ("i", 1) => DataType::Int8,
            ("i", 2) => DataType::Int16,
            ("i", 4) => DataType::Int32,
            ("i", 8) => DataType::Int64,
            ("f", 2) => DataType::Fp16,
            ("f", 4) => DataType::Fp32,
            ("f", 8) => DataType::Fp64,
            ("S", 1..) => return Some(Self::Bytes(size)),
            ("U", 1..) => return Some(Self::Text(size)),
            _ => return None,
        }))
    }

    fn size(&self) -> usize {
        match self {
            Self::Number(data_type) => data_type.byte_size().unwrap_or(1),
            Self::Bytes(length) => *length,
            Self::Text(length) => 4 * length,
        }
    }

    fn elements(&self, content: &[u8]) -> Option<Vec<Element>> {
        let cells = content.chunks_exact(self.size());
        match self {
            Self::Number(data_type) => elements(*data_type, content),
            Self::Bytes(_) => {
                let trimmed =
                    |cell: &[u8]| cell.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                Some(cells.map(|cell| Element::Bytes(cell[..trimmed(cell)].to_vec())).collect())
            }
            Self::Text(_) => cells
                .map(|cell| {
                    let points = cell.as_chunks::<4>().0.iter().map(|point| u32::from_le_bytes(*point));
                    let text = points.map(char::from_u32).collect::<Option<String>>()?;
                    Some(Element::Bytes(text.trim_end_matches('\0').into()))
                })
                .collect(),
        }
    }
}

/// The elements in the order of C, from those in the order of Fortran.
fn row_major(shape: &[u64], elements: &[Element]) -> Vec<Element> {
    let place = |mut index: u64| {
        // The strides of a column-major array grow from the first dimension on.
        let mut at = 0;
        let mut stride: u64 = shape.iter().product();
        for size in shape.iter().rev() {
            stride /= size;
            at += index % size * stride;
            index /= size;
        }
        at
    };
    (0..elements.len() as u64)
        .filter_map(|index| usize::try_from(place(index)).ok().and_then(|at| elements.get(at).cloned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(description: &str, order: &str, shape: &str, content: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{description}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        [MAGIC, &[1, 0], &length, header.as_bytes(), content].concat()
    }

    fn integers(elements: &[Element]) -> Vec<f64> {
        elements.iter().map(|element| element.number().unwrap()).collect()
    }

    #[test]
    fn arrays_are_read_in_both_orders() {
        let content = [0, 1, 2, 3, 4, 5];
        for (order, shape, expected) in [
            ("False", "(6,)", &[0., 1., 2., 3., 4., 5.]),
            ("False", "(2, 3)", &[0., 1., 2., 3., 4., 5.]),
            ("True", "(6,)", &[0., 1., 2., 3., 4., 5.]),
            // As numpy.asfortranarray stores [[0, 2, 4], [1, 3, 5]].
            ("True", "(2, 3)", &[0., 2., 4., 1., 3., 5.]),
            ("True", "(1, 3, 2)", &[0., 3., 1., 4., 2., 5.]),
        ] {
            let (found, elements) = read(&file("|u1", order, shape, &content)).unwrap();
            assert_eq!(integers(&elements), expected, "{order} {shape}");
            assert_eq!(found.iter().product::<u64>(), 6);
        }
    }

    #[test]
    fn elements_have_their_types() {
        let text = |text: &str| Element::Bytes(text.into());
        for (description, content, expected) in [
            ("<f4", &1.5_f32.to_le_bytes()[..], Element::Float(1.5)),
            ("<f8", &(-0.25_f64).to_le_bytes(), Element::Float(-0.25)),
            ("<f2", &half::f16::from_f32(0.5).to_le_bytes(), Element::Float(0.5)),
            ("<i8", &(-7_i64).to_le_bytes(), Element::Integer(-7)),
            ("|b1", &[1], Element::Bool(true)),
            ("|S4", b"ab\0\0", text("ab")),
            ("<U2", &[b'x', 0, 0, 0, 0xfc, 0, 0, 0], text("xü")),
        ] {
            assert_eq!(read(&file(description, "False", "()", content)).unwrap(), (vec![], vec![expected]));
        }
    }

    #[test]
    fn other_files_are_refused() {
        let whole = file("<f4", "False", "(2,)", &[0; 8]);
        assert!(read(&whole).is_ok());
        for cut in 0..whole.len() {
            assert!(read(&whole[..cut]).unwrap_err().contains("not a .npy file"), "{cut}");
        }
        for (description, shape, expected) in [
            ("|O", "(1,)", "type '|O'"),
            (">f4", "(1,)", "type '>f4'"),
            ("<c8", "(1,)", "type '<c8'"),
            ("<f4", "(-1,)", "damaged"),
            ("<f4", "(4294967296, 4294967296)", "damaged"),
        ] {
            let error = read(&file(description, "False", shape, &[0; 8])).unwrap_err();
            assert!(error.contains(expected), "{description} {shape}: {error}");
        }
    }
}
