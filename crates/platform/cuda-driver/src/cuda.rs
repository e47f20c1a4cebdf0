//! The machine's GPUs, and driver calls in the context they require.

use std::ffi::{OsStr, c_char, c_int};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::CudaError;
use crate::driver::{CAPABILITY_MAJOR, CAPABILITY_MINOR, Driver, RawContext};

/// The driver, and the GPUs visible to this process.
pub struct Cuda {
    driver: Driver,
    devices: Vec<DeviceState>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// CUDA's number for it in this process.
    pub number: i32,
    /// The product name.
    pub name: String,
    /// The address on the PCI bus, such as `0000:3b:00.0`, by which other libraries find the GPU.
    pub pci_address: String,
    /// The compute capability.
    pub capability: Capability,
}

/// A compute capability, such as 8.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// The number before the point.
    pub major: i32,
    /// The number after the point.
    pub minor: i32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

struct DeviceState {
    device: Device,
    /// The driver's handle of the GPU.
    raw: c_int,
    /// The primary context, shared with all users of CUDA's runtime in this process. Retained on first use.
    context: Mutex<Option<Context>>,
}

#[derive(Clone, Copy)]
struct Context(RawContext);

// SAFETY: a context may be made current on any thread; it is retained until the driver is dropped.
unsafe impl Send for Context {}

impl Cuda {
    /// Loads the driver library, given as a path or a name for the system's loader (usually
    /// [`DRIVER_LIBRARY`](crate::DRIVER_LIBRARY)), and lists the GPUs. A machine without GPUs is not an error.
    ///
    /// # Errors
    /// The library cannot be loaded, or the driver cannot be used.
    pub fn open(library: impl AsRef<OsStr>) -> Result<Arc<Self>, CudaError> {
        const NO_DEVICE: i32 = 100;
        let driver = Driver::load(library.as_ref())?;
        // SAFETY: the function takes no pointers.
        let devices = match unsafe { driver.init(0) } {
            Ok(()) => devices(&driver)?,
            Err(CudaError::Call { code: NO_DEVICE, .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Arc::new(Self { driver, devices }))
    }

    /// The GPUs, in the order of their numbers.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.devices.iter().map(|state| &state.device)
    }

    /// The fraction of a GPU's memory in use, over all processes, from 0 to 1.
    ///
    /// # Errors
    /// The GPU does not exist, or the driver fails.
    pub fn memory_in_use(&self, device: i32) -> Result<f64, CudaError> {
        let (mut free, mut total) = (0, 0);
        self.with_context(device.into(), |driver| {
            // SAFETY: the function writes only to the passed places.
            unsafe { driver.mem_get_info(&raw mut free, &raw mut total) }
        })?;
        Ok(if total == 0 { 0.0 } else { 1.0 - free as f64 / total as f64 })
    }

    /// Calls the driver in the context of a device, on the current thread, and then restores the thread's previous
    /// context.
    ///
    /// # Errors
    /// The device does not exist, or the driver or the call fails.
    pub fn with_context<T>(
        &self,
        device: i64,
        act: impl FnOnce(&Driver) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let found = usize::try_from(device).ok().and_then(|number| self.devices.get(number));
        let state = found.ok_or(CudaError::NoDevice { device, count: self.devices.len() })?;
        let context = state.context(&self.driver)?;
        // SAFETY: the context is retained as long as this object.
        unsafe { self.driver.context_push(context.0)? };
        let _current = Current(&self.driver);
        act(&self.driver)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        for state in &mut self.devices {
            let context = state.context.get_mut().unwrap_or_else(PoisonError::into_inner);
            if context.take().is_some() {
                // SAFETY: this object retained it once, and has no uses left.
                let released = unsafe { self.driver.primary_context_release(state.raw) };
                log_failure(released);
            }
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices()).finish()
    }
}

/// Logs a failure that cannot be returned.
pub fn log_failure(outcome: Result<(), CudaError>) {
    if let Err(error) = outcome {
        tracing::warn!("cannot free GPU memory: {error}");
    }
}

/// A context made current, until dropped.
struct Current<'d>(&'d Driver);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: the function writes only to the passed place. It pops the pushed context: calls in between leave
        // the stack unchanged.
        log_failure(unsafe { self.0.context_pop(&raw mut context) });
    }
}

impl DeviceState {
    fn context(&self, driver: &Driver) -> Result<Context, CudaError> {
        let mut context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = *context {
            return Ok(context);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the function writes only to the passed places.
        unsafe { driver.primary_context_retain(&raw mut raw, self.raw)? };
        Ok(*context.insert(Context(raw)))
    }
}

fn devices(driver: &Driver) -> Result<Vec<DeviceState>, CudaError> {
    let mut count = 0;
    // SAFETY: the function writes only to the passed places.
    unsafe { driver.device_get_count(&raw mut count)? };
    (0..count).map(|number| device(driver, number)).collect()
}

fn device(driver: &Driver, number: c_int) -> Result<DeviceState, CudaError> {
    let mut raw = 0;
    // SAFETY: the function writes only to the passed places.
    unsafe { driver.device_get(&raw mut raw, number)? };
    // SAFETY: the functions write a zero-terminated string of at most the size that they are passed.
    let name = text(|text, length| unsafe { driver.device_get_name(text, length, raw) })?;
    // SAFETY: as above.
    let pci_address = text(|text, length| unsafe { driver.device_get_pci_bus_id(text, length, raw) })?;
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the function writes only to the passed places.
        unsafe { driver.device_get_attribute(&raw mut value, which, raw)? };
        Ok(value)
    };
    let capability = Capability { major: attribute(CAPABILITY_MAJOR)?, minor: attribute(CAPABILITY_MINOR)? };
    let device = Device { number, name, pci_address, capability };
    Ok(DeviceState { device, raw, context: Mutex::default() })
}

/// Calls a function that writes a zero-terminated string.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), CudaError>) -> Result<String, CudaError> {
    let mut text = [0u8; 256];
    write(text.as_mut_ptr().cast(), 256)?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}
