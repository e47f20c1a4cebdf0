//! llama.cpp's C interface: structures and functions, as its header declares them.
//!
//! The structures are taken from the releases 0.4, 0.5 and 0.6, whose layouts agree. `library.rs` opens no other release.

use std::ffi::{c_char, c_int, c_void};

/// An opaque model.
#[repr(C)]
pub(crate) struct RawModel {
    _opaque: [u8; 0],
}

/// An opaque vocabulary. It belongs to its model.
#[repr(C)]
pub(crate) struct RawVocabulary {
    _opaque: [u8; 0],
}

/// An opaque context.
#[repr(C)]
pub(crate) struct RawContext {
    _opaque: [u8; 0],
}

/// An opaque LoRA adapter. Its model frees it.
#[repr(C)]
pub(crate) struct RawAdapter {
    _opaque: [u8; 0],
}

/// The opaque cache of a context.
#[repr(C)]
pub(crate) struct RawMemory {
    _opaque: [u8; 0],
}

/// `llama_model_params`. Truth values are bytes, so that any content is valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelParams {
    pub(crate) devices: *mut *mut c_void,
    pub(crate) tensor_buft_overrides: *const c_void,
    pub(crate) n_gpu_layers: i32,
    pub(crate) split_mode: c_int,
    pub(crate) load_mode: c_int,
    pub(crate) lazy_mode: c_int,
    pub(crate) main_gpu: i32,
    pub(crate) tensor_split: *const f32,
    pub(crate) progress_callback: *const c_void,
    pub(crate) progress_callback_user_data: *mut c_void,
    pub(crate) kv_overrides: *const c_void,
    pub(crate) vocab_only: u8,
    pub(crate) check_tensors: u8,
    pub(crate) use_extra_bufts: u8,
    pub(crate) no_host: u8,
    pub(crate) no_alloc: u8,
    pub(crate) load_mtp: u8,
}

/// `llama_context_params`. Truth values are bytes, so that any content is valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextParams {
    pub(crate) n_ctx: u32,
    pub(crate) n_batch: u32,
    pub(crate) n_ubatch: u32,
    pub(crate) n_seq_max: u32,
    pub(crate) n_rs_seq: u32,
    pub(crate) n_outputs_max: u32,
    pub(crate) n_outputs_max_per_seq: u32,
    pub(crate) n_threads: i32,
    pub(crate) n_threads_batch: i32,
    pub(crate) ctx_type: c_int,
    pub(crate) rope_scaling_type: c_int,
    pub(crate) pooling_type: c_int,
    pub(crate) attention_type: c_int,
    pub(crate) flash_attn_type: c_int,
    pub(crate) rope_freq_base: f32,
    pub(crate) rope_freq_scale: f32,
    pub(crate) yarn_ext_factor: f32,
    pub(crate) yarn_attn_factor: f32,
    pub(crate) yarn_beta_fast: f32,
    pub(crate) yarn_beta_slow: f32,
    pub(crate) yarn_orig_ctx: u32,
    pub(crate) defrag_thold: f32,
    pub(crate) cb_eval: *const c_void,
    pub(crate) cb_eval_user_data: *mut c_void,
    pub(crate) type_k: c_int,
    pub(crate) type_v: c_int,
    pub(crate) abort_callback: *const c_void,
    pub(crate) abort_callback_data: *mut c_void,
    pub(crate) embeddings: u8,
    pub(crate) offload_kqv: u8,
    pub(crate) no_perf: u8,
    pub(crate) op_offload: u8,
    pub(crate) swa_full: u8,
    pub(crate) kv_unified: u8,
    pub(crate) samplers: *mut c_void,
    pub(crate) n_samplers: usize,
    pub(crate) ctx_other: *mut RawContext,
}

/// `llama_batch`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBatch {
    pub(crate) n_tokens: i32,
    pub(crate) token: *mut i32,
    pub(crate) embd: *mut f32,
    pub(crate) pos: *mut i32,
    pub(crate) n_seq_id: *mut i32,
    pub(crate) seq_id: *mut *mut i32,
    pub(crate) logits: *mut i8,
}

