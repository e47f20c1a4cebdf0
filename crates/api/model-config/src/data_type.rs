//! Element types in the schema of configurations.

use tensor_types::DataType;

use crate::proto;

impl proto::DataType {
    /// The element type; `None` for `TYPE_INVALID`, which means "not set".
    #[inline]
    pub fn element_type(self) -> Option<DataType> {
        DataType::from_number(u8::try_from(self as i32).ok()?)
    }
}

impl From<DataType> for proto::DataType {
    #[inline]
    fn from(data_type: DataType) -> Self {
        Self::try_from(i32::from(data_type.number())).unwrap_or(Self::TypeInvalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_has_the_names_and_numbers_of_all_types() {
        for data_type in DataType::ALL {
            let value = proto::DataType::from(data_type);
            assert_eq!(value.as_str_name(), data_type.config_name());
            assert_eq!(value as i32, i32::from(data_type.number()));
            assert_eq!(value.element_type(), Some(data_type));
        }
        assert_eq!(proto::DataType::TypeInvalid.element_type(), None);
    }
}
