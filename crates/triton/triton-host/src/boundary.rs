//! The boundary to C: [`exports!`] and [`values!`] declare every exported function, and check its arguments.
//!
//! Behind the boundary no raw pointer is read or written: arguments arrive as a [`Text`], an [`Out`], a [`List`] or a
//! [`Handle`](crate::handle::Handle), each checked when it is used. Null is an error there, never a crash. As in C,
//! callers must guarantee that a non-null pointer points to what the header requires: that cannot be checked here.
//! Panics do not cross the boundary: they become errors.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nereid_backend_api::{Error, Result};
use triton_sys::*;

use crate::error;
use crate::handle::{Handle, Object};

/// A type of C arguments, and its checked form.
pub(crate) trait Pass {
    /// The checked form.
    type Safe;

    /// Converts the argument to its checked form.
    ///
    /// # Safety
    /// The argument comes from a call from C that obeys the called function's header: a pointer that is not null
    /// points to what the header requires until the call returns.
    unsafe fn pass(self) -> Self::Safe;
}

/// Where C expects a result; null if it expects none.
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes a required result.
    pub(crate) fn set(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(null("result"));
        }
        self.set_optional(value);
        Ok(())
    }

    /// Writes an optional result: does nothing if the pointer is null.
    pub(crate) fn set_optional(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: see `Pass::pass`: it is not null, so it points to a place for a `T`.
            unsafe { self.0.write(value) }
        }
    }

    /// Reads the current value: some results are read before they are written.
    pub(crate) fn get(&self) -> Result<T> {
        if self.0.is_null() {
            return Err(null("value"));
        }
        // SAFETY: see `Pass::pass`: it is not null, and the header has a value there.
        Ok(unsafe { self.0.read() })
    }

    /// Checks that a required result can be written, before it is created.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.is_null() { Err(null("result")) } else { Ok(()) }
    }

    /// The elements of an array, if the header has one here.
    pub(crate) fn elements(&self, count: u64) -> Result<Vec<T>> {
        List(self.0.cast_const()).elements(count)
    }
}

impl<C> Out<*mut C> {
    /// Passes an object to C, which releases it. Creates no handle if C has no place for one.
    pub(crate) fn give<T: Object<C = C>>(&self, object: Arc<T>) -> Result<()> {
        if self.0.is_null() {
            return Err(null("result"));
        }
        self.set(Handle::give(object)?.as_c())
    }
}

/// An array whose length is another argument.
pub(crate) struct List<T>(*const T);

impl<T: Copy> List<T> {
    /// The array's elements. An empty array may be null.
    pub(crate) fn elements(&self, count: u64) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(null("array"));
        }
        let too_long =
            || Error::invalid_arg(format!("an array of {count} elements exceeds the address space"));
        let fits = |count: &usize| {
            count.checked_mul(size_of::<T>()).is_some_and(|size| isize::try_from(size).is_ok())
        };
        let count = usize::try_from(count).ok().filter(fits).ok_or_else(too_long)?;
        // SAFETY: see `Pass::pass`: it is not null, and the header guarantees this many elements.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }

    /// Whether the pointer is null.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A text, terminated by a zero byte.
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text; invalid UTF-8 is replaced.
    pub(crate) fn read(&self) -> Result<Cow<'_, str>> {
        self.read_optional().ok_or_else(|| null("string"))
    }

    /// The text, or `None` if the pointer is null.
    pub(crate) fn read_optional(&self) -> Option<Cow<'_, str>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: see `Pass::pass`: it is not null, so it points to a text that ends with a zero, and the text stays
        // until the call is over, which the borrow of `self` does not outlive.
        Some(unsafe { CStr::from_ptr(self.0) }.to_string_lossy())
    }
}

/// Bytes, or a value whose type is another argument.
pub(crate) struct Contents(*const c_void);

impl Contents {
    /// The address.
    pub(crate) fn address(&self) -> *const c_void {
        self.0
    }

    /// This many bytes, as the header guarantees. The pointer may be null if the count is zero.
    pub(crate) fn bytes(&self, count: u64) -> Result<Vec<u8>> {
        List(self.0.cast::<u8>()).elements(count)
    }

