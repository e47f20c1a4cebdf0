//! The tensors of tokens that a model takes.

use nereid_core::backend_api::{DataType, InferRequest, RequestedOutput, Shape, Tensor};
use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::{InputSignature, Model, Signature};
use nereid_text_encoder::{Encoder, Tokens};

/// The most texts of a request to a model without `max_batch_size`.
const MOST_ROWS: usize = 64;

/// The length of a row is a multiple of this if other requests may join the batch, which takes rows of the same length.
const STEP: usize = 16;

/// The contents of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Ids,
    /// 1 for tokens, 0 for padding.
    Mask,
    /// The text of a pair that a token belongs to.
    Types,
    /// The places of tokens in their text.
    Positions,
}

/// The names of inputs; Hugging Face's exporters use the first one of each role.
const NAMES: [(&str, Role); 6] = [
    ("input_ids", Role::Ids),
    ("attention_mask", Role::Mask),
    ("input_mask", Role::Mask),
    ("token_type_ids", Role::Types),
    ("segment_ids", Role::Types),
    ("position_ids", Role::Positions),
];

/// The inputs of a model of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenInputs {
    inputs: Vec<(Role, String, DataType)>,
    /// The most texts of a request.
    rows: usize,
    /// The only length of a row, if the model takes only one.
    length: Option<usize>,
    /// Whether requests of several clients become a batch.
    joins: bool,
}

/// The texts of a request, and the length to which their rows are filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The places of the texts among all.
    pub texts: Vec<usize>,
    /// The length of a row.
    pub length: usize,
}

impl TokenInputs {
    /// The inputs of a model; `None` if it takes others.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let joins = matches!(model.config().scheduling_choice, Some(SchedulingChoice::DynamicBatching(_)));
        Self::find(model.signature(), joins)
    }

    fn find(signature: &Signature, joins: bool) -> Option<Self> {
        let mut inputs = Vec::with_capacity(signature.inputs.len());
        let (mut rows, mut length) = (MOST_ROWS, None);
        for input in &signature.inputs {
            let Some((_, role)) = NAMES.into_iter().find(|(name, _)| *name == input.name) else {
                if input.optional {
                    continue;
                }
                return None;
            };
            let (most, fixed) = form(signature, input)?;
            rows = rows.min(most);
            match (length, fixed) {
                (Some(known), Some(fixed)) if known != fixed => return None,
                (None, Some(fixed)) => length = Some(fixed),
                _ => {}
            }
            inputs.push((role, input.name.clone(), input.data_type));
        }
        let has = |role| inputs.iter().any(|(known, ..)| *known == role);
        if !has(Role::Ids) {
            return None;
        }
        // Without a mask, padding would be read as text.
        let can_pad = has(Role::Mask);
        if length.is_some() && !can_pad {
            return None;
        }
        let rows = if can_pad { rows } else { 1 };
        Some(Self { inputs, rows, length, joins: joins && can_pad })
    }

    /// The only length of a row, if the model takes only one.
    pub(crate) fn length(&self) -> Option<usize> {
        self.length
    }

    /// Divides texts with these numbers of tokens into requests of up to `most` tokens, padding included. Texts of about the same length
    /// come together.
    pub(crate) fn pieces(&self, lengths: &[usize], most: usize, limit: usize) -> Vec<Piece> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        let length = |place: &usize| lengths.get(*place).copied().unwrap_or(0);
        order.sort_by_key(|place| std::cmp::Reverse(length(place)));
        let mut pieces = Vec::new();
        let mut rest = order.as_slice();
        while let Some(first) = rest.first() {
            let longest = self.length.unwrap_or_else(|| length(first)).max(1);
            let rows = (most / longest).clamp(1, self.rows).min(rest.len());
            let (own, later) = rest.split_at(rows);
            // A full batch joins no other.
            let rounds = self.joins && self.length.is_none() && rows < self.rows;
            let length =
                if rounds { longest.next_multiple_of(STEP).min(limit).max(longest) } else { longest };
            pieces.push(Piece { texts: own.to_vec(), length });
            rest = later;
        }
        pieces
    }

    /// The request for a piece of `texts`, which wants this output.
    pub(crate) fn request(
        &self,
        encoder: &Encoder,
        texts: &[Tokens],
        piece: &Piece,
        output: &str,
    ) -> InferRequest {
        let rows = || piece.texts.iter().filter_map(|place| texts.get(*place));
        let inputs = self.inputs.iter().map(|(role, name, data_type)| {
            let size = if *data_type == DataType::Int32 { 4 } else { 8 };
            let mut contents = Vec::with_capacity(piece.texts.len() * piece.length * size);
            let mut push = |value: u32| match data_type {
                DataType::Int32 => contents.extend_from_slice(&value.cast_signed().to_le_bytes()),
                _ => contents.extend_from_slice(&i64::from(value).to_le_bytes()),
            };
            for tokens in rows() {
                let filler = piece.length.saturating_sub(tokens.ids.len());
                let fill = if *role == Role::Ids { encoder.pad() } else { 0 };
                if encoder.pads_left() {
                    (0..filler).for_each(|_| push(fill));
                }
                match role {
                    Role::Ids => tokens.ids.iter().for_each(|id| push(*id)),
                    Role::Mask => tokens.ids.iter().for_each(|_| push(1)),
                    Role::Types if tokens.types.is_empty() => tokens.ids.iter().for_each(|_| push(0)),
                    Role::Types => tokens.types.iter().for_each(|kind| push(*kind)),
                    Role::Positions => (0..).zip(&tokens.ids).for_each(|(place, _)| push(place)),
                }
                if !encoder.pads_left() {
                    (0..filler).for_each(|_| push(fill));
                }
            }
            let dim = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
            let shape = Shape::from(&[dim(piece.texts.len()), dim(piece.length)][..]);
            Tensor::new(name.clone(), *data_type, shape, contents)
        });
        InferRequest {
            inputs: inputs.collect(),
            outputs: vec![RequestedOutput::new(output)],
            ..InferRequest::default()
        }
    }
}

