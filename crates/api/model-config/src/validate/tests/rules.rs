//! One entry per rule: its origin, a violation, and the message. Function names are the reference's, from its core's
//! `src`; "ours" marks rules that the reference lacks.

use super::{Stage, parse_text, validate};

/// Source, configuration after [`START`], field with the error, part of the reason.
type Rule = (&'static str, &'static str, &'static str, &'static str);

/// A model with an input and an output, so that the rules apply.
const START: &str = "name: 'm' max_batch_size: 8
    input { name: 'IMAGE' data_type: TYPE_FP32 dims: [ 3, -1 ] }
    output { name: 'SCORES' data_type: TYPE_FP32 dims: 4 }
";

const RULES: &[Rule] = &[
    ("ValidateModelConfig", "backend: 'b' max_batch_size: -1", "max_batch_size", "is -1, must be 0"),
    ("ValidateModelConfig", "platform: 'tensorrt_plam'", "platform", "did you mean 'tensorrt_plan'?"),
    ("ValidateModelConfig", "platform: 'openvino'", "platform", "is a backend; name it in the field 'backend'"),
    (
        "ValidateModelConfig",
        "backend: 'tensorflow'",
        "platform",
        "is required for backend 'tensorflow': 'tensorflow_savedmodel' or 'tensorflow_graphdef'",
    ),
    ("GetBackendLibraryProperties", "backend: 'b' runtime: '../x.so'", "runtime", "is outside the backend's folder"),
    (
        "Model::Init",
        "backend: 'b' output { name: 'O' data_type: TYPE_FP32 dims: 1 label_filename: 'a/../../l.txt' }",
        "output[1].label_filename",
        "must stay within the model's folder",
    ),
    // Batch inputs and outputs.
    (
        "ValidateBatchIO",
        "backend: 'b' batch_input { data_type: TYPE_INT32 }",
        "batch_input[0].source_input",
        "names 0 inputs, must name exactly one for BATCH_ELEMENT_COUNT",
    ),
    (
        "ValidateBatchIO",
        "backend: 'b' batch_input { data_type: TYPE_INT64 source_input: 'IMAGE' }",
        "batch_input[0].data_type",
        "must be TYPE_INT32 or TYPE_FP32",
    ),
    (
        "ValidateBatchIO",
        "backend: 'b' batch_input { data_type: TYPE_INT32 source_input: 'IMAEG' }",
        "batch_input[0].source_input[0]",
        "the model has no input 'IMAEG'; did you mean 'IMAGE'?",
    ),
    (
        "ValidateBatchIO",
        "backend: 'b' batch_input { kind: 9 data_type: TYPE_INT32 source_input: 'IMAGE' }",
        "batch_input[0].kind",
        "9 is not a valid value, must be one of BATCH_ELEMENT_COUNT",
    ),
    (
        "ValidateBatchIO",
        "backend: 'b' batch_output { target_name: 'SCORES' source_input: [ 'IMAGE', 'IMAGE' ] }",
        "batch_output[0].source_input",
        "names 2 inputs",
    ),
    (
        "ValidateBatchIO",
        "backend: 'b' batch_output { target_name: 'SCORE' source_input: 'IMAGE' }",
        "batch_output[0].target_name[0]",
        "the model has no output 'SCORE'; did you mean 'SCORES'?",
    ),
    (
        "ValidateBatchIO",
        "backend: 'b' batch_output { target_name: [ 'SCORES', 'SCORES' ] source_input: 'IMAGE' }",
        "batch_output[0].target_name[1]",
        "named twice",
    ),
    // Instance groups.
    (
        "ValidateInstanceGroup",
        "backend: 'b' instance_group { profile: '0' }",
        "instance_group[0].profile",
        "only TensorRT models",
    ),
    (
        "GetProfileIndex",
        "backend: 'tensorrt' instance_group { profile: [ '0', 'x' ] }",
        "instance_group[0].profile[1]",
        "'x' is not the number of a profile",
    ),
    (
        "ValidateInstanceGroup",
        "backend: 'tensorrt' instance_group { profile: '-1' }",
        "instance_group[0].profile[0]",
        "'-1' is not the number of a profile",
    ),
    (
        "GetProfileIndex (2.51 goes down)",
        "backend: 'tensorrt' instance_group { profile: '99999999999' }",
        "instance_group[0].profile[0]",
        "is not the number of a profile",
    ),
    (
        "ours",
        "backend: 'b' instance_group [ { count: 4000 }, { gpus: [ 0, 1 ] count: 49 }, { } ]",
        "instance_group[1].count",
        "raises the model's instances to 4098, must be at most 4096",
    ),
    (
        "ours",
        "backend: 'b' instance_group { count: 2147483647 gpus: [ 0, 1, 2, 3 ] }",
        "instance_group[0].count",
        "raises the model's instances to 8589934588",
    ),
    (
        "RateLimiter::ResourceManager::ValidateMaxResources",
        "backend: 'b' instance_group [ { rate_limiter { resources { name: 'r' count: 1 } } },
            { rate_limiter { resources { name: 'r' count: 1 global: true } } } ]",
        "instance_group[1].rate_limiter.resources[0].global",
        "resource 'r' is both global and per device",
    ),
    (
        "ours",
        "backend: 'b' instance_group { rate_limiter { resources [ { name: 'r' count: 1 }, { name: 'r' count: 2 } ] } }",
        "instance_group[0].rate_limiter.resources[1].name",
        "resource 'r' is set twice, with 1 and 2",
    ),
    (
        "ours",
        "backend: 'b' instance_group { rate_limiter { resources { count: 1 } } }",
        "instance_group[0].rate_limiter.resources[0].name",
        "is required",
    ),
    // The dynamic batcher.
    (
        "ValidateModelConfig",
        "backend: 'b' dynamic_batching { priority_levels: 2 }",
        "dynamic_batching.default_priority_level",
        "is 0, but must be between 1 and priority_levels (2)",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
        "dynamic_batching.default_priority_level",
        "is 3",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' dynamic_batching { priority_levels: 2 default_priority_level: 1
            priority_queue_policy { key: 3 value { } } }",
        "dynamic_batching.priority_queue_policy[3]",
        "level 3 does not exist",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' dynamic_batching { priority_levels: 2 default_priority_level: 1
            priority_queue_policy { key: 0 value { } } }",
        "dynamic_batching.priority_queue_policy[0]",
        "level 0 does not exist",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
        "dynamic_batching.priority_levels",
        "must be at most 1 if preserve_ordering is true",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' dynamic_batching { preserve_ordering: true
            default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
        "dynamic_batching.default_queue_policy.timeout_action",
        "must be REJECT",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' dynamic_batching { preserve_ordering: true
            priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }",
        "dynamic_batching.priority_queue_policy[1].timeout_action",
        "must be REJECT",
    ),
    (
        "ours",
        "backend: 'b' dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: 7 } } }",
        "dynamic_batching.priority_queue_policy[1].timeout_action",
        "7 is not a valid value, must be one of REJECT, DELAY",
    ),
    // The sequence batcher.
    (
        "ValidateModelConfig",
        "backend: 'b' sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
        "sequence_batching.direct.minimum_slot_utilization",
        "is 1.5, must be between 0 and 1",
    ),
    (
        "ours",
        "backend: 'b' sequence_batching { direct { minimum_slot_utilization: nan } }",
        "sequence_batching.direct.minimum_slot_utilization",
        "is NaN",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' sequence_batching { } response_cache { enable: true }",
        "response_cache.enable",
        "not cached",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' model_transaction_policy { decoupled: true } response_cache { enable: true }",
        "response_cache.enable",
        "not cached",
    ),
    (
        "TritonModel::Create",
        "backend: 'b' sequence_batching { } parameters { key: 'TRITON_BATCH_STRATEGY_PATH' value { } }",
        "parameters[\"TRITON_BATCH_STRATEGY_PATH\"]",
        "must be omitted",
    ),
    (
        "GetBooleanSequenceControlProperties",
        "backend: 'b' sequence_batching { control_input { } }",
        "sequence_batching.control_input[0].name",
        "is required",
    ),
    (
        "GetBooleanSequenceControlProperties",
        "backend: 'b' sequence_batching { control_input [ { name: 'C' }, { name: 'C' } ] }",
        "sequence_batching.control_input[1].name",
        "'C' is set twice",
    ),
    (
        "GetBooleanSequenceControlProperties",
        "backend: 'b' sequence_batching { control_input { name: 'C'
            control [ { fp32_false_true: [ 0, 1 ] }, { fp32_false_true: [ 0, 1 ] } ] } }",
        "sequence_batching.control_input[0].control[1].kind",
        "CONTROL_SEQUENCE_START is set twice, first to 'C'",
    ),
    (
        "GetBooleanSequenceControlProperties",
        "backend: 'b' sequence_batching { control_input { name: 'C' control { kind: CONTROL_SEQUENCE_END } } }",
        "sequence_batching.control_input[0].control[0]",
        "CONTROL_SEQUENCE_END needs one of int32_false_true, fp32_false_true and bool_false_true",
    ),
    (
        "GetBooleanSequenceControlProperties",
        "backend: 'b' sequence_batching { control_input { name: 'C' control {
            int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ] } } }",
        "sequence_batching.control_input[0].control[0].bool_false_true",
        "conflicts with int32_false_true",
    ),
    (
        "GetBooleanSequenceControlProperties",
        "backend: 'b' sequence_batching { control_input { name: 'C' control { fp32_false_true: [ 1 ] } } }",
        "sequence_batching.control_input[0].control[0].fp32_false_true",
        "has 1 values, must have 2",
    ),
    (
        "GetTypedSequenceControlProperties",
        "backend: 'b' sequence_batching { control_input { name: 'C'
            control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 int32_false_true: [ 0, 1 ] } } }",
        "sequence_batching.control_input[0].control[0].int32_false_true",
        "must be empty for CONTROL_SEQUENCE_CORRID",
    ),
    (
        "ValidateModelConfig",
        "backend: 'b' sequence_batching { control_input { name: 'C'
            control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }",
        "sequence_batching.control_input[0].control[0].data_type",
        "must be one of TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING",
    ),
    (
        "ours",
        "backend: 'b' sequence_batching { control_input { name: 'C' control { kind: 9 } } }",
        "sequence_batching.control_input[0].control[0].kind",
        "9 is not a valid value",
    ),
    // State.
    (
        "ours",
        "backend: 'b' sequence_batching { state { output_name: 'O' data_type: TYPE_FP32 dims: 1 } }",
        "sequence_batching.state[0].input_name",
        "is required",
    ),
    (
        "ours",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' dims: 1 } }",
        "sequence_batching.state[0].data_type",
        "is required",
    ),
    (
        "SequenceStates::Initialize (passes the second over)",
        "backend: 'b' sequence_batching { state [
            { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: 1 },
            { input_name: 'J' output_name: 'O' data_type: TYPE_FP32 dims: 1 } ] }",
        "sequence_batching.state[1].output_name",
        "'O' is already the name of another state",
    ),
    (
        "ours",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: -2 } }",
        "sequence_batching.state[0].dims[0]",
        "-2 is not a dimension",
    ),
    (
        "SequenceBatchScheduler::Create",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: 1
            initial_state [ { name: 'A' data_type: TYPE_FP32 dims: 1 zero_data: true },
                            { name: 'B' data_type: TYPE_FP32 dims: 1 zero_data: true } ] } }",
        "sequence_batching.state[0].initial_state",
        "has 2 entries, must have at most one",
    ),
    (
        "SequenceBatchScheduler::GenerateInitialStateData",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: 1
            initial_state { name: 'A' data_type: TYPE_INT8 dims: 1 zero_data: true } } }",
        "sequence_batching.state[0].initial_state[0].data_type",
        "is TYPE_INT8, must be the state's type, TYPE_FP32",
    ),
    (
        "SequenceBatchScheduler::GenerateInitialStateData",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: 1
            initial_state { data_type: TYPE_FP32 dims: 1 zero_data: true } } }",
        "sequence_batching.state[0].initial_state[0].name",
        "is required",
    ),
    (
        "SequenceBatchScheduler::GenerateInitialStateData",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: 1
            initial_state { name: 'A' data_type: TYPE_FP32 dims: [ 1, 1 ] zero_data: true } } }",
        "sequence_batching.state[0].initial_state[0].dims",
        "[1, 1] and the state's [1] differ in their number",
    ),
    (
        "SequenceBatchScheduler::GenerateInitialStateData",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: -1
            initial_state { name: 'A' data_type: TYPE_FP32 dims: -1 zero_data: true } } }",
        "sequence_batching.state[0].initial_state[0].dims[0]",
        "is -1, must be the size at the start of a sequence",
    ),
    (
        "SequenceBatchScheduler::GenerateInitialStateData",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: 2
            initial_state { name: 'A' data_type: TYPE_FP32 dims: 3 zero_data: true } } }",
        "sequence_batching.state[0].initial_state[0].dims[0]",
        "is 3, must be 2 as in the state",
    ),
    (
        "SequenceBatchScheduler::GenerateInitialStateData",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: 2
            initial_state { name: 'A' data_type: TYPE_FP32 dims: 2 } } }",
        "sequence_batching.state[0].initial_state[0]",
        "needs zero_data or data_file",
    ),
    (
        "ours",
        "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: [-1, -1]
            initial_state { name: 'A' data_type: TYPE_FP32 dims: [ 4294967296, 4294967296 ] zero_data: true } } }",
        "sequence_batching.state[0].initial_state[0].dims",
        "more elements than can be counted",
    ),
    // Warm-up.
    (
        "TritonModelInstance::GenerateWarmupData",
        "backend: 'b' model_warmup { batch_size: 1
            inputs { key: 'IMAGE' value { data_type: TYPE_FP32 dims: [ 3, -1 ] zero_data: true } } }",
        "model_warmup[0].inputs[\"IMAGE\"].dims[1]",
        "is -1, must be a concrete size",
    ),
    (
        "TritonModelInstance::GenerateWarmupData",
        "backend: 'b' model_warmup { batch_size: 1
            inputs { key: 'IMAGE' value { data_type: TYPE_FP32 dims: [ 3, 1 ] } } }",
        "model_warmup[0].inputs[\"IMAGE\"]",
        "needs zero_data, random_data or input_data_file",
    ),
    (
        "InferenceRequest::ValidateRequestInputs",
        "backend: 'b' model_warmup { batch_size: 1
            inputs { key: 'IMGE' value { data_type: TYPE_FP32 dims: [ 3, 1 ] zero_data: true } } }",
        "model_warmup[0].inputs",
        "missing input 'IMAGE'; is it misspelled as 'IMGE'?",
    ),
    (
        "InferenceRequest::Normalize",
        "backend: 'b' model_warmup { batch_size: 1
            inputs { key: 'IMAGE' value { data_type: TYPE_INT8 dims: [ 3, 1 ] zero_data: true } } }",
        "model_warmup[0].inputs[\"IMAGE\"].data_type",
        "is TYPE_INT8, must be the input's type, TYPE_FP32",
    ),
    (
        "InferenceRequest::Normalize",
        "backend: 'b' model_warmup { batch_size: 1
            inputs { key: 'IMAGE' value { data_type: TYPE_FP32 dims: [ 1, 3, 1 ] random_data: true } } }",
        "model_warmup[0].inputs[\"IMAGE\"].dims",
        "[1, 3, 1] does not match the input's dims [3, -1]",
    ),
    (
        "ours",
        "backend: 'b' model_warmup { batch_size: 1
            inputs { key: 'IMAGE' value { data_type: TYPE_FP32 dims: [ 3, 9223372036854775807 ] zero_data: true } } }",
        "model_warmup[0].inputs[\"IMAGE\"].dims",
        "is too large",
    ),
    (
        "ours",
        "backend: 'b' model_warmup { batch_size: 65537
            inputs { key: 'IMAGE' value { data_type: TYPE_FP32 dims: [ 3, 1 ] zero_data: true } } }",
        "model_warmup[0].batch_size",
        "is 65537, must be at most 65536",
    ),
    // The rest.
    (
        "CreateAgentModelListWithLoadAction",
        "backend: 'b' model_repository_agents { agents { } }",
        "model_repository_agents.agents[0].name",
        "is required",
    ),
    (
        "CreateAgentModelListWithLoadAction (2.51 goes down)",
        "backend: 'b' model_repository_agents { }",
        "model_repository_agents",
        "names no agent",
    ),
    (
        "ValidateModelMetrics",
        "backend: 'b' model_metrics { metric_control { histogram_options { buckets: 1 } } }",
        "model_metrics.metric_control[0].metric_identifier",
        "is required",
    ),
    (
        "ValidateModelMetrics",
        "backend: 'b' model_metrics { metric_control { metric_identifier { } histogram_options { buckets: 1 } } }",
        "model_metrics.metric_control[0].metric_identifier.family",
        "is required",
    ),
    (
        "ValidateModelMetrics",
        "backend: 'b' model_metrics { metric_control { metric_identifier { family: 'f' } } }",
        "model_metrics.metric_control[0].histogram_options",
        "is required",
    ),
    (
        "ValidateModelMetrics",
        "backend: 'b' model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { } } }",
        "model_metrics.metric_control[0].histogram_options.buckets",
        "is required",
    ),
    (
        "ours",
        "backend: 'b' model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { buckets: [ 1, 1 ] } } }",
        "model_metrics.metric_control[0].histogram_options.buckets",
        "must ascend",
    ),
    (
        "ours",
        "backend: 'b' model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { buckets: nan } } }",
        "model_metrics.metric_control[0].histogram_options.buckets",
        "must ascend",
    ),
    (
        "ours",
        "backend: 'b' optimization { priority: 9 }",
        "optimization.priority",
        "9 is not a valid value, must be one of PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN",
    ),
];

