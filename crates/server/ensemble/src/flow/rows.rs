//! Rows of a batch, and the parts of tensors that belong to them. Parts in host memory share it.

use nereid_backend_api::{Buffers, BytesElements, Error, Result, Shape, Tensor};

/// Rows of the request's batch, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    All,
    /// Some, or none.
    Some(Vec<usize>),
}

impl Rows {
    /// The rows that `holds`, of `total`.
    pub(crate) fn which(total: usize, holds: impl Fn(usize) -> bool) -> Self {
        let rows: Vec<_> = (0..total).filter(|&row| holds(row)).collect();
        if rows.len() == total { Self::All } else { Self::Some(rows) }
    }

    pub(crate) fn len(&self, total: usize) -> usize {
        match self {
            Self::All => total,
            Self::Some(rows) => rows.len(),
        }
    }

    /// The place of a row among these.
    pub(crate) fn place(&self, row: usize) -> Option<usize> {
        match self {
            Self::All => Some(row),
            Self::Some(rows) => rows.binary_search(&row).ok(),
        }
    }

    pub(crate) fn iter(&self, total: usize) -> impl Iterator<Item = usize> {
        let (all, some) = match self {
            Self::All => (0..total, &[][..]),
            Self::Some(rows) => (0..0, &rows[..]),
        };
        all.chain(some.iter().copied())
    }
}

/// The contents in `count` parts of equal shape, in order. Device memory is copied.
///
/// # Errors
/// The contents cannot be divided by `count`, or the device's driver failed.
pub(crate) fn split(tensor: &Tensor, count: usize) -> Result<Vec<Buffers>> {
    let mut tensor = tensor.clone();
    tensor.copy_to_host()?;
    let indivisible = || {
        Error::internal(format!(
            "tensor '{}' of shape {} cannot be split into {count} parts",
            tensor.name, tensor.shape
        ))
    };
    let Some(_) = tensor.data_type.byte_size() else { return split_elements(tensor, count) };
    let size = tensor.byte_size();
    let part = size.checked_div(count).unwrap_or(0);
    if part * count != size {
        return Err(indivisible());
    }
    let mut buffers = tensor.buffers.iter();
    let mut rest = None;
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let mut missing = part;
        let mut taken = Buffers::new();
        while missing > 0 {
            let buffer = match rest.take() {
                Some(rest) => rest,
                None => buffers.next().cloned().ok_or_else(indivisible)?,
            };
            let length = missing.min(buffer.len());
            taken.extend(buffer.slice(0..length));
            rest = buffer.slice(length..buffer.len()).filter(|rest| !rest.is_empty());
            missing -= length;
        }
        parts.push(taken);
    }
    Ok(parts)
}

fn split_elements(tensor: Tensor, count: usize) -> Result<Vec<Buffers>> {
    let buffer = match &tensor.buffers[..] {
        [buffer] => buffer.clone(),
        _ => nereid_backend_api::Buffer::own(tensor.contiguous()?.into_owned()),
    };
    let bytes = buffer.as_host().cloned().unwrap_or_default();
    let mut ends = vec![0];
    for element in BytesElements::new(&bytes) {
        let last = ends.last().copied().unwrap_or(0);
        ends.push(last + size_of::<u32>() + element?.len());
    }
    let elements = ends.len() - 1;
    let part = elements.checked_div(count).unwrap_or(0);
    if part * count != elements {
        return Err(Error::internal(format!(
            "tensor '{}' with {elements} elements cannot be split into {count} parts",
            tensor.name
        )));
    }
    let parts = (0..count).map(|index| buffer.slice(ends[index * part]..ends[(index + 1) * part]));
    Ok(parts.map(|part| part.into_iter().collect()).collect())
}

/// The rows at these places of the first dimension.
///
/// # Errors
/// As [`split`].
pub(crate) fn take(tensor: &Tensor, places: &[usize]) -> Result<Tensor> {
    let rows = usize::try_from(tensor.shape.first().copied().unwrap_or(0)).unwrap_or(0);
    let parts = split(tensor, rows)?;
    let mut shape = tensor.shape.clone();
    if let Some(first) = shape.first_mut() {
        *first = dim(places.len());
    }
    let buffers = places.iter().filter_map(|&place| parts.get(place)).flatten().cloned().collect();
    Ok(Tensor { name: tensor.name.clone(), data_type: tensor.data_type, shape, buffers })
}

