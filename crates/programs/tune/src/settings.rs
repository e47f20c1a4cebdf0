//! Settings to try, and their configurations.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::{ModelDynamicBatching, ModelInstanceGroup, ModelParameter};
use nereid_model_config::{ModelConfig, backend_name, latency_objective};

/// The parameter with the threads of an instance, in ONNX Runtime and in OpenVINO.
const ONNX_RUNTIME_THREADS: &str = "intra_op_thread_count";
const OPENVINO_THREADS: &str = "INFERENCE_NUM_THREADS";

/// The most instances that are tried.
const MOST_INSTANCES: u32 = 16;
/// How much larger batches than the engine's usual ones are tried where the author set no size.
const LARGER: i32 = 4;
/// Delays of batches in microseconds.
const DELAYS: [u64; 3] = [0, 500, 2000];

/// The program that runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Engine {
    /// The one that the configuration names.
    Configured,
    /// ONNX Runtime.
    OnnxRuntime,
    /// OpenVINO, for a model of ONNX Runtime.
    OpenVino,
    /// The embedded engine, for a model of ONNX Runtime.
    Embedded,
}

/// How requests become batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Batching {
    /// As configured.
    Configured,
    /// Each request alone, as configured.
    Off,
    /// Up to a number of items, which wait for so many microseconds.
    Dynamic {
        /// The largest batch.
        size: i32,
        /// The longest wait for further requests.
        delay: u64,
    },
}

/// Settings of a model. The default is the configuration as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Settings {
    /// The engine.
    pub engine: Engine,
    /// Instances of each group; `None` as configured.
    pub instances: Option<u32>,
    /// Threads of each instance; `None` as configured.
    pub threads: Option<u32>,
    /// Batches.
    pub batching: Batching,
}

impl Settings {
    /// The configuration as it is.
    pub const PRESENT: Self =
        Self { engine: Engine::Configured, instances: None, threads: None, batching: Batching::Configured };

    /// The configuration with these settings.
    pub fn apply(&self, written: &ModelConfig, completed: &ModelConfig) -> ModelConfig {
        let mut config = written.clone();
        let engine = EngineKind::of(self.engine, completed);
        if self.engine == Engine::OpenVino {
            config.backend = "openvino".into();
            config.platform = String::new();
            if config.default_model_filename.is_empty() {
                config.default_model_filename = "model.onnx".into();
            }
        }
        if let Some(count) = self.instances {
            if config.instance_group.is_empty() {
                config.instance_group.push(ModelInstanceGroup::default());
            }
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            config.instance_group.iter_mut().for_each(|group| group.count = count);
        }
        if let (Some(threads), Some(name)) = (self.threads, engine.threads_parameter()) {
            config.parameters.insert(name.into(), ModelParameter { string_value: threads.to_string() });
        }
        match self.batching {
            Batching::Configured => {}
            Batching::Off => config.max_batch_size = completed.max_batch_size,
            Batching::Dynamic { size, delay } => {
                config.max_batch_size = size;
                // Priorities and queue policies are the author's.
                let mut batching = dynamic(written).cloned().unwrap_or_default();
                batching.preferred_batch_size.clear();
                batching.max_queue_delay_microseconds = delay;
                config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(batching));
            }
        }
        config
    }

    /// The number of settings that differ from others.
    pub(crate) fn distance(&self, other: &Self) -> usize {
        let batch = |it: &Self| match it.batching {
            Batching::Configured => (None, 0),
            Batching::Off => (Some(1), 0),
            Batching::Dynamic { size, delay } => (Some(size), delay),
        };
        let ((size, delay), (other_size, other_delay)) = (batch(self), batch(other));
        let differences = [
            self.engine != other.engine,
            self.instances != other.instances,
            self.threads != other.threads,
            size != other_size,
            delay != other_delay,
        ];
        differences.into_iter().filter(|differs| *differs).count()
    }

    /// Options of a server that runs the model with these settings and no other engine.
    pub fn options(&self) -> &'static [&'static str] {
        match self.engine {
            Engine::Configured | Engine::OpenVino => &[],
            Engine::OnnxRuntime => &["--backend-config=onnxruntime,engine=ort"],
            Engine::Embedded => &["--backend-config=onnxruntime,engine=tract"],
        }
    }

    /// Options without which a server would run the model otherwise. ONNX Runtime runs ONNX models wherever it is installed.
    pub fn needed_options(&self) -> &'static [&'static str] {
        if self.engine == Engine::OnnxRuntime { &[] } else { self.options() }
    }

    /// The settings in words.
    pub fn describe(&self) -> String {
        if *self == Self::PRESENT {
            return "present configuration".into();
        }
        let mut parts = Vec::new();
        match self.engine {
            Engine::Configured => {}
            Engine::OnnxRuntime => parts.push("ONNX Runtime".to_owned()),
            Engine::OpenVino => parts.push("OpenVINO".to_owned()),
            Engine::Embedded => parts.push("embedded engine".to_owned()),
        }
        let plural = |count: u32, name: &str| match count {
            1 => format!("1 {name}"),
            _ => format!("{count} {name}s"),
        };
        parts.extend(self.instances.map(|count| plural(count, "instance")));
        parts.extend(self.threads.map(|count| match self.instances {
            Some(2..) => format!("{} each", plural(count, "thread")),
            _ => plural(count, "thread"),
        }));
        match self.batching {
            Batching::Configured => {}
            Batching::Off => parts.push("no batches".into()),
            Batching::Dynamic { size, delay } => {
                parts.push(format!("batches of up to {size}, delay {} ms", delay as f64 / 1000.0));
            }
        }
        parts.join(", ")
    }
}

