//! Opens OpenVINO's library: looks its functions up, reads its version, and learns how it numbers element types.
//!
//! Does not know where to find the library.

use std::ffi::CStr;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use nereid_backend_api::DataType;
use nereid_dylib::{Binding, InUse, LoadError, open};

use crate::api::{Api, ElementType, Status, Version};
use crate::objects::{Core, Network};

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The dynamic loader rejects it.
    #[error(transparent)]
    Unloadable(#[from] LoadError),
    /// Another library, or one that is too old.
    #[error("{path} is not the C library of OpenVINO 2024.3 or newer: it does not export {function}")]
    Foreign {
        /// The library.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// The library refuses to work.
    #[error("OpenVINO of {path} does not start: {why}")]
    Failed {
        /// The library.
        path: PathBuf,
        /// The library's message.
        why: String,
    },
}

/// The library in use.
pub struct OpenVino {
    pub(crate) api: Api,
    pub(crate) types: ElementTypes,
    version: String,
}

impl OpenVino {
    /// Loads a library, which stays open for the life of the process.
    ///
    /// # Errors
    /// Says why this library cannot be used.
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        let _in_use = InUse::new();
        // SAFETY: loading runs the library's initialisers. It is the file that the operator names or installed as
        // OpenVINO, and trusted as such, as any backend library is.
        let library = unsafe { open(path, Binding::Lazy) }?;
        // SAFETY: a library that exports these names claims to be OpenVINO's C interface. It is never closed: below its
        // handle is forgotten.
        let api = unsafe { Api::of(&library) };
        let api = api.map_err(|function| OpenError::Foreign { path: path.to_owned(), function })?;
        mem::forget(library);
        let failed = |why: String| OpenError::Failed { path: path.to_owned(), why };
        let version = version(&api).map_err(failed)?;
        // Numbers are learnt by a library that has none yet, and then kept in one that has them.
        let learner = Arc::new(Self { api, types: ElementTypes::default(), version: version.clone() });
        let types = ElementTypes::learn(&learner).map_err(failed)?;
        Ok(Arc::new(Self { api, types, version }))
    }

    /// The library's version, such as `2026.4.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A function that earlier releases lack.
    ///
    /// # Errors
    /// Names the function and the release in use.
    pub(crate) fn optional<F>(&self, function: Option<F>, name: &str) -> Result<F, String> {
        function.ok_or_else(|| {
            format!("OpenVINO {} does not export {name}; install a newer release", self.version)
        })
    }

    /// The outcome of a call.
    ///
    /// # Errors
    /// The library's message, on one line. The library has one message for the whole process, so when two calls fail at
    /// once, it may belong to the other call.
    pub(crate) fn check(&self, status: Status) -> Result<(), String> {
        check(&self.api, status)
    }
}

fn check(api: &Api, status: Status) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the functions take nothing, or any number. The message is a copy for the caller, who frees it; the text of
    // a status is static. Both end with a zero byte, and are checked for null.
    unsafe {
        let message = (api.last_error)();
        if !message.is_null() {
            let text = plain(&CStr::from_ptr(message).to_string_lossy());
            (api.free)(message);
            if !text.is_empty() {
                return Err(text);
            }
        }
        let text = (api.error_info)(status);
        Err(if text.is_null() {
            format!("status {status}")
        } else {
            plain(&CStr::from_ptr(text).to_string_lossy())
        })
    }
}

