//! Requests that need no evaluation: text to tokens, and tokens to text.

use nereid_backend_api::{DataType, Error, Request, Response, Result, Tensor, push_bytes_element};

use crate::contract::{
    OPERATION, RETURN_TOKEN_TEXTS, SPECIAL_TOKENS, TEXT_INPUT, TEXT_OUTPUT, TOKEN_TEXTS, TOKENS, element,
    flag, literal_mark, text,
};
use crate::engine::{Token, Vocabulary};

/// The most tokens of a request.
const MAX_TOKENS: usize = 1 << 20;

/// Answers a request with another operation than `generate`; `None` for those that generate.
pub(crate) fn answer(
    request: &Request,
    vocabulary: &dyn Vocabulary,
    longest_text: usize,
) -> Option<Result<Response>> {
    match text(request, OPERATION) {
        Ok(None) => None,
        Ok(Some(operation)) => match operation.as_str() {
            "generate" => None,
            "tokenize" => Some(tokenize(request, vocabulary, longest_text)),
            "detokenize" => Some(detokenize(request, vocabulary)),
            _ => Some(Err(Error::invalid_arg(format!(
                "input '{OPERATION}' is '{operation}', but must be generate, tokenize or detokenize"
            )))),
        },
        Err(error) => Some(Err(error)),
    }
}

fn tokenize(request: &Request, vocabulary: &dyn Vocabulary, longest_text: usize) -> Result<Response> {
    let text = text(request, TEXT_INPUT)?.unwrap_or_default();
    if text.len() > longest_text {
        return Err(Error::invalid_arg(format!(
            "input '{TEXT_INPUT}' has {} bytes, but the context holds no text of more than {longest_text}",
            text.len()
        )));
    }
    let has_special = flag(request, SPECIAL_TOKENS)?.unwrap_or(true);
    let tokens = vocabulary.tokenize_marked(&text, literal_mark(request)?, has_special);
    let tokens = tokens.map_err(|reason| Error::invalid_arg(format!("input '{TEXT_INPUT}': {reason}")))?;
    let count = i64::try_from(tokens.len()).unwrap_or(i64::MAX);
    let contents: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut outputs = vec![Tensor::new(TOKENS, DataType::Int32, [count], contents)];
    if flag(request, RETURN_TOKEN_TEXTS)? == Some(true) {
        let mut texts = Vec::new();
        for token in tokens {
            push_bytes_element(&mut texts, vocabulary.text(token).as_bytes())?;
        }
        outputs.push(Tensor::new(TOKEN_TEXTS, DataType::Bytes, [count], texts));
    }
    Ok(Response::new(outputs))
}

/// The tokens that a request for a model with a vocabulary of this size has as an input; `None` without any.
pub(crate) fn given(request: &Request, vocabulary: usize) -> Result<Option<Vec<Token>>> {
    let Some(contents) = element(request, TOKENS)? else { return Ok(None) };
    let (numbers, _) = contents.as_chunks();
    if numbers.len() > MAX_TOKENS {
        return Err(Error::invalid_arg(format!("input '{TOKENS}' has more than {MAX_TOKENS} elements")));
    }
    let tokens: Vec<Token> = numbers.iter().map(|bytes| Token::from_le_bytes(*bytes)).collect();
    let is_token = |token: &&Token| usize::try_from(**token).is_ok_and(|token| token < vocabulary);
    if let Some(wrong) = tokens.iter().find(|token| !is_token(token)) {
        return Err(Error::invalid_arg(format!(
            "input '{TOKENS}' has {wrong}, but the tokens are 0 to {}",
            vocabulary.saturating_sub(1)
        )));
    }
    Ok(Some(tokens))
}

fn detokenize(request: &Request, vocabulary: &dyn Vocabulary) -> Result<Response> {
    let tokens = given(request, vocabulary.size())?
        .ok_or_else(|| Error::invalid_arg(format!("the request lacks input '{TOKENS}'")))?;
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, &vocabulary.detokenize(&tokens))?;
    Ok(Response::new(vec![Tensor::new(TEXT_OUTPUT, DataType::Bytes, [1], contents)]))
}
