//! Layouts of well-known repositories of the hub, with their lists of files.

use proptest::collection::btree_set;
use proptest::prelude::*;

use super::*;

/// Files that nearly every repository has.
const USUAL: &[&str] = &[".gitattributes", "README.md", "config.json", "tokenizer.json", "vocab.txt"];

/// sentence-transformers/all-MiniLM-L6-v2
const MINILM: &[&str] = &[
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "data_config.json",
    "model.safetensors",
    "modules.json",
    "onnx/model.onnx",
    "onnx/model_O1.onnx",
    "onnx/model_O2.onnx",
    "onnx/model_O3.onnx",
    "onnx/model_O4.onnx",
    "onnx/model_qint8_arm64.onnx",
    "onnx/model_qint8_avx512.onnx",
    "onnx/model_qint8_avx512_vnni.onnx",
    "onnx/model_quint8_avx2.onnx",
    "openvino/openvino_model.bin",
    "openvino/openvino_model.xml",
    "openvino/openvino_model_qint8_quantized.bin",
    "openvino/openvino_model_qint8_quantized.xml",
    "pytorch_model.bin",
    "rust_model.ot",
    "tf_model.h5",
    "train_script.py",
];

/// BAAI/bge-m3, whose weights are in files of their own.
const BGE_M3: &[&str] = &[
    "1_Pooling/config.json",
    "colbert_linear.pt",
    "onnx/Constant_7_attr__value",
    "onnx/config.json",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "onnx/sentencepiece.bpe.model",
    "onnx/tokenizer.json",
    "pytorch_model.bin",
    "sparse_linear.pt",
];

/// Xenova/whisper-tiny.en
const WHISPER: &[&str] = &[
    "onnx/decoder_model.onnx",
    "onnx/decoder_model_merged.onnx",
    "onnx/decoder_model_merged_quantized.onnx",
    "onnx/decoder_model_quantized.onnx",
    "onnx/encoder_model.onnx",
    "onnx/encoder_model_quantized.onnx",
];

/// Xenova/clip-vit-base-patch32
const CLIP: &[&str] = &[
    "onnx/model.onnx",
    "onnx/model_quantized.onnx",
    "onnx/text_model.onnx",
    "onnx/text_model_quantized.onnx",
    "onnx/vision_model.onnx",
    "onnx/vision_model_quantized.onnx",
];

/// A pipeline of diffusers as Optimum exports it.
const DIFFUSERS: &[&str] = &[
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.onnx",
    "tokenizer/vocab.json",
    "unet/config.json",
    "unet/model.onnx",
    "unet/weights.pb",
    "vae_decoder/model.onnx",
    "vae_encoder/model.onnx",
];

/// A pipeline of diffusers as it is trained.
const DIFFUSERS_WEIGHTS: &[&str] = &[
    "model_index.json",
    "unet/config.json",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.bin",
    "v1-5-pruned.ckpt",
];

/// onnx-community exports of language models: only variants.
const VARIANTS_ONLY: &[&str] =
    &["onnx/model_q4f16.onnx", "onnx/model_quantized.onnx", "onnx/model_fp16.onnx"];

const SAVED_MODEL: &[&str] = &[
    "saved_model/1/assets/vocab.txt",
    "saved_model/1/saved_model.pb",
    "saved_model/1/variables/variables.data-00000-of-00001",
    "saved_model/1/variables/variables.index",
    "tf_model.h5",
];

const SAVED_MODEL_AT_ROOT: &[&str] =
    &["fingerprint.pb", "keras_metadata.pb", "saved_model.pb", "variables/variables.index"];

/// unsloth's and TheBloke's repositories.
const GGUF: &[&str] = &[
    "Llama-3.2-1B-Instruct-BF16.gguf",
    "Llama-3.2-1B-Instruct-Q2_K.gguf",
    "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    "Llama-3.2-1B-Instruct-UD-Q4_K_XL.gguf",
    "Llama-3.2-1B-Instruct.Q8_0.gguf",
    "imatrix_unsloth.gguf",
    "mmproj-F16.gguf",
];