/// A message on one line, without the places in OpenVINO's source.
fn plain(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let kept = lines.filter(|line| !line.is_empty() && !line.starts_with("Exception from "));
    kept.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

fn version(api: &Api) -> Result<String, String> {
    let mut version = Version { build: ptr::null(), description: ptr::null() };
    // SAFETY: the place is valid to write. What the library writes there are strings that end with a zero byte, freed
    // by the call behind it.
    unsafe {
        check(api, (api.version)(&raw mut version))?;
        let build = if version.build.is_null() {
            String::new()
        } else {
            CStr::from_ptr(version.build).to_string_lossy().into_owned()
        };
        (api.version_free)(&raw mut version);
        // The build follows the release: `2026.4.1-22982-...`.
        Ok(build.split('-').next().unwrap_or_default().to_owned())
    }
}

/// The types that both sides know, with OpenVINO's names for each: as the type of a parameter, and as the type of a port.
const TYPES: [(DataType, &str, &str); 14] = [
    (DataType::Bool, "boolean", "BOOL"),
    (DataType::Bf16, "bf16", "BF16"),
    (DataType::Fp16, "f16", "FP16"),
    (DataType::Fp32, "f32", "FP32"),
    (DataType::Fp64, "f64", "FP64"),
    (DataType::Int8, "i8", "I8"),
    (DataType::Int16, "i16", "I16"),
    (DataType::Int32, "i32", "I32"),
    (DataType::Int64, "i64", "I64"),
    (DataType::Uint8, "u8", "U8"),
    (DataType::Uint16, "u16", "U16"),
    (DataType::Uint32, "u32", "U32"),
    (DataType::Uint64, "u64", "U64"),
    (DataType::Bytes, "string", "STRING"),
];

/// How a library numbers the types of elements. Releases inserted new types among the old ones, so the numbers are
/// read from the library itself: from a model with an input of each type.
#[derive(Default)]
pub(crate) struct ElementTypes([ElementType; TYPES.len()]);

impl ElementTypes {
    fn learn(library: &Arc<OpenVino>) -> Result<Self, String> {
        let core = Core::new(library)?;
        let network = Network::from_text(&core, &one_of_each_type())?;
        let mut types = Self::default();
        for (at, number) in types.0.iter_mut().enumerate() {
            *number = network.input(at)?.element_type()?;
        }
        Ok(types)
    }

    /// The library's number for a type.
    pub(crate) fn number(&self, data_type: DataType) -> ElementType {
        let known = TYPES.iter().zip(self.0).find(|((known, ..), _)| *known == data_type);
        known.map_or_else(ElementType::default, |(_, number)| number)
    }

    /// The type of that number, if the protocol has it.
    pub(crate) fn of_number(&self, number: ElementType) -> Option<DataType> {
        TYPES.iter().zip(self.0).find(|(_, known)| *known == number).map(|((data_type, ..), _)| *data_type)
    }
}

/// A model with an input of each type in the order of [`TYPES`], in OpenVINO's own format.
fn one_of_each_type() -> String {
    let mut layers = String::new();
    let mut edges = String::new();
    for (at, (_, name, precision)) in TYPES.iter().enumerate() {
        let (parameter, result) = (2 * at, 2 * at + 1);
        layers += &format!(
            "<layer id='{parameter}' name='p{at}' type='Parameter' version='opset1'>\
             <data shape='1' element_type='{name}'/><output><port id='0' precision='{precision}' names='x{at}'><dim>1</dim></port></output></layer>\
             <layer id='{result}' name='r{at}' type='Result' version='opset1'>\
             <input><port id='0' precision='{precision}'><dim>1</dim></port></input></layer>"
        );
        edges += &format!("<edge from-layer='{parameter}' from-port='0' to-layer='{result}' to-port='0'/>");
    }
    format!("<net name='types' version='11'><layers>{layers}</layers><edges>{edges}</edges></net>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_places_in_the_source() {
        let message = "Exception from src/inference/src/cpp/core.cpp:84:\nCheck 'a || b' failed at x.cpp:117:\n  \
                       Could not open\tthe file\n\n";
        assert_eq!(plain(message), "Check 'a || b' failed at x.cpp:117: Could not open the file");
        assert_eq!(plain("Exception from a.cpp:1:\n"), "");
    }

    #[test]
    fn a_library_of_something_else_names_the_missing_function() {
        let path = Path::new("libc.so.6");
        let error = OpenVino::open(path).err().unwrap().to_string();
        assert!(error.starts_with("libc.so.6 is not the C library of OpenVINO"), "{error}");
        assert!(error.ends_with("does not export ov_get_openvino_version"), "{error}");
    }

    #[test]
    fn every_type_of_the_protocol_is_asked_for_once() {
        let text = one_of_each_type();
        for (_, name, _) in TYPES {
            assert_eq!(text.matches(&format!("'{name}'")).count(), 1, "{name}");
        }
    }
}
