//! Tokens of texts, and texts of tokens.

use super::*;

fn tokenizing() -> String {
    format!(
        r#"{VLLM}
        input [
            {{ name: "operation" data_type: TYPE_STRING dims: 1 optional: true }},
            {{ name: "add_special_tokens" data_type: TYPE_BOOL dims: 1 optional: true }},
            {{ name: "tokens" data_type: TYPE_INT32 dims: -1 optional: true }},
            {{ name: "return_token_strs" data_type: TYPE_BOOL dims: 1 optional: true }}
        ]
        output [{{ name: "tokens" data_type: TYPE_INT32 dims: -1 }}, {{ name: "token_strs" data_type: TYPE_STRING dims: -1 }}]
        parameters {{ key: "context_length" value {{ string_value: "77" }} }}"#
    )
}

/// A token for each byte of a text; 1 first, if special tokens are wanted.
fn bytes_as_tokens(request: Request) {
    let input = |name: &str| {
        let input = request.inputs.iter().find(|input| input.name == name);
        input.map(|input| input.contiguous().unwrap().to_vec()).unwrap_or_default()
    };
    let operation = String::from_utf8(input("operation")[4..].to_vec()).unwrap();
    let response = match operation.as_str() {
        "tokenize" => {
            let mut tokens: Vec<i32> = input("text_input")[4..].iter().map(|byte| i32::from(*byte)).collect();
            if input("add_special_tokens") == [1] {
                tokens.insert(0, 1);
            }
            let count = i64::try_from(tokens.len()).unwrap();
            let contents: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            let mut outputs = vec![Tensor::new("tokens", DataType::Int32, [count], contents)];
            if input("return_token_strs") == [1] {
                let mut texts = Vec::new();
                for token in tokens {
                    push_bytes_element(&mut texts, format!("<{token}>").as_bytes()).unwrap();
                }
                outputs.push(Tensor::new("token_strs", DataType::Bytes, [count], texts));
            }
            Response::new(outputs)
        }
        "detokenize" => {
            let text: String = input("tokens").chunks(4).map(|token| char::from(token[0])).collect();
            text_response(&text, [])
        }
        other => panic!("{other}"),
    };
    request.responder().finish_with(Ok(response));
}

#[tokio::test]
async fn prompts_may_be_tokens() {
    let site = site(&tokenizing(), |request| {
        if request.inputs.iter().any(|input| input.name == "operation") {
            return bytes_as_tokens(request);
        }
        request.responder().finish_with(Ok(text_response("!", [])));
    })
    .await;
    for (fields, prompts, expected) in [
        (json!({"prompt": [97, 98]}), json!([[97, 98]]), json!(["!"])),
        (
            json!({"prompt": [[97, 98], [99, 100]], "n": 2}),
            json!([[97, 98], [97, 98], [99, 100], [99, 100]]),
            json!(["!", "!", "!", "!"]),
        ),
        (
            json!({"prompt": [ [97, 98], [99, 100] ], "n": 2, "echo": true}),
            json!([[97, 98], [97, 98], [99, 100], [99, 100]]),
            json!(["ab!", "ab!", "cd!", "cd!"]),
        ),
        (json!({"prompt": [-1, 2147483647]}), json!([[-1, 2147483647]]), json!(["!"])),
    ] {
        site.seen.lock().unwrap().clear();
        let mut request = json!({"model": "m"});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = site.post("/v1/completions", &request).await;
        assert_eq!(answer.status, 200, "{fields}: {}", answer.body);
        let choices = answer.json()["choices"].clone();
        let texts: Vec<_> = choices.as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
        assert_eq!(json!(texts), expected, "{fields}");
        let seen = site.seen.lock().unwrap();
        let generated = seen.iter().filter(|inputs| inputs.get("operation").is_none());
        assert_eq!(
            json!(generated.map(|inputs| inputs["tokens"].clone()).collect::<Vec<_>>()),
            prompts,
            "{fields}"
        );
        assert!(seen.iter().all(|inputs| inputs["text_input"] == ""), "{seen:?}");
    }
    let echoed = json!({"model": "m", "prompt": [97, 98], "echo": true, "stream": true});
    let events = site.post("/v1/completions", &echoed).await.events();
    assert_eq!(events[0]["choices"][0]["text"], "ab!");
    for prompt in [
        json!([1, "a"]),
        json!(["a", 1]),
        json!([[1], 2]),
        json!([[1], "a"]),
        json!([[]]),
        json!([[1], []]),
        json!([1.5]),
        json!([2147483648_u64]),
        json!([[[1]]]),
        json!([null]),
        json!({"a": 1}),
        json!(7),
    ] {
        let answer = site.post("/v1/completions", &json!({"model": "m", "prompt": prompt})).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("prompt")), "{prompt}");
    }
}