#[test]
fn each_rule_reports_its_field_and_reason() {
    for (source, more, field, reason) in RULES {
        // The text format refuses repeated fields.
        let start = if more.contains("max_batch_size") {
            START.replace("max_batch_size: 8", "")
        } else {
            START.into()
        };
        let config = parse_text(&(start + more)).unwrap();
        let errors = validate(&config).expect_err(more);
        let [error] = errors.errors() else { panic!("{source}: {more}\n{errors:#?}") };
        assert_eq!(error.field(), *field, "{source}: {more}");
        assert!(error.reason().contains(reason), "{source}: {more}\n{error}");
    }
}

/// Configurations that nearly break a rule.
const FINE: &[&str] = &[
    "backend: 'b' runtime: 'a/../x.so'",
    "backend: 'b' output { name: 'O' data_type: TYPE_FP32 dims: 1 label_filename: '/labels.txt' }",
    "backend: 'b' batch_input { data_type: TYPE_FP32 source_input: 'IMAGE' }",
    "backend: 'tensorrt' instance_group { profile: [ '0', '12' ] }",
    "backend: 'b' instance_group [ { count: 4000 }, { gpus: [ 0, 1 ] count: 48 } ]",
    "backend: 'b' instance_group { rate_limiter { resources [ { name: 'r' count: 1 }, { name: 's' global: true } ] } }",
    "backend: 'b' dynamic_batching { priority_levels: 2 default_priority_level: 2
        priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }",
    "backend: 'b' dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1
        default_queue_policy { timeout_action: DELAY } }",
    "backend: 'b' dynamic_batching { priority_queue_policy { key: 3 value { } } }",
    "backend: 'b' sequence_batching { direct { minimum_slot_utilization: 1 } control_input [
        { name: 'C' control [ { fp32_false_true: [ 0, 1 ] }, { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
        { name: 'D' control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } },
        { name: 'E' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } ] }",
    "backend: 'b' sequence_batching { state { input_name: 'I' output_name: 'SCORES' data_type: TYPE_FP32 dims: [ -1, 2 ]
        initial_state { name: 'A' data_type: TYPE_FP32 dims: [ 0, 2 ] data_file: 'f' } } }",
    "backend: 'b' model_warmup { batch_size: 0 inputs { key: 'X' value { dims: -1 } } }",
    "backend: 'b' model_warmup { batch_size: 9 count: 2
        inputs { key: 'IMAGE' value { data_type: TYPE_FP32 dims: [ 3, 7 ] zero_data: false } }
        inputs { key: 'OTHER' value { data_type: TYPE_BOOL dims: 0 random_data: true } } }",
    "backend: 'b' response_cache { enable: true }",
    "backend: 'b' model_repository_agents { agents { name: 'checksum' } }",
    "backend: 'b' model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { buckets: 1 } } }",
];

