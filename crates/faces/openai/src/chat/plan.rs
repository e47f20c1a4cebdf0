//! From the JSON of a chat completion to requests for a model.

use std::sync::Arc;

use minijinja::Value;
use nereid_core::backend_api::InferRequest;
use serde::Deserialize;

use crate::choices::ChoiceOptions;
use crate::contract::{Generation, SAMPLING_ROOM};
use crate::error::{Failure, Outcome};
use crate::exchange::Request;
use crate::fields::{Fields, read};
use crate::messages::{Messages, read_messages};
use crate::parsing::{Calls, FINAL_HEADER, Formats, Parsing, Reasons, ToolFormat, call_header};
use crate::sampling::{Sampling, guide};
use crate::template::Conversation;
use crate::tools::{ToolChoice, ToolSet};

/// The most alternatives of a token.
const MOST_LOGPROBS: u32 = 20;

/// A chat completion, ready to be sent to its model.
pub(crate) struct Plan {
    /// The request and options of each choice.
    pub choices: Vec<(InferRequest, ChoiceOptions)>,
    /// The form of the answer.
    pub form: AnswerForm,
}

/// The form of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerForm {
    /// The number of choices.
    pub count: usize,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub include_usage: bool,
    /// The number of alternatives of each token, if probabilities are wanted.
    pub top_logprobs: Option<usize>,
    /// How to read the model's text.
    pub parsing: Parsing,
}

/// Reads a chat completion.
///
/// # Errors
/// A field is invalid or not supported.
pub(crate) fn plan(request: &Request) -> Outcome<Plan> {
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model"]);
    let messages = fields
        .take_raw("messages")
        .ok_or_else(|| Failure::invalid_field("messages", "'messages' is missing"))?;
    planned(request, fields, read_messages(request, messages)?)
}

/// Reads the other fields of a conversation.
///
/// # Errors
/// A field is invalid or not supported.
pub(crate) fn planned(request: &Request, mut fields: Fields<'_>, messages: Messages) -> Outcome<Plan> {
    let Request { name, model, profile, .. } = request;
    let contract = profile.text_contract(name)?;
    let sampling = Sampling::take(&mut fields, contract, request.default_max_tokens)?;
    let top_logprobs = logprobs(&mut fields)?;
    let tools = ToolSet::take(&mut fields)?;
    let single_call = fields.take("parallel_tool_calls")? == Some(false);
    let guide = match tools.guide(single_call) {
        Some(guide) => Some(guide),
        None => guide(&mut fields)?,
    };
    fields.ignore(&["response_format"]);
    let tool_format = match tools.choice {
        ToolChoice::Auto => Some(profile.tool_format(name)?),
        _ => None,
    };
    let Messages { messages, images } = messages;
    let conversation = conversation(&mut fields, messages, tools.for_template.clone())?;
    let (mut prompt, literal_mark) = profile.prompt(name, conversation)?;
    let formats = *profile.formats(name)?;
    if guide.is_some() {
        skip_reasoning(&mut prompt, formats, &tools.choice);
    }
    let reasoning = match formats {
        _ if guide.is_some() => Reasons::Nowhere,
        formats if formats.has_messages() => {
            let (_, beginning) = prompt.rsplit_once("<|start|>").unwrap_or_default();
            Reasons::Messages(beginning.to_owned())
        }
        formats => match formats.tags() {
            Some(tags) => Reasons::Tags { tags, has_begun: prompt.trim_end().ends_with(tags.opening) },
            None => Reasons::Nowhere,
        },
    };
    let calls = match (tool_format, tools.choice) {
        (Some(format), _) => Calls::Written(format, tools.tools.into()),
        (None, ToolChoice::None | ToolChoice::Auto) => Calls::None,
        (None, ToolChoice::Required) => Calls::List,
        (None, ToolChoice::Function(name)) => Calls::Arguments(name),
    };
    let has_special_marks = tool_format.is_some_and(ToolFormat::has_special_marks);
    let keep_special_tokens = has_special_marks || reasoning.has_special_marks();
    let generation = Generation {
        prompt: prompt.into(),
        tokens: None,
        literal_mark,
        images: images.into_tensor(model.signature()),
        stream: sampling.stream,
        max_tokens: sampling.max_tokens,
        stop: sampling.stop,
        seed: sampling.seed,
        logprobs: top_logprobs,
        guide,
        lora: request.lora.clone(),
        keep_special_tokens,
        fields,
    };
    let stop: Arc<[String]> = generation.stop.as_slice().into();
    let mut room = SAMPLING_ROOM;
    let requests = contract.requests(model, &generation, sampling.n, &mut room)?;
    let choices = requests.into_iter().enumerate().map(|(choice, request)| {
        let options = ChoiceOptions {
            stop: Arc::clone(&stop),
            max_tokens: generation.max_tokens,
            counts_prompt: choice == 0,
        };
        (request, options)
    });
    let choices: Vec<_> = choices.collect();
    let form = AnswerForm {
        count: choices.len(),
        stream: sampling.stream,
        include_usage: sampling.include_usage,
        top_logprobs: top_logprobs.map(|top| top as usize),
        parsing: Parsing { reasoning, calls, single_call },
    };
    Ok(Plan { choices, form })
}

