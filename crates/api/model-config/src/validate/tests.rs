//! The rules for names, tensors, versions and sizes, kept and broken. They follow ValidateModelConfig,
//! ValidateModelInput, ValidateModelOutput, ValidateIOShape, ValidateNonLinearFormatIO and ValidateInstanceGroup in
//! the reference's `model_config_utils.cc`; distinct names, non-negative counts and devices, and countable elements
//! are our own rules.

mod conditions;
mod ensembles;
mod files;
mod objective;
mod rules;

use super::{Stage, ValidationError, ValidationErrors};
use crate::{ModelConfig, parse_text};

fn validate(config: &ModelConfig) -> Result<(), ValidationErrors> {
    super::validate(config, Stage::Final)
}

/// The result for a valid model with `more` appended.
fn result(more: &str) -> Result<(), String> {
    let text = format!("name: 'm' backend: 'mine' max_batch_size: 8\n{more}");
    validate(&parse_text(&text).unwrap()).map_err(|errors| errors.to_string())
}

#[track_caller]
fn passes(more: &str) {
    assert_eq!(result(more), Ok(()), "{more}");
}

#[track_caller]
fn fails(more: &str, expected: &str) {
    assert_eq!(result(more), Err(expected.to_owned()), "{more}");
}

/// Checks that an entire configuration is refused.
#[track_caller]
fn whole_fails(text: &str, expected: &str) {
    let error = validate(&parse_text(text).unwrap()).expect_err(text);
    assert_eq!(error.to_string(), expected, "{text}");
}

#[track_caller]
fn whole_passes(text: &str) {
    assert_eq!(validate(&parse_text(text).unwrap()), Ok(()), "{text}");
}

fn input(fields: &str) -> String {
    format!("input {{ name: 'I' data_type: TYPE_FP32 {fields} }}")
}

#[test]
fn error_exposes_model_field_and_reason() {
    let error = validate(&parse_text("name: 'm' backend: 'b' max_batch_size: -1").unwrap()).unwrap_err();
    assert_eq!(error.model(), "m");
    assert_eq!(error.errors().len(), 1);
    assert_eq!(error.errors()[0].field(), "max_batch_size");
    assert_eq!(error.errors()[0].reason(), "is -1, must be 0 (no batching) or more");
    assert_eq!(
        error.to_string(),
        "model 'm', field 'max_batch_size': is -1, must be 0 (no batching) or more"
    );
}