/// A large model, split and in a folder for each quantization.
const SPLIT_GGUF: &[&str] = &[
    "Q8_0/big-Q8_0-00001-of-00002.gguf",
    "Q8_0/big-Q8_0-00002-of-00002.gguf",
    "Q4_K_M/big-Q4_K_M-00001-of-00003.gguf",
    "Q4_K_M/big-Q4_K_M-00003-of-00003.gguf",
    "Q4_K_M/big-Q4_K_M-00002-of-00003.gguf",
];

const OPENVINO_ONLY: &[&str] = &[
    "openvino_detokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_model.bin",
    "openvino_model.xml",
    "openvino_tokenizer.bin",
    "openvino_tokenizer.xml",
];

/// Arranges files for a machine with these engines.
fn arranged(address: &str, files: &[&str], engines: &[&str]) -> Result<Arranged, String> {
    let files: Vec<_> = files.iter().chain(USUAL).copied().collect();
    let address = HubAddress::parse(address).unwrap().unwrap();
    arrange(&address, &files, &|engine| engines.contains(&engine))
}

/// The files of models of texts, which the tests of other files leave out.
fn is_of_texts(place: &str) -> bool {
    place.starts_with("1/") && place.ends_with(".json") && !place.ends_with(".index.json")
}

/// The model's name and files, or the error.
fn described(address: &str, files: &[&str], engines: &[&str]) -> String {
    match arranged(address, files, engines) {
        Ok(Arranged::AsIs) => "as is".to_owned(),
        Ok(Arranged::Model { name, files, .. }) => {
            let is_of_graph = [".onnx", ".xml"].iter().any(|ending| files[0].0.ends_with(ending));
            let files = files.iter().filter(|(to, _)| !is_of_graph || !is_of_texts(to));
            let files: Vec<_> = files.map(|(to, from)| format!("{to}={from}")).collect();
            format!("{name}: {}", files.join(" "))
        }
        Err(message) => message,
    }
}

const ALL: &[&str] =
    &["onnxruntime", "openvino", "tensorflow", "pytorch", "llamacpp", "embedded", "transformers"];

