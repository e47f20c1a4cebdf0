//! A model in libtorch: loads it, and runs it on inputs in memory.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use nereid_backend_api::{DataType, Shape};
use nereid_dylib::InUse;

use super::{ABSENT, Piece, RawInput, RawModel, RawOutput, RunOptions, STRINGS, Stream, TYPES, Text, Torch};
use crate::device::Device;
use crate::naming::{Argument, Kind};
use crate::package::CallSpec;
use crate::vision;

/// A TorchScript model, or a package of AOTInductor.
pub(crate) struct Module {
    model: NonNull<RawModel>,
    torch: Arc<Torch>,
    /// Dropped after the model is freed.
    _in_use: InUse,
}

// SAFETY: a module is not bound to a thread.
unsafe impl Send for Module {}
// SAFETY: libtorch documents that a module may run in several threads at once.
unsafe impl Sync for Module {}

/// An input of a run.
pub(crate) struct Input<'a> {
    pub(crate) data_type: DataType,
    pub(crate) shape: &'a [i64],
    pub(crate) value: InputValue<'a>,
    /// The input's key in a dictionary.
    pub(crate) name: Option<&'a CStr>,
}

/// The contents of an input.
pub(crate) enum InputValue<'a> {
    /// The address of aligned elements that match the shape.
    Elements(*mut u8),
    /// The parts of elements that match the shape, for a model on a GPU. A single one in its memory is read in place if it
    /// `stays`.
    Pieces {
        pieces: &'a [Piece],
        stays: bool,
    },
    Texts(&'a [Vec<u8>]),
    /// The argument keeps its default.
    Absent,
}

impl InputValue<'_> {
    fn pieces(&self) -> &[Piece] {
        match self {
            Self::Pieces { pieces, .. } => pieces,
            _ => &[],
        }
    }
}

/// A result of a run.
pub(crate) struct Output {
    /// The result's key, if the model returns a dictionary.
    pub(crate) name: Option<String>,
    /// `None` for a type that the protocol lacks.
    pub(crate) data_type: Option<DataType>,
    pub(crate) shape: Shape,
    pub(crate) contents: OutputContents,
}

/// The contents of a result.
pub(crate) enum OutputContents {
    Elements(Vec<u8>),
    Texts(Vec<Vec<u8>>),
}

impl Module {
    /// Reads a model's file, onto a device.
    ///
    /// # Errors
    /// libtorch's message.
    pub(crate) fn load(torch: &Arc<Torch>, path: &Path, device: Device) -> Result<Self, String> {
        let in_use = InUse::new();
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let load = || -> Result<_, String> {
            let mut model = ptr::null_mut();
            // SAFETY: the path is alive, and the result pointer is valid for writes.
            torch.check(unsafe { (torch.api.load)(path.as_ptr(), device.number(), &raw mut model) })?;
            Ok(model)
        };
        let model = match load() {
            Err(why) if why.contains(vision::NAMESPACE) => {
                torch.open_torchvision().map_err(|reason| format!("{why} {reason}"))?;
                load()?
            }
            outcome => outcome?,
        };
        let model = NonNull::new(model).ok_or("libtorch returned no model")?;
        Ok(Self { model, torch: Arc::clone(torch), _in_use: in_use })
    }

    /// Loads the code of a package of AOTInductor, for this many threads at once. A package that was compiled for the CPU
    /// runs there, also if the device is a GPU.
    ///
    /// # Errors
    /// libtorch's message.
    pub(crate) fn load_package(
        torch: &Arc<Torch>,
        path: &Path,
        threads: usize,
        device: Device,
    ) -> Result<Self, String> {
        let in_use = InUse::new();
        torch.open_umbrella()?;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let mut model = ptr::null_mut();
        // SAFETY: the path is alive, and the result pointer is valid for writes. Loading runs the package's code, which the
        // operator trusts as it does a backend library.
        torch.check(unsafe {
            (torch.api.load_package)(path.as_ptr(), threads, device.number(), &raw mut model)
        })?;
        let model = NonNull::new(model).ok_or("libtorch returned no model")?;
        Ok(Self { model, torch: Arc::clone(torch), _in_use: in_use })
    }

