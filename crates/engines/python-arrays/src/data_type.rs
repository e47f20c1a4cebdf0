//! The element types of tensors in numpy and DLPack.

use tensor_types::DataType::{self, *};

/// numpy's number of each type (-1 for none), and DLPack's code.
const TYPES: [(DataType, i32, u8); 14] = [
    (Bool, 0, 6),
    (Uint8, 2, 1),
    (Uint16, 4, 1),
    (Uint32, 6, 1),
    (Uint64, 8, 1),
    (Int8, 1, 0),
    (Int16, 3, 0),
    (Int32, 5, 0),
    (Int64, 7, 0),
    (Fp16, 23, 2),
    (Fp32, 11, 2),
    (Fp64, 12, 2),
    (Bytes, 17, 0),
    (Bf16, -1, 4),
];

/// The type with this numpy number.
pub fn of_numpy(number: i32) -> Option<DataType> {
    Some(match number {
        // `long long` is as long as `long` here.
        9 => Int64,
        10 => Uint64,
        // Strings of fixed length.
        18 => Bytes,
        _ => TYPES.iter().find(|row| row.1 == number && number >= 0)?.0,
    })
}

/// The type for this DLPack code and width.
pub fn of_dlpack(code: u8, bits: u8, lanes: u16) -> Option<DataType> {
    let matches = |row: &&(DataType, i32, u8)| row.2 == code && element_size(row.0) * 8 == usize::from(bits);
    (lanes == 1 && bits > 0).then(|| TYPES.iter().find(matches)).flatten().map(|row| row.0)
}

/// numpy's number of a type; `None` if numpy lacks the type.
pub fn numpy_number(data_type: DataType) -> Option<i32> {
    row(data_type).map(|row| row.1).filter(|number| *number >= 0)
}

/// DLPack's code of a type and the number of bits; `None` if DLPack lacks the type.
pub fn dlpack_code(data_type: DataType) -> Option<(u8, u8)> {
    let bits = u8::try_from(data_type.byte_size()? * 8).ok()?;
    row(data_type).map(|row| (row.2, bits))
}

/// Size of an element in bytes; 0 if it varies.
pub fn element_size(data_type: DataType) -> usize {
    data_type.byte_size().unwrap_or(0)
}

fn row(data_type: DataType) -> Option<&'static (DataType, i32, u8)> {
    TYPES.iter().find(|row| row.0 == data_type)
}