#[test]
fn well_known_repository_is_one_model_of_its_best_format() {
    for (address, files, engines, expected) in [
        ("hf://st/all-MiniLM-L6-v2", MINILM, ALL, "all-MiniLM-L6-v2: 1/model.onnx=onnx/model.onnx"),
        ("hf://st/all-MiniLM-L6-v2@v1", MINILM, ALL, "all-MiniLM-L6-v2: 1/model.onnx=onnx/model.onnx"),
        (
            "hf://st/all-MiniLM-L6-v2",
            MINILM,
            &["openvino", "embedded"],
            "all-MiniLM-L6-v2: 1/model.xml=openvino/openvino_model.xml 1/model.bin=openvino/openvino_model.bin",
        ),
        ("hf://st/all-MiniLM-L6-v2", MINILM, &["embedded"], "all-MiniLM-L6-v2: 1/model.onnx=onnx/model.onnx"),
        (
            "hf://st/all-MiniLM-L6-v2/onnx/model_quint8_avx2.onnx",
            MINILM,
            ALL,
            "all-MiniLM-L6-v2: 1/model.onnx=onnx/model_quint8_avx2.onnx",
        ),
        (
            "hf://st/all-MiniLM-L6-v2/openvino",
            MINILM,
            ALL,
            "all-MiniLM-L6-v2: 1/model.xml=openvino/openvino_model.xml 1/model.bin=openvino/openvino_model.bin",
        ),
        (
            "hf://st/all-MiniLM-L6-v2/openvino/openvino_model_qint8_quantized.xml",
            MINILM,
            ALL,
            "all-MiniLM-L6-v2: 1/model.xml=openvino/openvino_model_qint8_quantized.xml \
             1/model.bin=openvino/openvino_model_qint8_quantized.bin",
        ),
        (
            "hf://BAAI/bge-m3",
            BGE_M3,
            ALL,
            "bge-m3: 1/model.onnx=onnx/model.onnx 1/Constant_7_attr__value=onnx/Constant_7_attr__value \
             1/model.onnx_data=onnx/model.onnx_data",
        ),
        ("hf://Xenova/clip", CLIP, ALL, "clip: 1/model.onnx=onnx/model.onnx"),
        (
            "hf://Xenova/clip/onnx/text_model.onnx",
            CLIP,
            ALL,
            "clip-text_model: 1/model.onnx=onnx/text_model.onnx",
        ),
        (
            "hf://Xenova/whisper/onnx/decoder_model_merged.onnx",
            WHISPER,
            ALL,
            "whisper-decoder_model_merged: 1/model.onnx=onnx/decoder_model_merged.onnx",
        ),
        ("hf://o/d/unet", DIFFUSERS, ALL, "unet: 1/model.onnx=unet/model.onnx 1/weights.pb=unet/weights.pb"),
        ("hf://o/v", VARIANTS_ONLY, ALL, "v: 1/model.onnx=onnx/model_fp16.onnx"),
        (
            "hf://o/chat",
            &[
                "model-00001-of-00001.safetensors",
                "model.safetensors.index.json",
                "original/model.safetensors",
            ],
            ALL,
            "chat: 1/model-00001-of-00001.safetensors=model-00001-of-00001.safetensors \
             1/model.safetensors.index.json=model.safetensors.index.json 1/config.json=config.json \
             1/tokenizer.json=tokenizer.json 1/vocab.txt=vocab.txt",
        ),
        ("hf://o/r", &["model.safetensors", "a-q4_0.gguf"], ALL, "r: 1/model.gguf=a-q4_0.gguf"),
        ("hf://o/resnet", &["model.onnx"], ALL, "resnet: 1/model.onnx=model.onnx"),
        ("hf://o/resnet", &["resnet50.onnx"], ALL, "resnet: 1/model.onnx=resnet50.onnx"),
        ("hf://o/r", &["model.onnx", "onnx/model.onnx"], ALL, "r: 1/model.onnx=model.onnx"),
        (
            "hf://o/tf",
            SAVED_MODEL,
            ALL,
            "tf: 1/model.savedmodel/assets/vocab.txt=saved_model/1/assets/vocab.txt \
             1/model.savedmodel/saved_model.pb=saved_model/1/saved_model.pb \
             1/model.savedmodel/variables/variables.data-00000-of-00001=saved_model/1/variables/variables.data-00000-of-00001 \
             1/model.savedmodel/variables/variables.index=saved_model/1/variables/variables.index",
        ),
        (
            "hf://o/tf",
            SAVED_MODEL_AT_ROOT,
            ALL,
            "tf: 1/model.savedmodel/fingerprint.pb=fingerprint.pb 1/model.savedmodel/saved_model.pb=saved_model.pb \
             1/model.savedmodel/variables/variables.index=variables/variables.index",
        ),
        (
            "hf://o/script",
            &["traced_model.pt", "model.safetensors"],
            ALL,
            "script: 1/model.pt=traced_model.pt",
        ),
        ("hf://o/llama-GGUF", GGUF, ALL, "llama-GGUF: 1/model.gguf=Llama-3.2-1B-Instruct-Q4_K_M.gguf"),
        (
            "hf://o/llama-GGUF/Llama-3.2-1B-Instruct.Q8_0.gguf",
            GGUF,
            ALL,
            "llama-GGUF: 1/model.gguf=Llama-3.2-1B-Instruct.Q8_0.gguf",
        ),
        ("hf://o/tiny", &["tiny.gguf", "model.safetensors"], ALL, "tiny: 1/model.gguf=tiny.gguf"),
        ("hf://o/r", &["onnx/model.onnx", "a-q4_0.gguf"], &["llamacpp"], "r: 1/model.gguf=a-q4_0.gguf"),
        ("hf://o/r", &["onnx/model.onnx", "a-q4_0.gguf"], ALL, "r: 1/model.onnx=onnx/model.onnx"),
        (
            "hf://o/big",
            SPLIT_GGUF,
            ALL,
            "big: 1/model.gguf=Q4_K_M/big-Q4_K_M-00001-of-00003.gguf \
             1/model-00003-of-00003.gguf=Q4_K_M/big-Q4_K_M-00003-of-00003.gguf \
             1/model-00002-of-00003.gguf=Q4_K_M/big-Q4_K_M-00002-of-00003.gguf",
        ),
        (
            "hf://o/big/Q8_0",
            SPLIT_GGUF,
            ALL,
            "big: 1/model.gguf=Q8_0/big-Q8_0-00001-of-00002.gguf \
             1/model-00002-of-00002.gguf=Q8_0/big-Q8_0-00002-of-00002.gguf",
        ),
        (
            "hf://OpenVINO/llm",
            OPENVINO_ONLY,
            ALL,
            "llm: 1/model.xml=openvino_model.xml 1/model.bin=openvino_model.bin",
        ),
    ] {
        assert_eq!(described(address, files, engines), expected, "{address}");
    }
}