    /// One value, if the header has one of that type here.
    pub(crate) fn value<T: Copy>(&self) -> Result<T> {
        if self.0.is_null() {
            return Err(null("value"));
        }
        // SAFETY: see `Pass::pass`: it is not null, so it points to a `T`, perhaps unaligned.
        Ok(unsafe { self.0.cast::<T>().read_unaligned() })
    }

    /// A text, if the header has one here.
    pub(crate) fn text(&self) -> Text {
        Text(self.0.cast())
    }
}

impl Text {
    /// The first `count` bytes, if the header passes a text with its length.
    pub(crate) fn bytes(&self, count: u64) -> Result<Vec<u8>> {
        List(self.0.cast::<u8>()).elements(count)
    }
}

fn null(what: &str) -> Error {
    Error::invalid_arg(format!("the {what} pointer is null"))
}

/// Types for which any bits are a valid value, so that C may read and write them.
pub(crate) trait Plain: Copy {}

impl<T: Plain> Pass for *mut T {
    type Safe = Out<T>;

    // SAFETY: callers uphold the contract of the trait.

    unsafe fn pass(self) -> Out<T> {
        Out(self)
    }
}

macro_rules! plain {
    ($($type:ty),* $(,)?) => { $(impl Plain for $type {})* };
}

plain! {
    bool, i32, u32, i64, u64, usize, f64,
    *const c_char, *const c_void, *mut c_void, *const i64,
    *mut TRITONBACKEND_Backend, *mut TRITONBACKEND_Input, *mut TRITONBACKEND_MemoryManager, *mut TRITONBACKEND_Model,
    *mut TRITONBACKEND_ModelInstanceResponseStatistics, *mut TRITONBACKEND_Output,
    *mut TRITONBACKEND_Response, *mut TRITONBACKEND_ResponseFactory, *mut TRITONBACKEND_State,
    *mut TRITONSERVER_BufferAttributes, *mut TRITONSERVER_InferenceRequest, *mut TRITONSERVER_InferenceTrace,
    *mut TRITONSERVER_Message, *mut TRITONSERVER_Metric, *mut TRITONSERVER_MetricArgs,
    *mut TRITONSERVER_MetricFamily, *mut TRITONSERVER_Metrics, *mut TRITONSERVER_ResponseAllocator,
    *mut TRITONSERVER_Server, *mut TRITONSERVER_ServerOptions, *const TRITONSERVER_Parameter,
    TRITONBACKEND_ArtifactType, TRITONBACKEND_ExecutionPolicy, TRITONSERVER_DataType, TRITONSERVER_InstanceGroupKind,
    TRITONSERVER_MemoryType, TRITONSERVER_MetricKind, TRITONSERVER_ParameterType,
    TRITONREPOAGENT_ArtifactType,
}

/// Passes unchanged.
macro_rules! pass_unchanged {
    ($($type:ty),* $(,)?) => {
        $(impl Pass for $type {
            type Safe = Self;

            // SAFETY: callers uphold the contract of the trait.

            unsafe fn pass(self) -> Self {
                self
            }
        })*
    };
}

pass_unchanged! {
    bool, c_int, u32, i64, u64, usize, f64,
    // An address that only C uses: stored and returned, never dereferenced.
    *mut c_void,
    TRITONBACKEND_ExecutionPolicy, TRITONREPOAGENT_ArtifactType, TRITONSERVER_DataType, TRITONSERVER_Error_Code,
    TRITONSERVER_InferenceTraceActivity, TRITONSERVER_InferenceTraceLevel, TRITONSERVER_InstanceGroupKind,
    TRITONSERVER_LogCallbackFn_t, TRITONSERVER_LogFormat, TRITONSERVER_LogLevel, TRITONSERVER_MemoryType,
    TRITONSERVER_MetricFormat, TRITONSERVER_MetricKind, TRITONSERVER_ModelControlMode, TRITONSERVER_ParameterType,
    TRITONSERVER_RateLimitMode,
    TRITONSERVER_InferenceRequestReleaseFn_t, TRITONSERVER_InferenceResponseCompleteFn_t,
    TRITONSERVER_InferenceTraceActivityFn_t, TRITONSERVER_InferenceTraceReleaseFn_t,
    TRITONSERVER_InferenceTraceTensorActivityFn_t, TRITONSERVER_ResponseAllocatorAllocFn_t,
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t, TRITONSERVER_ResponseAllocatorQueryFn_t,
    TRITONSERVER_ResponseAllocatorReleaseFn_t, TRITONSERVER_ResponseAllocatorStartFn_t,
}

