//! Configurations that backends complete.

use std::sync::{Arc, Mutex};

use nereid_backend_api::ErrorCode;
use nereid_model_config::parse_text;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_testkit::{ScriptedBackend, ScriptedModel, normalised};

use super::*;
use crate::spec::ModelId;

const WHOLE: &str = "input { name: 'X' data_type: TYPE_FP32 dims: [ 3 ] }
    output { name: 'Y' data_type: TYPE_FP32 dims: [ 3 ] }";

/// A backend that hands back this configuration where it may complete one; it makes no instances.
fn handing(handed_back: Option<ModelConfig>) -> ScriptedBackend {
    ScriptedBackend::new(move |context| {
        let completed = handed_back.clone().filter(|_| context.complete);
        Ok(ScriptedModel::new(drop)
            .completing(completed)
            .on_create(|_| Err(Error::internal("it makes no instances"))))
    })
}

fn config(text: &str) -> ModelConfig {
    normalised("m", &format!("backend: 'handing' {text}"))
}

fn spec(completion: Completion, text: &str) -> ModelSpec {
    ModelSpec { completion, ..ModelSpec::new(ModelId::plain("m"), "m", config(text), [1]) }
}

fn no_peers() -> Arc<dyn Peers> {
    Arc::new(NoPeers)
}

fn complete(completion: Completion, text: &str, handed_back: Option<&str>) -> Result<ModelConfig> {
    let backend = handing(handed_back.map(|text| parse_text(text).unwrap()));
    load(&spec(completion, text), 1, &backend, &no_peers()).map(|(_, config)| config)
}

#[test]
fn backend_completion_is_normalised_like_a_written_configuration() {
    let handed = format!("max_batch_size: 6 dynamic_batching {{ }} {WHOLE}");
    for completion in [Completion::Allowed, Completion::Needed] {
        let completed = complete(completion, "", Some(&handed)).unwrap();
        assert_eq!(completed, config(&handed));
        let Some(SchedulingChoice::DynamicBatching(batching)) = completed.scheduling_choice else {
            panic!("the dynamic batcher is switched on")
        };
        assert_eq!(batching.preferred_batch_size, [6]);
    }
}

#[test]
fn a_configuration_that_is_there_may_do_without_the_backends_help() {
    let completed = complete(Completion::Allowed, WHOLE, None).unwrap();
    assert_eq!(completed, config(WHOLE));
}

#[test]
fn without_a_configuration_a_backend_that_completes_nothing_is_refused() {
    let error = complete(Completion::Needed, "", None).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.message().contains("'m' has no configuration file, and its backend 'handing'"), "{error}");
}

#[test]
fn completed_configuration_is_validated() {
    let without_type = "input { name: 'X' dims: [ 3 ] }";
    for handed_back in [None, Some(without_type)] {
        let error = complete(Completion::Allowed, without_type, handed_back).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArg);
        assert!(error.message().contains("input[0].data_type"), "{error}");
    }
    let error =
        complete(Completion::Allowed, "dynamic_batching { }", Some("sequence_batching { }")).unwrap_err();
    assert!(error.message().contains("chooses dynamic_batching"), "{error}");
}

#[test]
fn with_completion_off_nothing_is_taken_over() {
    assert_eq!(complete(Completion::Off, WHOLE, Some("max_batch_size: 5")).unwrap(), config(WHOLE));
}

#[test]
fn the_completed_configuration_is_reported_without_creating_instances() {
    let mut backends = Backends::default();
    backends.register("handing", Arc::new(handing(Some(parse_text(WHOLE).unwrap()))));
    assert_eq!(complete_config(&spec(Completion::Needed, ""), 1, &backends).unwrap(), config(WHOLE));
}

#[test]
fn a_backend_learns_whether_it_may_complete() {
    let noted = Arc::<Mutex<Vec<bool>>>::default();
    let noting = Arc::clone(&noted);
    let backend = ScriptedBackend::new(move |context| {
        noting.lock().unwrap().push(context.complete);
        Err(Error::unavailable("only noted"))
    });
    for completion in [Completion::Off, Completion::Allowed, Completion::Needed] {
        assert!(load(&spec(completion, WHOLE), 1, &backend, &no_peers()).is_err());
    }
    assert_eq!(*noted.lock().unwrap(), [false, true, true]);
}

#[test]
fn the_log_tells_what_was_completed() {
    let completed = config(&format!("max_batch_size: 6 dynamic_batching {{ }} {WHOLE}"));
    let reported = changes(&config(""), &completed).unwrap();
    assert_eq!(reported, "input 'X'; output 'Y'; max_batch_size 6; dynamic_batching");
    assert_eq!(changes(&completed, &completed), None);
    assert_eq!(
        changes(&config("dynamic_batching { }"), &config("max_batch_size: 2 dynamic_batching { }")).unwrap(),
        "max_batch_size 2"
    );
}
