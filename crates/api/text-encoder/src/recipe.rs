//! How outputs become embeddings, by the files of sentence-transformers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::dense::Dense;
use crate::files::Folders;
use crate::flag;
use crate::pooling::{Mode, Pooling, normalize};

/// How outputs become embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pooling: Pooling,
    /// The steps behind the pooling.
    steps: Vec<Step>,
    /// Whether vectors that the model made of whole texts are normalised.
    normalizes: bool,
    /// Texts that are put in front of a text, by their names.
    prompts: BTreeMap<String, String>,
    default_prompt: Option<String>,
    nested: Nested,
}

/// A step behind the pooling.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Dense(Arc<Dense>),
    Normalize,
}

/// Which beginnings of a vector are embeddings, too.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Nested {
    None,
    Any,
    Of(Vec<usize>),
}

/// A step of the pipeline in `modules.json`.
#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    r#type: String,
}

/// The prompts, and which of them is used if the client names none.
#[derive(Default, Deserialize)]
struct SentenceTransformers {
    #[serde(default)]
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
}

/// The settings of the step that pools.
#[derive(Deserialize)]
struct PoolingConfig {
    pooling_mode: Option<Modes>,
    include_prompt: Option<bool>,
    #[serde(flatten)]
    flags: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Modes {
    One(String),
    Several(Vec<String>),
}

/// The part of `config.json` that matters here.
#[derive(Default, Deserialize)]
struct Config {
    is_matryoshka: Option<bool>,
    matryoshka_dimensions: Option<Vec<usize>>,
}

impl Recipe {
    pub(crate) fn read<'p>(
        folders: &Folders,
        parameter: &dyn Fn(&str) -> Option<&'p str>,
    ) -> Result<Self, String> {
        let (mut pooling, mut steps) = modules(folders)?;
        if let Some(names) = parameter("pooling") {
            pooling.modes =
                names.split(',').map(|name| Mode::parse(name.trim())).collect::<Result<_, _>>()?;
        }
        if let Some(given) = flag("normalize", parameter)? {
            // The vectors at the end count.
            steps
                .truncate(steps.iter().rposition(|step| *step != Step::Normalize).map_or(0, |last| last + 1));
            steps.extend(given.then_some(Step::Normalize));
        }
        let normalizes = steps.last() == Some(&Step::Normalize);
        let named: SentenceTransformers = folders.settings("config_sentence_transformers.json")?;
        let prompts = named.prompts.into_iter().filter_map(|(name, prompt)| Some((name, prompt?)));
        let prompts: BTreeMap<_, _> = prompts.collect();
        let default_prompt = match named.default_prompt_name {
            None => None,
            Some(name) => Some(prompts.get(&name).cloned().ok_or_else(|| {
                format!("config_sentence_transformers.json: default_prompt_name: there is no prompt '{name}'")
            })?),
        };
        let config: Config = folders.settings("config.json")?;
        let nested = match (flag("matryoshka", parameter)?, config.matryoshka_dimensions) {
            (Some(false), _) => Nested::None,
            (Some(true), None) => Nested::Any,
            (_, Some(sizes)) => Nested::Of(sizes),
            (None, None) if config.is_matryoshka == Some(true) => Nested::Any,
            (None, None) => Nested::None,
        };
        Ok(Self { pooling, steps, normalizes, prompts, default_prompt, nested })
    }