/// The engine of a configuration, as far as its settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineKind {
    OnnxRuntime,
    OpenVino,
    Embedded,
    Other,
}

impl EngineKind {
    fn of(engine: Engine, completed: &ModelConfig) -> Self {
        match engine {
            Engine::OnnxRuntime => Self::OnnxRuntime,
            Engine::OpenVino => Self::OpenVino,
            Engine::Embedded => Self::Embedded,
            Engine::Configured if backend_name(completed) == Some("openvino") => Self::OpenVino,
            Engine::Configured => Self::Other,
        }
    }

    fn threads_parameter(self) -> Option<&'static str> {
        match self {
            Self::OnnxRuntime => Some(ONNX_RUNTIME_THREADS),
            Self::OpenVino => Some(OPENVINO_THREADS),
            Self::Embedded | Self::Other => None,
        }
    }
}

fn dynamic(config: &ModelConfig) -> Option<&ModelDynamicBatching> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => Some(batching),
        _ => None,
    }
}

/// Why a model cannot be tuned, if it cannot.
pub fn refusal(completed: &ModelConfig) -> Option<&'static str> {
    match &completed.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(_)) => {
            return Some("is an ensemble, which has no instances: tune its members");
        }
        Some(SchedulingChoice::SequenceBatching(_)) => {
            return Some(
                "keeps state between the requests of a sequence, and requests here are of no sequence",
            );
        }
        _ => {}
    }
    let is_decoupled = completed.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
    is_decoupled.then_some("is decoupled: a request may have any number of responses")
}

