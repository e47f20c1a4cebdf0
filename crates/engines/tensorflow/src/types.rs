//! The types of elements that TensorFlow and the protocol share, by TensorFlow's numbers.

use std::ffi::c_int;

use nereid_backend_api::DataType;

const TYPES: [(DataType, c_int); 14] = [
    (DataType::Fp32, 1),
    (DataType::Fp64, 2),
    (DataType::Int32, 3),
    (DataType::Uint8, 4),
    (DataType::Int16, 5),
    (DataType::Int8, 6),
    (DataType::Bytes, 7),
    (DataType::Int64, 9),
    (DataType::Bool, 10),
    (DataType::Bf16, 14),
    (DataType::Uint16, 17),
    (DataType::Fp16, 19),
    (DataType::Uint32, 22),
    (DataType::Uint64, 23),
];

/// TensorFlow's number of a type.
pub(crate) fn number(data_type: DataType) -> c_int {
    TYPES.iter().find(|(known, _)| *known == data_type).map_or(0, |(_, number)| *number)
}

/// The type of a number, if the protocol has it.
pub(crate) fn of_number(number: c_int) -> Option<DataType> {
    TYPES.iter().find(|(_, known)| *known == number).map(|(data_type, _)| *data_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_number_of_its_own() {
        for (data_type, known) in TYPES {
            assert_eq!((number(data_type), of_number(known)), (known, Some(data_type)));
        }
        // A complex number, a quantised one, and a handle.
        assert!([8, 11, 20].into_iter().all(|number| of_number(number).is_none()));
    }
}