/// The most rows that an input takes, and the length of a row unless it may be any. `None` if the input is none of tokens.
fn form(signature: &Signature, input: &InputSignature) -> Option<(usize, Option<usize>)> {
    if !matches!(input.data_type, DataType::Int32 | DataType::Int64) {
        return None;
    }
    let (rows, length) = match (signature.max_batch_size, &input.dims[..]) {
        (0, [-1, length]) => (usize::MAX, *length),
        (0, [1, length]) => (1, *length),
        (0, _) => return None,
        (most, [length]) => (most, *length),
        _ => return None,
    };
    match length {
        -1 => Some((rows, None)),
        length => Some((rows, Some(usize::try_from(length).ok().filter(|length| *length > 0)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, dims: &[i64]) -> InputSignature {
        let data_type = if name == "pixels" { DataType::Fp32 } else { DataType::Int64 };
        InputSignature { name: name.into(), data_type, dims: dims.into(), reshape: None, optional: false }
    }

    fn find(max_batch_size: usize, inputs: &[(&str, &[i64])], joins: bool) -> Option<TokenInputs> {
        let inputs = inputs.iter().map(|(name, dims)| input(name, dims)).collect();
        TokenInputs::find(&Signature { max_batch_size, inputs, outputs: Vec::new() }, joins)
    }

    #[test]
    fn inputs_are_found_by_names_types_and_dimensions() {
        let both = |dims: &'static [i64]| [("input_ids", dims), ("attention_mask", dims)];
        for (batch, inputs, expected) in [
            (0, &both(&[-1, -1])[..], Some((MOST_ROWS, None))),
            (0, &both(&[-1, 128]), Some((MOST_ROWS, Some(128)))),
            (0, &both(&[1, 128]), Some((1, Some(128)))),
            (0, &both(&[1, -1]), Some((1, None))),
            (4, &both(&[-1]), Some((4, None))),
            (256, &both(&[-1]), Some((MOST_ROWS, None))),
            (4, &both(&[64]), Some((4, Some(64)))),
            (0, &both(&[8, 128]), None),
            (0, &both(&[-1]), None),
            (4, &both(&[-1, -1]), None),
            (0, &both(&[-1, 0]), None),
            // Rows without a mask cannot be filled.
            (4, &[("input_ids", &[-1])], Some((1, None))),
            (4, &[("input_ids", &[64])], None),
            (0, &[("attention_mask", &[-1, -1])], None),
            (0, &[("input_ids", &[-1, -1]), ("attention_mask", &[-1, 128])], Some((MOST_ROWS, Some(128)))),
            (0, &[("input_ids", &[-1, 64]), ("attention_mask", &[-1, 128])], None),
            (0, &[("input_ids", &[-1, -1]), ("pixels", &[-1, -1])], None),
            (0, &[], None),
        ] {
            let found = find(batch, inputs, false).map(|found| (found.rows, found.length));
            assert_eq!(found, expected, "{batch} {inputs:?}");
        }
    }

    #[test]
    fn texts_of_similar_length_share_a_request_within_the_limits() {
        let dims: &[i64] = &[-1];
        let inputs: &[(&str, &[i64])] = &[("input_ids", dims), ("attention_mask", dims)];
        let pieces = |batch, joins, lengths: &[usize], most| {
            let found = find(batch, inputs, joins).unwrap().pieces(lengths, most, 40);
            found.into_iter().map(|piece| (piece.texts, piece.length)).collect::<Vec<_>>()
        };
        assert_eq!(pieces(4, false, &[3, 9, 3, 7, 5], 1000), [(vec![1, 3, 4, 0], 9), (vec![2], 3)]);
        assert_eq!(pieces(4, false, &[3, 9, 3], 18), [(vec![1, 0], 9), (vec![2], 3)]);
        // A text that is longer than a request may be has one of its own.
        assert_eq!(pieces(4, false, &[30, 3], 8), [(vec![0], 30), (vec![1], 3)]);
        // Rounded up for others that may join, but not in a full batch or beyond the limit.
        assert_eq!(pieces(2, true, &[3, 9, 5], 1000), [(vec![1, 2], 9), (vec![0], 16)]);
        assert_eq!(pieces(4, true, &[36], 1000), [(vec![0], 40)]);
        assert_eq!(pieces(4, true, &[], 1000), []);
    }
}