#[tokio::test]
async fn tokens_are_those_of_the_models_tokenizer() {
    let site = site(&tokenizing(), bytes_as_tokens).await;
    let messages = json!([{"role": "user", "content": "a"}]);
    let prompt: Vec<u8> = b"[user] a\n>".to_vec();
    for (request, tokens) in [
        (json!({"model": "m", "prompt": "ab"}), vec![1, 97, 98]),
        (json!({"model": "m", "prompt": "ab", "add_special_tokens": false}), vec![97, 98]),
        (
            json!({"model": "m", "prompt": "", "add_special_tokens": false, "return_token_strs": false}),
            vec![],
        ),
        (json!({"model": "m", "messages": messages}), prompt.clone()),
        (json!({"model": "m", "messages": messages, "add_special_tokens": true}), [&[1], &*prompt].concat()),
    ] {
        let json = site.post("/tokenize", &request).await.json();
        let expected =
            json!({"count": tokens.len(), "max_model_len": 77, "tokens": tokens, "token_strs": null});
        assert_eq!(json, expected, "{request}");
    }
    for (text, texts) in [("ab", json!(["<1>", "<97>", "<98>"])), ("", json!(["<1>"]))] {
        let request = json!({"model": "m", "prompt": text, "return_token_strs": true});
        assert_eq!(site.post("/tokenize", &request).await.json()["token_strs"], texts);
    }
    let nothing = json!({"model": "m", "prompt": "", "add_special_tokens": false, "return_token_strs": true});
    assert_eq!(site.post("/tokenize", &nothing).await.json()["token_strs"], json!([]));
    for (tokens, text) in [(json!([97, 98]), "ab"), (json!([]), "")] {
        let json = site.post("/detokenize", &json!({"model": "m", "tokens": tokens})).await.json();
        assert_eq!(json, json!({"prompt": text}));
    }
}

#[tokio::test]
async fn wrong_requests_about_tokens_are_refused_by_name() {
    let able = site(&tokenizing(), bytes_as_tokens).await;
    let unable = site(VLLM, bytes_as_tokens).await;
    let textless = site(&tokenizing().replace("token_strs", "others"), bytes_as_tokens).await;
    for (site, path, request, param) in [
        (&able, "/tokenize", json!({"model": "m"}), "prompt"),
        (&able, "/tokenize", json!({"model": "m", "prompt": 1}), "prompt"),
        (
            &able,
            "/tokenize",
            json!({"model": "m", "prompt": "a", "return_token_strs": 1}),
            "return_token_strs",
        ),
        (
            &textless,
            "/tokenize",
            json!({"model": "m", "prompt": "a", "return_token_strs": true}),
            "return_token_strs",
        ),
        (&able, "/tokenize", json!({"model": "m", "prompt": "a", "other": 1}), "other"),
        (&able, "/detokenize", json!({"model": "m"}), "tokens"),
        (&able, "/detokenize", json!({"model": "m", "tokens": "a"}), "tokens"),
        (&able, "/detokenize", json!({"model": "m", "tokens": ["a"]}), "tokens"),
        (&able, "/detokenize", json!({"model": "m", "tokens": [1], "other": 1}), "other"),
        (&unable, "/tokenize", json!({"model": "m", "prompt": "a"}), "model"),
        (&unable, "/detokenize", json!({"model": "m", "tokens": [1]}), "model"),
        (&able, "/tokenize", json!({"prompt": "a"}), "model"),
    ] {
        let answer = site.post(path, &request).await;
        assert_eq!(answer.status, 400, "{request}: {}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param, "{request}: {}", answer.body);
    }
    assert_eq!(able.post("/tokenize", &json!({"model": "none", "prompt": "a"})).await.status, 404);
}
