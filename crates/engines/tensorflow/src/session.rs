//! A graph and the session that runs it.
//!
//! Does not know requests or configurations.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::Arc;

use nereid_dylib::InUse;
use prost::Message;

use crate::api::{self, Api, Operation, Output};
use crate::library::TensorFlow;
use crate::messages::{ConfigProto, MetaGraphDef};

type Outcome<T> = Result<T, String>;

/// A graph with a session. Both are freed when dropped.
pub(crate) struct Session {
    pub(crate) library: Arc<TensorFlow>,
    graph: *mut api::Graph,
    session: *mut api::Session,
    /// Dropped after the session is freed.
    _in_use: InUse,
}

// SAFETY: neither graphs nor sessions are bound to a thread, and the library documents that several threads may use
// both at once.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

/// An operation, described for completion.
pub(crate) struct OperationSignature {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) outputs: Vec<Output>,
    /// Whether nothing reads its outputs.
    pub(crate) is_end: bool,
}

/// Type, as the library's number, and dimensions; `None` if the rank is unknown, -1 for a dimension of any size.
pub(crate) type Facts = (c_int, Option<Vec<i64>>);

impl Session {
    /// A session for a GraphDef.
    pub(crate) fn of_graph(
        library: &Arc<TensorFlow>,
        config: &ConfigProto,
        graph_def: &[u8],
    ) -> Outcome<Self> {
        Self::make(library, config, |api, graph, options, status| {
            let buffer = api::Buffer { data: graph_def.as_ptr().cast(), length: graph_def.len(), free: None };
            // SAFETY: graph, buffer, options and status are alive; the library copies the parts of the buffer that it
            // keeps.
            unsafe {
                let import = (api.new_import_options)();
                (api.import_graph)(graph, &raw const buffer, import, status);
                (api.delete_import_options)(import);
                if (api.code)(status) == 0 {
                    (api.new_session)(graph, options, status)
                } else {
                    ptr::null_mut()
                }
            }
        })
    }

    /// A session for the graph of a SavedModel with these tags, and the model's description of it.
    pub(crate) fn of_saved_model(
        library: &Arc<TensorFlow>,
        config: &ConfigProto,
        folder: &Path,
        tags: &[String],
    ) -> Outcome<(Self, MetaGraphDef)> {
        let folder = text(folder.as_os_str())?;
        let tags = tags.iter().map(|tag| text(OsStr::new(tag))).collect::<Outcome<Vec<_>>>()?;
        let pointers: Vec<_> = tags.iter().map(|tag| tag.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).map_err(|error| error.to_string())?;
        let mut description = Vec::new();
        let session = Self::make(library, config, |api, graph, options, status| {
            // SAFETY: options, folder, the stated number of tags, graph and status are alive. The library fills the
            // buffer, which is freed after it is read.
            unsafe {
                let buffer = (api.new_buffer)();
                let session = (api.load_saved_model)(
                    options,
                    ptr::null(),
                    folder.as_ptr(),
                    pointers.as_ptr(),
                    count,
                    graph,
                    buffer,
                    status,
                );
                let (data, length) = ((*buffer).data, (*buffer).length);
                if !data.is_null() {
                    description = slice::from_raw_parts(data.cast::<u8>(), length).to_vec();
                }
                (api.delete_buffer)(buffer);
                session
            }
        })?;
        let description = MetaGraphDef::decode(description.as_slice()).map_err(|error| error.to_string())?;
        Ok((session, description))
    }

    fn make(
        library: &Arc<TensorFlow>,
        config: &ConfigProto,
        make: impl FnOnce(&Api, *mut api::Graph, *mut api::SessionOptions, *mut api::Status) -> *mut api::Session,
    ) -> Outcome<Self> {
        let (in_use, api) = (InUse::new(), &library.api);
        let config = config.encode_to_vec();
        // SAFETY: the functions take no arguments, or objects that were just created.
        let (graph, options) = unsafe { ((api.new_graph)(), (api.new_session_options)()) };
        // From here on, every path frees the graph.
        let mut session =
            Self { library: Arc::clone(library), graph, session: ptr::null_mut(), _in_use: in_use };
        // SAFETY: the options, the configuration of that length and the status are alive.
        let set = library.call(|status| unsafe {
            (api.set_config)(options, config.as_ptr().cast(), config.len(), status);
        });
        let made = set.and_then(|()| library.call(|status| make(api, graph, options, status)));
        // SAFETY: the options are no longer used.
        unsafe { (api.delete_session_options)(options) };
        session.session = made?;
        if session.session.is_null() { Err("the library made no session".to_owned()) } else { Ok(session) }
    }

    /// Finds the output that a name such as `scores:0` denotes; without a number, the first.
    pub(crate) fn output(&self, name: &str) -> Option<Output> {
        let (operation, index) = match name.rsplit_once(':') {
            Some((operation, index)) => (operation, index.parse().ok()?),
            None => (name, 0),
        };
        let operation = self.operation(operation)?;
        // SAFETY: the operation belongs to the graph, which is alive.
        let count = unsafe { (self.library.api.output_count)(operation) };
        (0..count).contains(&index).then_some(Output { operation, index })
    }

    pub(crate) fn operation(&self, name: &str) -> Option<*mut Operation> {
        let name = CString::new(name).ok()?;
        // SAFETY: graph and name are alive.
        let operation = unsafe { (self.library.api.operation_by_name)(self.graph, name.as_ptr()) };
        (!operation.is_null()).then_some(operation)
    }

