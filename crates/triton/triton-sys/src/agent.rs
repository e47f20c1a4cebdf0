//! `tritonrepoagent.h`: the functions of the server for repository agents.

use std::ffi::{c_char, c_void};

use crate::enums::*;
use crate::handles::*;

declare! {
    fn TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelRepositoryLocation(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: *mut TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelRepositoryLocationAcquire(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelRepositoryLocationRelease(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        location: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelRepositoryUpdate(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: TRITONREPOAGENT_ArtifactType,
        location: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelParameterCount(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        count: *mut u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelParameter(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        index: u32,
        parameter_name: *mut *const c_char,
        parameter_value: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelConfig(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelState(
        model: *mut TRITONREPOAGENT_AgentModel,
        state: *mut *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelSetState(
        model: *mut TRITONREPOAGENT_AgentModel,
        state: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_State(
        agent: *mut TRITONREPOAGENT_Agent,
        state: *mut *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_SetState(
        agent: *mut TRITONREPOAGENT_Agent,
        state: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
}

/// The functions of an agent: types only, since the server looks them up by name. `ModelAction` is required.
pub mod entry {
    use super::*;

    signatures! {
        "C-unwind";
        fn TRITONREPOAGENT_Initialize(agent: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error;
        fn TRITONREPOAGENT_Finalize(agent: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error;
        fn TRITONREPOAGENT_ModelInitialize(
            agent: *mut TRITONREPOAGENT_Agent,
            model: *mut TRITONREPOAGENT_AgentModel,
        ) -> *mut TRITONSERVER_Error;
        fn TRITONREPOAGENT_ModelFinalize(
            agent: *mut TRITONREPOAGENT_Agent,
            model: *mut TRITONREPOAGENT_AgentModel,
        ) -> *mut TRITONSERVER_Error;
        fn TRITONREPOAGENT_ModelAction(
            agent: *mut TRITONREPOAGENT_Agent,
            model: *mut TRITONREPOAGENT_AgentModel,
            action_type: TRITONREPOAGENT_ActionType,
        ) -> *mut TRITONSERVER_Error;
    }
}
