//! OpenVINO's C interface: the functions that are called, looked up in its library.
//!
//! Declared as in the headers of OpenVINO 2023.1 to 2026.4 (`openvino/c/*.h`). Knows nothing of what the calls are for.

use std::ffi::{c_char, c_int, c_void};

use nereid_dylib::symbols;

/// How a call ended; 0 is success.
pub(crate) type Status = c_int;

/// The interface does not take what it was given.
pub(crate) const INVALID_PARAMETER: Status = -14;

/// A type of elements. Releases number them differently, see [`ElementTypes`](crate::library::ElementTypes).
pub(crate) type ElementType = c_int;

/// The library's own objects, which are only pointed to.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub(crate) struct $name(c_void);
    )*};
}

opaque!(Core Model CompiledNetwork Request TensorObject Port);

/// Lower and upper bound of a dimension or of a rank, both included; -1 stands for an open bound.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) min: i64,
    pub(crate) max: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PartialShape {
    pub(crate) rank: Bounds,
    pub(crate) dims: *mut Bounds,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawShape {
    pub(crate) rank: i64,
    pub(crate) dims: *mut i64,
}

#[repr(C)]
pub(crate) struct Version {
    pub(crate) build: *const c_char,
    pub(crate) description: *const c_char,
}

symbols! {
    /// The functions of a library, which is never closed.
    pub(crate) struct Api {
        version = "ov_get_openvino_version" => unsafe extern "C" fn(*mut Version) -> Status,
        version_free = "ov_version_free" => unsafe extern "C" fn(*mut Version),
        error_info = "ov_get_error_info" => unsafe extern "C" fn(Status) -> *const c_char,
        last_error = "ov_get_last_err_msg" => unsafe extern "C" fn() -> *const c_char,
        free = "ov_free" => unsafe extern "C" fn(*const c_char),

        core_create = "ov_core_create" => unsafe extern "C" fn(*mut *mut Core) -> Status,
        core_free = "ov_core_free" => unsafe extern "C" fn(*mut Core),
        core_read_model = "ov_core_read_model" =>
            unsafe extern "C" fn(*const Core, *const c_char, *const c_char, *mut *mut Model) -> Status,
        core_read_model_from_memory = "ov_core_read_model_from_memory_buffer" =>
            unsafe extern "C" fn(*const Core, *const c_char, usize, *const TensorObject, *mut *mut Model) -> Status,
        core_compile_model = "ov_core_compile_model" =>
            unsafe extern "C" fn(*const Core, *const Model, *const c_char, usize, *mut *mut CompiledNetwork, ...) -> Status,

        model_free = "ov_model_free" => unsafe extern "C" fn(*mut Model),
        model_inputs = "ov_model_inputs_size" => unsafe extern "C" fn(*const Model, *mut usize) -> Status,
        model_outputs = "ov_model_outputs_size" => unsafe extern "C" fn(*const Model, *mut usize) -> Status,
        model_input = "ov_model_const_input_by_index" => unsafe extern "C" fn(*const Model, usize, *mut *mut Port) -> Status,
        model_output = "ov_model_const_output_by_index" =>
            unsafe extern "C" fn(*const Model, usize, *mut *mut Port) -> Status,
        model_input_by_name = "ov_model_const_input_by_name" =>
            unsafe extern "C" fn(*const Model, *const c_char, *mut *mut Port) -> Status,
        model_output_by_name = "ov_model_const_output_by_name" =>
            unsafe extern "C" fn(*const Model, *const c_char, *mut *mut Port) -> Status,
        model_reshape = "ov_model_reshape_by_port_indexes" =>
            unsafe extern "C" fn(*const Model, *const usize, *const PartialShape, usize) -> Status,

        port_free = "ov_output_const_port_free" => unsafe extern "C" fn(*mut Port),
        port_name = "ov_port_get_any_name" => unsafe extern "C" fn(*const Port, *mut *mut c_char) -> Status,
        port_type = "ov_port_get_element_type" => unsafe extern "C" fn(*const Port, *mut ElementType) -> Status,
        port_shape = "ov_port_get_partial_shape" => unsafe extern "C" fn(*const Port, *mut PartialShape) -> Status,
        partial_shape_free = "ov_partial_shape_free" => unsafe extern "C" fn(*mut PartialShape),

        compiled_free = "ov_compiled_model_free" => unsafe extern "C" fn(*mut CompiledNetwork),
        compiled_property = "ov_compiled_model_get_property" =>
            unsafe extern "C" fn(*const CompiledNetwork, *const c_char, *mut *mut c_char) -> Status,
        compiled_request = "ov_compiled_model_create_infer_request" =>
            unsafe extern "C" fn(*const CompiledNetwork, *mut *mut Request) -> Status,

        request_free = "ov_infer_request_free" => unsafe extern "C" fn(*mut Request),
        request_set_input = "ov_infer_request_set_input_tensor_by_index" =>
            unsafe extern "C" fn(*mut Request, usize, *const TensorObject) -> Status,
        request_infer = "ov_infer_request_infer" => unsafe extern "C" fn(*mut Request) -> Status,
        request_output = "ov_infer_request_get_output_tensor_by_index" =>
            unsafe extern "C" fn(*const Request, usize, *mut *mut TensorObject) -> Status,

        tensor_free = "ov_tensor_free" => unsafe extern "C" fn(*mut TensorObject),
        tensor_over = "ov_tensor_create_from_host_ptr" =>
            unsafe extern "C" fn(ElementType, RawShape, *mut c_void, *mut *mut TensorObject) -> Status,
        tensor_shape = "ov_tensor_get_shape" => unsafe extern "C" fn(*const TensorObject, *mut RawShape) -> Status,
        shape_free = "ov_shape_free" => unsafe extern "C" fn(*mut RawShape) -> Status,
        tensor_type = "ov_tensor_get_element_type" =>
            unsafe extern "C" fn(*const TensorObject, *mut ElementType) -> Status,
        tensor_byte_size = "ov_tensor_get_byte_size" => unsafe extern "C" fn(*const TensorObject, *mut usize) -> Status,
        tensor_data = "ov_tensor_data" => unsafe extern "C" fn(*const TensorObject, *mut *mut c_void) -> Status,

        ; // Earlier releases lack these.
        core_add_extension = "ov_core_add_extension" => unsafe extern "C" fn(*const Core, *const c_char) -> Status,
        tensor_of_strings = "ov_tensor_create_from_string_array" =>
            unsafe extern "C" fn(*const *const c_char, usize, RawShape, *mut *mut TensorObject) -> Status,
    }
}
