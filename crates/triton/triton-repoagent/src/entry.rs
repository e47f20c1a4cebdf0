//! The entry points called by the server. `export_agent!` exports them under their C names.
//!
//! The server keeps a pointer to a box of ours for the agent and for each model. Panics become errors here.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use triton_sys::*;

use crate::error::{Error, ErrorCode, Result, check};
use crate::{Agent, Loading};

/// # Safety
/// As the server calls `TRITONREPOAGENT_Initialize`.
pub unsafe fn initialize<A: Agent>(handle: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error {
    guard("starting the agent", || {
        check_version()?;
        let state = Box::into_raw(Box::new(A::start()?));
        // SAFETY: the agent is alive; `finalize` takes the box back, or this function does if the server does not take
        // it.
        unsafe {
            check(TRITONREPOAGENT_SetState(handle, state.cast())).inspect_err(|_| drop(Box::from_raw(state)))
        }
    })
}

/// # Safety
/// As the server calls `TRITONREPOAGENT_Finalize`.
pub unsafe fn finalize<A: Agent>(handle: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error {
    guard("ending the agent", || {
        // SAFETY: the agent is alive. Its state is null or the box of `initialize`, which is not used after this.
        unsafe {
            let state = state_of(|state| TRITONREPOAGENT_State(handle, state))?.cast::<A>();
            check(TRITONREPOAGENT_SetState(handle, ptr::null_mut()))?;
            free(state);
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONREPOAGENT_ModelFinalize`.
pub unsafe fn model_finalize<A: Agent>(
    _agent: *mut TRITONREPOAGENT_Agent,
    handle: *mut TRITONREPOAGENT_AgentModel,
) -> *mut TRITONSERVER_Error {
    guard("letting go of the model", || {
        // SAFETY: the model is alive. Its state is null or the box of `load`, which is not used after this.
        unsafe {
            let state = state_of(|state| TRITONREPOAGENT_ModelState(handle, state))?.cast::<A::Model>();
            check(TRITONREPOAGENT_ModelSetState(handle, ptr::null_mut()))?;
            free(state);
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONREPOAGENT_ModelAction`, for an agent that `initialize::<A>` initialized.
pub unsafe fn model_action<A: Agent>(
    agent: *mut TRITONREPOAGENT_Agent,
    handle: *mut TRITONREPOAGENT_AgentModel,
    action: TRITONREPOAGENT_ActionType,
) -> *mut TRITONSERVER_Error {
    guard("handling a model", || {
        // SAFETY: the agent is alive, and its state is the box of `initialize`.
        let author = unsafe { state_of(|state| TRITONREPOAGENT_State(agent, state))?.cast::<A>().as_ref() };
        let author = author.ok_or_else(|| Error::internal("the server lost the agent's state"))?;
        if action == TRITONREPOAGENT_ACTION_LOAD {
            // SAFETY: agent and model are alive during the call.
            let model = author.load(&mut unsafe { Loading::new(agent, handle) })?;
            let state = Box::into_raw(Box::new(model));
            // SAFETY: the model is alive; `model_finalize` takes the box back, or this function does.
            return unsafe {
                check(TRITONREPOAGENT_ModelSetState(handle, state.cast()))
                    .inspect_err(|_| drop(Box::from_raw(state)))
            };
        }
        // SAFETY: the model is alive, and its state is the box of `load`, or null if the agent refused it.
        let model = unsafe {
            state_of(|state| TRITONREPOAGENT_ModelState(handle, state))?.cast::<A::Model>().as_ref()
        };
        match (model, action) {
            (Some(model), TRITONREPOAGENT_ACTION_LOAD_COMPLETE) => author.loaded(model),
            (Some(model), TRITONREPOAGENT_ACTION_LOAD_FAIL) => author.load_failed(model),
            (Some(model), TRITONREPOAGENT_ACTION_UNLOAD) => author.unloading(model),
            (Some(model), TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE) => author.unloaded(model),
            // An action of a later version, or the failed load of a model that the agent itself refused.
            _ => Ok(()),
        }
    })
}

/// Checks that the server provides every function that this library calls.
fn check_version() -> Result<()> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both addresses are valid for writes.
    unsafe { check(TRITONREPOAGENT_ApiVersion(&mut major, &mut minor))? };
    let (ours, least) = (TRITONREPOAGENT_API_VERSION_MAJOR, TRITONREPOAGENT_API_VERSION_MINOR);
    if major == ours && minor >= least {
        return Ok(());
    }
    let message = format!(
        "the agent needs version {ours}.{least} of the agent interface, the server has {major}.{minor}"
    );
    Err(Error::new(ErrorCode::Unsupported, message))
}

/// The state that the server keeps for us.
///
/// # Safety
/// `get` passes the address to a function that writes it.
unsafe fn state_of(get: impl FnOnce(*mut *mut c_void) -> *mut TRITONSERVER_Error) -> Result<*mut c_void> {
    let mut state = ptr::null_mut();
    // SAFETY: the error, if any, belongs to us.
    unsafe { check(get(&mut state))? };
    Ok(state)
}

/// # Safety
/// `state` is null or comes from `Box::into_raw`, and is not used after this.
unsafe fn free<T>(state: *mut T) {
    if !state.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(state) });
    }
}

/// Runs a function that may panic, and returns its error to the server.
fn guard(what: &str, run: impl FnOnce() -> Result<()>) -> *mut TRITONSERVER_Error {
    catch_panic(what, run).map_or_else(Error::into_c, |()| ptr::null_mut())
}

/// Converts a panic into an error: panics must not unwind into the server.
fn catch_panic<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        Err(Error::internal(format!("the agent panicked while {what}: {}", panic_message(&*payload))))
    })
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_an_error_with_its_message() {
        let outcome = catch_panic("testing", || -> Result<()> { panic!("number {}", 7) });
        assert_eq!(outcome.unwrap_err().message(), "the agent panicked while testing: number 7");
        let outcome = catch_panic("testing", || -> Result<()> { std::panic::panic_any(7_u8) });
        assert_eq!(outcome.unwrap_err().message(), "the agent panicked while testing: no message");
        assert_eq!(catch_panic("testing", || Ok(3)), Ok(3));
    }
}
