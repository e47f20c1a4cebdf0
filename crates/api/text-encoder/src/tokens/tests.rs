//! Limits, truncation, padding and bad files, with a small vocabulary.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn tokenizer() -> Value {
    serde_json::from_str(nereid_testkit::TOKENIZER).unwrap()
}

fn folder(files: &[(&str, Value)]) -> TempDir {
    let model = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        fs::write(model.path().join(name), contents.to_string()).unwrap();
    }
    model
}

fn read(model: &TempDir, parameters: &[(&str, &'static str)]) -> Result<Encoder, String> {
    let parameter = |name: &str| parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    Encoder::read(&Folders::new(model.path(), 1), &parameter)
}

fn encoder(parameters: &[(&str, &'static str)]) -> Encoder {
    read(&folder(&[(TOKENIZER, tokenizer())]), parameters).unwrap()
}

#[test]
fn texts_and_pairs_get_their_special_tokens() {
    let encoder = encoder(&[]);
    let found = encoder.encode("a bx z", None, Truncation::Refuse).unwrap();
    assert_eq!(found, Tokens { ids: vec![2, 4, 5, 9, 1, 3], types: vec![] });
    let found = encoder.encode("a", Some("b c"), Truncation::Refuse).unwrap();
    assert_eq!(found, Tokens { ids: vec![2, 4, 3, 5, 6, 3], types: vec![0, 0, 0, 1, 1, 1] });
    assert_eq!(encoder.encode("", None, Truncation::Refuse).unwrap().ids, [2, 3]);
    assert_eq!((encoder.limit(), encoder.pad(), encoder.pads_left()), (DEFAULT_LIMIT, 0, false));
}

#[test]
fn texts_become_tokens_and_tokens_texts_whatever_the_limit() {
    let encoder = encoder(&[("context_length", "4")]);
    for (text, adds_special, ids, texts, back) in [
        (
            "a bx z",
            true,
            &[2, 4, 5, 9, 1, 3][..],
            &["[CLS]", "a", "b", "##x", "[UNK]", "[SEP]"][..],
            "[CLS] a bx [UNK] [SEP]",
        ),
        ("a bx z", false, &[4, 5, 9, 1], &["a", "b", "##x", "[UNK]"], "a bx [UNK]"),
        ("[SEP]a", false, &[3, 4], &["[SEP]", "a"], "[SEP] a"),
        ("", true, &[2, 3], &["[CLS]", "[SEP]"], "[CLS] [SEP]"),
        ("", false, &[], &[], ""),
    ] {
        let found = encoder.tokenize(text, adds_special).unwrap();
        assert_eq!(found, ids, "{text}");
        assert_eq!(encoder.texts(&found).unwrap(), texts, "{text}");
        assert_eq!(encoder.detokenize(&found).unwrap(), back, "{text}");
    }
    assert_eq!(encoder.texts(&[4, 10]), Err(Refusal::UnknownToken(10)));
    assert_eq!(encoder.detokenize(&[u32::MAX]), Err(Refusal::UnknownToken(u32::MAX)));
    assert_eq!(encoder.tokenize(&"a ".repeat(100_000), true).unwrap().len(), 100_002);
    let model =
        folder(&[(TOKENIZER, tokenizer()), ("sentence_bert_config.json", json!({"do_lower_case": true}))]);
    assert_eq!(read(&model, &[]).unwrap().tokenize("A", false), Ok(vec![4]));
}

#[test]
fn pairs_have_types_unless_the_configuration_leaves_that_input_out() {
    for (names, types) in [
        (json!(["input_ids", "token_type_ids", "attention_mask"]), vec![0, 0, 0, 1, 1]),
        (json!(["input_ids", "attention_mask"]), vec![]),
        (json!([]), vec![]),
        (json!(null), vec![0, 0, 0, 1, 1]),
    ] {
        let config = json!({ "model_input_names": names });
        let model = folder(&[(TOKENIZER, tokenizer()), ("tokenizer_config.json", config)]);
        let found = read(&model, &[]).unwrap().encode("a", Some("b"), Truncation::Refuse).unwrap();
        assert_eq!(found.types, types, "{names}");
    }
}

#[test]
fn long_texts_are_refused_or_cut_the_longer_one_first() {
    let encoder = encoder(&[("context_length", "6")]);
    let refusal = encoder.encode("a a a a a", None, Truncation::Refuse).unwrap_err();
    assert_eq!(refusal, Refusal::TooLong { tokens: 7, limit: 6 });
    assert_eq!(refusal.to_string(), "has 7 tokens, but the model takes 6 at most");
    for (text, pair, most, expected) in [
        ("a b c a b c", None, usize::MAX, &[2, 4, 5, 6, 4, 3][..]),
        ("a b c a b c", None, 4, &[2, 4, 5, 3]),
        ("a b", None, 4, &[2, 4, 5, 3]),
        ("a", Some("b c b c"), usize::MAX, &[2, 4, 3, 5, 6, 3]),
        ("a b c a", Some("b c b c"), usize::MAX, &[2, 4, 3, 5, 6, 3]),
        ("a b c a", Some("b"), usize::MAX, &[2, 4, 5, 3, 5, 3]),
        ("a b", None, 0, &[2, 3]),
    ] {
        let found = encoder.encode(text, pair, Truncation::CutTo(most)).unwrap();
        assert_eq!(found.ids, expected, "{text} {pair:?} {most}");
    }
    let given = |ids: &[u32], truncation| encoder.given(ids, truncation).map(|tokens| tokens.ids);
    assert_eq!(given(&[4, 5], Truncation::Refuse), Ok(vec![4, 5]));
    assert_eq!(given(&[4; 7], Truncation::Refuse), Err(Refusal::TooLong { tokens: 7, limit: 6 }));
    assert_eq!(given(&[4; 7], Truncation::CutTo(2)), Ok(vec![4, 4]));
    assert_eq!(given(&[4, 10], Truncation::Refuse), Err(Refusal::UnknownToken(10)));
    assert_eq!(given(&[u32::MAX], Truncation::Refuse), Err(Refusal::UnknownToken(u32::MAX)));
}

#[test]
fn texts_of_a_megabyte_are_not_tokenized_as_a_whole() {
    let encoder = encoder(&[("context_length", "6")]);
    let long = "a é ".repeat(1 << 18);
    let refusal = encoder.encode(&long, None, Truncation::Refuse).unwrap_err();
    assert_eq!(refusal, Refusal::TooManyBytes { bytes: long.len(), limit: 6 });
    let found = encoder.encode(&long, None, Truncation::CutTo(usize::MAX)).unwrap();
    assert_eq!(found.ids, [2, 4, 1, 4, 1, 3]);
    let word = "x".repeat(1 << 20);
    assert_eq!(encoder.encode(&word, None, Truncation::CutTo(6)).unwrap().ids, [2, 1, 3]);
}

#[test]
fn prompts_are_counted_with_the_tokens_before_them() {
    let encoder = encoder(&[]);
    assert_eq!(encoder.prompt_length("query: "), Ok(3));
    assert_eq!(encoder.prompt_length(""), Ok(0));
}

#[test]
fn limits_come_from_the_most_specific_source() {
    let positions = json!({"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1});
    let longest = json!({"model_max_length": 128});
    let endless = json!({"model_max_length": 1e30});
    let sentence = json!({"max_seq_length": 32, "do_lower_case": true});
    let cut = {
        let mut cut = tokenizer();
        cut["truncation"] =
            json!({"max_length": 64, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
        cut
    };
    for (files, expected) in [
        (vec![], DEFAULT_LIMIT),
        (vec![(TOKENIZER, cut.clone())], 64),
        (vec![(TOKENIZER, cut.clone()), ("config.json", positions.clone())], 512),
        (vec![("config.json", json!({"max_position_embeddings": 514}))], 514),
        (vec![("config.json", positions.clone()), ("tokenizer_config.json", longest.clone())], 128),
        (vec![("config.json", positions.clone()), ("tokenizer_config.json", endless)], 512),
        (vec![("config.json", positions), ("sentence_bert_config.json", sentence)], 32),
        (vec![("sentence_bert_config.json", json!({"max_seq_length": null}))], DEFAULT_LIMIT),
    ] {
        let mut all = vec![(TOKENIZER, tokenizer())];
        all.extend(files);
        let found = read(&folder(&all), &[]).unwrap();
        assert_eq!(found.limit(), expected);
        assert_eq!(read(&folder(&all), &[("context_length", "7")]).unwrap().limit(), 7);
    }
}

#[test]
fn files_say_how_batches_are_filled_and_texts_prepared() {
    let sides = json!({"pad_token": {"content": "c"}, "padding_side": "left", "truncation_side": "left"});
    let lower = json!({"do_lower_case": true});
    let model = folder(&[
        (TOKENIZER, tokenizer()),
        ("tokenizer_config.json", sides),
        ("sentence_bert_config.json", lower),
    ]);
    let found = read(&model, &[("truncate", "true")]).unwrap();
    assert_eq!((found.pad(), found.pads_left()), (6, true));
    assert_eq!(found.encode("A a a b", None, Truncation::CutTo(4)).unwrap().ids, [2, 4, 5, 3]);
    assert_eq!(found.truncation(), Truncation::CutTo(usize::MAX));
}

#[test]
fn files_of_a_version_come_before_those_of_the_model() {
    let model = folder(&[("config.json", json!({"max_position_embeddings": 9}))]);
    fs::create_dir(model.path().join("1")).unwrap();
    fs::write(model.path().join("1").join(TOKENIZER), tokenizer().to_string()).unwrap();
    assert!(Folders::new(model.path(), 1).have_tokenizer());
    assert!(!Folders::new(model.path(), 2).have_tokenizer());
    assert_eq!(read(&model, &[]).unwrap().limit(), 9);
}

#[test]
fn bad_files_and_parameters_are_refused_by_name() {
    let unknown = {
        let mut unknown = tokenizer();
        unknown["model"]["type"] = json!("Telepathy");
        unknown
    };
    let with = |name, value| vec![(TOKENIZER, tokenizer()), (name, value)];
    for (files, parameters, message) in [
        (vec![], vec![], "tokenizer.json is missing"),
        (vec![(TOKENIZER, json!({}))], vec![], "tokenizer.json: "),
        (vec![(TOKENIZER, json!([1, 2]))], vec![], "tokenizer.json: "),
        (vec![(TOKENIZER, unknown)], vec![], "tokenizer.json: "),
        (with("tokenizer_config.json", json!([])), vec![], "tokenizer_config.json: "),
        (
            with("sentence_bert_config.json", json!({"max_seq_length": "x"})),
            vec![],
            "sentence_bert_config.json: ",
        ),
        (
            with("x.json", json!(1)),
            vec![("context_length", "-1")],
            "context_length: must be a positive number",
        ),
        (
            with("x.json", json!(1)),
            vec![("context_length", "3")],
            "the limit of 3 tokens leaves none for a text",
        ),
        (
            with("x.json", json!(1)),
            vec![("truncate", "maybe")],
            "truncate: must be true or false, not 'maybe'",
        ),
    ] {
        let error = read(&folder(&files), &parameters).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    let model = tempfile::tempdir().unwrap();
    let file = fs::File::create(model.path().join(TOKENIZER)).unwrap();
    file.set_len(TOKENIZER_LIMIT + 1).unwrap();
    let error = read(&model, &[]).unwrap_err();
    assert!(error.contains("larger than 67108864 bytes"), "{error}");
    fs::write(model.path().join(TOKENIZER), &tokenizer().to_string().as_bytes()[..200]).unwrap();
    assert!(read(&model, &[]).unwrap_err().contains("tokenizer.json: EOF"));
}

#[test]
fn mutated_tokenizers_neither_panic_nor_hang() {
    let whole = tokenizer().to_string();
    for place in (0..whole.len()).step_by(7) {
        for byte in [b'0', b'"', b'[', b'x'] {
            let mut bytes = whole.clone().into_bytes();
            bytes[place] = byte;
            let model = tempfile::tempdir().unwrap();
            fs::write(model.path().join(TOKENIZER), bytes).unwrap();
            if let Ok(encoder) = read(&model, &[]) {
                let _ = encoder.encode("a bx query: z", Some("b"), Truncation::CutTo(8));
                let _ = encoder.given(&[0, 9, 77], Truncation::Refuse);
            }
        }
    }
}
