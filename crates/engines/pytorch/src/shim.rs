//! The functions of the compiled shim, behind safe interfaces. `shim.cpp` defines the same functions and structures.

mod module;

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use nereid_backend_api::DataType;
use nereid_dylib::{Binding, InUse, LoadError, open, symbols};

use crate::compile::{self, CompileError};
use crate::device::{COMPANIONS, CUDA, Device};
use crate::vision;

pub(crate) use self::module::{Input, InputValue, Module, Output, OutputContents};

/// The type of strings, which are not tensors in libtorch.
const STRINGS: i32 = -1;

/// An argument with its default value.
const ABSENT: i32 = -2;

/// libtorch's numbers of element types, the same in all releases. Unsigned numbers of more than 8 bits exist since 2.3.
const TYPES: [(DataType, i32); 14] = [
    (DataType::Uint8, 0),
    (DataType::Int8, 1),
    (DataType::Int16, 2),
    (DataType::Int32, 3),
    (DataType::Int64, 4),
    (DataType::Fp16, 5),
    (DataType::Fp32, 6),
    (DataType::Fp64, 7),
    (DataType::Bool, 11),
    (DataType::Bf16, 15),
    (DataType::Uint16, 27),
    (DataType::Uint32, 28),
    (DataType::Uint64, 29),
    (DataType::Bytes, STRINGS),
];

/// The reason why libtorch cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The dynamic loader rejects the library or the shim.
    #[error(transparent)]
    Unloadable(#[from] LoadError),
    /// No shim is available for the library.
    #[error(transparent)]
    NoShim(#[from] CompileError),
    /// The shim lacks a function.
    #[error("the shim {shim} does not export {function}")]
    Incomplete {
        /// The shim.
        shim: PathBuf,
        /// The function.
        function: &'static str,
    },
}

#[repr(C)]
struct RawModel(c_void);

#[repr(C)]
struct RawStream(c_void);

#[repr(C)]
#[derive(Clone, Copy)]
struct Text {
    data: *const u8,
    length: usize,
}

/// Bytes of an input, in memory of the host or of a GPU.
#[repr(C)]
pub(crate) struct Piece {
    data: *const u8,
    byte_size: usize,
    device: i32,
}

impl Piece {
    /// These bytes, on a device.
    pub(crate) fn new(address: *const u8, byte_size: usize, device: Device) -> Self {
        Self { data: address, byte_size, device: device.number() }
    }
}

#[repr(C)]
struct RawInput {
    data_type: i32,
    rank: usize,
    dims: *const i64,
    data: *mut c_void,
    pieces: *const Piece,
    piece_count: usize,
    stays: i32,
    texts: *const Text,
    text_count: usize,
    name: *const c_char,
}

#[repr(C)]
struct RawOutput {
    index: usize,
    name: *const c_char,
    data_type: i32,
    rank: usize,
    dims: *const i64,
    data: *const u8,
    byte_size: usize,
    texts: *const Text,
    text_count: usize,
}

/// Options of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunOptions {
    pub(crate) inference_mode: i32,
    pub(crate) optimized_execution: i32,
    pub(crate) threads: i32,
    /// Whether memory of GPUs that is cached for later runs is freed.
    pub(crate) empties_cache: i32,
}

type OnArgument = unsafe extern "C" fn(*mut c_void, *const c_char, i32, i32, i32);
type OnOutput = unsafe extern "C" fn(*mut c_void, *const RawOutput);
type OnText = unsafe extern "C" fn(*mut c_void, *const c_char);

symbols! {
    /// The shim's functions.
    struct Api {
        version = "nereid_torch_version" => unsafe extern "C" fn() -> *const c_char,
        free_text = "nereid_torch_free_text" => unsafe extern "C" fn(*mut c_char),
        gpu_count = "nereid_torch_gpu_count" => unsafe extern "C" fn(*mut i32) -> *mut c_char,
        new_stream = "nereid_torch_new_stream" => unsafe extern "C" fn(i32, *mut *mut RawStream) -> *mut c_char,
        free_stream = "nereid_torch_free_stream" => unsafe extern "C" fn(*mut RawStream),
        empties_cache = "nereid_torch_empties_cache" => unsafe extern "C" fn() -> i32,
        load = "nereid_torch_load" =>
            unsafe extern "C" fn(*const c_char, i32, *mut *mut RawModel) -> *mut c_char,
        load_package = "nereid_torch_load_package" =>
            unsafe extern "C" fn(*const c_char, usize, i32, *mut *mut RawModel) -> *mut c_char,
        is_on_gpu = "nereid_torch_is_on_gpu" => unsafe extern "C" fn(*mut RawModel) -> i32,
        call_spec = "nereid_torch_call_spec" =>
            unsafe extern "C" fn(*mut RawModel, *mut c_void, OnText) -> *mut c_char,
        free = "nereid_torch_free" => unsafe extern "C" fn(*mut RawModel),
        set_inter_op_threads = "nereid_torch_set_inter_op_threads" => unsafe extern "C" fn(i32) -> *mut c_char,
        arguments = "nereid_torch_arguments" =>
            unsafe extern "C" fn(*mut RawModel, *mut c_void, OnArgument) -> *mut c_char,
        run = "nereid_torch_run" =>
            unsafe extern "C" fn(
                *mut RawModel,
                *const RawStream,
                *const RunOptions,
                *const RawInput,
                usize,
                i32,
                *mut c_void,
                OnOutput,
            ) -> *mut c_char,
    }
}