/// The level of errors in the library's log.
pub(crate) const LOG_ERROR: c_int = 4;
/// The level of a message that continues the previous one.
pub(crate) const LOG_CONTINUES: c_int = 5;

type LogCallback = unsafe extern "C" fn(level: c_int, text: *const c_char, user_data: *mut c_void);

nereid_dylib::symbols! {
    /// The functions that every supported release has.
    pub(crate) struct Api {
        version = "llama_version" => unsafe extern "C" fn() -> *const c_char,
        log_set = "llama_log_set" => unsafe extern "C" fn(Option<LogCallback>, *mut c_void),
        backend_init = "llama_backend_init" => unsafe extern "C" fn(),
        load_backends_from = "ggml_backend_load_all_from_path" => unsafe extern "C" fn(*const c_char),
        load_backends = "ggml_backend_load_all" => unsafe extern "C" fn(),
        device_count = "ggml_backend_dev_count" => unsafe extern "C" fn() -> usize,
        model_default_params = "llama_model_default_params" => unsafe extern "C" fn() -> ModelParams,
        context_default_params = "llama_context_default_params" => unsafe extern "C" fn() -> ContextParams,
        model_load = "llama_model_load_from_splits" => unsafe extern "C" fn(
            *const *const c_char, usize, ModelParams,
        ) -> *mut RawModel,
        model_free = "llama_model_free" => unsafe extern "C" fn(*mut RawModel),
        model_vocabulary = "llama_model_get_vocab" => unsafe extern "C" fn(*const RawModel) -> *const RawVocabulary,
        model_context_length = "llama_model_n_ctx_train" => unsafe extern "C" fn(*const RawModel) -> i32,
        model_embedding_size = "llama_model_n_embd_out" => unsafe extern "C" fn(*const RawModel) -> i32,
        model_classes = "llama_model_n_cls_out" => unsafe extern "C" fn(*const RawModel) -> u32,
        model_description = "llama_model_desc" => unsafe extern "C" fn(*const RawModel, *mut c_char, usize) -> i32,
        model_metadata =
            "llama_model_meta_val_str" => unsafe extern "C" fn(*const RawModel, *const c_char, *mut c_char, usize) -> i32,
        model_has_encoder = "llama_model_has_encoder" => unsafe extern "C" fn(*const RawModel) -> bool,
        model_has_decoder = "llama_model_has_decoder" => unsafe extern "C" fn(*const RawModel) -> bool,
        model_is_recurrent = "llama_model_is_recurrent" => unsafe extern "C" fn(*const RawModel) -> bool,
        model_is_hybrid = "llama_model_is_hybrid" => unsafe extern "C" fn(*const RawModel) -> bool,
        adapter_load = "llama_adapter_lora_init" => unsafe extern "C" fn(*mut RawModel, *const c_char) -> *mut RawAdapter,
        adapter_trigger_length =
            "llama_adapter_get_alora_n_invocation_tokens" => unsafe extern "C" fn(*const RawAdapter) -> u64,
        adapters_set = "llama_set_adapters_lora" => unsafe extern "C" fn(
            *mut RawContext, *mut *mut RawAdapter, usize, *mut f32,
        ) -> i32,
        context_new = "llama_init_from_model" => unsafe extern "C" fn(*mut RawModel, ContextParams) -> *mut RawContext,
        context_free = "llama_free" => unsafe extern "C" fn(*mut RawContext),
        context_memory = "llama_get_memory" => unsafe extern "C" fn(*const RawContext) -> *mut RawMemory,
        context_batch = "llama_n_batch" => unsafe extern "C" fn(*const RawContext) -> u32,
        decode = "llama_decode" => unsafe extern "C" fn(*mut RawContext, RawBatch) -> i32,
        embedding = "llama_get_embeddings_seq" => unsafe extern "C" fn(*mut RawContext, i32) -> *mut f32,
        logits = "llama_get_logits_ith" => unsafe extern "C" fn(*mut RawContext, i32) -> *mut f32,
        sequence_remove = "llama_memory_seq_rm" => unsafe extern "C" fn(*mut RawMemory, i32, i32, i32) -> bool,
        sequence_copy = "llama_memory_seq_cp" => unsafe extern "C" fn(*mut RawMemory, i32, i32, i32, i32),
        state_size = "llama_state_seq_get_size" => unsafe extern "C" fn(*mut RawContext, i32) -> usize,
        state_get = "llama_state_seq_get_data" => unsafe extern "C" fn(*mut RawContext, *mut u8, usize, i32) -> usize,
        state_set = "llama_state_seq_set_data" => unsafe extern "C" fn(*mut RawContext, *const u8, usize, i32) -> usize,
        sequence_start = "llama_memory_seq_pos_min" => unsafe extern "C" fn(*mut RawMemory, i32) -> i32,
        vocabulary_size = "llama_vocab_n_tokens" => unsafe extern "C" fn(*const RawVocabulary) -> i32,
        vocabulary_text = "llama_vocab_get_text" => unsafe extern "C" fn(*const RawVocabulary, i32) -> *const c_char,
        is_control = "llama_vocab_is_control" => unsafe extern "C" fn(*const RawVocabulary, i32) -> bool,
        is_end = "llama_vocab_is_eog" => unsafe extern "C" fn(*const RawVocabulary, i32) -> bool,
        first_token = "llama_vocab_bos" => unsafe extern "C" fn(*const RawVocabulary) -> i32,
        last_token = "llama_vocab_eos" => unsafe extern "C" fn(*const RawVocabulary) -> i32,
        separator_token = "llama_vocab_sep" => unsafe extern "C" fn(*const RawVocabulary) -> i32,
        adds_first = "llama_vocab_get_add_bos" => unsafe extern "C" fn(*const RawVocabulary) -> bool,
        adds_last = "llama_vocab_get_add_eos" => unsafe extern "C" fn(*const RawVocabulary) -> bool,
        adds_separator = "llama_vocab_get_add_sep" => unsafe extern "C" fn(*const RawVocabulary) -> bool,
        tokenize = "llama_tokenize" => unsafe extern "C" fn(
            *const RawVocabulary, *const c_char, i32, *mut i32, i32, bool, bool,
        ) -> i32,
        detokenize = "llama_detokenize" => unsafe extern "C" fn(
            *const RawVocabulary, *const i32, i32, *mut c_char, i32, bool, bool,
        ) -> i32,
        piece = "llama_token_to_piece" => unsafe extern "C" fn(
            *const RawVocabulary, i32, *mut c_char, i32, i32, bool,
        ) -> i32,
    }
}

