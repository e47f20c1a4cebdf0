//! Hides C functions of our dependencies from this library's exports: an application may have its own copy of them,
//! and would get ours.

use std::arch::global_asm;

/// Hides symbols, regardless of where they are defined.
macro_rules! hide {
    ($($name:literal)*) => {
        $(global_asm!(concat!(".globl ", $name), concat!(".hidden ", $name));)*
    };
}

// From crc-fast, which checksums transfers to object stores.
hide! {
    "crc_fast_checksum"
    "crc_fast_checksum_combine"
    "crc_fast_checksum_combine_with_params"
    "crc_fast_checksum_file"
    "crc_fast_checksum_file_with_params"
    "crc_fast_checksum_with_params"
    "crc_fast_clear_error"
    "crc_fast_crc32_iscsi"
    "crc_fast_crc32_iso_hdlc"
    "crc_fast_crc64_nvme"
    "crc_fast_digest_combine"
    "crc_fast_digest_finalize"
    "crc_fast_digest_finalize_reset"
    "crc_fast_digest_free"
    "crc_fast_digest_get_amount"
    "crc_fast_digest_get_state"
    "crc_fast_digest_new"
    "crc_fast_digest_new_with_init_state"
    "crc_fast_digest_new_with_params"
    "crc_fast_digest_reset"
    "crc_fast_digest_update"
    "crc_fast_error_message"
    "crc_fast_get_calculator_target"
    "crc_fast_get_custom_params"
    "crc_fast_get_last_error"
    "crc_fast_get_version"
}

// From llguidance, which constrains the outputs of language models.
hide! {
    "llg_cancel"
    "llg_clone_cancellation_handle"
    "llg_clone_constraint"
    "llg_clone_matcher"
    "llg_clone_stop_controller"
    "llg_clone_tokenizer"
    "llg_commit_token"
    "llg_compute_mask"
    "llg_constraint_init_set_defaults"
    "llg_decode_tokens"
    "llg_flush_logs"
    "llg_free_cancellation_handle"
    "llg_free_constraint"
    "llg_free_matcher"
    "llg_free_stop_controller"
    "llg_free_tokenizer"
    "llg_get_error"
    "llg_get_temperature"
    "llg_get_version"
    "llg_is_stopped"
    "llg_matcher_compute_ff_tokens"
    "llg_matcher_compute_mask"
    "llg_matcher_compute_mask_into"
    "llg_matcher_consume_token"
    "llg_matcher_consume_tokens"
    "llg_matcher_get_cancellation_handle"
    "llg_matcher_get_error"
    "llg_matcher_get_mask"
    "llg_matcher_get_mask_byte_size"
    "llg_matcher_is_accepting"
    "llg_matcher_is_cancelled"
    "llg_matcher_is_error"
    "llg_matcher_is_stopped"
    "llg_matcher_reset"
    "llg_matcher_rollback"
    "llg_matcher_validate_tokens"
    "llg_new_constraint"
    "llg_new_constraint_any"
    "llg_new_constraint_json"
    "llg_new_constraint_lark"
    "llg_new_constraint_regex"
    "llg_new_matcher"
    "llg_new_stop_controller"
    "llg_new_tokenizer"
    "llg_new_tokenizer_v2"
    "llg_par_compute_mask"
    "llg_stop_commit_token"
    "llg_stringify_tokens"
    "llg_tokenize_bytes"
    "llg_tokenize_bytes_marker"
    "llg_validate_grammar"
}
