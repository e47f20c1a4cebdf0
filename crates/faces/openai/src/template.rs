//! Chat templates: Jinja as Hugging Face's transformers renders it.

mod continuation;
mod files;
mod functions;
mod json;
mod python;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};

use crate::error::{Failure, Outcome};

pub(crate) use self::files::Sources;

/// The name under which a template that is for requests with tools is kept.
const TOOL_TEMPLATE: &str = "tool_use";
const DEFAULT_TEMPLATE: &str = "default";

/// Steps that a template may take: a few for each byte of the longest conversations, and a fraction of a second in all.
const STEPS: u64 = 8 << 20;

/// A text whose place in a prompt shows how a template writes it.
const PROBE: &str = "a text that no template has";

/// The chat template of a model.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    has_tool_template: bool,
    content: Content,
    /// All of its text, by which its family is recognised.
    text: String,
}

/// The forms of a message's content that a template takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// Whether content has to be a list of parts, even if it is only text.
    pub needs_lists: bool,
    /// Whether parts that are images have a place in the prompt.
    pub has_images: bool,
}

/// The input of a template.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Value>,
    /// The tools that the model may call; `None` without any.
    pub tools: Option<Value>,
    /// Further variables of the client's.
    pub variables: Vec<(String, Value)>,
    /// Whether the prompt ends where an answer begins, rather than within the last message.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends within the last message.
    pub continues_last: bool,
}

impl ChatTemplate {
    /// Compiles the template in `sources`. `None` if there is none.
    ///
    /// # Errors
    /// The template is not valid Jinja.
    pub(crate) fn compile(sources: Sources) -> Result<Option<Self>, String> {
        if sources.templates.is_empty() {
            return Ok(None);
        }
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        minijinja_contrib::add_to_environment(&mut environment);
        python::add(&mut environment);
        environment.set_fuel(Some(STEPS));
        functions::add(&mut environment);
        for (name, token) in sources.tokens {
            environment.add_global(name, token);
        }
        let (mut text, mut has_tool_template) = (String::new(), false);
        for (name, source) in sources.templates {
            let name = if name == TOOL_TEMPLATE { TOOL_TEMPLATE } else { DEFAULT_TEMPLATE };
            has_tool_template |= name == TOOL_TEMPLATE;
            text.push_str(&source);
            let source = functions::without_generation_marks(&source);
            environment
                .add_template_owned(name, source)
                .map_err(|error| format!("the chat template: {error:#}"))?;
        }
        let mut template = Self { environment, has_tool_template, content: Content::default(), text };
        template.content = template.probe();
        Ok(Some(template))
    }

    /// Finds out which content the template takes, from the prompts of short conversations.
    fn probe(&self) -> Content {
        let part = |kind: &str| ("type", Value::from(kind));
        let text = Value::from_pairs([part("text"), ("text", Value::from(PROBE))]);
        let image = Value::from_pairs([part("image")]);
        let prompt = |content: Value| {
            let message = Value::from_pairs([("role", Value::from("user")), ("content", content)]);
            let conversation = Conversation {
                messages: vec![message],
                add_generation_prompt: true,
                ..Conversation::default()
            };
            let prompt = self.render(conversation).ok()?;
            // A template that knows no lists may write one as it is, with its texts in quotes.
            let (before, after) = prompt.split_once(PROBE)?;
            (!before.ends_with(['"', '\'']) && !after.starts_with(['"', '\''])).then_some(prompt)
        };
        let list = prompt(Value::from(vec![text.clone()]));
        let needs_lists = list.is_some() && prompt(Value::from(PROBE)).is_none();
        let with_image = list.is_some().then(|| prompt(Value::from(vec![image, text]))).flatten();
        Content { needs_lists, has_images: with_image.is_some() && with_image != list }
    }

    /// The content that the template takes.
    pub(crate) fn content(&self) -> Content {
        self.content
    }

    /// Whether the template mentions a text.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.text.contains(text)
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// The template refuses the conversation, or fails.
    pub(crate) fn render(&self, conversation: Conversation) -> Outcome<String> {
        let name = match conversation.tools.is_some() && self.has_tool_template {
            true => TOOL_TEMPLATE,
            false => DEFAULT_TEMPLATE,
        };
        let template = self.environment.get_template(name).map_err(|error| failure(&error))?;
        let Conversation { mut messages, tools, mut variables, add_generation_prompt, continues_last } =
            conversation;
        if continues_last {
            continuation::mark(&mut messages)?;
        }
        if variables.iter().all(|(name, _)| name != "documents") {
            variables.push(("documents".to_owned(), Value::from(())));
        }
        variables.push(("messages".to_owned(), Value::from(messages)));
        variables.push(("tools".to_owned(), Value::from(tools)));
        variables.push(("add_generation_prompt".to_owned(), Value::from(add_generation_prompt)));
        let context = Value::from_pairs(variables);
        let prompt = template.render(context).map_err(|error| failure(&error))?;
        if continues_last { continuation::cut(prompt) } else { Ok(prompt) }
    }
}

/// The refusal of the template itself, or its failure to render the messages.
fn failure(error: &minijinja::Error) -> Box<Failure> {
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidOperation if error.line().is_some() && detail.starts_with(functions::RAISED) => {
            Failure::invalid_field("messages", detail.trim_start_matches(functions::RAISED).to_owned())
        }
        _ => Failure::invalid_field(
            "messages",
            format!("the chat template cannot render the messages: {error:#}"),
        ),
    }
}

#[cfg(test)]
mod tests;
