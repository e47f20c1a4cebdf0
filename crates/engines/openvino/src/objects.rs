//! OpenVINO's objects behind safe interfaces: core, network, compiled network.
//!
//! Knows nothing of configurations.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use nereid_dylib::InUse;
use smallvec::SmallVec;

use crate::api::{self, Bounds, ElementType, PartialShape, Status};
use crate::library::OpenVino;

/// The most properties that a network is compiled with.
const MAX_PROPERTIES: usize = 8;

type Outcome<T> = Result<T, String>;

/// An object of the library, freed when dropped.
pub(crate) struct Handle<T> {
    pub(crate) object: NonNull<T>,
    pub(crate) library: Arc<OpenVino>,
    free: unsafe extern "C" fn(*mut T),
    /// Dropped after the object is freed.
    _in_use: InUse,
}

// SAFETY: no object belongs to a thread.
unsafe impl<T> Send for Handle<T> {}

impl<T> Handle<T> {
    /// The object that `make` writes to the place it gets.
    pub(crate) fn make(
        library: &Arc<OpenVino>,
        free: unsafe extern "C" fn(*mut T),
        make: impl FnOnce(*mut *mut T) -> Status,
    ) -> Outcome<Self> {
        let in_use = InUse::new();
        let mut object = ptr::null_mut();
        library.check(make(&raw mut object))?;
        let object = NonNull::new(object).ok_or("the library returned no object")?;
        Ok(Self { object, library: Arc::clone(library), free, _in_use: in_use })
    }

    pub(crate) fn ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the object was made by the library, is freed by the function for its kind, and is not used afterwards.
        unsafe { (self.free)(self.object.as_ptr()) };
    }
}

/// The devices of the machine, and what reads models.
pub(crate) struct Core(Handle<api::Core>);

// SAFETY: the library documents that a core may be used by several threads at once.
unsafe impl Sync for Core {}

impl Core {
    pub(crate) fn new(library: &Arc<OpenVino>) -> Outcome<Self> {
        let api = library.api;
        // SAFETY: the place is valid to write.
        Handle::make(library, api.core_free, |core| unsafe { (api.core_create)(core) }).map(Self)
    }

    /// Loads a library with operators of the model's own.
    pub(crate) fn add_extension(&self, path: &str) -> Outcome<()> {
        let library = &self.0.library;
        let add = library.optional(library.api.core_add_extension, "ov_core_add_extension")?;
        let path = text(OsStr::new(path))?;
        // SAFETY: core and path live. The operator names the library, and trusts it like the server.
        library.check(unsafe { add(self.0.ptr(), path.as_ptr()) })
    }
}

/// A network that was read from a file.
pub(crate) struct Network(Handle<api::Model>);

impl Network {
    /// Reads a file or folder in any format that the library knows.
    pub(crate) fn read(core: &Core, path: &Path) -> Outcome<Self> {
        let (library, path) = (&core.0.library, text(path.as_os_str())?);
        let read = library.api.core_read_model;
        // SAFETY: core and path live, the place is valid to write, and without a second path the library looks for
        // weights next to the file.
        Handle::make(library, library.api.model_free, |model| unsafe {
            read(core.0.ptr(), path.as_ptr(), ptr::null(), model)
        })
        .map(Self)
    }

    /// Reads a text in the library's own format.
    pub(crate) fn from_text(core: &Core, text: &str) -> Outcome<Self> {
        let library = &core.0.library;
        let read = library.api.core_read_model_from_memory;
        // SAFETY: core and text live, the length is the text's, no weights are passed, and the place is valid to write.
        Handle::make(library, library.api.model_free, |model| unsafe {
            read(core.0.ptr(), text.as_ptr().cast(), text.len(), ptr::null(), model)
        })
        .map(Self)
    }

    pub(crate) fn input_count(&self) -> Outcome<usize> {
        self.count(self.0.library.api.model_inputs)
    }

    pub(crate) fn output_count(&self) -> Outcome<usize> {
        self.count(self.0.library.api.model_outputs)
    }

    fn count(&self, count: unsafe extern "C" fn(*const api::Model, *mut usize) -> Status) -> Outcome<usize> {
        let mut number = 0;
        // SAFETY: the model lives, and the place is valid to write.
        self.0.library.check(unsafe { count(self.0.ptr(), &raw mut number) })?;
        Ok(number)
    }

    pub(crate) fn input(&self, index: usize) -> Outcome<Port> {
        let get = self.0.library.api.model_input;
        // SAFETY: the model lives, the place is valid to write, and the library checks the index.
        self.port(|port| unsafe { get(self.0.ptr(), index, port) })
    }

    pub(crate) fn output(&self, index: usize) -> Outcome<Port> {
        let get = self.0.library.api.model_output;
        // SAFETY: as for an input.
        self.port(|port| unsafe { get(self.0.ptr(), index, port) })
    }

    /// The input that has the name among its names.
    pub(crate) fn input_named(&self, name: &str) -> Outcome<Port> {
        let (get, name) = (self.0.library.api.model_input_by_name, text(OsStr::new(name))?);
        // SAFETY: model and name live, and the place is valid to write.
        self.port(|port| unsafe { get(self.0.ptr(), name.as_ptr(), port) })
    }

    /// The output that has the name among its names.
    pub(crate) fn output_named(&self, name: &str) -> Outcome<Port> {
        let (get, name) = (self.0.library.api.model_output_by_name, text(OsStr::new(name))?);
        // SAFETY: as for an input.
        self.port(|port| unsafe { get(self.0.ptr(), name.as_ptr(), port) })
    }

    fn port(&self, get: impl FnOnce(*mut *mut api::Port) -> Status) -> Outcome<Port> {
        Handle::make(&self.0.library, self.0.library.api.port_free, get).map(Port)
    }

