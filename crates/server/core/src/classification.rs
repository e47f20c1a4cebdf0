//! The highest values of an output with their labels (Triton's classification extension).

use std::cmp::Ordering;

use half::{bf16, f16};
use nereid_backend_api::{DataType, Error, Result, Shape, Tensor, push_bytes_element};

use crate::spec::Labels;

/// `output` as a BYTES tensor of its `count` highest values, each element `"<value>:<index>[:<label>]"`. With
/// `batched`, of each item of the batch.
///
/// # Errors
/// `Unsupported` for BYTES, which have no order of value.
pub(crate) fn top(output: &Tensor, count: usize, batched: bool, labels: Option<&Labels>) -> Result<Tensor> {
    let contents = output.contiguous()?;
    let items =
        if batched { output.shape.first().map_or(1, |&size| usize::try_from(size).unwrap_or(1)) } else { 1 };
    let elements = output.shape.element_count().unwrap_or(0).checked_div(items).unwrap_or(0);
    let count = count.min(elements);

    let classes = Classes { contents: &contents, items, elements, count, labels };
    macro_rules! numbers {
        ($($data_type:ident => $number:ty, $print:expr;)*) => {
            match output.data_type {
                $(DataType::$data_type => classes.collect::<{ size_of::<$number>() }, $number>(
                    <$number>::from_le_bytes, $print,
                )?,)*
                DataType::Bool => classes.collect::<1, u8>(u8::from_le_bytes, |value| u8::from(value != 0).to_string())?,
                DataType::Bytes => return Err(Error::unsupported(format!(
                    "output '{}' has datatype BYTES, which cannot be classified", output.name
                ))),
            }
        };
    }
    // Floating-point values are printed with six decimals, as the reference prints them.
    let contents = numbers! {
        Uint8 => u8, |value| value.to_string();
        Uint16 => u16, |value| value.to_string();
        Uint32 => u32, |value| value.to_string();
        Uint64 => u64, |value| value.to_string();
        Int8 => i8, |value| value.to_string();
        Int16 => i16, |value| value.to_string();
        Int32 => i32, |value| value.to_string();
        Int64 => i64, |value| value.to_string();
        Fp16 => f16, |value| format!("{:.6}", value.to_f32());
        Bf16 => bf16, |value| format!("{:.6}", value.to_f32());
        Fp32 => f32, |value| format!("{value:.6}");
        Fp64 => f64, |value| format!("{value:.6}");
    };
    let mut shape = Shape::scalar();
    if batched {
        shape.push(i64::try_from(items).unwrap_or(i64::MAX));
    }
    shape.push(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(Tensor::new(output.name.clone(), DataType::Bytes, shape, contents))
}

struct Classes<'a> {
    contents: &'a [u8],
    items: usize,
    elements: usize,
    count: usize,
    labels: Option<&'a Labels>,
}

impl Classes<'_> {
    fn collect<const N: usize, T: PartialOrd + Copy>(
        &self,
        read: fn([u8; N]) -> T,
        print: impl Fn(T) -> String,
    ) -> Result<Vec<u8>> {
        let values = self.contents.as_chunks::<N>().0;
        let mut contents = Vec::new();
        for item in values.chunks_exact(self.elements.max(1)).take(self.items) {
            for (index, value) in highest(item.iter().map(|bytes| read(*bytes)), self.count) {
                let mut element = format!("{}:{index}", print(value));
                let label = self.labels.and_then(|labels| labels.get(index));
                if let Some(label) = label.filter(|label| !label.is_empty()) {
                    element.push(':');
                    element.push_str(label);
                }
                push_bytes_element(&mut contents, element.as_bytes())?;
            }
        }
        Ok(contents)
    }
}