#[test]
fn configurations_near_the_limits_pass() {
    for more in FINE {
        let config = parse_text(&(START.to_owned() + more)).unwrap();
        assert_eq!(validate(&config), Ok(()), "{more}");
    }
}

/// The reference checks inputs and outputs only after the backend has completed them.
#[test]
fn references_to_tensors_are_checked_after_completion() {
    for more in [
        "batch_input { data_type: TYPE_INT32 source_input: 'NEW' }",
        "batch_output { target_name: 'NEW' source_input: 'OTHER' }",
        "model_warmup { batch_size: 1 inputs { key: 'NEW' value { dims: 1 zero_data: true } } }",
        "model_warmup { batch_size: 1 inputs { key: 'IMAGE' value { dims: 1 zero_data: true } } }",
    ] {
        let config = parse_text(&format!("{START} backend: 'b' {more}")).unwrap();
        assert_eq!(super::super::validate(&config, Stage::BeforeCompletion), Ok(()), "{more}");
        assert!(validate(&config).is_err(), "{more}");
    }
}

#[test]
fn nearest_name_is_exposed() {
    let text = format!("{START} backend: 'b' batch_output {{ target_name: 'SCORE' source_input: 'X' }}");
    let errors = validate(&parse_text(&text).unwrap()).unwrap_err();
    let nearest: Vec<_> = errors.errors().iter().map(|error| error.nearest()).collect();
    assert_eq!(nearest, [None, Some("SCORES")]);
}
