//! How families of models write tool calls and reasoning: by their configuration, or else by their chat template.

use nereid_core::Model;

use super::harmony::CHANNEL;
use super::reasoning::Tags;
use super::{deepseek, json_calls, pythonic_calls, reasoning, tagged_calls};
use crate::template::ChatTemplate;

/// The format of the tool calls that a family of models writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`.
    Hermes,
    /// `<tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>`.
    Qwen3Coder,
    /// Messages in channels, one for each call.
    Harmony,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`, or `[TOOL_CALLS]NAME[ARGS]{..}`.
    Mistral,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>`.
    DeepSeek,
    /// `{"name": .., "parameters": ..}`, with `;` between several, or behind `<|python_tag|>`.
    Llama3,
    /// `[NAME(ARGUMENT=VALUE, ..), ..]`.
    Pythonic,
}

impl ToolFormat {
    /// The names that a configuration may use.
    pub(crate) const NAMES: &str =
        "hermes, qwen3, qwen3_coder, mistral, llama3, pythonic, gpt_oss, deepseek_v3";

    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "hermes" | "qwen3" | "qwen25" => Self::Hermes,
            "qwen3_coder" | "qwen3_xml" => Self::Qwen3Coder,
            "mistral" => Self::Mistral,
            "llama3" | "llama3_json" | "llama4_json" => Self::Llama3,
            "pythonic" | "llama4_pythonic" => Self::Pythonic,
            "gpt_oss" | "openai" | "harmony" => Self::Harmony,
            "deepseek_v3" | "deepseek_v31" | "deepseek_v3_1" | "deepseek_r1" => Self::DeepSeek,
            _ => return None,
        })
    }

    /// The format that a chat template shows to its model.
    fn in_template(template: &ChatTemplate) -> Option<Self> {
        if template.mentions(CHANNEL) {
            return Some(Self::Harmony);
        }
        if template.mentions(deepseek::LIST) {
            return Some(Self::DeepSeek);
        }
        if template.mentions("<tool_call>") {
            return Some(if template.mentions("<function=") { Self::Qwen3Coder } else { Self::Hermes });
        }
        if template.mentions("[TOOL_CALLS]") {
            return Some(Self::Mistral);
        }
        if template.mentions(pythonic_calls::EXAMPLE) {
            return Some(Self::Pythonic);
        }
        let is_llama = template.mentions("<|python_tag|>")
            || template.mentions("\"parameters\": dictionary of argument");
        is_llama.then_some(Self::Llama3)
    }

    /// The mark in front of calls, if it stands nowhere else.
    pub(super) fn mark(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Qwen3Coder => Some(tagged_calls::OPENING),
            Self::Mistral => Some(json_calls::MISTRAL),
            Self::DeepSeek => Some(deepseek::LIST),
            Self::Llama3 | Self::Pythonic | Self::Harmony => None,
        }
    }

    /// Whether the marks of a model's format are special tokens, which engines leave out by default.
    pub(crate) fn has_special_marks(self) -> bool {
        matches!(self, Self::Mistral | Self::Harmony | Self::DeepSeek)
    }
}

/// How a model writes tool calls and reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Formats {
    /// The format of its tool calls, if known.
    pub tools: Option<ToolFormat>,
    /// How it writes reasoning.
    pub reasoning: ReasoningFormat,
}

/// How a model writes its reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReasoningFormat {
    /// Not at all.
    #[default]
    None,
    /// Between `<think>` and `</think>`, in front of the answer.
    Think,
    /// Between `[THINK]` and `[/THINK]`, in front of the answer.
    Mistral,
    /// In messages of the channel `analysis`.
    Harmony,
}

impl ReasoningFormat {
    /// The format that a chat template shows to its model.
    fn in_template(template: &ChatTemplate) -> Self {
        if template.mentions(CHANNEL) {
            Self::Harmony
        } else if template.mentions(reasoning::MISTRAL.closing) {
            Self::Mistral
        } else if template.mentions(reasoning::THINK.closing) {
            Self::Think
        } else {
            Self::None
        }
    }
}

impl Formats {
    /// The formats named by the parameters `tool_call_parser` and `reasoning_parser` of a model; without them, the template decides.
    ///
    /// # Errors
    /// A parameter names an unknown format.
    pub(crate) fn of(model: &Model, template: Option<&ChatTemplate>) -> Result<Self, String> {
        let parameters = &model.config().parameters;
        let parameter = |name: &str| parameters.get(name).map(|value| value.string_value.as_str());
        let tools = match parameter("tool_call_parser") {
            None => template.and_then(ToolFormat::in_template),
            Some("none") => None,
            Some(name) => Some(ToolFormat::named(name).ok_or_else(|| {
                format!("unknown tool_call_parser '{name}' (available: none, {})", ToolFormat::NAMES)
            })?),
        };
        let reasoning = match parameter("reasoning_parser") {
            None if tools == Some(ToolFormat::Harmony) => ReasoningFormat::Harmony,
            None => template.map(ReasoningFormat::in_template).unwrap_or_default(),
            Some("none") => ReasoningFormat::None,
            Some("think" | "qwen3" | "deepseek_r1") => ReasoningFormat::Think,
            Some("mistral" | "magistral") => ReasoningFormat::Mistral,
            Some("gpt_oss" | "openai_gptoss" | "harmony") => ReasoningFormat::Harmony,
            Some(name) => {
                return Err(format!(
                    "unknown reasoning_parser '{name}' (available: none, think, qwen3, deepseek_r1, mistral, gpt_oss)"
                ));
            }
        };
        Ok(Self { tools, reasoning })
    }

    /// The tags around reasoning.
    pub(crate) fn tags(self) -> Option<Tags> {
        match self.reasoning {
            ReasoningFormat::Think => Some(reasoning::THINK),
            ReasoningFormat::Mistral => Some(reasoning::MISTRAL),
            ReasoningFormat::None | ReasoningFormat::Harmony => None,
        }
    }

    /// Whether outputs are messages in channels.
    pub(crate) fn has_messages(self) -> bool {
        self.tools == Some(ToolFormat::Harmony) || self.reasoning == ReasoningFormat::Harmony
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Sources;

    #[test]
    fn families_are_known_by_their_templates() {
        for (text, tools, reasoning) in [
            ("", None, ReasoningFormat::None),
            ("<tool_call> </think>", Some(ToolFormat::Hermes), ReasoningFormat::Think),
            ("<tool_call> <function=f>", Some(ToolFormat::Qwen3Coder), ReasoningFormat::None),
            ("[TOOL_CALLS] [THINK]a[/THINK]", Some(ToolFormat::Mistral), ReasoningFormat::Mistral),
            ("in the format [func_name1(a=b)]", Some(ToolFormat::Pythonic), ReasoningFormat::None),
            ("<|python_tag|>", Some(ToolFormat::Llama3), ReasoningFormat::None),
            ("<|channel|>analysis", Some(ToolFormat::Harmony), ReasoningFormat::Harmony),
            ("<｜tool▁calls▁begin｜></think>", Some(ToolFormat::DeepSeek), ReasoningFormat::Think),
        ] {
            let sources = Sources { templates: vec![("default".into(), text.into())], tokens: Vec::new() };
            let template = ChatTemplate::compile(sources).unwrap().unwrap();
            assert_eq!(ToolFormat::in_template(&template), tools, "{text}");
            assert_eq!(ReasoningFormat::in_template(&template), reasoning, "{text}");
        }
    }
}