/// Whether tensors can be parts of one: `None`, or the difference.
pub(crate) fn difference(one: &Tensor, other: &Tensor) -> Option<String> {
    if one.data_type != other.data_type {
        return Some(format!("{} and {}", one.data_type, other.data_type));
    }
    let inner = |tensor: &Tensor| Shape::from(tensor.shape.get(1..).unwrap_or_default());
    (inner(one) != inner(other)).then(|| format!("the shapes {} and {}", one.shape, other.shape))
}

pub(crate) fn dim(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::{Buffer, DataType};

    use super::*;

    fn contents(buffers: &Buffers) -> Vec<u8> {
        buffers.iter().flat_map(|buffer| buffer.as_host().unwrap().to_vec()).collect()
    }

    #[test]
    fn contents_are_split_across_pieces_without_a_copy() {
        let bytes: [&'static [u8]; 4] = [b"abc", b"", b"d", b"efgh"];
        let buffers: Buffers = bytes.iter().map(|bytes| Buffer::host(*bytes)).collect();
        let tensor = Tensor { name: "x".into(), data_type: DataType::Uint16, shape: [4].into(), buffers };
        for count in [1, 2, 4] {
            let parts = split(&tensor, count).unwrap();
            let joined: Vec<_> = parts.iter().map(contents).collect();
            let expected: Vec<_> = b"abcdefgh".chunks(8 / count).map(<[u8]>::to_vec).collect();
            assert_eq!(joined, expected);
        }
        assert_eq!(split(&tensor, 4).unwrap()[0][0].as_host().unwrap().as_ptr(), bytes[0].as_ptr());
        let error = split(&tensor, 3).unwrap_err();
        assert_eq!(error.message(), "tensor 'x' of shape [4] cannot be split into 3 parts");
        assert!(split(&tensor, 0).is_err());
    }

    #[test]
    fn elements_of_bytes_are_split_by_their_lengths() {
        let tensor = Tensor::new("x", DataType::Bytes, [3, 1], &b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc"[..]);
        let parts = split(&tensor, 3).unwrap();
        assert_eq!(
            parts.iter().map(contents).collect::<Vec<_>>(),
            [b"\x01\0\0\0a".to_vec(), b"\0\0\0\0".to_vec(), b"\x02\0\0\0bc".to_vec()]
        );
        let taken = take(&tensor, &[0, 2]).unwrap();
        assert_eq!(
            (taken.shape, contents(&taken.buffers)),
            ([2, 1].into(), b"\x01\0\0\0a\x02\0\0\0bc".to_vec())
        );
        assert!(split(&tensor, 2).is_err());
        let none = Tensor::new("x", DataType::Bytes, [0, 1], vec![]);
        assert_eq!(split(&none, 0).unwrap().len(), 0);
        assert_eq!(take(&none, &[]).unwrap().shape, [0, 1].into());
    }

    #[test]
    fn rows_without_contents_are_split_too() {
        let tensor = Tensor::new("x", DataType::Int32, [3, 0], vec![]);
        assert_eq!(take(&tensor, &[1, 2]).unwrap().shape, [2, 0].into());
    }

    #[test]
    fn rows_are_all_or_some() {
        assert_eq!(Rows::which(2, |_| true), Rows::All);
        let odd = Rows::which(5, |row| row % 2 == 1);
        assert_eq!(odd, Rows::Some(vec![1, 3]));
        assert_eq!((odd.place(3), odd.place(2), Rows::All.place(2)), (Some(1), None, Some(2)));
        assert_eq!((odd.len(5), Rows::All.len(5)), (2, 5));
        assert_eq!(Rows::All.iter(2).chain(odd.iter(5)).collect::<Vec<_>>(), [0, 1, 1, 3]);
    }
}
