//! TensorFlow's C interface: the functions that this crate calls, looked up in the library.
//!
//! Declared as in the headers of TensorFlow 2.21 (`tensorflow/c/*.h`). Does not know what the calls are for.

use std::ffi::{c_char, c_int, c_void};

use nereid_dylib::symbols;

/// Opaque objects of the library, used through pointers only.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub(crate) struct $name(c_void);
    )*};
}

opaque!(Status SessionOptions ImportOptions Graph Session Operation Tensor);

/// A string within a tensor. The library's functions read and write it.
#[repr(C, align(8))]
pub(crate) struct TString([u8; 24]);

/// Bytes, and the function that frees them.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) data: *const c_void,
    pub(crate) length: usize,
    pub(crate) free: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

/// An output of an operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) operation: *mut Operation,
    pub(crate) index: c_int,
}

type Free = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

symbols! {
    /// The functions of a library that is never closed.
    pub(crate) struct Api {
        version = "TF_Version" => unsafe extern "C" fn() -> *const c_char,

        new_status = "TF_NewStatus" => unsafe extern "C" fn() -> *mut Status,
        delete_status = "TF_DeleteStatus" => unsafe extern "C" fn(*mut Status),
        code = "TF_GetCode" => unsafe extern "C" fn(*const Status) -> c_int,
        message = "TF_Message" => unsafe extern "C" fn(*const Status) -> *const c_char,

        new_buffer = "TF_NewBuffer" => unsafe extern "C" fn() -> *mut Buffer,
        delete_buffer = "TF_DeleteBuffer" => unsafe extern "C" fn(*mut Buffer),

        new_session_options = "TF_NewSessionOptions" => unsafe extern "C" fn() -> *mut SessionOptions,
        delete_session_options = "TF_DeleteSessionOptions" => unsafe extern "C" fn(*mut SessionOptions),
        set_config = "TF_SetConfig" => unsafe extern "C" fn(*mut SessionOptions, *const c_void, usize, *mut Status),

        new_graph = "TF_NewGraph" => unsafe extern "C" fn() -> *mut Graph,
        delete_graph = "TF_DeleteGraph" => unsafe extern "C" fn(*mut Graph),
        new_import_options = "TF_NewImportGraphDefOptions" => unsafe extern "C" fn() -> *mut ImportOptions,
        delete_import_options = "TF_DeleteImportGraphDefOptions" => unsafe extern "C" fn(*mut ImportOptions),
        import_graph = "TF_GraphImportGraphDef" =>
            unsafe extern "C" fn(*mut Graph, *const Buffer, *const ImportOptions, *mut Status),
        operation_by_name = "TF_GraphOperationByName" =>
            unsafe extern "C" fn(*mut Graph, *const c_char) -> *mut Operation,
        next_operation = "TF_GraphNextOperation" => unsafe extern "C" fn(*mut Graph, *mut usize) -> *mut Operation,
        dim_count = "TF_GraphGetTensorNumDims" => unsafe extern "C" fn(*mut Graph, Output, *mut Status) -> c_int,
        dims = "TF_GraphGetTensorShape" => unsafe extern "C" fn(*mut Graph, Output, *mut i64, c_int, *mut Status),
        operation_name = "TF_OperationName" => unsafe extern "C" fn(*mut Operation) -> *const c_char,
        operation_kind = "TF_OperationOpType" => unsafe extern "C" fn(*mut Operation) -> *const c_char,
        output_count = "TF_OperationNumOutputs" => unsafe extern "C" fn(*mut Operation) -> c_int,
        output_type = "TF_OperationOutputType" => unsafe extern "C" fn(Output) -> c_int,
        consumer_count = "TF_OperationOutputNumConsumers" => unsafe extern "C" fn(Output) -> c_int,

        new_session = "TF_NewSession" =>
            unsafe extern "C" fn(*mut Graph, *const SessionOptions, *mut Status) -> *mut Session,
        load_saved_model = "TF_LoadSessionFromSavedModel" =>
            unsafe extern "C" fn(
                *const SessionOptions,
                *const Buffer,
                *const c_char,
                *const *const c_char,
                c_int,
                *mut Graph,
                *mut Buffer,
                *mut Status,
            ) -> *mut Session,
        close_session = "TF_CloseSession" => unsafe extern "C" fn(*mut Session, *mut Status),
        delete_session = "TF_DeleteSession" => unsafe extern "C" fn(*mut Session, *mut Status),
        run = "TF_SessionRun" =>
            unsafe extern "C" fn(
                *mut Session,
                *const Buffer,
                *const Output,
                *const *mut Tensor,
                c_int,
                *const Output,
                *mut *mut Tensor,
                c_int,
                *const *const Operation,
                c_int,
                *mut Buffer,
                *mut Status,
            ),

        new_tensor = "TF_NewTensor" =>
            unsafe extern "C" fn(c_int, *const i64, c_int, *mut c_void, usize, Free, *mut c_void) -> *mut Tensor,
        allocate_tensor = "TF_AllocateTensor" => unsafe extern "C" fn(c_int, *const i64, c_int, usize) -> *mut Tensor,
        delete_tensor = "TF_DeleteTensor" => unsafe extern "C" fn(*mut Tensor),
        tensor_type = "TF_TensorType" => unsafe extern "C" fn(*const Tensor) -> c_int,
        tensor_dim_count = "TF_NumDims" => unsafe extern "C" fn(*const Tensor) -> c_int,
        tensor_dim = "TF_Dim" => unsafe extern "C" fn(*const Tensor, c_int) -> i64,
        tensor_size = "TF_TensorByteSize" => unsafe extern "C" fn(*const Tensor) -> usize,
        tensor_data = "TF_TensorData" => unsafe extern "C" fn(*const Tensor) -> *mut c_void,

        string_init = "TF_StringInit" => unsafe extern "C" fn(*mut TString),
        string_copy = "TF_StringCopy" => unsafe extern "C" fn(*mut TString, *const c_char, usize),
        string_data = "TF_StringGetDataPointer" => unsafe extern "C" fn(*const TString) -> *const c_char,
        string_size = "TF_StringGetSize" => unsafe extern "C" fn(*const TString) -> usize,
    }
}
