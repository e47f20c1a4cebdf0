//! Scores of pairs of texts from the logits of a classifier, as sentence-transformers' cross-encoders have them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Folders;

/// How one logit becomes a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Identity,
    Sigmoid,
}

/// Whether scores are what the model's files make of them, or the model's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scoring {
    /// The activation of the model's files is applied.
    #[default]
    Activated,
    /// The logits.
    Raw,
}

/// How logits become scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    activation: Activation,
    /// The number of classes, if a file has it.
    classes: Option<usize>,
}

/// The part of `config.json` that matters here.
#[derive(Default, Deserialize)]
struct Config {
    id2label: Option<BTreeMap<String, serde_json::Value>>,
    num_labels: Option<usize>,
    sentence_transformers: Option<CrossEncoder>,
    sbert_ce_default_activation_function: Option<String>,
}

/// The settings of a cross-encoder.
#[derive(Default, Deserialize)]
struct CrossEncoder {
    activation_fn: Option<String>,
}

impl Head {
    pub(crate) fn read(folders: &Folders) -> Result<Self, String> {
        let config: Config = folders.settings("config.json")?;
        // Newer releases have a file of their own for it.
        let newer: CrossEncoder = folders.settings("config_sentence_transformers.json")?;
        let older = config.sentence_transformers.and_then(|settings| settings.activation_fn);
        let named = newer.activation_fn.or(older).or(config.sbert_ce_default_activation_function);
        let activation = match named.as_deref().map(|name| name.rsplit('.').next().unwrap_or(name)) {
            // The default of one class; several have their own.
            None | Some("Sigmoid") => Activation::Sigmoid,
            Some("Identity") => Activation::Identity,
            Some(other) => {
                return Err(format!("unknown activation function '{other}' (available: Sigmoid, Identity)"));
            }
        };
        let classes = config.id2label.map(|labels| labels.len()).or(config.num_labels);
        Ok(Self { activation, classes })
    }

    /// The score of a pair: of one logit, what the activation makes of it; of two classes, the probability of the second one.
    ///
    /// # Errors
    /// The model has more classes, or another number than `config.json` declares.
    pub fn score(&self, logits: &[f32], scoring: Scoring) -> Result<f32, String> {
        if let Some(classes) = self.classes.filter(|classes| *classes != logits.len()) {
            return Err(format!(
                "the model returned {} logits, but config.json has {classes} classes",
                logits.len()
            ));
        }
        match (logits, scoring) {
            ([one], Scoring::Raw) => Ok(*one),
            ([one], Scoring::Activated) => Ok(match self.activation {
                Activation::Identity => *one,
                Activation::Sigmoid => sigmoid(*one),
            }),
            // The logarithm of the ratio of both probabilities.
            ([no, yes], Scoring::Raw) => Ok(yes - no),
            ([no, yes], Scoring::Activated) => Ok(sigmoid(yes - no)),
            _ => Err(format!(
                "the model has {} classes, but scores need one, or two of which the second one means that the texts fit",
                logits.len()
            )),
        }
    }
}

fn sigmoid(value: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(value)).exp())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(config: Option<&str>) -> Result<Head, String> {
        let model = tempfile::tempdir().unwrap();
        if let Some(config) = config {
            std::fs::write(model.path().join("config.json"), config).unwrap();
        }
        Head::read(&Folders::new(model.path(), 1))
    }

    #[test]
    fn scores_follow_the_classes_and_the_activation() {
        let identity = r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}"#;
        let older = r#"{"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}"#;
        let sigmoid = r#"{"id2label": {"0": "LABEL_0"}, "sentence_transformers": {"version": "4.1.0"}}"#;
        for (config, logits, scoring, expected) in [
            (None, &[0.0][..], Scoring::Activated, Ok(0.5)),
            (None, &[2.0], Scoring::Raw, Ok(2.0)),
            (Some(identity), &[2.0], Scoring::Activated, Ok(2.0)),
            (Some(older), &[2.0], Scoring::Activated, Ok(2.0)),
            (Some(sigmoid), &[0.0], Scoring::Activated, Ok(0.5)),
            (Some("{}"), &[1.0, 1.0], Scoring::Activated, Ok(0.5)),
            (Some("{}"), &[1.0, 4.0], Scoring::Raw, Ok(3.0)),
            (Some(sigmoid), &[1.0, 1.0], Scoring::Activated, Err("2 logits, but config.json has 1 classes")),
            (Some("{}"), &[1.0, 1.0, 1.0], Scoring::Activated, Err("has 3 classes")),
            (Some("{}"), &[], Scoring::Activated, Err("has 0 classes")),
        ] {
            let found = head(config).unwrap().score(logits, scoring);
            match expected {
                Ok(expected) => assert_eq!(found, Ok(expected), "{config:?}"),
                Err(message) => assert!(found.unwrap_err().contains(message), "{config:?}"),
            }
        }
        let model = tempfile::tempdir().unwrap();
        std::fs::write(
            model.path().join("config_sentence_transformers.json"),
            r#"{"activation_fn": "torch.nn.modules.linear.Identity"}"#,
        )
        .unwrap();
        let newer = Head::read(&Folders::new(model.path(), 1)).unwrap();
        assert_eq!(newer.score(&[2.0], Scoring::Activated), Ok(2.0));
        assert_eq!(head(None).unwrap().score(&[-200.0], Scoring::Activated), Ok(0.0));
    }

    #[test]
    fn unknown_activations_and_damaged_files_are_refused_by_name() {
        for (config, message) in [
            (
                r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}"#,
                "unknown activation function 'Tanh'",
            ),
            ("{", "config.json: EOF"),
        ] {
            let error = head(Some(config)).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