    /// The graph's type and dimensions of one output of an operation.
    pub(crate) fn facts(&self, output: Output) -> Outcome<Facts> {
        let api = &self.library.api;
        // SAFETY: the output belongs to the graph, which is alive; the list has room for all its dimensions.
        unsafe {
            let number = (api.output_type)(output);
            let rank = self.library.call(|status| (api.dim_count)(self.graph, output, status))?;
            let Ok(count) = usize::try_from(rank) else { return Ok((number, None)) };
            let mut dims = vec![0_i64; count];
            self.library.call(|status| (api.dims)(self.graph, output, dims.as_mut_ptr(), rank, status))?;
            Ok((number, Some(dims)))
        }
    }

    /// All operations of the graph.
    pub(crate) fn operations(&self) -> Vec<OperationSignature> {
        let (api, mut found, mut position) = (&self.library.api, Vec::new(), 0);
        loop {
            // SAFETY: the graph is alive, and the position is valid for writes.
            let operation = unsafe { (api.next_operation)(self.graph, &raw mut position) };
            if operation.is_null() {
                return found;
            }
            // SAFETY: the operation belongs to the graph, which is alive; so are its strings, which end with a zero
            // byte.
            unsafe {
                let text = |text| CStr::from_ptr(text).to_string_lossy().into_owned();
                let outputs = (0..(api.output_count)(operation)).map(|index| Output { operation, index });
                let outputs: Vec<_> = outputs.collect();
                let is_end = outputs.iter().all(|output| (api.consumer_count)(*output) == 0);
                found.push(OperationSignature {
                    name: text((api.operation_name)(operation)),
                    kind: text((api.operation_kind)(operation)),
                    outputs,
                    is_end,
                });
            }
        }
    }

    /// Runs the graph on these inputs, and returns the outputs. `targets` run for their side effects.
    ///
    /// # Errors
    /// The library's message.
    pub(crate) fn run(
        &self,
        inputs: &[(Output, OwnTensor)],
        outputs: &[Output],
        targets: &[*mut Operation],
    ) -> Outcome<Vec<OwnTensor>> {
        let places: Vec<_> = inputs.iter().map(|(place, _)| *place).collect();
        let values: Vec<_> = inputs.iter().map(|(_, tensor)| tensor.tensor).collect();
        let targets: Vec<_> = targets.iter().map(|target| target.cast_const()).collect();
        let mut made = vec![ptr::null_mut(); outputs.len()];
        let count = |len: usize| c_int::try_from(len).map_err(|error| error.to_string());
        let (inputs, results, target_count) =
            (count(values.len())?, count(outputs.len())?, count(targets.len())?);
        // SAFETY: session, graph and inputs are alive; each list has the stated number of entries; all operations
        // belong to this graph. The library writes an output, or null, to each entry.
        let ran = self.library.call(|status| unsafe {
            (self.library.api.run)(
                self.session,
                ptr::null(),
                places.as_ptr(),
                values.as_ptr(),
                inputs,
                outputs.as_ptr(),
                made.as_mut_ptr(),
                results,
                targets.as_ptr(),
                target_count,
                ptr::null_mut(),
                status,
            );
        });
        let made = made.into_iter().filter(|tensor| !tensor.is_null());
        let made: Vec<_> =
            made.map(|tensor| OwnTensor { tensor, library: Arc::clone(&self.library) }).collect();
        ran?;
        if made.len() == outputs.len() { Ok(made) } else { Err("an output is missing".to_owned()) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let api = &self.library.api;
        // SAFETY: nothing uses the session any more, nor the graph after it. Errors from closing them do not matter.
        unsafe {
            if !self.session.is_null() {
                let _ = self.library.call(|status| (api.close_session)(self.session, status));
                let _ = self.library.call(|status| (api.delete_session)(self.session, status));
            }
            (api.delete_graph)(self.graph);
        }
    }
}

/// A tensor of the library, freed on drop.
pub(crate) struct OwnTensor {
    pub(crate) tensor: *mut api::Tensor,
    pub(crate) library: Arc<TensorFlow>,
}

// SAFETY: a tensor is not bound to a thread.
unsafe impl Send for OwnTensor {}
// SAFETY: shared references only read it.
unsafe impl Sync for OwnTensor {}

impl Drop for OwnTensor {
    fn drop(&mut self) {
        // SAFETY: the library created the tensor, and nothing uses it afterwards.
        unsafe { (self.library.api.delete_tensor)(self.tensor) };
    }
}

impl AsRef<[u8]> for OwnTensor {
    /// The elements' bytes in memory.
    fn as_ref(&self) -> &[u8] {
        let api = &self.library.api;
        // SAFETY: the tensor is alive. Its elements start at this address and have this size. Nobody writes to them any
        // more: the tensor is an output of a finished run, and the library does not write to inputs.
        unsafe {
            let (data, size): (*mut c_void, _) =
                ((api.tensor_data)(self.tensor), (api.tensor_size)(self.tensor));
            if data.is_null() || size == 0 { &[] } else { slice::from_raw_parts(data.cast(), size) }
        }
    }
}

fn text(text: &OsStr) -> Outcome<CString> {
    CString::new(text.as_bytes()).map_err(|_| format!("{} contains a zero byte", text.display()))
}
