//! File names, valid and invalid.

use super::{fails, input, passes, result};

#[test]
fn file_names_outside_the_folder_are_refused() {
    let state = "input_name: 'S' output_name: 'S' data_type: TYPE_FP32 dims: [ 1 ]";
    let initial = "name: 's' data_type: TYPE_FP32 dims: [ 1 ]";
    let fields = [
        ("default_model_filename", "default_model_filename: 'NAME'".to_owned()),
        (r#"cc_model_filenames["8.0"]"#, "cc_model_filenames { key: '8.0' value: 'NAME' }".to_owned()),
        (
            "output[0].label_filename",
            "output { name: 'O' data_type: TYPE_FP32 dims: [ 1 ] label_filename: 'NAME' }".to_owned(),
        ),
        (
            r#"model_warmup[0].inputs["I"].input_data_file"#,
            format!(
                "{} model_warmup {{ name: 'w' batch_size: 1 inputs {{ key: 'I' value {{ data_type: TYPE_FP32 \
                 dims: [ 1 ] input_data_file: 'NAME' }} }} }}",
                input("dims: [ 1 ]")
            ),
        ),
        (
            "sequence_batching.state[0].initial_state[0].data_file",
            format!(
                "sequence_batching {{ state {{ {state} initial_state {{ {initial} data_file: 'NAME' }} }} }}"
            ),
        ),
    ];
    for (field, text) in &fields {
        for good in ["file", "deep/file", "./file", "..file", "file.."] {
            passes(&text.replace("NAME", good));
        }
        for bad in ["..", "../file", "deep/../../file", "deep/../file", "deep/.."] {
            let reason = format!("'{bad}' must stay within the model's folder: a relative path without '..'");
            fails(&text.replace("NAME", bad), &format!("model 'm', field '{field}': {reason}"));
        }
        let absolute = result(&text.replace("NAME", "/dev/zero"));
        // For label files, a leading slash means the folder.
        assert_eq!(absolute.is_ok(), *field == "output[0].label_filename", "{absolute:?}");
    }
}