/// The settings to try: the present configuration first, then many instances of few threads, often the fastest on processors. `written` is the author's configuration, and `completed` is what a server made of it.
pub fn candidates(written: &ModelConfig, completed: &ModelConfig, processors: u32) -> Vec<Settings> {
    let is_onnx = backend_name(completed) == Some("onnxruntime");
    let engines = match is_onnx {
        true => vec![Engine::OnnxRuntime, Engine::OpenVino, Engine::Embedded],
        false => vec![Engine::Configured],
    };
    let mut found = BTreeSet::new();
    for engine in engines {
        let has_threads = EngineKind::of(engine, completed).threads_parameter().is_some();
        // Models that wait for others, as many in Python do, gain by more instances than processors.
        let most = if is_onnx || has_threads { processors } else { 2 * processors };
        for instances in powers_of_two(most.min(MOST_INSTANCES)) {
            let threads: BTreeSet<_> = match has_threads {
                true => [1, (processors / instances).max(1)].map(Some).into(),
                false => [None].into(),
            };
            for threads in threads {
                for batching in batchings(written, completed) {
                    found.insert(Settings { engine, instances: Some(instances), threads, batching });
                }
            }
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|settings| {
        (Reverse(settings.instances), settings.threads.unwrap_or(1), settings.batching)
    });
    [Settings::PRESENT].into_iter().chain(found).collect()
}

/// The powers of two up to a number, and the number.
fn powers_of_two(most: u32) -> impl Iterator<Item = u32> {
    let powers = std::iter::successors(Some(1_u32), |count| count.checked_mul(2));
    powers.take_while(move |count| *count < most).chain([most.max(1)])
}

fn batchings(written: &ModelConfig, completed: &ModelConfig) -> Vec<Batching> {
    let usual = completed.max_batch_size;
    // With an objective, the batcher itself chooses sizes and delays.
    if usual <= 1 || latency_objective(written).is_some() {
        return vec![Batching::Configured];
    }
    // The author's limit may be one of memory.
    let sizes =
        if written.max_batch_size > 0 { vec![usual] } else { vec![usual, usual.saturating_mul(LARGER)] };
    let sizes = sizes.iter().flat_map(|&size| DELAYS.map(|delay| Batching::Dynamic { size, delay }));
    // Servers complete configurations of some formats with dynamic batching, and the author's may have priorities and limits.
    let off = dynamic(completed).is_none().then_some(Batching::Off);
    off.into_iter().chain(sizes).collect()
}

#[cfg(test)]
mod tests {
    use nereid_model_config::parse_text;

    use super::*;

    fn config(text: &str) -> ModelConfig {
        parse_text(text).unwrap()
    }

    #[test]
    fn candidates_follow_from_the_model_and_the_processors() {
        for (written, completed, processors, expected) in [
            // 3 engines: two with (1,1) (1,2) (2,1), one with 1 and 2 instances; off and 3 delays of one size.
            ("max_batch_size: 8", "backend: 'onnxruntime' max_batch_size: 8", 2, 1 + (3 + 3 + 2) * 4),
            // A second size.
            ("", "backend: 'onnxruntime' max_batch_size: 4", 2, 1 + (3 + 3 + 2) * 7),
            // Dynamic batching, which stays.
            ("", "backend: 'onnxruntime' max_batch_size: 4 dynamic_batching {}", 2, 1 + (3 + 3 + 2) * 6),
            // An objective, by which the batcher chooses sizes and delays.
            (
                "max_batch_size: 8 dynamic_batching {} \
                 parameters { key: 'latency_objective_microseconds' value { string_value: '20000' } }",
                "backend: 'onnxruntime' max_batch_size: 8 dynamic_batching {}",
                2,
                1 + 3 + 3 + 2,
            ),
            ("", "backend: 'onnxruntime'", 1, 1 + 3),
            ("", "backend: 'python'", 2, 1 + 3),
            ("", "backend: 'python' max_batch_size: 1", 3, 1 + 4),
            // 1, 2, 4, 8, 16 instances; the threads of the last are one in both ways.
            ("", "backend: 'openvino'", 16, 1 + 4 * 2 + 1),
            ("", "backend: 'openvino'", 64, 1 + 5 * 2),
        ] {
            let found = candidates(&config(written), &config(completed), processors);
            assert_eq!(found.len(), expected, "{written} {completed} {processors}");
            assert_eq!(found[0], Settings::PRESENT);
            let names: BTreeSet<_> = found.iter().map(Settings::describe).collect();
            assert_eq!(names.len(), found.len());
        }
    }

    #[test]
    fn settings_change_nothing_else_of_a_configuration() {
        let written = config(
            "name: 'm' backend: 'onnxruntime' max_batch_size: 8 parameters { key: 'x' value { string_value: 'y' } } \
             dynamic_batching { priority_levels: 2 preferred_batch_size: 4 } instance_group { kind: KIND_CPU count: 3 }",
        );
        let applied = |settings: Settings| settings.apply(&written, &written);
        assert_eq!(applied(Settings::PRESENT), written);
        let all = Settings {
            engine: Engine::OpenVino,
            instances: Some(2),
            threads: Some(1),
            batching: Batching::Dynamic { size: 16, delay: 500 },
        };
        let expected = config(
            "name: 'm' backend: 'openvino' default_model_filename: 'model.onnx' max_batch_size: 16 \
             parameters { key: 'x' value { string_value: 'y' } } \
             parameters { key: 'INFERENCE_NUM_THREADS' value { string_value: '1' } } \
             dynamic_batching { priority_levels: 2 max_queue_delay_microseconds: 500 } \
             instance_group { kind: KIND_CPU count: 2 }",
        );
        assert_eq!(applied(all), expected);
        assert_eq!(all.describe(), "OpenVINO, 2 instances, 1 thread each, batches of up to 16, delay 0.5 ms");
        // A model without a configuration gets what the settings need.
        let two = Settings {
            engine: Engine::OnnxRuntime,
            instances: Some(2),
            threads: Some(1),
            ..Settings::PRESENT
        };
        let completed = config("backend: 'onnxruntime' max_batch_size: 4");
        let expected = config(
            "instance_group { count: 2 } parameters { key: 'intra_op_thread_count' value { string_value: '1' } }",
        );
        assert_eq!(two.apply(&ModelConfig::default(), &completed), expected);
    }

    #[test]
    fn models_that_answer_otherwise_are_refused() {
        for (text, refused) in [
            ("max_batch_size: 8 dynamic_batching {}", false),
            ("", false),
            ("sequence_batching {}", true),
            ("ensemble_scheduling {}", true),
            ("model_transaction_policy { decoupled: true }", true),
            ("model_transaction_policy { decoupled: false }", false),
        ] {
            assert_eq!(refusal(&config(text)).is_some(), refused, "{text}");
        }
    }
}