impl Pass for *const c_char {
    type Safe = Text;

    // SAFETY: callers uphold the contract of the trait.

    unsafe fn pass(self) -> Text {
        Text(self)
    }
}

impl Pass for *const c_void {
    type Safe = Contents;

    // SAFETY: callers uphold the contract of the trait.

    unsafe fn pass(self) -> Contents {
        Contents(self)
    }
}

macro_rules! lists {
    ($($type:ty),*) => {
        $(impl Pass for *const $type {
            type Safe = List<$type>;

            // SAFETY: callers uphold the contract of the trait.

            unsafe fn pass(self) -> List<$type> {
                List(self)
            }
        })*
    };
}

lists!(i64, u64, f64);

/// Runs an exported function and converts its outcome for C: null, or an error that the caller owns.
pub(crate) fn answer(act: impl FnOnce() -> Result<()>) -> *mut TRITONSERVER_Error {
    let outcome = catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|_| Err(Error::internal("the server panicked; its log says where")));
    match outcome {
        Ok(()) => std::ptr::null_mut(),
        Err(error) => error::to_c(&error),
    }
}

/// Runs an exported function that returns a value, or `fallback` if it fails.
pub(crate) fn value_or<T>(fallback: T, act: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(value)) => value,
        Ok(Err(_)) | Err(_) => fallback,
    }
}

/// Exports functions that return an error or null, and lists them in `EXPORTS`. The compiler checks each signature
/// against `triton-sys`.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, unused_mut, reason = "the names are those of the C headers")]
            // SAFETY: callers obey the header, which `triton-sys` describes.
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> *mut triton_sys::TRITONSERVER_Error {
                // SAFETY: the arguments come from this very call.
                $(let $argument = unsafe { $crate::boundary::Pass::pass($argument) };)*
                $crate::boundary::answer(move || {
                    $body
                    #[allow(unreachable_code, reason = "some functions always fail")]
                    Ok(())
                })
            }

            const _: triton_sys::signatures::$name = $name;
        )*

        pub(crate) const EXPORTS: &[::nereid_plugin::HostFunction] = &[$((stringify!($name), $name as *const ())),*];
    };
}

/// Exports functions that return a value, listed in `VALUES`; the value behind the arrow is returned on failure.
macro_rules! values {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty = $fallback:expr)?; $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the names are those of the C headers")]
            // SAFETY: callers obey the header, which `triton-sys` describes.
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the arguments come from this very call.
                $(let $argument = unsafe { $crate::boundary::Pass::pass($argument) };)*
                $crate::boundary::value_or(($($fallback)?), move || Ok($body))
            }

            const _: triton_sys::signatures::$name = $name;
        )*

        pub(crate) const VALUES: &[::nereid_plugin::HostFunction] = &[$((stringify!($name), $name as *const ())),*];
    };
}

pub(crate) use {exports, values};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    #[test]
    fn no_handle_is_created_for_a_null_result() {
        let object = Message::new("{}");
        Out(std::ptr::null_mut::<*mut TRITONSERVER_Message>()).give(Arc::clone(&object)).unwrap_err();
        assert_eq!(Arc::strong_count(&object), 1);
        let mut place = std::ptr::null_mut();
        Out(&raw mut place).give(Arc::clone(&object)).unwrap();
        assert!(Arc::ptr_eq(&Handle::of(place).take().unwrap(), &object));
    }

    #[test]
    fn oversized_arrays_are_refused() {
        let one = 7_i64;
        let elements = |count| List(&raw const one).elements(count);
        assert_eq!(elements(1).unwrap(), [7]);
        for count in [u64::MAX, u64::MAX / 8, isize::MAX as u64 / 8 + 1] {
            let error = elements(count).unwrap_err();
            assert!(error.message().contains(&count.to_string()), "{error}");
        }
    }
}
