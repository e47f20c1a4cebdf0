//! The order in which agents get the actions of a model, compared with the rules written plainly.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_core::AgentFolders;
use nereid_core::backend_api::ErrorCode;
use nereid_model_config::ModelConfig;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;

type Record = Arc<Mutex<Vec<String>>>;

/// An agent that records its actions and refuses some.
struct Recorder {
    number: usize,
    refuses: BTreeSet<String>,
    record: Record,
}

struct RecordedModel {
    number: usize,
    refuses: BTreeSet<String>,
    record: Record,
    location: ModelLocation,
}

impl RepositoryAgent for Recorder {
    fn begin(&self, context: AgentContext) -> Result<Box<dyn AgentModel>> {
        let Self { number, refuses, record } = self;
        lock(record).push(format!("{number} begin at {}", context.location));
        if refuses.contains("begin") {
            return Err(Error::invalid_arg("no"));
        }
        let location = ModelLocation::Folder(format!("{}{number}", context.location).into());
        let (refuses, record) = (refuses.clone(), Arc::clone(record));
        Ok(Box::new(RecordedModel { number: *number, refuses, record, location }))
    }
}

impl AgentModel for RecordedModel {
    fn act(&self, action: AgentAction) -> Result<()> {
        lock(&self.record).push(format!("{} {action:?}", self.number));
        match self.refuses.contains(&format!("{action:?}")) {
            true => Err(Error::unsupported("no")),
            false => Ok(()),
        }
    }

    fn location(&self) -> ModelLocation {
        self.location.clone()
    }
}

impl Drop for RecordedModel {
    fn drop(&mut self) {
        lock(&self.record).push(format!("{} end", self.number));
    }
}

/// The outcome of a load.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Loaded,
    Failed,
    /// Dropped without an outcome.
    Abandoned,
}

/// The actions that agents receive if they refuse these.
fn recorded_actions(refusals: &[BTreeSet<String>], fate: Fate) -> (Vec<String>, Result<ModelLocation>) {
    let record = Record::default();
    let chain = Chain::new("m");
    let mut location = Ok(ModelLocation::Folder("at".into()));
    for (number, refuses) in refusals.iter().enumerate() {
        let Ok(at) = &location else { break };
        let agent = Recorder { number, refuses: refuses.clone(), record: Arc::clone(&record) };
        let context = AgentContext {
            model: "m".to_owned(),
            location: at.clone(),
            config: ModelConfig::default(),
            parameters: Vec::new(),
            folders: AgentFolders::new(|| Err(Error::unsupported("no folders"))),
        };
        location = chain.load(&agent, &format!("agent {number}"), context);
    }
    match fate {
        _ if location.is_err() => {}
        Fate::Abandoned => {}
        Fate::Failed => chain.failed(&Error::internal("")),
        Fate::Loaded => {
            chain.loaded();
            chain.unloading();
        }
    }
    drop(chain);
    let record = lock(&record).clone();
    (record, location)
}

fn none() -> BTreeSet<String> {
    BTreeSet::new()
}

fn only(action: &str) -> BTreeSet<String> {
    [action.to_owned()].into()
}

#[test]
fn agents_receive_actions_in_the_references_order() {
    let (record, location) = recorded_actions(&[none(), none()], Fate::Loaded);
    assert_eq!(location.unwrap(), ModelLocation::Folder(PathBuf::from("at01")));
    let expected = [
        "0 begin at at",
        "0 Load",
        "1 begin at at0",
        "1 Load",
        "1 LoadComplete",
        "0 LoadComplete",
        "0 Unload",
        "1 Unload",
        "1 UnloadComplete",
        "0 UnloadComplete",
        "0 end",
        "1 end",
    ];
    assert_eq!(record, expected);
    let (record, _) = recorded_actions(&[none(), none()], Fate::Failed);
    assert_eq!(record[4..], ["1 LoadFail", "0 LoadFail", "0 end", "1 end"]);
    let (record, _) = recorded_actions(&[none(), none()], Fate::Abandoned);
    assert_eq!(record[4..], ["0 LoadFail", "0 end", "1 LoadFail", "1 end"]);
}

#[test]
fn agent_refusing_a_load_receives_load_fail_first() {
    let (record, location) = recorded_actions(&[none(), only("Load"), none()], Fate::Loaded);
    let error = location.unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::Unsupported, "repository agent 'agent 1': no"));
    assert_eq!(record[3..], ["1 Load", "1 LoadFail", "1 end", "0 LoadFail", "0 end"]);
    let (record, _) = recorded_actions(&[none(), only("begin")], Fate::Loaded);
    assert_eq!(record[2..], ["1 begin at at0", "0 LoadFail", "0 end"]);
}

#[test]
fn refusal_withholds_the_action_from_later_agents() {
    let (record, _) = recorded_actions(&[none(), only("LoadComplete")], Fate::Loaded);
    // The first agent never receives LoadComplete, so it gets no unload either.
    assert_eq!(
        record[4..],
        ["1 LoadComplete", "0 LoadFail", "0 end", "1 Unload", "1 UnloadComplete", "1 end"]
    );
    let (record, _) = recorded_actions(&[only("Unload"), none()], Fate::Loaded);
    let expected = ["0 Unload", "0 UnloadComplete", "0 end", "1 Unload", "1 UnloadComplete", "1 end"];
    assert_eq!(record[6..], expected);
}

proptest! {
    /// For any refusals, each agent that began receives a load, a complete and ordered list of actions, and the end.
    #[test]
    fn each_agent_receives_a_complete_lifecycle(
        refusals in vec(btree_set("begin|Load|LoadComplete|LoadFail|Unload|UnloadComplete", 0..3), 1..5),
        fate in prop_oneof![Just(Fate::Loaded), Just(Fate::Failed), Just(Fate::Abandoned)],
    ) {
        let (record, location) = recorded_actions(&refusals, fate);
        for (number, refuses) in refusals.iter().enumerate() {
            let own: Vec<_> = record
                .iter()
                .filter_map(|line| line.strip_prefix(&format!("{number} ")))
                .filter(|line| !line.starts_with("begin"))
                .collect();
            let stories: [&[&str]; 3] = [
                &["Load", "LoadFail", "end"],
                &["Load", "LoadComplete", "Unload", "UnloadComplete", "end"],
                &[],
            ];
            prop_assert!(stories.contains(&own.as_slice()), "{number}: {record:?}");
            if location.is_ok() {
                prop_assert!(!own.is_empty() && !refuses.contains("Load"));
            }
        }
    }
}