    /// The text in front of a text: the prompt of this name, or the default one.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str, String> {
        match name {
            None => Ok(self.default_prompt.as_deref().unwrap_or_default()),
            Some(name) => self.prompts.get(name).map(String::as_str).ok_or_else(|| {
                let names: Vec<_> = self.prompts.keys().map(String::as_str).collect();
                format!("the model has no prompt '{name}' (available: {})", names.join(", "))
            }),
        }
    }

    /// Whether tokens of a prompt are left out when a text's vectors become one.
    pub fn excludes_prompt(&self) -> bool {
        !self.pooling.includes_prompt
    }

    /// Checks a requested size of embeddings that differs from the model's own.
    ///
    /// # Errors
    /// The size is not supported. The message lists the supported ones.
    pub fn check_size(&self, size: usize) -> Result<(), String> {
        match &self.nested {
            Nested::Any => Ok(()),
            Nested::Of(sizes) if sizes.contains(&size) => Ok(()),
            Nested::Of(sizes) => Err(format!("must be one of {sizes:?}")),
            Nested::None => Err(
                "needs a model that is made for shorter vectors, as the parameter matryoshka of its configuration says"
                    .to_owned(),
            ),
        }
    }

    /// The embedding of a text from the vectors of its tokens, without padding, of which `prompt` belong to a prompt.
    ///
    /// # Errors
    /// A step takes vectors of another length.
    pub fn embed(&self, rows: &[&[f32]], prompt: usize) -> Result<Vec<f32>, String> {
        let mut vector = self.pooling.pool(rows, prompt);
        for step in &self.steps {
            match step {
                Step::Dense(layer) => vector = layer.apply(&vector)?,
                Step::Normalize => normalize(&mut vector),
            }
        }
        Ok(vector)
    }

    /// The embedding of a text from the vector that the model made of it. Other steps than the normalisation are the model's own.
    pub fn finish(&self, mut vector: Vec<f32>) -> Vec<f32> {
        if self.normalizes {
            normalize(&mut vector);
        }
        vector
    }
}

/// The pooling and the steps behind it, by `modules.json` or, without it, the usual file of the pooling.
fn modules(folders: &Folders) -> Result<(Pooling, Vec<Step>), String> {
    let Some((path, modules)) = folders.json::<Vec<Module>>("modules.json")? else {
        return Ok((pooling(folders, "1_Pooling")?.unwrap_or_else(|| Mode::Mean.into()), Vec::new()));
    };
    let (mut found, mut steps) = (None, Vec::new());
    for module in modules {
        match module.r#type.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => {
                found = pooling(folders, &module.path)?;
                if found.is_none() {
                    return Err(format!("{}: {}/config.json is missing", path.display(), module.path));
                }
                if !steps.is_empty() {
                    return Err(format!(
                        "{}: the module 'Pooling' is not the first one behind 'Transformer'",
                        path.display()
                    ));
                }
            }
            "Dense" => steps.push(Step::Dense(Arc::new(Dense::read(folders, &module.path)?))),
            "Normalize" => steps.push(Step::Normalize),
            other => {
                return Err(format!(
                    "{}: the module '{other}' is not supported (available: Transformer, Pooling, Dense, Normalize)",
                    path.display()
                ));
            }
        }
    }
    Ok((found.unwrap_or_else(|| Mode::Mean.into()), steps))
}

/// The settings of the pooling in this folder, if it has any.
fn pooling(folders: &Folders, folder: &str) -> Result<Option<Pooling>, String> {
    let Some((path, config)) = folders.json::<PoolingConfig>(&format!("{folder}/config.json"))? else {
        return Ok(None);
    };
    let modes: Vec<Mode> = match config.pooling_mode {
        Some(Modes::One(name)) => vec![Mode::parse(&name)],
        Some(Modes::Several(names)) => names.iter().map(|name| Mode::parse(name)).collect(),
        None => {
            let is_set = |name: &str| {
                // The older names of the switches.
                let switch = match name {
                    "cls" => "pooling_mode_cls_token".to_owned(),
                    "max" | "mean" | "weightedmean" => format!("pooling_mode_{name}_tokens"),
                    _ => format!("pooling_mode_{name}"),
                };
                config.flags.get(&switch).and_then(serde_json::Value::as_bool) == Some(true)
            };
            Mode::NAMES.into_iter().filter(|(name, _)| is_set(name)).map(|(_, mode)| Ok(mode)).collect()
        }
    }
    .into_iter()
    .collect::<Result<_, _>>()
    .map_err(|error| format!("{}: {error}", path.display()))?;
    let modes = if modes.is_empty() { vec![Mode::Mean] } else { modes };
    Ok(Some(Pooling { modes, includes_prompt: config.include_prompt.unwrap_or(true) }))
}

#[cfg(test)]
mod tests;