/// The `count` highest values with their indices, highest first, the lower index first among equals. Values that cannot be
/// compared (NaN) go last. Takes time in proportion to the number of values, and memory for twice `count`.
fn highest<T: PartialOrd + Copy>(values: impl Iterator<Item = T>, count: usize) -> Vec<(usize, T)> {
    let is_nan = |value: T| value.partial_cmp(&value).is_none();
    let order = |a: &(usize, T), b: &(usize, T)| {
        let by_value = b.1.partial_cmp(&a.1).unwrap_or_else(|| is_nan(a.1).cmp(&is_nan(b.1)));
        by_value.then(a.0.cmp(&b.0))
    };
    let mut best: Vec<(usize, T)> = Vec::new();
    // The last of the highest values so far, once there are `count` of them.
    let mut last: Option<(usize, T)> = None;
    for candidate in values.enumerate() {
        if last.as_ref().is_some_and(|last| order(&candidate, last) == Ordering::Greater) {
            continue;
        }
        best.push(candidate);
        if best.len() == count.saturating_mul(2).max(1) {
            best.select_nth_unstable_by(count.saturating_sub(1), order);
            best.truncate(count);
            last = best.last().copied();
        }
    }
    best.sort_unstable_by(order);
    best.truncate(count);
    best
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::BytesElements;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn texts(tensor: &Tensor) -> Vec<String> {
        BytesElements::new(&tensor.contiguous().unwrap())
            .map(|element| String::from_utf8(element.unwrap().to_vec()).unwrap())
            .collect()
    }

    fn floats(shape: impl Into<Shape>, values: &[f32]) -> Tensor {
        let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new("OUT", DataType::Fp32, shape, contents)
    }

    #[test]
    fn the_highest_values_come_first_with_their_labels() {
        let labels = ["ant", "bee", "cat"].map(String::from).to_vec();
        let top = top(&floats([1, 4], &[0.1, 0.9, 0.3, 0.2]), 3, true, Some(&labels)).unwrap();
        assert_eq!(texts(&top), ["0.900000:1:bee", "0.300000:2:cat", "0.200000:3"]);
        assert_eq!((top.data_type, top.shape), (DataType::Bytes, Shape::from([1, 3])));
    }

    #[test]
    fn an_empty_label_is_none() {
        let labels = ["", "bee", "", " "].map(String::from).to_vec();
        let top = top(&floats([5], &[5.0, 4.0, 3.0, 2.0, 1.0]), 5, false, Some(&labels)).unwrap();
        assert_eq!(texts(&top), ["5.000000:0", "4.000000:1:bee", "3.000000:2", "2.000000:3: ", "1.000000:4"]);
    }

    #[test]
    fn each_item_of_a_batch_has_its_own() {
        let top = top(&floats([2, 2], &[1.0, 2.0, 4.0, 3.0]), 1, true, None).unwrap();
        assert_eq!(texts(&top), ["2.000000:1", "4.000000:0"]);
        assert_eq!(top.shape, Shape::from([2, 1]));
    }

    #[test]
    fn without_a_batch_dimension_the_whole_output_is_one_item() {
        let top = top(&floats([2, 2], &[1.0, 2.0, 4.0, 3.0]), 9, false, None).unwrap();
        assert_eq!(texts(&top), ["4.000000:2", "3.000000:3", "2.000000:1", "1.000000:0"]);
        assert_eq!(top.shape, Shape::from([4]));
    }

    #[test]
    fn among_equals_the_lower_index_is_first_and_not_a_number_is_last() {
        let top = top(&floats([4], &[f32::NAN, 1.0, 1.0, f32::NEG_INFINITY]), 4, false, None).unwrap();
        assert_eq!(texts(&top), ["1.000000:1", "1.000000:2", "-inf:3", "NaN:0"]);
    }

    proptest! {
        #[test]
        fn highest_values_are_those_of_a_full_sort(
            values in vec(prop_oneof![(-4..4_i8).prop_map(f32::from), Just(f32::NAN), Just(-0.0)], 0..200),
            count in 0_usize..220,
        ) {
            let mut sorted: Vec<_> = values.iter().copied().enumerate().collect();
            // Stable: equal values stay in the order of their indices.
            sorted.sort_by(|(_, a), (_, b)| {
                b.partial_cmp(a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            });
            sorted.truncate(count);
            let indices = |values: Vec<(usize, f32)>| values.into_iter().map(|(index, _)| index).collect::<Vec<_>>();
            prop_assert_eq!(indices(highest(values.into_iter(), count)), indices(sorted));
        }
    }

    #[test]
    fn bytes_cannot_be_classified_and_nothing_has_no_classes() {
        let bytes = Tensor::new("OUT", DataType::Bytes, [0], Vec::new());
        assert!(top(&bytes, 1, false, None).is_err());
        let empty = top(&floats([1, 0], &[]), 2, true, None).unwrap();
        assert_eq!((texts(&empty).len(), empty.shape), (0, Shape::from([1, 0])));
        let no_items = top(&floats([0, 3], &[]), 2, true, None).unwrap();
        assert!(texts(&no_items).is_empty());
    }
}