impl ModelParams {
    /// Whether these are the defaults of a supported release. Other values mean that the fields are elsewhere.
    pub(crate) fn are_defaults(&self) -> bool {
        let switches = [
            self.vocab_only,
            self.check_tensors,
            self.use_extra_bufts,
            self.no_host,
            self.no_alloc,
            self.load_mtp,
        ];
        (self.n_gpu_layers, self.split_mode, self.load_mode, self.main_gpu) == (-1, 1, -1, 0)
            && self.devices.is_null()
            && self.kv_overrides.is_null()
            && switches == [0, 0, 1, 0, 0, 0]
    }
}

impl ContextParams {
    /// Whether these are the defaults of a supported release. Other values mean that the fields are elsewhere.
    pub(crate) fn are_defaults(&self) -> bool {
        const F16: c_int = 1;
        let switches = [
            self.embeddings,
            self.offload_kqv,
            self.no_perf,
            self.op_offload,
            self.swa_full,
            self.kv_unified,
        ];
        (self.n_ctx, self.n_batch, self.n_ubatch, self.n_seq_max) == (512, 2048, 512, 1)
            && (self.rope_scaling_type, self.pooling_type, self.attention_type, self.flash_attn_type)
                == (-1, -1, -1, -1)
            && (self.yarn_ext_factor, self.defrag_thold) == (-1.0, -1.0)
            && (self.type_k, self.type_v) == (F16, F16)
            && switches == [0, 1, 1, 1, 1, 0]
            && (self.n_samplers, self.ctx_other.is_null()) == (0, true)
    }
}
