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

const VISION: &str = "
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
    {%- for part in message.content -%}
        {%- if part.type == 'image' or 'image_url' in part -%}<|vision_start|><|image_pad|><|vision_end|>
        {%- elif 'text' in part -%}{{ part.text }}{%- endif -%}
    {%- endfor -%}
{%- endif %}<|im_end|>
{% endfor %}<|im_start|>assistant
";

const IMAGES_FIRST: &str = "
{%- for message in messages -%}
    {{- message['role'].upper() + ': ' -}}
    {%- for part in message['content'] | selectattr('type', 'equalto', 'image') -%}{{- '<image>\\n' -}}{%- endfor -%}
    {%- for part in message['content'] | selectattr('type', 'equalto', 'text') -%}{{- part['text'] + ' ' -}}{%- endfor -%}
{%- endfor -%}ASSISTANT:";

const FIRST_PART: &str = "<|im_start|>
{%- for message in messages -%}
    {{- message['role'] | capitalize }}{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif -%}
    {%- for line in message['content'] -%}
        {%- if line['type'] == 'text' -%}{{ line['text'] }}{%- elif line['type'] == 'image' -%}{{ '<image>' }}{%- endif -%}
    {%- endfor -%}<end_of_utterance>
{% endfor %}Assistant:";

const BLOCKS: &str = "{{ bos_token }}
{%- for message in messages -%}
    {%- if message.content is not string -%}
        [INST]{%- for block in message.content -%}
            {%- if block.type == 'text' -%}{{ block.text }}
            {%- elif block.type in ['image', 'image_url'] -%}[IMG]
            {%- else -%}{{ raise_exception('Only text and images are supported') }}{%- endif -%}
        {%- endfor -%}[/INST]
    {%- else -%}[INST]{{ message.content }}[/INST]{%- endif -%}
{%- endfor -%}";

const TEXTS_IN_LISTS: &str = "{% for message in messages %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}";

#[test]
fn content_that_templates_take_is_found() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = json!({"type": "image"});
    for (template, needs_lists, expected) in [
        (
            VISION,
            false,
            Some(
                "<|im_start|>user\na<|vision_start|><|image_pad|><|vision_end|>b<|im_end|>\n<|im_start|>assistant",
            ),
        ),
        (IMAGES_FIRST, true, Some("USER: <image>\na b ASSISTANT:")),
        (FIRST_PART, true, Some("<|im_start|>User: a<image>b<end_of_utterance>\nAssistant:")),
        (BLOCKS, false, Some("<s>[INST]a[IMG]b[/INST]")),
        (TEXTS_IN_LISTS, true, None),
        (CHATML, false, None),
        (BRACKETS, false, None),
        (NAMESPACES, false, None),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", false, None),
        ("{{ messages | tojson }}", false, None),
        ("{{ messages[7].content }}", false, None),
        ("nothing", false, None),
    ] {
        let template = compile(template);
        let has_images = expected.is_some();
        assert_eq!(template.content(), Content { needs_lists, has_images }, "{}", template.text);
        if let Some(expected) = expected {
            let messages = json!([{"role": "user", "content": [text("a"), image, text("b")]}]);
            assert_eq!(template.render(conversation(&messages, &Json::Null)).unwrap(), expected);
        }
    }
}

#[test]
fn prompt_may_end_within_the_last_message() {
    let render = |template: &str, messages: &Json| {
        compile(template).render(Conversation {
            continues_last: true,
            add_generation_prompt: false,
            ..conversation(messages, &Json::Null)
        })
    };
    let plain = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let trimmed = "{% for m in messages %}[{{ m.content|trim }}]{% endfor %}";
    let parts = "{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}";
    let texts =
        |last: &str| json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": last}]);
    let lists = json!([{"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c "}]}]);
    for (template, messages, expected) in [
        (plain, texts("b"), "[a][b"),
        (plain, texts("b "), "[a][b "),
        (trimmed, texts("b"), "[a][b"),
        (trimmed, texts(" b "), "[a][b"),
        (plain, texts(""), "[a]["),
        (parts, lists, "[bc "),
    ] {
        assert_eq!(render(template, &messages).unwrap(), expected, "{template} {messages}");
    }
    for (template, messages) in [
        (plain, json!([{"role": "assistant"}])),
        (parts, json!([{"role": "assistant", "content": [{"type": "image"}]}])),
        ("{{ messages[0].content }}", texts("b")),
    ] {
        assert!(render(template, &messages).is_err(), "{template} {messages}");
    }
}

/// Expressions that templates of many families use. The expected text is that of transformers.
#[test]
fn templates_use_all_of_jinja() {
    let template = "
{%- macro describe(tool, depth=0) %}
{{- tool.name }}({% for key, value in tool.parameters.properties|items %}{{ key }}: {{ value.type }}{{ ', ' if not loop.last }}{% endfor %})
{%- endmacro %}
{%- set ns = namespace(last=-1, names=[]) %}
{%- for m in messages[::-1] %}
    {%- if m.role == 'user' and ns.last == -1 %}{% set ns.last = messages|length - loop.index %}{% endif %}
{%- endfor %}
{%- if tools is iterable and tools|length > 0 %}
    {%- for tool in tools %}
        {%- set ns.names = ns.names + [tool.function.name] %}
        {{- describe(tool.function) + '\n' }}
    {%- endfor %}
{%- endif %}
{%- for m in messages if m.role != 'system' %}
    {%- if m.tool_calls is defined and m.tool_calls %}
        {%- for call in m.tool_calls %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '<' ~ call.name ~ ' ' ~ (call.arguments if call.arguments is string else call.arguments|tojson(indent=1)) ~ '>' }}
        {%- endfor %}
        {%- continue %}
    {%- endif %}
    {%- set content = m.content.split('</think>')[-1].lstrip('\n') if '</think>' in m.content else m.content %}
    {{- m.role[:1].upper() + ':' + content.strip().replace('a', 'b').rsplit(' ', 1)|join('_') + ('!' if loop.index0 == ns.last - 1 else '') }}
    {{- ';' if not loop.last and loop.nextitem.role != m.role }}
    {%- if loop.index > 8 %}{% break %}{% endif %}
{%- endfor %}
{{- ns.names|join('+') }}{{ none is iterable }}{{ {'b': 1, 'a': none}|dictsort|map('first')|join }}{{ 'x'|int(3) }}{% generation %}.{% endgeneration %}";
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": " a b a "},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"k": [1, "é"]}}}]},
        {"role": "tool", "content": "x y"},
        {"role": "assistant", "content": "<think>t</think>\n\nno way"},
        {"role": "user", "content": "b"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"k": {"type": "array"}, "l": {"type": "number"}}}}}]);
    let tail = "Falseab3.";
    let body = "U:b b_b;<f {\n \"k\": [\n  1,\n  \"é\"\n ]\n}>T:x_y;A:no_wby;U:b!";
    let template = compile(template);
    assert_eq!(
        template.render(conversation(&messages, &tools)).unwrap(),
        format!("f(k: array, l: number)\n{body}f{tail}")
    );
    assert_eq!(template.render(conversation(&messages, &Json::Null)).unwrap(), format!("{body}{tail}"));
}

#[test]
fn documents_of_the_client_reach_the_template() {
    let template = compile("{{ documents|length if documents else 'none' }}{{ documents is none }}");
    let render = |variables: Vec<(String, Value)>| {
        template.render(Conversation { variables, ..Conversation::default() })
    };
    assert_eq!(render(Vec::new()).unwrap(), "noneTrue");
    assert_eq!(render(vec![("documents".to_owned(), Value::from(vec![1, 2]))]).unwrap(), "2False");
}
