//! Elements in both forms of the protocol, shapes, and arrays.

use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Elements, through the binary form and through JSON, are what they were.
fn check_round_trips<T: Element + PartialEq + std::fmt::Debug>(elements: &[T]) {
    let tensor = Tensor::new("x", [elements.len()], elements).unwrap();
    assert_eq!(tensor.data_type(), T::DATA_TYPE);
    assert_eq!(tensor.to_vec::<T>().unwrap(), elements);
    let read =
        Tensor::from_bytes("x", T::DATA_TYPE, [elements.len()], tensor.bytes().unwrap().clone()).unwrap();
    assert_eq!(read, tensor);
    let json = tensor.to_json().unwrap();
    assert_eq!(Tensor::from_json("x", T::DATA_TYPE, vec![elements.len()], &json).unwrap(), tensor, "{json}");
}

#[test]
fn extreme_elements_survive_both_forms() {
    check_round_trips(&[true, false]);
    check_round_trips(&[0, u8::MAX]);
    check_round_trips(&[0, u16::MAX]);
    check_round_trips(&[0, u32::MAX]);
    check_round_trips(&[0, u64::MAX]);
    check_round_trips(&[i8::MIN, i8::MAX]);
    check_round_trips(&[i16::MIN, i16::MAX]);
    check_round_trips(&[i32::MIN, i32::MAX]);
    check_round_trips(&[i64::MIN, i64::MAX]);
    check_round_trips(&[f16::MIN, f16::MIN_POSITIVE_SUBNORMAL, f16::MAX]);
    check_round_trips(&[bf16::MIN, bf16::MIN_POSITIVE, bf16::MAX]);
    check_round_trips(&[f32::MIN, f32::MIN_POSITIVE, 0.1, f32::MAX]);
    check_round_trips(&[f64::MIN, f64::MIN_POSITIVE, 0.1, f64::MAX]);
}

proptest! {
    #[test]
    fn numbers_survive_both_forms(
        words in proptest::collection::vec(any::<i64>(), 0..9),
        floats in proptest::collection::vec(proptest::num::f32::NORMAL | proptest::num::f32::ZERO, 0..9),
    ) {
        check_round_trips(&words);
        check_round_trips(&floats);
    }

    #[test]
    fn byte_strings_are_read_as_written(strings in proptest::collection::vec(any::<Vec<u8>>(), 0..6)) {
        let tensor = Tensor::strings("x", [strings.len()], &strings).unwrap();
        prop_assert_eq!(tensor.to_byte_strings().unwrap(), strings.clone());
        let bytes = tensor.bytes().unwrap().clone();
        if !bytes.is_empty() {
            let cut = Tensor::from_bytes("x", DataType::Bytes, [strings.len()], bytes.slice(..bytes.len() - 1));
            prop_assert!(cut.is_err());
        }
    }
}

#[test]
fn elements_must_fit_the_shape() {
    for (shape, is_right) in [
        (vec![4], true),
        (vec![2, 2], true),
        (vec![1, 4, 1], true),
        (vec![3], false),
        (vec![], false),
        (vec![0], false),
    ] {
        let numbers = Tensor::new("x", shape.clone(), [1_u8, 2, 3, 4]);
        let strings = Tensor::strings("x", shape.clone(), ["a", "b", "", "ü"]);
        let bytes = Tensor::from_bytes("x", DataType::Uint8, shape.clone(), vec![1, 2, 3, 4]);
        assert_eq!([numbers.is_ok(), strings.is_ok(), bytes.is_ok()], [is_right; 3], "{shape:?}");
    }
    assert!(Tensor::new("x", [], [1_u8]).is_ok());
    assert!(Tensor::new::<f32>("x", [usize::MAX, 0, 2], []).is_ok());
    let error = Tensor::new::<f32>("x", [usize::MAX, 2], []).unwrap_err();
    assert!(error.to_string().contains("do not fit"), "{error}");
}

#[test]
fn tensors_are_read_only_as_what_they_are() {
    let tensor = Tensor::new("x", [1], [1_i32]).unwrap();
    let error = tensor.to_vec::<u32>().unwrap_err();
    assert_eq!(error.to_string(), "tensor 'x' has the data type INT32, not UINT32");
    assert!(tensor.to_strings().is_err());
    assert!(Tensor::strings("x", [1], [[255_u8]]).unwrap().to_strings().is_err());
}

#[test]
fn json_of_servers_is_read() {
    let read = |data_type, shape: &[usize], data| Tensor::from_json("y", data_type, shape.to_vec(), &data);
    let nested = read(DataType::Fp32, &[2, 2], json!([[1, 2.5], [null, "-Infinity"]]))
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    assert_eq!(nested[..2], [1.0, 2.5]);
    assert!(nested[2].is_nan() && nested[3] == f32::NEG_INFINITY);
    assert_eq!(read(DataType::Bytes, &[1], json!(["ü"])).unwrap().to_strings().unwrap(), ["ü"]);
    for (data_type, data) in [
        (DataType::Uint8, json!([256])),
        (DataType::Int32, json!([1.5])),
        (DataType::Bool, json!([1])),
        (DataType::Fp32, json!(["one"])),
        (DataType::Bytes, json!([1])),
        (DataType::Int8, json!([1, 2])),
        (DataType::Int8, json!({})),
    ] {
        assert!(
            matches!(read(data_type, &[1], data.clone()), Err(Error::Response(_))),
            "{data_type:?} {data}"
        );
    }
}

#[test]
fn json_has_no_form_of_some_values() {
    for tensor in [
        Tensor::new("x", [1], [f32::NAN]).unwrap(),
        Tensor::new("x", [1], [f64::INFINITY]).unwrap(),
        Tensor::strings("x", [1], [[255_u8]]).unwrap(),
    ] {
        assert!(tensor.to_json().unwrap_err().to_string().contains("JSON cannot represent"));
    }
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_of_any_layout_keep_their_elements() {
    let array = ndarray::array![[1_i64, 2, 3], [4, 5, 6]];
    let every_other = array.slice_axis(ndarray::Axis(1), ndarray::Slice::new(0, None, 2));
    for (view, shape) in [(array.view(), [2, 3]), (array.t(), [3, 2]), (every_other, [2, 2])] {
        let tensor = Tensor::from_array("x", &view).unwrap();
        assert_eq!(tensor.shape(), shape);
        assert_eq!(tensor.to_array::<i64>().unwrap(), view.into_dyn());
    }
    assert!(Tensor::new("x", [1], [1_u8]).unwrap().to_array::<i8>().is_err());
}
