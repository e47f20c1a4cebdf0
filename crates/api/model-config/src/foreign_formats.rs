//! Formats of models that no backend recognises by the name of the file, and how to serve such models.
//!
//! Knows files by their names only.

/// A format, by the endings of its files.
struct Format {
    endings: &'static [&'static str],
    /// Describes a file of the format.
    what: &'static str,
    /// The way to serve such a model. `{name}` stands for the file's name.
    remedy: &'static str,
}

/// The formats. The first one with a file of the folder is reported, so formats with a simple remedy come first.
const FORMATS: &[Format] = &[
    Format {
        endings: &["engine", "trt"],
        what: "a TensorRT plan",
        remedy: "rename it to 'model.plan', or set platform: \"tensorrt_plan\" and default_model_filename: \"{name}\"",
    },
    Format {
        endings: &["torchscript", "jit", "ptl"],
        what: "TorchScript",
        remedy: "rename it to 'model.pt', or set platform: \"pytorch_libtorch\" and default_model_filename: \"{name}\"",
    },
    Format {
        endings: &["tflite", "lite"],
        what: "a TensorFlow Lite model, which OpenVINO reads",
        remedy: "set backend: \"openvino\" and default_model_filename: \"{name}\"",
    },
    Format {
        endings: &["tl"],
        what: "a forest of Treelite",
        remedy: "rename it to 'checkpoint.tl', or set backend: \"fil\" and default_model_filename: \"{name}\"",
    },
    Format {
        endings: &["pdmodel"],
        what: "a PaddlePaddle model, which OpenVINO reads",
        remedy: "set backend: \"openvino\" and default_model_filename: \"{name}\"",
    },
    Format {
        endings: &["saved_model.pb"],
        what: "part of a SavedModel",
        remedy: "move it, with the folder 'variables' and the other files beside it, into a folder 'model.savedmodel'",
    },
    Format {
        endings: &["pb"],
        what: "a graph of TensorFlow",
        remedy: "rename it to 'model.graphdef', or set platform: \"tensorflow_graphdef\" and default_model_filename: \
                 \"{name}\"",
    },
    Format {
        endings: &["keras", "h5", "hdf5"],
        what: "a Keras model",
        remedy: "write it with Keras's `model.export(\"model.savedmodel\")`, and put that folder here",
    },
    Format {
        endings: &["cbm"],
        what: "a CatBoost model",
        remedy: "write it with CatBoost's `model.save_model(\"model.onnx\", format=\"onnx\")`",
    },
    Format {
        endings: &["ubj", "bst", "xgb"],
        what: "an XGBoost model",
        remedy: "set backend: \"fil\" and default_model_filename: \"{name}\"",
    },
    Format {
        endings: &["lgb", "lgbm", "lightgbm"],
        what: "a LightGBM model",
        remedy: "set backend: \"fil\" and default_model_filename: \"{name}\"",
    },
    Format {
        endings: &["pkl", "pickle", "joblib", "skops", "dill"],
        what: "a file of Python objects",
        remedy: "convert the model to ONNX (for scikit-learn: skl2onnx), or load it in a Python model (model.py)",
    },
    Format {
        endings: &["pmml", "mlmodel", "mlpackage"],
        what: "a model in a format that no backend reads",
        remedy: "convert the original model to ONNX",
    },
    Format {
        endings: &["nemo"],
        what: "a NeMo model",
        remedy: "write it with NeMo's `model.export(\"model.onnx\")`",
    },
    Format {
        endings: &["mar"],
        what: "an archive of TorchServe",
        remedy: "unpack it, and serve its TorchScript file as 'model.pt', or its handler as a Python model (model.py)",
    },
    Format {
        endings: &["ggml"],
        what: "weights for an old llama.cpp",
        remedy: "convert them to GGUF, and name the file 'model.gguf'",
    },
    Format {
        endings: &["safetensors", "msgpack"],
        what: "weights without the model's graph",
        remedy: "export the model to ONNX (for Transformers: `optimum-cli export onnx`), or load them in a Python model \
                 (model.py); a language model needs 'model.safetensors' with its config.json and tokenizer",
    },
    Format {
        endings: &["pth", "ckpt", "pytorch_model.bin"],
        what: "a checkpoint of PyTorch, which usually has weights without the model's graph",
        remedy: "export the model to ONNX or TorchScript (`torch.jit.trace`), or load it in a Python model (model.py)",
    },
    Format {
        endings: &["zip", "tar", "gz", "tgz", "bz2", "xz", "zst", "7z"],
        what: "an archive",
        remedy: "unpack it into the folder of the version",
    },
];