#[test]
fn repository_with_several_models_or_none_names_what_would_work() {
    for (address, files, engines, expected) in [
        (
            "hf://Xenova/whisper@v2",
            WHISPER,
            ALL,
            "'hf://Xenova/whisper@v2' has several models; name one of them: \
             hf://Xenova/whisper@v2/onnx/decoder_model.onnx, hf://Xenova/whisper@v2/onnx/decoder_model_merged.onnx, \
             hf://Xenova/whisper@v2/onnx/encoder_model.onnx",
        ),
        (
            "hf://o/d",
            DIFFUSERS,
            ALL,
            "'hf://o/d' has several models; name one of them: hf://o/d/text_encoder, hf://o/d/unet, \
             hf://o/d/vae_decoder, hf://o/d/vae_encoder",
        ),
        (
            "hf://openai/bert",
            &["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"],
            ALL,
            "'hf://openai/bert' has no model that this server runs, only weights in the format Flax and Keras and PyTorch \
             ('flax_model.msgpack'): export them, for instance with `optimum-cli export onnx --model openai/bert FOLDER`",
        ),
        (
            "hf://o/bert",
            &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            ALL,
            "'hf://o/bert' has no model that this server runs, only weights in the format safetensors \
             ('model-00001-of-00002.safetensors'): export them, for instance with `optimum-cli export onnx --model o/bert FOLDER`",
        ),
        (
            "hf://o/chat",
            &["model.safetensors"],
            &["onnxruntime"],
            "'hf://o/chat' has no model that this server runs, only weights in the format safetensors ('model.safetensors'): export \
             them, for instance with `optimum-cli export onnx --model o/chat FOLDER`; language models are served as they are where \
             the Python of models has the packages torch and transformers",
        ),
        (
            "hf://o/sd",
            DIFFUSERS_WEIGHTS,
            ALL,
            "'hf://o/sd' has no model that this server runs, only weights in the format PyTorch and safetensors \
             ('vae/diffusion_pytorch_model.bin'): export them, for instance with `optimum-cli export onnx --model o/sd FOLDER`",
        ),
        (
            "hf://o/llama-GGUF",
            GGUF,
            &["onnxruntime"],
            "'hf://o/llama-GGUF' has the model 'Llama-3.2-1B-Instruct-BF16.gguf', but no engine for it is installed: it needs the \
             backend 'llamacpp'",
        ),
        (
            "hf://o/two",
            &["a-Q4_0.gguf", "b-Q4_0.gguf", "b-Q8_0.gguf"],
            ALL,
            "'hf://o/two' has several models; name one of them: hf://o/two/a-Q4_0.gguf, hf://o/two/b-Q4_0.gguf",
        ),
        (
            "hf://OpenVINO/llm",
            OPENVINO_ONLY,
            &["onnxruntime", "embedded"],
            "'hf://OpenVINO/llm' has the model 'openvino_model.xml', but no engine for it is installed: it needs the \
             backend 'openvino'",
        ),
        (
            "hf://o/m/README.md",
            &["model.onnx"],
            ALL,
            "'hf://o/m/README.md' is not a model's file: .onnx, .xml with .bin, .pt, .plan or .gguf",
        ),
    ] {
        assert_eq!(described(address, files, engines), expected, "{address}");
    }
}

