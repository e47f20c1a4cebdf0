//! Templates in the style of well-known families, and what may go wrong in one.

use serde_json::{Value as Json, json};

use super::*;

fn compile(source: &str) -> ChatTemplate {
    let sources = Sources {
        templates: vec![(String::new(), source.to_owned())],
        tokens: vec![("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())],
    };
    ChatTemplate::compile(sources).unwrap().unwrap()
}

fn conversation(messages: &Json, tools: &Json) -> Conversation {
    let messages: Vec<Value> = serde_json::from_value(messages.clone()).unwrap();
    let tools = (!tools.is_null()).then(|| serde_json::from_value(tools.clone()).unwrap());
    Conversation { messages, tools, add_generation_prompt: true, ..Conversation::default() }
}

const CHATML: &str = "
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = 'You help.' %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}
{%- for message in rest %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content | trim }}{% endgeneration -%}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' + call.function|tojson + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
";

const BRACKETS: &str = "{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'user' %}
[INST] {{ message['content'].strip() }} [/INST]
{% elif message['role'] == 'assistant' %}
{{ message['content'] }}{{ eos_token }}
{% else %}
{{ raise_exception('Only user and assistant roles are supported!') }}
{% endif %}
{% endfor %}";

const NAMESPACES: &str = "
{%- set ns = namespace(count=0, names=[]) -%}
{%- for message in messages -%}
    {%- if loop.first and message.role != 'user' -%}{%- continue -%}{%- endif -%}
    {%- set ns.count = ns.count + 1 -%}
    {{- message.get('name', 'nobody') ~ ':' ~ message.content.split(' ')[-1].upper() ~ (';' if not loop.last else '') -}}
{%- endfor -%}
{{- '|' ~ ns.count ~ '|' ~ (messages | selectattr('role', 'equalto', 'user') | list | length) -}}
{%- if tools is defined and tools is not none -%}{{- '|' ~ tools | map(attribute='function') | map(attribute='name') | join(',') -}}{%- endif -%}
";

#[test]
fn families_render_as_in_transformers() {
    let user = json!({"role": "user", "content": " Hi there "});
    let assistant = json!({"role": "assistant", "content": " Hello ", "tool_calls": [
        {"function": {"name": "f", "arguments": {"b": "é", "a": 1}}}]});
    let plain = json!({"role": "assistant", "content": "Hello"});
    let system = json!({"role": "system", "content": "Be brief."});
    let tools = json!([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]);
    for (template, messages, tools, expected) in [
        (
            CHATML,
            json!([user, assistant]),
            Json::Null,
            "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n Hi there <|im_end|>\n<|im_start|>assistant\nHello\n\
             <tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": \"é\", \"a\": 1}}\n</tool_call><|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            CHATML,
            json!([system, user]),
            Json::Null,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi there <|im_end|>\n<|im_start|>assistant\n",
        ),
        (BRACKETS, json!([user, plain]), Json::Null, "<s>[INST] Hi there [/INST]\nHello</s>\n"),
        (NAMESPACES, json!([system, user, plain]), tools, "nobody:;nobody:HELLO|2|1|f,g"),
    ] {
        assert_eq!(compile(template).render(conversation(&messages, &tools)).unwrap(), expected);
    }
}

#[test]
fn refusal_of_a_template_and_its_failures_are_the_requests_errors() {
    let messages = json!([{"role": "system", "content": "x"}]);
    for (template, message) in [
        (BRACKETS, "\"message\":\"Only user and assistant roles are supported!\""),
        ("{{ messages[0].content.unknown_method() }}", "cannot render"),
        ("{{ messages[7].content }}", "cannot render"),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
            "cannot render",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "cannot render"),
    ] {
        let failure = compile(template).render(conversation(&messages, &Json::Null)).unwrap_err();
        let body = String::from_utf8(failure.body()).unwrap();
        assert!(body.contains(message) && body.contains("\"param\":\"messages\""), "{body}");
    }
}

#[test]
fn text_of_a_message_is_never_a_template() {
    let text = "{{ bos_token }}{% for a in b %}{# c #}";
    let messages = json!([{"role": "user", "content": text}]);
    let rendered = compile("{{ messages[0].content }}").render(conversation(&messages, &Json::Null)).unwrap();
    assert_eq!(rendered, text);
}

#[test]
fn template_for_tools_is_used_with_tools_only() {
    let sources = |templates: &[(&str, &str)]| Sources {
        templates: templates.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        tokens: Vec::new(),
    };
    let both = sources(&[("default", "plain"), ("tool_use", "tools")]);
    let template = ChatTemplate::compile(both).unwrap().unwrap();
    let messages = json!([{"role": "user", "content": "x"}]);
    assert_eq!(template.render(conversation(&messages, &Json::Null)).unwrap(), "plain");
    assert_eq!(template.render(conversation(&messages, &json!([{}]))).unwrap(), "tools");
    assert!(template.mentions("tools") && !template.mentions("other"));
    assert!(ChatTemplate::compile(sources(&[])).unwrap().is_none());
    assert!(
        ChatTemplate::compile(sources(&[("", "{% if %}")])).unwrap_err().starts_with("the chat template: ")
    );
}