    /// Changes the dimensions of inputs. The library derives the dimensions of all other tensors.
    pub(crate) fn reshape(&mut self, inputs: &[(usize, Vec<Bounds>)]) -> Outcome<()> {
        let indexes: Vec<_> = inputs.iter().map(|(index, _)| *index).collect();
        let mut dims: Vec<_> = inputs.iter().map(|(_, dims)| dims.clone()).collect();
        let shapes: Vec<_> = dims
            .iter_mut()
            .map(|dims| {
                let rank = dims.len() as i64;
                PartialShape { rank: Bounds { min: rank, max: rank }, dims: dims.as_mut_ptr() }
            })
            .collect();
        // SAFETY: both lists have `shapes.len()` entries, each shape's rank is the length of its list, and all of it lives
        // until the call ends. The library writes to none of it.
        self.0.library.check(unsafe {
            (self.0.library.api.model_reshape)(self.0.ptr(), indexes.as_ptr(), shapes.as_ptr(), shapes.len())
        })
    }

    /// Compiles it for a device, with these properties.
    pub(crate) fn compile(
        &self,
        core: &Core,
        device: &str,
        properties: &[(String, String)],
    ) -> Outcome<CompiledNetwork> {
        if properties.len() > MAX_PROPERTIES {
            return Err(format!("at most {MAX_PROPERTIES} properties can be set"));
        }
        let device = text(OsStr::new(device))?;
        let words = properties.iter().flat_map(|(key, value)| [key, value]);
        let words = words.map(|word| text(OsStr::new(word))).collect::<Outcome<Vec<_>>>()?;
        let mut given = [ptr::null::<c_char>(); 2 * MAX_PROPERTIES];
        for (place, word) in given.iter_mut().zip(&words) {
            *place = word.as_ptr();
        }
        let library = &core.0.library;
        let compile = library.api.core_compile_model;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = given;
        let (count, model) = (words.len(), self.0.ptr());
        // SAFETY: core, model, device and words live, and the place is valid to write. The library reads the
        // first `count` words.
        Handle::make(library, library.api.compiled_free, |compiled| unsafe {
            compile(
                core.0.ptr(),
                model,
                device.as_ptr(),
                count,
                compiled,
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                h,
                i,
                j,
                k,
                l,
                m,
                n,
                o,
                p,
            )
        })
        .map(CompiledNetwork)
    }
}

/// An input or output of a network.
pub(crate) struct Port(Handle<api::Port>);

impl Port {
    /// One of its names, always the same; `None` if it has none.
    pub(crate) fn name(&self) -> Option<String> {
        let mut name = ptr::null_mut();
        let api = &self.0.library.api;
        // SAFETY: the port lives, and the place is valid to write. The name ends with a zero byte and is the caller's to
        // free.
        unsafe {
            if (api.port_name)(self.0.ptr(), &raw mut name) != 0 || name.is_null() {
                return None;
            }
            let text = CStr::from_ptr(name).to_string_lossy().into_owned();
            (api.free)(name);
            Some(text)
        }
    }

    pub(crate) fn element_type(&self) -> Outcome<ElementType> {
        let mut number = ElementType::default();
        let get = self.0.library.api.port_type;
        // SAFETY: the port lives, and the place is valid to write.
        self.0.library.check(unsafe { get(self.0.ptr(), &raw mut number) })?;
        Ok(number)
    }

    /// The bounds of its dimensions; `None` if their number is open.
    pub(crate) fn dims(&self) -> Outcome<Option<SmallVec<[Bounds; 4]>>> {
        let api = &self.0.library.api;
        let mut shape = PartialShape { rank: Bounds { min: 0, max: 0 }, dims: ptr::null_mut() };
        // SAFETY: the port lives, and the place is valid to write. If the rank is fixed, the library writes
        // that number of dimensions, which are freed after they were read.
        unsafe {
            self.0.library.check((api.port_shape)(self.0.ptr(), &raw mut shape))?;
            let is_open = shape.rank.min != shape.rank.max;
            let dims = (0..if is_open || shape.dims.is_null() { 0 } else { shape.rank.min })
                .map(|at| *shape.dims.offset(at as isize))
                .collect();
            (api.partial_shape_free)(&raw mut shape);
            Ok((!is_open).then_some(dims))
        }
    }
}

/// A network that is ready to run.
pub(crate) struct CompiledNetwork(Handle<api::CompiledNetwork>);

// SAFETY: the library documents that requests may be made from several threads at once.
unsafe impl Sync for CompiledNetwork {}

impl CompiledNetwork {
    /// A place to run in.
    pub(crate) fn request(&self) -> Outcome<Handle<api::Request>> {
        let library = &self.0.library;
        let create = library.api.compiled_request;
        // SAFETY: the compiled network lives, and the place is valid to write. A request keeps what it needs of it.
        Handle::make(library, library.api.request_free, |request| unsafe { create(self.0.ptr(), request) })
    }

    /// A property that the device chose or was given, as text.
    pub(crate) fn property(&self, key: &str) -> Option<String> {
        let (api, key) = (&self.0.library.api, text(OsStr::new(key)).ok()?);
        let mut value = ptr::null_mut();
        // SAFETY: network and key live, and the place is valid to write. The value ends with a zero byte and is the
        // caller's to free.
        unsafe {
            if (api.compiled_property)(self.0.ptr(), key.as_ptr(), &raw mut value) != 0 || value.is_null() {
                return None;
            }
            let text = CStr::from_ptr(value).to_string_lossy().into_owned();
            (api.free)(value);
            Some(text)
        }
    }
}

/// A text as a C string.
fn text(text: &OsStr) -> Outcome<CString> {
    CString::new(text.as_bytes()).map_err(|_| format!("{} contains a zero byte", text.display()))
}