#[test]
fn model_repository_stays_as_it_is() {
    for (address, files) in [
        ("hf://o/m", &["a/config.pbtxt", "a/1/model.onnx", "onnx/model.onnx"][..]),
        ("hf://o/m", &["config.pbtxt", "1/model.onnx", "onnx/model.onnx"]),
        ("hf://o/m", &["1/model.pt"]),
        ("hf://o/m/models", &["models/a/1/model.onnx", "onnx/model.onnx"]),
        ("hf://o/m", &["a/1/weights"]),
        ("hf://o/m", &[]),
    ] {
        assert_eq!(arranged(address, files, ALL), Ok(Arranged::AsIs), "{address} {files:?}");
    }
}

#[test]
fn models_of_texts_bring_their_tokenizer_and_settings() {
    let texts = |address: &str, files: &[&str], engines: &[&str]| match arranged(address, files, engines) {
        Ok(Arranged::Model { files, .. }) => {
            let texts = files.into_iter().filter(|(to, _)| is_of_texts(to));
            texts.map(|(to, from)| format!("{to}={from}")).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let of_minilm = [
        "1/tokenizer.json=tokenizer.json",
        "1/config.json=config.json",
        "1/config_sentence_transformers.json=config_sentence_transformers.json",
        "1/modules.json=modules.json",
        "1/1_Pooling/config.json=1_Pooling/config.json",
    ];
    for (address, engines) in [
        ("hf://st/all-MiniLM-L6-v2", ALL),
        ("hf://st/all-MiniLM-L6-v2", &["openvino"]),
        ("hf://st/all-MiniLM-L6-v2/onnx", ALL),
        ("hf://st/all-MiniLM-L6-v2/onnx/model_quint8_avx2.onnx", ALL),
    ] {
        assert_eq!(texts(address, MINILM, engines), of_minilm, "{address}");
    }
    // Files in the graph's folder come first.
    assert_eq!(
        texts("hf://BAAI/bge-m3", BGE_M3, ALL),
        [
            "1/tokenizer.json=onnx/tokenizer.json",
            "1/config.json=onnx/config.json",
            "1/1_Pooling/config.json=1_Pooling/config.json"
        ]
    );
}

proptest! {
    /// Whatever a repository has, a model's files are files of it, at different places in the folder of version 1.
    #[test]
    fn files_of_a_model_exist_and_have_places_of_their_own(
        files in btree_set(
            "((onnx|openvino|unet|saved_model|1|a)/){0,2}(model|openvino_model|encoder)(_fp16|_q4|)[.](onnx|xml|bin|pt|onnx_data)|\
             ((onnx|a)/)?(config[.]json|tokenizer[.]json|model[.]safetensors|model[.]safetensors[.]index[.]json)|\
             ((Q8_0|a)/)?(llm|mmproj)(-q4_0|-q8_0|)(-0000[123]-of-00003|)[.]gguf|((saved_model|1)/){0,2}(saved_model[.]pb|variables/x|config[.]pbtxt)",
            0..12,
        ),
        engines in any::<[bool; 8]>(),
        folder in "(|/onnx|/unet|/onnx/model.onnx)",
    ) {
        let files: Vec<_> = files.iter().map(String::as_str).collect();
        let address = HubAddress::parse(&format!("hf://owner/name{folder}")).unwrap().unwrap();
        let is_here = |engine: &str| {
            ENGINES.iter().zip(engines).any(|((_, known), is_here)| *known == engine && is_here)
        };
        if let Ok(Arranged::Model { name, files: arranged, .. }) = arrange(&address, &files, &is_here) {
            prop_assert!(!name.is_empty() && !name.contains('/') && !arranged.is_empty());
            let places: std::collections::BTreeSet<_> = arranged.iter().map(|(place, _)| place).collect();
            prop_assert_eq!(places.len(), arranged.len());
            for (place, file) in &arranged {
                prop_assert!(place.starts_with("1/") && files.contains(&file.as_str()), "{} {}", place, file);
            }
        }
    }
}