    /// Whether the model's inputs are on a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { (self.torch.api.is_on_gpu)(self.model.as_ptr()) != 0 }
    }

    /// The inputs and outputs of a package.
    ///
    /// # Errors
    /// The package does not specify them.
    pub(crate) fn call_spec(&self) -> Result<CallSpec, String> {
        let mut texts: Vec<String> = Vec::new();
        let context: *mut Vec<String> = &raw mut texts;
        // SAFETY: the model is alive, and the context has the type that the function expects and outlives the call.
        let error = unsafe { (self.torch.api.call_spec)(self.model.as_ptr(), context.cast(), on_text) };
        self.torch.check(error)?;
        let [inputs, outputs] = &texts[..] else {
            return Err(format!("it has {} call specifications, expected 2", texts.len()));
        };
        CallSpec::read(inputs, outputs)
    }

    /// The arguments of the method `forward`.
    ///
    /// # Errors
    /// The model has no such method, for example.
    pub(crate) fn arguments(&self) -> Result<Vec<Argument>, String> {
        let mut arguments: Vec<Argument> = Vec::new();
        let context: *mut Vec<Argument> = &raw mut arguments;
        // SAFETY: the model is alive, and the context has the type that the function expects and outlives the call.
        let error = unsafe { (self.torch.api.arguments)(self.model.as_ptr(), context.cast(), on_argument) };
        self.torch.check(error)?;
        Ok(arguments)
    }

    /// Runs the model on its arguments in order, or on the entries of its single dictionary. Returns the results in
    /// order. A model on a GPU runs on the stream.
    ///
    /// # Errors
    /// An exception of the model or of libtorch.
    ///
    /// # Safety
    /// The addresses of elements and pieces are valid during the call. Elements are writable where the model
    /// [writes](Argument::is_written) to the argument.
    pub(crate) unsafe fn run(
        &self,
        stream: Option<&Stream>,
        options: &RunOptions,
        inputs: &[Input<'_>],
        is_dictionary: bool,
    ) -> Result<Vec<Output>, String> {
        let texts: Vec<Vec<Text>> = inputs
            .iter()
            .map(|input| match &input.value {
                InputValue::Texts(texts) => {
                    texts.iter().map(|text| Text { data: text.as_ptr(), length: text.len() }).collect()
                }
                _ => Vec::new(),
            })
            .collect();
        let raw = inputs.iter().zip(&texts).map(|(input, texts)| RawInput {
            data_type: match input.value {
                InputValue::Absent => ABSENT,
                _ => number(input.data_type),
            },
            rank: input.shape.len(),
            dims: input.shape.as_ptr(),
            data: match input.value {
                InputValue::Elements(data) => data.cast(),
                _ => ptr::null_mut(),
            },
            pieces: input.value.pieces().as_ptr(),
            piece_count: input.value.pieces().len(),
            stays: i32::from(matches!(input.value, InputValue::Pieces { stays: true, .. })),
            texts: texts.as_ptr(),
            text_count: texts.len(),
            name: input.name.map_or(ptr::null(), CStr::as_ptr),
        });
        let raw: Vec<_> = raw.collect();
        let mut outputs: Vec<Output> = Vec::new();
        let context: *mut Vec<Output> = &raw mut outputs;
        // SAFETY: model, stream, options, inputs and the data that they point to are alive, and the context has the type that
        // the function expects and outlives the call. The caller guarantees that elements match their shapes, and are
        // writable where the model writes.
        self.torch.check(unsafe {
            (self.torch.api.run)(
                self.model.as_ptr(),
                stream.map_or(ptr::null(), |stream| stream.stream.as_ptr().cast_const()),
                options,
                raw.as_ptr(),
                raw.len(),
                i32::from(is_dictionary),
                context.cast(),
                on_output,
            )
        })?;
        Ok(outputs)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the shim created the model, which is freed once.
        unsafe { (self.torch.api.free)(self.model.as_ptr()) };
    }
}

fn number(data_type: DataType) -> i32 {
    TYPES.iter().find(|(known, _)| *known == data_type).map_or(ABSENT, |(_, number)| *number)
}

/// Collects an argument of a model.
///
/// # Safety
/// The shim calls it with the context of [`Module::arguments`] and a name that ends with a zero byte.
unsafe extern "C" fn on_argument(
    context: *mut c_void,
    name: *const c_char,
    kind: i32,
    is_required: i32,
    is_written: i32,
) {
    // SAFETY: the context was passed to the call, and the name ends with a zero byte.
    let (arguments, name) = unsafe { (&mut *context.cast::<Vec<Argument>>(), CStr::from_ptr(name)) };
    let kind = match kind {
        0 => Kind::Tensor,
        1 => Kind::TensorsByName,
        2 => Kind::Texts,
        3 => Kind::Number,
        _ => Kind::Unknown,
    };
    let name = name.to_string_lossy().into_owned();
    arguments.push(Argument { name, kind, is_required: is_required != 0, is_written: is_written != 0 });
}

/// Collects a text.
///
/// # Safety
/// The shim calls it with the context of [`Module::call_spec`] and a text that ends with a zero byte.
unsafe extern "C" fn on_text(context: *mut c_void, text: *const c_char) {
    // SAFETY: the context was passed to the call, and the text ends with a zero byte.
    let (texts, text) = unsafe { (&mut *context.cast::<Vec<String>>(), CStr::from_ptr(text)) };
    texts.push(text.to_string_lossy().into_owned());
}

/// Copies a result of a run.
///
/// # Safety
/// The shim calls it with the context of [`Module::run`] and an output that lives until it returns.
unsafe extern "C" fn on_output(context: *mut c_void, output: *const RawOutput) {
    // SAFETY: the context was passed to the call, and the output lives until this function returns.
    let (outputs, output) = unsafe { (&mut *context.cast::<Vec<Output>>(), &*output) };
    // SAFETY: lists match their stated length, and names end with a zero byte. Empty lists may be null.
    let (shape, data, texts) = unsafe {
        (
            list(output.dims, output.rank),
            list(output.data, output.byte_size),
            list(output.texts, output.text_count),
        )
    };
    let name = (!output.name.is_null()).then(|| {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(output.name) }.to_string_lossy().into_owned()
    });
    let contents = if output.data_type == STRINGS {
        // SAFETY: as above, for each string.
        OutputContents::Texts(
            texts.iter().map(|text| unsafe { list(text.data, text.length) }.to_vec()).collect(),
        )
    } else {
        OutputContents::Elements(data.to_vec())
    };
    debug_assert_eq!(output.index, outputs.len(), "results come in order");
    let known = TYPES.iter().find(|(_, number)| *number == output.data_type);
    let data_type = known.map(|(data_type, _)| *data_type);
    outputs.push(Output { name, data_type, shape: shape.iter().copied().collect(), contents });
}

/// A C array as a slice.
///
/// # Safety
/// The array has this many entries, which outlive the result, unless it is empty.
unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(start, len) }
}