/// Ends the reasoning that a prompt begins, or that a model would begin by itself: an output with a form has no place for it.
fn skip_reasoning(prompt: &mut String, formats: Formats, choice: &ToolChoice) {
    if formats.has_messages() && prompt.ends_with("<|start|>assistant") {
        match choice {
            ToolChoice::Function(name) => prompt.push_str(&call_header(name)),
            _ => prompt.push_str(FINAL_HEADER),
        }
    } else if let Some(tags) = formats.tags().filter(|tags| prompt.trim_end().ends_with(tags.opening)) {
        prompt.push_str(&format!("\n{}\n\n", tags.closing));
    }
}

/// Renders the prompt of a conversation, with the fields of a chat completion. Returns it, and the mark around control tokens in the
/// conversation's texts.
///
/// # Errors
/// A field is invalid, or the model has no template.
pub(crate) fn prompt(request: &Request, fields: &mut Fields<'_>) -> Outcome<(String, Option<char>)> {
    let messages = fields
        .take_raw("messages")
        .ok_or_else(|| Failure::invalid_field("prompt", "'prompt' or 'messages' is missing"))?;
    let Messages { messages, .. } = read_messages(request, messages)?;
    let tools = ToolSet::take(fields)?;
    request.profile.prompt(&request.name, conversation(fields, messages, tools.for_template)?)
}

/// Takes the number of alternatives of each token, if probabilities are wanted.
fn logprobs(fields: &mut Fields<'_>) -> Outcome<Option<u32>> {
    let is_wanted = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<u32> = fields.take("top_logprobs")?;
    match top {
        Some(top) if top > MOST_LOGPROBS => {
            let message = format!("'top_logprobs' is {top}, but must be at most {MOST_LOGPROBS}");
            Err(Failure::invalid_field("top_logprobs", message))
        }
        Some(top) if top > 0 && !is_wanted => {
            let message = "`top_logprobs` can only be used when `logprobs` is True";
            Err(Failure::invalid_field("top_logprobs", message))
        }
        top => Ok(is_wanted.then_some(top.unwrap_or(0))),
    }
}

/// Takes what else the template gets.
fn conversation(
    fields: &mut Fields<'_>,
    messages: Vec<Value>,
    tools: Option<Value>,
) -> Outcome<Conversation> {
    #[derive(Deserialize)]
    struct Kwargs(std::collections::BTreeMap<String, Value>);
    for (name, is_allowed) in
        [("chat_template", None), ("echo", Some("false")), ("modalities", Some("[\"text\"]"))]
    {
        let value = fields.take_raw(name).map(|value| value.get());
        if value.is_some() && value != is_allowed {
            return Err(Failure::unsupported(name, format!("'{name}' is not supported with this value")));
        }
    }
    let kwargs: Option<Kwargs> = fields.take("chat_template_kwargs")?;
    let mut variables: Vec<(String, Value)> =
        kwargs.map(|kwargs| kwargs.0.into_iter().collect()).unwrap_or_default();
    // A variable of the client's must not replace the conversation.
    variables.retain(|(name, _)| !matches!(name.as_str(), "messages" | "tools" | "add_generation_prompt"));
    for name in ["reasoning_effort", "documents"] {
        if let Some(value) = fields.take_raw(name) {
            variables.push((name.to_owned(), read(name, value)?));
        }
    }
    let continues_last: bool = fields.take("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt: Option<bool> = fields.take("add_generation_prompt")?;
    if continues_last && add_generation_prompt == Some(true) {
        let message = "'continue_final_message' and 'add_generation_prompt' exclude each other";
        return Err(Failure::invalid_field("continue_final_message", message));
    }
    let add_generation_prompt = add_generation_prompt.unwrap_or(!continues_last);
    Ok(Conversation { messages, tools, variables, add_generation_prompt, continues_last })
}