#[test]
fn all_broken_rules_are_reported_at_once() {
    let text =
        "name: 'm' max_batch_size: -1 input { name: 'I' dims: [ 1, 0, -1, -2 ] data_type: 99 format: 7 }
        output [ { name: 'O' dims: 1 }, { name: 'O' data_type: TYPE_FP32 dims: 1 } ]
        version_policy { specific { versions: -1 } } instance_group { count: -2 gpus: -3 kind: 9 }
        dynamic_batching { preferred_batch_size: 0 }";
    let errors = validate(&parse_text(text).unwrap()).unwrap_err();
    let fields: Vec<&str> = errors.errors().iter().map(ValidationError::field).collect();
    let expected = [
        "backend",
        "max_batch_size",
        "input[0].data_type",
        "input[0].format",
        "instance_group[0].kind",
        "input[0].dims[1]",
        "input[0].dims[3]",
        "output[0].data_type",
        "output[1].name",
        "version_policy.specific.versions[0]",
        "instance_group[0].count",
        "instance_group[0].gpus[0]",
        "dynamic_batching.preferred_batch_size[0]",
    ];
    assert_eq!(fields, expected);
    let text = errors.to_string();
    let start = "model 'm', field 'backend': 'backend' or 'platform' is required; field 'max_batch_size': is -1, must";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn number_of_reported_problems_is_limited() {
    let errors = validate(&parse_text(&"output { } ".repeat(10_000)).unwrap()).unwrap_err();
    assert_eq!(errors.errors().len(), 200);
    // A name of a megabyte, with a million invalid dimensions.
    let (name, dims) = ("n".repeat(1_000_000), "-2, ".repeat(1_000_000));
    let text = format!("output {{ name: '{name}' dims: [ {dims} 1 ] }}");
    let errors = validate(&parse_text(&text).unwrap()).unwrap_err();
    assert_eq!(errors.errors().len(), 200);
    assert!(errors.to_string().len() < 300_000);
}

#[test]
fn completable_fields_may_be_missing_before_completion() {
    let check = |more: &str| {
        let config = parse_text(&format!("name: 'm' backend: 'mine' {more}")).unwrap();
        super::validate(&config, Stage::BeforeCompletion).map_err(|errors| errors.to_string())
    };
    for fine in [
        "",
        "input { name: 'I' }",
        "output { name: 'O' label_filename: 'labels.txt' }",
        "input { name: 'I' format: FORMAT_NCHW reshape { shape: 3 } }",
        "input { name: 'I' dims: 1 reshape { } }",
    ] {
        assert_eq!(check(fine), Ok(()), "{fine}");
    }
    for (wrong, expected) in [
        ("input { dims: 1 }", "model 'm', field 'input[0].name': is required"),
        (
            "input { name: 'I' data_type: 99 }",
            "model 'm', field 'input[0].data_type': 99 is not a valid value, must be one of TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, \
         TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, \
         TYPE_FP64, TYPE_STRING, TYPE_BF16",
        ),
        (
            "input { name: 'I' dims: [ 2 ] reshape { shape: 3 } }",
            "model 'm', field 'input[0].reshape': tensor 'I': [3] and dims [2] differ in their number of elements",
        ),
    ] {
        assert_eq!(check(wrong), Err(expected.to_owned()), "{wrong}");
    }
}

#[test]
fn model_without_name_is_refused() {
    whole_fails("backend: 'mine'", "model '', field 'name': is required");
}

#[test]
fn model_without_backend_and_platform_is_refused() {
    whole_passes("name: 'm' backend: 'mine'");
    whole_passes("name: 'm' platform: 'onnxruntime_onnx'");
    whole_passes("name: 'm' platform: 'onnxruntime_onnx' backend: 'onnxruntime'");
    whole_passes("name: 'm' platform: 'anything' backend: 'mine'");
    whole_fails("name: 'm'", "model 'm', field 'backend': 'backend' or 'platform' is required");
    whole_fails(
        "name: 'm' platform: 'nonsense'",
        "model 'm', field 'platform': 'nonsense' is not a known platform; name a backend instead",
    );
    whole_fails(
        "name: 'm' platform: 'tensorrt_plan' backend: 'onnxruntime'",
        "model 'm', field 'platform': backend 'onnxruntime' does not run platform 'tensorrt_plan', must be \
         'onnxruntime_onnx'",
    );
}

#[test]
fn repeated_tensor_names_are_refused() {
    passes(
        "input { name: 'A' data_type: TYPE_INT8 dims: 1 } output { name: 'A' data_type: TYPE_INT8 dims: 1 }",
    );
    fails("input { data_type: TYPE_INT8 dims: 1 }", "model 'm', field 'input[0].name': is required");
    fails("output { data_type: TYPE_INT8 dims: 1 }", "model 'm', field 'output[0].name': is required");
    let twice = |field: &str| format!("{field} {{ name: 'A' data_type: TYPE_INT8 dims: 1 }}").repeat(2);
    fails(
        &twice("input"),
        "model 'm', field 'input[1].name': tensor 'A': the name is taken by another tensor",
    );
    fails(
        &twice("output"),
        "model 'm', field 'output[1].name': tensor 'A': the name is taken by another tensor",
    );
}

#[test]
fn tensors_without_type_are_refused() {
    fails("input { name: 'I' dims: 1 }", "model 'm', field 'input[0].data_type': tensor 'I': is required");
    fails(
        "output { name: 'O' dims: 1 data_type: TYPE_INVALID }",
        "model 'm', field 'output[0].data_type': tensor 'O': is required",
    );
    fails(
        "input { name: 'I' dims: 1 data_type: 99 }",
        "model 'm', field 'input[0].data_type': 99 is not a valid value, must be one of TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, \
         TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, \
         TYPE_FP64, TYPE_STRING, TYPE_BF16",
    );
}

#[test]
fn dims_other_than_positive_or_minus_one_are_refused() {
    passes(&input("dims: [ 1, -1, 9223372036854775807 ]"));
    fails(&input(""), "model 'm', field 'input[0].dims': tensor 'I': is required");
    for dim in ["0", "-2", "-9223372036854775808"] {
        fails(
            &input(&format!("dims: [ 4, {dim} ]")),
            &format!(
                "model 'm', field 'input[0].dims[1]': tensor 'I': {dim} is not a dimension, must be at least 1, or \
                 -1 for any size"
            ),
        );
    }
    fails(
        &input("dims: [ 4294967296, -1, 4294967296 ]"),
        "model 'm', field 'input[0].dims': tensor 'I': [4294967296, -1, 4294967296] has more elements than can be \
         counted",
    );
    fails(
        "output { name: 'O' data_type: TYPE_BOOL dims: 0 }",
        "model 'm', field 'output[0].dims[0]': tensor 'O': 0 is not a dimension, must be at least 1, or -1 for any size",
    );
}

#[test]
fn reshape_must_keep_the_element_count() {
    for fields in [
        "dims: [ 2, 6 ] reshape { shape: [ 3, 4 ] }",
        "dims: [ 1 ] reshape { shape: [ ] }",
        "dims: [ 1, 1 ] reshape { }",
        "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }",
        "dims: [ -1 ] reshape { shape: [ -1, 1 ] }",
        "dims: [ -1, -1 ] reshape { shape: [ 1, -1, 1, -1 ] }",
    ] {
        passes(&input(fields));
    }
    let field = "model 'm', field 'input[0].reshape': tensor 'I':";
    fails(
        &input("dims: [ 4 ] reshape { shape: [ 5 ] }"),
        &format!("{field} [5] and dims [4] differ in their number of elements"),
    );
    fails(
        &input("dims: [ 2 ] reshape { shape: [ ] }"),
        &format!("{field} [] and dims [2] differ in their number of elements"),
    );
    fails(
        &input("dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }"),
        &format!("{field} [3, -1, 2] and dims [2, -1, 3] differ in their number of elements"),
    );
    fails(
        &input("dims: [ -1 ] reshape { shape: [ 4 ] }"),
        &format!("{field} [4] and dims [-1] differ in their variable dimensions"),
    );
    fails(
        &input("dims: [ -1 ] reshape { shape: [ ] }"),
        &format!("{field} [] and dims [-1] differ in their variable dimensions"),
    );
    fails(
        &input("dims: [ 1 ] reshape { shape: [ 0 ] }"),
        "model 'm', field 'input[0].reshape.shape[0]': tensor 'I': 0 is not a dimension, must be at least 1, or -1 for \
         any size",
    );
    fails(
        "output { name: 'O' data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2 ] } }",
        "model 'm', field 'output[0].reshape': tensor 'O': [2] and dims [4] differ in their number of elements",
    );
}

#[test]
fn empty_reshape_requires_batching() {
    whole_fails(
        "name: 'm' backend: 'b' input { name: 'I' data_type: TYPE_FP32 dims: 1 reshape { } }",
        "model 'm', field 'input[0].reshape': tensor 'I': cannot be empty unless the model batches: it would be a \
         tensor without dimensions",
    );
}

#[test]
fn images_must_have_three_dimensions() {
    passes(&input("dims: [ 3, 8, 8 ] format: FORMAT_NCHW"));
    fails(
        &input("dims: [ 8, 8 ] format: FORMAT_NHWC"),
        "model 'm', field 'input[0].dims': tensor 'I': must have 3 dimensions for format NHWC or NCHW",
    );
    fails(
        &input("dims: [ 8 ] format: 7"),
        "model 'm', field 'input[0].format': 7 is not a valid value, must be one of FORMAT_NONE, FORMAT_NHWC, FORMAT_NCHW",
    );
}

#[test]
fn shape_and_non_linear_tensors_require_tensorrt() {
    let tensorrt = |fields: &str| format!("name: 'm' platform: 'tensorrt_plan' {}", input(fields));
    whole_passes(&tensorrt("dims: 3 is_shape_tensor: true"));
    whole_passes(&tensorrt("dims: [ 1, 2, 3 ] is_non_linear_format_io: true"));
    whole_fails(
        &tensorrt("dims: 3 is_non_linear_format_io: true"),
        "model 'm', field 'input[0].dims': tensor 'I': a non-linear tensor has 3 dimensions",
    );
    fails(
        &input("dims: 3 is_shape_tensor: true"),
        "model 'm', field 'input[0].is_shape_tensor': tensor 'I': only TensorRT models have shape tensors",
    );
    fails(
        "output { name: 'O' data_type: TYPE_FP32 dims: [ 1, 2, 3 ] is_non_linear_format_io: true }",
        "model 'm', field 'output[0].is_non_linear_format_io': tensor 'O': only TensorRT models have non-linear \
         tensors",
    );
}

#[test]
fn version_policy_without_versions_is_refused() {
    passes("version_policy { }");
    passes("version_policy { all { } }");
    passes("version_policy { latest { num_versions: 2 } }");
    passes("version_policy { specific { versions: [ 1, 3 ] } }");
    fails(
        "version_policy { latest { } }",
        "model 'm', field 'version_policy.latest.num_versions': must be at least 1",
    );
    fails(
        "version_policy { specific { } }",
        "model 'm', field 'version_policy.specific.versions': must name at least one version",
    );
    fails(
        "version_policy { specific { versions: [ 1, -1 ] } }",
        "model 'm', field 'version_policy.specific.versions[1]': -1 is not a version number",
    );
}

#[test]
fn instance_groups_with_wrong_count_or_devices_are_refused() {
    passes("instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_GPU gpus: [ 0, 1 ] }, { gpus: 0 } ]");
    fails(
        "instance_group [ { count: 1 }, { count: -1 } ]",
        "model 'm', field 'instance_group[1].count': is -1, must be 0 (the backend's default) or more",
    );
    fails(
        "instance_group { kind: 9 }",
        "model 'm', field 'instance_group[0].kind': 9 is not a valid value, must be one of KIND_AUTO, KIND_GPU, KIND_CPU, \
         KIND_MODEL",
    );
    for kind in ["KIND_CPU", "KIND_MODEL"] {
        fails(
            &format!("instance_group {{ kind: {kind} gpus: 0 }}"),
            &format!("model 'm', field 'instance_group[0].gpus': must be empty for {kind}"),
        );
    }
    fails(
        "instance_group { gpus: -1 }",
        "model 'm', field 'instance_group[0].gpus[0]': -1 is not the number of a GPU",
    );
}

#[test]
fn preferred_batch_sizes_above_the_maximum_are_refused() {
    for (open, close, path) in [
        ("dynamic_batching {", "}", "dynamic_batching"),
        ("sequence_batching { oldest {", "} }", "sequence_batching.oldest"),
    ] {
        let sizes = |sizes: &str| format!("{open} preferred_batch_size: {sizes} {close}");
        passes(&sizes("[ ]"));
        passes(&sizes("[ 1, 4, 8 ]"));
        fails(
            &sizes("[ 4, 0 ]"),
            &format!(
                "model 'm', field '{path}.preferred_batch_size[1]': 0 is not a batch size, must be at least 1"
            ),
        );
        fails(
            &sizes("[ 9 ]"),
            &format!("model 'm', field '{path}.preferred_batch_size[0]': 9 exceeds max_batch_size (8)"),
        );
    }
    passes("sequence_batching { direct { } }");
}
