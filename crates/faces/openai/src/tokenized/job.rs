//! Texts on their way through a model of tokens: tokenized in steps, sent in batches of which few are under way at once.

use std::collections::VecDeque;
use std::sync::Arc;

use nereid_core::backend_api::{Response, Tensor};
use nereid_tasks::long_work;
use nereid_text_encoder::{Scoring, Tokens, Truncation};

use super::TokenModel;
use super::inputs::Piece;
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal};
use crate::tensors;
use crate::traces::Answers;

/// The most tokens of a request, padding included, unless a single text has more.
const REQUEST_TOKENS: usize = 8 << 10;

/// The most tokens under way at once. Their outputs have a vector for each.
const TOKENS_UNDER_WAY: usize = 4 * REQUEST_TOKENS;

/// Bytes of text tokenized in one step, between which other requests get their turn.
const STEP_BYTES: usize = 64 << 10;

/// Most bytes of text that are tokenized on the I/O thread, which takes about as long as ten changes of threads.
const SHORT_BYTES: usize = 512;

/// A text, or what stands for one.
#[derive(Debug)]
pub(crate) enum Item {
    /// A text.
    Text(String),
    /// A text, and another one.
    Pair(Arc<str>, String),
    /// Tokens.
    Tokens(Vec<u32>),
}

/// The kind of results made from the model's outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Vectors. The first `prompt` tokens of each text belong to a prompt.
    Embeddings { prompt: usize },
    /// Single numbers.
    Scores(Scoring),
}

/// Texts for a model.
#[derive(Debug)]
pub(crate) struct Job {
    /// The model.
    pub model: Arc<TokenModel>,
    /// The texts.
    pub items: Vec<Item>,
    /// The treatment of texts that are too long.
    pub truncation: Truncation,
    /// The kind of results.
    pub kind: Kind,
    /// The field of the request that has the texts.
    pub field: &'static str,
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Pair(first, second) => first.len() + second.len(),
            Self::Tokens(_) => 0,
        }
    }
}

impl Job {
    /// The vectors of all texts, in order, and the number of their tokens. A score is a vector with one number.
    ///
    /// # Errors
    /// The reply to a request that is refused or has failed.
    pub(crate) async fn run(self, exchange: &mut Exchange<'_>) -> Result<(Vec<Vec<f32>>, u64), Refusal> {
        let Self { model, items, truncation, kind, field } = self;
        let texts = encode(&model, items, truncation, field).await?;
        let lengths: Vec<usize> = texts.iter().map(|tokens| tokens.ids.len()).collect();
        let total = lengths.iter().map(|length| *length as u64).sum();
        let lengths = Arc::new(lengths);
        let limit = model.text.encoder.limit();
        let output = model.output(kind)?.to_owned();
        let mut pieces = VecDeque::from(model.inputs.pieces(&lengths, REQUEST_TOKENS, limit));
        let mut under_way: VecDeque<(Answers, Piece)> = VecDeque::new();
        let mut tokens_under_way = 0;
        let mut vectors = vec![Vec::new(); lengths.len()];
        loop {
            while let Some(piece) = pieces.front()
                && (under_way.is_empty() || tokens_under_way + piece.tokens() <= TOKENS_UNDER_WAY)
                && let Some(piece) = pieces.pop_front()
            {
                let request = model.inputs.request(&model.text.encoder, &texts, &piece, &output);
                tokens_under_way += piece.tokens();
                under_way.push_back((exchange.infer(request)?, piece));
            }
            let Some((mut answers, piece)) = under_way.pop_front() else { break };
            let response = answers.single().await?;
            tokens_under_way -= piece.tokens();
            let bytes = response.outputs.iter().map(Tensor::byte_size).sum();
            let (model, lengths, places) = (Arc::clone(&model), Arc::clone(&lengths), piece.texts.clone());
            let found = move || model.vectors(&response, kind, &piece, &lengths);
            for (place, vector) in places.into_iter().zip(long_work::run_sized(bytes, found).await??) {
                if let Some(slot) = vectors.get_mut(place) {
                    *slot = vector;
                }
            }
        }
        Ok((vectors, total))
    }
}

