//! The entry points called by the server. `export_backend!` exports them under their C names.
//!
//! The server keeps a pointer to a box of ours for each backend, model and instance. Panics become errors here.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, TryLockError};

use triton_sys::*;

use crate::batch::Batch;
use crate::context::{BackendContext, InstanceContext, ModelContext};
use crate::error::{Error, ErrorCode, Result, check};
use crate::execution::{Execution, Handling};
use crate::request::Request;
use crate::traits::{Backend, Instance, Model};

struct ModelState<M> {
    model: Arc<M>,
    handling: Handling,
}

struct InstanceState<I: Instance> {
    // The interface promises one call at a time; the lock turns a broken promise into a visible error.
    instance: Mutex<I>,
    model: Arc<I::Model>,
    handling: Handling,
}

/// # Safety
/// As the server calls `TRITONBACKEND_Initialize`.
pub unsafe fn initialize<B: Backend>(handle: *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error {
    guard("starting the backend", || {
        check_version()?;
        // SAFETY: the server's backend lives during the call.
        let backend = B::start(&unsafe { BackendContext::new(handle) }?)?;
        let state = Box::into_raw(Box::new(Arc::new(backend)));
        // SAFETY: the backend lives; `finalize` takes the box back, or the line below does if the server refuses it.
        unsafe {
            check(TRITONBACKEND_BackendSetState(handle, state.cast()))
                .inspect_err(|_| drop(Box::from_raw(state)))
        }
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_Finalize`.
pub unsafe fn finalize<B: Backend>(handle: *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error {
    guard("ending the backend", || {
        // SAFETY: the backend lives. Its state is null or the box of `initialize`, which is not used after this.
        unsafe {
            let state = state_of(|state| TRITONBACKEND_BackendState(handle, state))?.cast::<Arc<B>>();
            check(TRITONBACKEND_BackendSetState(handle, ptr::null_mut()))?;
            free(state);
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_GetBackendAttribute`.
pub unsafe fn attributes<B: Backend>(
    attributes: *mut TRITONBACKEND_BackendAttribute,
) -> *mut TRITONSERVER_Error {
    guard("reading the backend's attributes", || {
        let wanted = B::attributes();
        for group in &wanted.preferred_instances {
            let devices = if group.devices.is_empty() { ptr::null() } else { group.devices.as_ptr() };
            // SAFETY: the attributes live during the call; the devices match their count, and are copied.
            unsafe {
                check(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
                    attributes,
                    group.kind.into_c(),
                    group.count,
                    devices,
                    group.devices.len() as u64,
                ))?;
            }
        }
        // SAFETY: the attributes live during the call.
        unsafe {
            check(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
                attributes,
                wanted.parallel_instance_loading,
            ))
        }
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelInitialize`, for a backend that `initialize::<B>` initialized.
pub unsafe fn model_initialize<B: Backend>(handle: *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error {
    guard("loading the model", || {
        let mut owner = ptr::null_mut();
        // SAFETY: the model lives, and so does its backend, whose state is the box of `initialize`.
        let backend = unsafe {
            check(TRITONBACKEND_ModelBackend(handle, &mut owner))?;
            state_ref::<Arc<B>>(state_of(|state| TRITONBACKEND_BackendState(owner, state))?)?
        };
        // SAFETY: the model lives during the call.
        let context = unsafe { ModelContext::new(handle) }?;
        if context.may_complete_config()? {
            let given = context.config()?;
            let mut completed = given.clone();
            B::Model::complete_config(backend, &context, &mut completed)?;
            if completed != given {
                context.set_config(&completed)?;
            }
        }
        let config = context.config()?;
        let state = Box::into_raw(Box::new(ModelState {
            model: Arc::new(B::Model::load(backend, &context)?),
            handling: Handling {
                decoupled: config.is_decoupled(),
                batched: config.max_batch_size() > 0,
                iterative: config.is_iterative(),
            },
        }));
        // SAFETY: the model lives; `model_finalize` takes the box back, or the line below does.
        unsafe {
            check(TRITONBACKEND_ModelSetState(handle, state.cast()))
                .inspect_err(|_| drop(Box::from_raw(state)))
        }
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelFinalize`.
pub unsafe fn model_finalize<B: Backend>(handle: *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error {
    guard("unloading the model", || {
        // SAFETY: the model lives. Its state is null or the box of `model_initialize`, which is not used after this.
        unsafe {
            let state =
                state_of(|state| TRITONBACKEND_ModelState(handle, state))?.cast::<ModelState<B::Model>>();
            check(TRITONBACKEND_ModelSetState(handle, ptr::null_mut()))?;
            free(state);
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelInstanceInitialize`, for a model that `model_initialize::<B>` initialized.
pub unsafe fn instance_initialize<B: Backend>(
    handle: *mut TRITONBACKEND_ModelInstance,
) -> *mut TRITONSERVER_Error {
    guard("starting the instance", || {
        // SAFETY: the instance lives during the call.
        let context = unsafe { InstanceContext::new(handle) }?;
        let owner = context.model()?;
        // SAFETY: the model outlives its instances; its state is the box of `model_initialize`.
        let shared = unsafe {
            state_ref::<ModelState<B::Model>>(state_of(|state| TRITONBACKEND_ModelState(owner, state))?)?
        };
        type Of<B> = <<B as Backend>::Model as Model>::Instance;
        let state = Box::into_raw(Box::new(InstanceState::<Of<B>> {
            instance: Mutex::new(Of::<B>::start(&shared.model, &context)?),
            model: Arc::clone(&shared.model),
            handling: shared.handling,
        }));
        // SAFETY: the instance lives; `instance_finalize` takes the box back, or the line below does.
        unsafe {
            check(TRITONBACKEND_ModelInstanceSetState(handle, state.cast()))
                .inspect_err(|_| drop(Box::from_raw(state)))
        }
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelInstanceFinalize`.
pub unsafe fn instance_finalize<B: Backend>(
    handle: *mut TRITONBACKEND_ModelInstance,
) -> *mut TRITONSERVER_Error {
    guard("ending the instance", || {
        // SAFETY: the instance lives. Its state is null or the box of `instance_initialize`, which is not used after
        // this.
        unsafe {
            let state = state_of(|state| TRITONBACKEND_ModelInstanceState(handle, state))?
                .cast::<InstanceState<<B::Model as Model>::Instance>>();
            check(TRITONBACKEND_ModelInstanceSetState(handle, ptr::null_mut()))?;
            free(state);
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelInstanceReady`, for an instance initialized here.
pub unsafe fn instance_ready<B: Backend>(
    handle: *mut TRITONBACKEND_ModelInstance,
) -> *mut TRITONSERVER_Error {
    guard("checking whether the model is ready", || {
        // SAFETY: the instance lives; its state is the box of `instance_initialize`.
        let state = unsafe {
            state_ref::<InstanceState<<B::Model as Model>::Instance>>(state_of(|state| {
                TRITONBACKEND_ModelInstanceState(handle, state)
            })?)?
        };
        state.model.ready()
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelInstanceExecute`, for an instance initialized here.
pub unsafe fn execute<B: Backend>(
    handle: *mut TRITONBACKEND_ModelInstance,
    requests: *mut *mut TRITONBACKEND_Request,
    count: u32,
) -> *mut TRITONSERVER_Error {
    guard("executing", || {
        // SAFETY: the instance lives; its state is the box of `instance_initialize`.
        let state = unsafe {
            state_ref::<InstanceState<<B::Model as Model>::Instance>>(state_of(|state| {
                TRITONBACKEND_ModelInstanceState(handle, state)
            })?)?
        };
        let mut instance = match state.instance.try_lock() {
            Ok(instance) => instance,
            // An earlier execution panicked; the backend's author decides which state unwinding leaves.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::internal("the server executes two batches on one instance at once"));
            }
        };
        let execution = Arc::new(Execution::begin(handle, state.handling));
        let handles = if count == 0 {
            &[]
        } else {
            // SAFETY: the server passes this many requests.
            unsafe { slice::from_raw_parts(requests, count as usize) }
        };
        // From here on the requests are ours, so no error may be returned: the server would answer them again.
        let ended = catch_panic("handling a batch", || {
            // SAFETY: this call returns success, which transfers the requests. The instance outlives them.
            let own = |request: &*mut _| unsafe { Request::new(*request, Arc::clone(&execution)) };
            let requests: Vec<Request> = handles.iter().map(own).collect();
            let rows = if state.handling.batched {
                requests.iter().map(|request| request.rows()).fold(0, u64::saturating_add)
            } else {
                u64::from(count)
            };
            let mut batch = Batch::new(requests, rows, Arc::clone(&execution));
            let outcome = catch_panic("executing", || instance.execute(&mut batch));
            batch.end(outcome.err().as_ref());
            Ok(())
        });
        if let Err(error) = ended {
            crate::error!("{error}");
        }
        Ok(())
    })
}

/// Checks that the server offers every function that this library may call.
fn check_version() -> Result<()> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both addresses may be written.
    unsafe { check(TRITONBACKEND_ApiVersion(&mut major, &mut minor))? };
    let (ours, least) = (TRITONBACKEND_API_VERSION_MAJOR, TRITONBACKEND_API_VERSION_MINOR);
    if major == ours && minor >= least {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::Unsupported,
        format!(
            "the backend needs version {ours}.{least} of the backend interface or a later {ours}.x, the server has {major}.{minor}"
        ),
    ))
}

/// The state pointer that the server keeps for us.
///
/// # Safety
/// `get` passes the address to a function that writes it.
unsafe fn state_of(get: impl FnOnce(*mut *mut c_void) -> *mut TRITONSERVER_Error) -> Result<*mut c_void> {
    let mut state = ptr::null_mut();
    // SAFETY: the error, if any, is ours.
    unsafe { check(get(&mut state))? };
    Ok(state)
}

/// # Safety
/// `state` is null or points to a `T` that lives during `'a` and is only ever shared.
unsafe fn state_ref<'a, T>(state: *mut c_void) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { state.cast::<T>().as_ref() }.ok_or_else(|| {
        Error::internal("the server lost this backend's state, or never initialized the backend")
    })
}

/// # Safety
/// `state` is null or comes from `Box::into_raw`, and is not used after this.
unsafe fn free<T>(state: *mut T) {
    if !state.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(state) });
    }
}

/// Runs code that may panic, and returns its error to the server.
pub(crate) fn guard(what: &str, run: impl FnOnce() -> Result<()>) -> *mut TRITONSERVER_Error {
    match catch_panic(what, run) {
        Ok(()) => ptr::null_mut(),
        Err(error) => error.into_c(),
    }
}

/// Converts a panic into an error: panics must not cross into the server.
fn catch_panic<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        Err(Error::internal(format!("the backend panicked while {what}: {}", panic_message(&*payload))))
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
        assert_eq!(outcome.unwrap_err().message(), "the backend panicked while testing: number 7");
        let outcome = catch_panic("testing", || -> Result<()> { panic!("plain") });
        assert_eq!(outcome.unwrap_err().message(), "the backend panicked while testing: plain");
        let outcome = catch_panic("testing", || -> Result<()> { std::panic::panic_any(7_u8) });
        assert_eq!(outcome.unwrap_err().message(), "the backend panicked while testing: no message");
        assert_eq!(catch_panic("testing", || Ok(3)), Ok(3));
    }
}