/// libtorch, opened with its shim. It stays open for the life of the process.
pub struct Torch {
    api: Api,
    /// The library `libtorch_cpu.so`.
    path: PathBuf,
    /// Whether packages find their required `libtorch.so`, or else the reason why not.
    umbrella: OnceLock<Result<(), String>>,
    /// Whether models may use GPUs, or else the reason why not.
    gpus: OnceLock<Result<(), String>>,
    /// Whether torchvision's operators are registered, or else the reason why not.
    torchvision: OnceLock<Result<(), String>>,
    /// The number of threads that run parts of models in parallel, once a model has set it.
    inter_op_threads: OnceLock<Result<i32, String>>,
}

impl Torch {
    /// Loads the library `libtorch_cpu.so`, and the shim for it, which is compiled if necessary.
    ///
    /// # Errors
    /// The reason why this library cannot be used.
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        let _in_use = InUse::new();
        // SAFETY: loading runs the library's initialisers. The operator named or installed this file as libtorch, and
        // it is trusted like any backend library.
        let library = unsafe { open(path, Binding::Lazy) }?;
        let shim = compile::shim(path)?;
        // SAFETY: the shim was compiled from our source into a folder that only this user can write to.
        let compiled = unsafe { open(&shim, Binding::Lazy) }?;
        // SAFETY: the source declares the functions with these types, and the shim is never closed: its handle is
        // forgotten below.
        let api = unsafe { Api::of(&compiled) };
        let api = api.map_err(|function| OpenError::Incomplete { shim, function })?;
        mem::forget((library, compiled));
        let path = path.to_owned();
        Ok(Arc::new(Self {
            api,
            path,
            umbrella: OnceLock::new(),
            gpus: OnceLock::new(),
            torchvision: OnceLock::new(),
            inter_op_threads: OnceLock::new(),
        }))
    }

    /// The release, such as `2.5.1`.
    pub(crate) fn version(&self) -> String {
        // SAFETY: the function takes nothing, and returns a text that is never freed.
        let version = unsafe { CStr::from_ptr((self.api.version)()) };
        version.to_string_lossy().into_owned()
    }

    /// Loads a library with the name of the one that packages of AOTInductor need besides `libtorch_cpu.so`: libtorch's
    /// `libtorch.so`, which is empty, but in builds with CUDA needs all of NVIDIA's libraries.
    fn open_umbrella(&self) -> Result<(), String> {
        let open = || {
            let library = compile::umbrella(&self.path).map_err(|error| error.to_string())?;
            // SAFETY: an empty library has no initialisers.
            let library = unsafe { open(&library, Binding::Lazy) }.map_err(|error| error.to_string())?;
            // It stays open for the life of the process, as packages may be loaded at any time.
            mem::forget(library);
            Ok(())
        };
        self.umbrella.get_or_init(open).clone()
    }

    /// Loads a library that is installed with libtorch.
    fn open_installed(library: &Path) -> Result<(), String> {
        // SAFETY: loading runs the library's initialisers. It is trusted like libtorch.
        let opened = unsafe { open(library, Binding::Lazy) }.map_err(|error| error.to_string())?;
        // It stays open for the life of the process, like libtorch.
        mem::forget(opened);
        Ok(())
    }

    /// Loads the libraries in libtorch's folder that other libraries need. Returns the error of the first that fails.
    fn open_companions(&self) -> Result<(), String> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let companions = COMPANIONS.map(|name| folder.join(name));
        let outcomes = companions.iter().filter(|path| path.is_file()).map(|path| Self::open_installed(path));
        // Each is tried: torchvision may do without one of them.
        let outcomes: Vec<_> = outcomes.collect();
        outcomes.into_iter().collect()
    }

    /// Loads torchvision's library, which registers its operators. Called for the first model that has one of them.
    fn open_torchvision(&self) -> Result<(), String> {
        let open_all = || {
            let library = vision::library(&self.path).ok_or(
                "torchvision has it, which is not installed next to libtorch; `pip install torchvision` in the environment \
                 of torch is enough",
            )?;
            // The library reports what it lacks.
            let _ = self.open_companions();
            Self::open_installed(&library)
                .map_err(|why| format!("torchvision has it, but cannot be loaded: {why}"))?;
            tracing::info!("operators of torchvision: {}", library.display());
            Ok(())
        };
        self.torchvision.get_or_init(open_all).clone()
    }

    /// Whether this is a build with CUDA.
    pub(crate) fn has_cuda(&self) -> bool {
        self.path.with_file_name(CUDA).is_file()
    }

    /// The device on which a model can be loaded that is meant for this one: without GPUs, the CPU in place of the devices in the
    /// file. The first call for a GPU loads libtorch's libraries for them.
    ///
    /// # Errors
    /// The reason why models cannot be on a GPU: libtorch, NVIDIA's libraries or the driver.
    pub(crate) fn usable(&self, device: Device) -> Result<Device, String> {
        match device {
            Device::Cpu => Ok(device),
            Device::Gpu(_) => self.has_gpus().map(|()| device),
            Device::AsSaved => Ok(self.has_gpus().map_or(Device::Cpu, |()| device)),
        }
    }

    fn has_gpus(&self) -> Result<(), String> {
        let find = || {
            if !self.has_cuda() {
                return Err(format!(
                    "this PyTorch {} is a build without CUDA: {CUDA} is not beside {}",
                    self.version(),
                    self.path.display()
                ));
            }
            self.open_companions()
                .map_err(|why| format!("PyTorch {} cannot use CUDA: {why}", self.version()))?;
            let mut count = 0;
            // SAFETY: the function writes only to the passed place.
            self.check(unsafe { (self.api.gpu_count)(&raw mut count) })?;
            if count == 0 {
                return Err(format!(
                    "PyTorch {} finds no GPU: its CUDA may need a newer driver",
                    self.version()
                ));
            }
            Ok(())
        };
        self.gpus.get_or_init(find).clone()
    }

    /// Whether this release can free memory of GPUs that it caches for later runs.
    pub(crate) fn empties_cache(&self) -> bool {
        // SAFETY: the function takes nothing.
        unsafe { (self.api.empties_cache)() != 0 }
    }

    /// Sets the number of threads that run parts of models in parallel. The process has one such number, which the
    /// first call sets.
    ///
    /// # Errors
    /// Another number is set already, or libtorch no longer accepts one.
    pub(crate) fn set_inter_op_threads(&self, count: i32) -> Result<(), String> {
        // SAFETY: the function accepts any number, and reports those that it refuses.
        let set = || self.check(unsafe { (self.api.set_inter_op_threads)(count) }).map(|()| count);
        match self.inter_op_threads.get_or_init(set) {
            Ok(chosen) if *chosen == count => Ok(()),
            Ok(chosen) => Err(format!("the process has {chosen} such threads already, set by another model")),
            Err(why) => Err(why.clone()),
        }
    }

    /// The result of a call; errors are libtorch's message, on one line.
    fn check(&self, error: *mut c_char) -> Result<(), String> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: an error is a string that ends with a zero byte, and that the caller frees.
        let text = unsafe {
            let text = CStr::from_ptr(error).to_string_lossy().into_owned();
            (self.api.free_text)(error);
            text
        };
        Err(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// A stream of a GPU. Work on one stream is in order; work on several overlaps.
pub(crate) struct Stream {
    stream: NonNull<RawStream>,
    torch: Arc<Torch>,
}

// SAFETY: a stream is the number of one, bound to no thread.
unsafe impl Send for Stream {}
// SAFETY: as above; nothing changes it.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of the GPU of this number.
    ///
    /// # Errors
    /// libtorch's message.
    pub(crate) fn new(torch: &Arc<Torch>, gpu: i32) -> Result<Self, String> {
        let mut stream = ptr::null_mut();
        // SAFETY: the function writes only to the passed place.
        torch.check(unsafe { (torch.api.new_stream)(gpu, &raw mut stream) })?;
        let stream = NonNull::new(stream).ok_or("libtorch returned no stream")?;
        Ok(Self { stream, torch: Arc::clone(torch) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the shim created it, and it is freed once.
        unsafe { (self.torch.api.free_stream)(self.stream.as_ptr()) };
    }
}