impl Piece {
    fn tokens(&self) -> usize {
        self.texts.len() * self.length
    }
}

/// Makes tokens of texts. Between two steps others get their turn, and the work ends if the client has left.
async fn encode(
    model: &Arc<TokenModel>,
    items: Vec<Item>,
    truncation: Truncation,
    field: &'static str,
) -> Result<Vec<Tokens>, Refusal> {
    let is_single = items.len() == 1;
    let mut all = Vec::with_capacity(items.len());
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let (mut step, mut bytes) = (Vec::new(), 0);
        while let Some(item) = items.next_if(|item| step.is_empty() || bytes + item.bytes() <= STEP_BYTES) {
            bytes += item.bytes();
            step.push(item);
        }
        let (model, first) = (Arc::clone(model), all.len());
        let work = move || -> Outcome<Vec<Tokens>> {
            let encoder = &model.text.encoder;
            let tokens = step.into_iter().enumerate().map(|(place, item)| {
                let tokens = match &item {
                    Item::Text(text) => encoder.encode(text, None, truncation),
                    Item::Pair(text, pair) => encoder.encode(text, Some(pair), truncation),
                    Item::Tokens(ids) => encoder.given(ids, truncation),
                };
                tokens.map_err(|refusal| {
                    let place = if is_single { String::new() } else { format!("[{}]", first + place) };
                    Failure::of_text(field, &place, &refusal)
                })
            });
            tokens.collect()
        };
        let tokens = if bytes > SHORT_BYTES { long_work::run(work).await? } else { work() };
        all.extend(tokens?);
    }
    Ok(all)
}

impl TokenModel {
    fn output(&self, kind: Kind) -> Outcome<&str> {
        let name = match kind {
            Kind::Embeddings { .. } => self.outputs.embedding.as_deref(),
            Kind::Scores(_) => self.outputs.score,
        };
        name.ok_or_else(|| Failure::broken_model("the model has lost an output"))
    }

    /// The vectors of a piece, in the order of its texts.
    fn vectors(
        &self,
        response: &Response,
        kind: Kind,
        piece: &Piece,
        lengths: &[usize],
    ) -> Outcome<Vec<Vec<f32>>> {
        let name = self.output(kind)?;
        let output = response.outputs.iter().find(|output| output.name == name);
        let output =
            output.ok_or_else(|| Failure::broken_model(format!("the model returned no '{name}'")))?;
        let unexpected = || {
            let message = format!(
                "the model's output '{name}' of shape {} does not fit {} texts of {} tokens",
                output.shape,
                piece.texts.len(),
                piece.length
            );
            Failure::broken_model(message)
        };
        let values = tensors::floats(output)?.ok_or_else(unexpected)?;
        let dims: Vec<usize> = output.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
        let rows = piece.texts.len();
        match (kind, &dims[..]) {
            (Kind::Scores(scoring), [count, ..])
                if *count == rows && values.len().is_multiple_of(rows) && dims.len() <= 2 =>
            {
                let classes = (values.len() / rows).max(1);
                let scores = values.chunks_exact(classes).map(|logits| self.text.head.score(logits, scoring));
                let scores = scores.map(|score| score.map(|score| vec![score]));
                scores.collect::<Result<_, _>>().map_err(Failure::broken_model)
            }
            (Kind::Embeddings { .. }, [count, size]) if *count == rows && *size > 0 => {
                Ok(values.chunks_exact(*size).map(|row| self.text.recipe.finish(row.to_vec())).collect())
            }
            (Kind::Embeddings { prompt }, [count, length, size])
                if *count == rows && *length == piece.length && *size > 0 =>
            {
                let pads_left = self.text.encoder.pads_left();
                let texts = values.chunks_exact(length * size).zip(&piece.texts).map(|(values, place)| {
                    let own = lengths.get(*place).copied().unwrap_or(0).min(*length);
                    let skipped = if pads_left { length - own } else { 0 };
                    let rows: Vec<&[f32]> = values.chunks_exact(*size).skip(skipped).take(own).collect();
                    self.text.recipe.embed(&rows, prompt)
                });
                texts.collect::<Result<_, _>>().map_err(Failure::broken_model)
            }
            _ => Err(unexpected()),
        }
    }
}