/// The first of these files that has a format of the table: its name, and what to do about it.
pub(crate) fn advice<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<(&'a str, String)> {
    FORMATS.iter().find_map(|format| {
        let name = names.clone().find(|name| format.has(name))?;
        Some((name, format!("{}: {}", format.what, format.remedy.replace("{name}", name))))
    })
}

/// A hint at the first of these files of a folder that has a format of the table, and how to serve it. Empty without such a
/// file.
pub fn hint_at_other_format<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    advice(names).map_or_else(String::new, |(name, advice)| format!("; the folder has '{name}', {advice}"))
}

impl Format {
    fn has(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.endings.iter().any(|ending| {
            let is_whole_name = ending.contains('.') && name == *ending;
            let stem = name.strip_suffix(ending).and_then(|stem| stem.strip_suffix('.'));
            is_whole_name || stem.is_some_and(|stem| !stem.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice_on(names: &[&'static str]) -> Option<(&'static str, String)> {
        advice(names.iter().copied())
    }

    #[test]
    fn every_format_is_recognised_by_each_of_its_endings() {
        for format in FORMATS {
            for ending in format.endings {
                let name =
                    if ending.contains('.') { (*ending).to_owned() } else { format!("my.model.{ending}") };
                for name in [name.clone(), name.to_ascii_uppercase()] {
                    let (found, text) = advice([&*name].into_iter()).unwrap();
                    assert_eq!(found, name);
                    assert!(text.starts_with(format.what) && !text.contains("{name}"), "{name}: {text}");
                    assert_eq!(text.contains(&name), format.remedy.contains("{name}"), "{name}: {text}");
                }
            }
        }
        let endings: Vec<_> = FORMATS.iter().flat_map(|format| format.endings).collect();
        for (at, ending) in endings.iter().enumerate() {
            assert!(!endings[..at].contains(ending), "'{ending}' is listed twice");
        }
    }

    #[test]
    fn the_remedy_fits_the_format() {
        for (name, words) in [
            (
                "model.pkl",
                "convert the model to ONNX (for scikit-learn: skl2onnx), or load it in a Python model",
            ),
            ("model.tflite", "set backend: \"openvino\" and default_model_filename: \"model.tflite\""),
            ("model.safetensors", "optimum-cli export onnx"),
            ("net.engine", "rename it to 'model.plan'"),
            ("saved_model.pb", "into a folder 'model.savedmodel'"),
            ("frozen.pb", "rename it to 'model.graphdef'"),
            ("pytorch_model.bin", "torch.jit.trace"),
        ] {
            let (found, text) = advice_on(&["notes.txt", name]).unwrap();
            assert!(found == name && text.contains(words), "{name}: {text}");
        }
    }

    #[test]
    fn a_format_with_a_simple_remedy_comes_first() {
        let (found, _) = advice_on(&["model.safetensors", "a.zip", "model.h5", "pytorch_model.bin"]).unwrap();
        assert_eq!(found, "model.h5");
    }

    #[test]
    fn hint_names_the_file() {
        assert_eq!(
            hint_at_other_format(["notes.txt", "a.nemo"].into_iter()),
            "; the folder has 'a.nemo', a NeMo model: write it with NeMo's `model.export(\"model.onnx\")`"
        );
        assert_eq!(hint_at_other_format(["notes.txt"].into_iter()), "");
    }

    #[test]
    fn other_files_have_no_advice() {
        for name in [
            "",
            "pkl",
            ".pkl",
            "model.onnx",
            "model.bin",
            "config.json",
            "notes.txt",
            "model.pkl.txt",
            "apkl",
        ] {
            assert_eq!(advice_on(&[name]), None, "{name}");
        }
        assert_eq!(advice_on(&[]), None);
    }
}
