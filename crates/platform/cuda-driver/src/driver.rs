//! The driver library: found and loaded at run time, with each used function returning a result.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

use nereid_dylib::{Binding, open, symbols};

use crate::CudaError;

/// A context of the driver.
pub type RawContext = *mut c_void;

/// A handle with which other processes open memory, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawIpcHandle(pub [u8; 64]);

/// The attributes of a device that we query, with the driver's numbers.
pub(crate) const CAPABILITY_MAJOR: c_int = 75;
pub(crate) const CAPABILITY_MINOR: c_int = 76;
/// Makes another GPU's memory accessible on first use.
pub const LAZY_PEER_ACCESS: c_uint = 1;
/// Pins memory for all GPUs.
pub const PORTABLE: c_uint = 1;

/// Declares the functions: as members of `Functions` under their symbols in the library, and as methods of `Driver`
/// that convert their codes into results.
macro_rules! functions {
    ($($symbol:ident => fn $method:ident($($argument:ident: $type:ty),*);)*) => {
        symbols! {
            #[allow(non_snake_case)]
            struct Functions {
                $($symbol = stringify!($symbol) => unsafe extern "C" fn($($type),*) -> c_int,)*
                cuGetErrorName = "cuGetErrorName" => Describe,
                cuGetErrorString = "cuGetErrorString" => Describe,
            }
        }

        impl Driver {
            $(
                /// The driver's function of that name.
                ///
                /// # Errors
                /// The driver's error.
                ///
                /// # Safety
                /// Pointers are valid for their use by the driver's function of that name, and memory that it frees,
                /// closes or writes has no other users.
                pub unsafe fn $method(&self, $($argument: $type),*) -> Result<(), CudaError> {
                    // SAFETY: the function was declared with these types; the caller guarantees the rest.
                    let code = unsafe { (self.functions.$symbol)($($argument),*) };
                    self.outcome(stringify!($symbol), code)
                }
            )*
        }
    };
}

functions! {
    cuInit => fn init(flags: c_uint);
    cuDeviceGetCount => fn device_get_count(count: *mut c_int);
    cuDeviceGet => fn device_get(device: *mut c_int, ordinal: c_int);
    cuDeviceGetName => fn device_get_name(name: *mut c_char, length: c_int, device: c_int);
    cuDeviceGetPCIBusId => fn device_get_pci_bus_id(address: *mut c_char, length: c_int, device: c_int);
    cuDeviceGetAttribute => fn device_get_attribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDevicePrimaryCtxRetain => fn primary_context_retain(context: *mut RawContext, device: c_int);
    cuDevicePrimaryCtxRelease_v2 => fn primary_context_release(device: c_int);
    cuCtxPushCurrent_v2 => fn context_push(context: RawContext);
    cuCtxPopCurrent_v2 => fn context_pop(context: *mut RawContext);
    cuCtxSynchronize => fn context_synchronize();
    cuMemAlloc_v2 => fn mem_alloc(address: *mut u64, byte_size: usize);
    cuMemFree_v2 => fn mem_free(address: u64);
    cuMemGetInfo_v2 => fn mem_get_info(free: *mut usize, total: *mut usize);
    cuMemGetAddressRange_v2 => fn mem_get_address_range(base: *mut u64, byte_size: *mut usize, address: u64);
    cuMemHostAlloc => fn mem_host_alloc(address: *mut *mut c_void, byte_size: usize, flags: c_uint);
    cuMemFreeHost => fn mem_free_host(address: *mut c_void);
    cuMemcpyHtoD_v2 => fn copy_to_device(target: u64, source: *const c_void, byte_size: usize);
    cuMemcpyDtoH_v2 => fn copy_to_host(target: *mut c_void, source: u64, byte_size: usize);
    cuStreamSynchronize => fn stream_synchronize(stream: *mut c_void);
    cuIpcGetMemHandle => fn ipc_get_handle(handle: *mut RawIpcHandle, address: u64);
    cuIpcOpenMemHandle_v2 => fn ipc_open(address: *mut u64, handle: RawIpcHandle, flags: c_uint);
    cuIpcCloseMemHandle => fn ipc_close(address: u64);
}

/// Returns a text for a code: its name or its description.
type Describe = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The loaded library.
pub struct Driver {
    functions: Functions,
}

impl Driver {
    /// Loads the library, given as a path or a name for the system's loader. It is never unloaded: a driver has
    /// threads of its own.
    pub(crate) fn load(library: &OsStr) -> Result<Self, CudaError> {
        let failed =
            |reason| CudaError::NotLoaded { library: library.to_string_lossy().into_owned(), reason };
        // SAFETY: loading runs the library's constructors, which belong to the driver that the system or its operator
        // installed.
        let loaded =
            unsafe { open(Path::new(library), Binding::Lazy) }.map_err(|error| failed(error.reason))?;
        // SAFETY: a library with functions of the driver's names is the driver, whose functions have had these types
        // since the version in their name; it is forgotten below, so it stays loaded.
        let functions = unsafe { Functions::of(&loaded) };
        let functions = functions.map_err(|name| failed(format!("it does not export {name}")))?;
        std::mem::forget(loaded);
        Ok(Self { functions })
    }

    fn outcome(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let name = describe(self.functions.cuGetErrorName, code).unwrap_or_else(|| format!("error {code}"));
        let text = describe(self.functions.cuGetErrorString, code)
            .unwrap_or_else(|| "the driver has no description".into());
        Err(CudaError::Call { call, code, name, text })
    }
}

fn describe(describe: Describe, code: c_int) -> Option<String> {
    let mut text = ptr::null();
    // SAFETY: the function writes an address, or null, to the passed place.
    let outcome = unsafe { describe(code, &raw mut text) };
    // SAFETY: the driver returns a string that lives as long as the driver is loaded.
    let known = (outcome == 0 && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
    known.map(|text| text.to_string_lossy().into_owned())
}
