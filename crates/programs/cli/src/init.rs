//! `nereid init`: makes a model repository with an example, whose configuration explains itself.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use nereid_assembly::Additions;
use nereid_options::{DEFAULT_REPOSITORY, InitOptions};

use crate::add::sample::word;

/// The name of the example.
const EXAMPLE: &str = "example";

/// The example runs wherever the server runs: its backend is built in, and it needs no file.
const CONFIG: &str = include_str!("example.pbtxt");

const REQUEST: &str = r#"{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,3],"data":[1.5,2,0.1]}]}"#;

/// Prints the next commands.
pub(crate) fn run(options: &InitOptions) -> ExitCode {
    match init(&options.folder) {
        Ok(text) => {
            // The reader may close the pipe early, as `head` does.
            let _ = writeln!(io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nereid init: {error}");
            ExitCode::FAILURE
        }
    }
}

fn init(folder: &Path) -> Result<String, String> {
    let shown = folder.display();
    match fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(true) => {
            return Err(format!("'{shown}' is not empty: name an empty folder, or one that does not exist"));
        }
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("cannot read '{shown}': {error}")),
    }
    let additions = Additions::new(folder)?;
    let model = additions.make(EXAMPLE)?;
    additions.write_config(&model, CONFIG)?;
    additions.place(&model)?;
    let word = word(&folder.to_string_lossy());
    let (serve, add) = match folder == Path::new(DEFAULT_REPOSITORY) {
        true => (String::new(), String::new()),
        false => (format!(" --model-repository={word}"), format!(" --repository={word}")),
    };
    Ok(format!(
        "made the model repository '{shown}' with the model '{EXAMPLE}', whose config.pbtxt explains itself\n\
         serve it: nereid{serve}\n\
         ask it: curl localhost:8000/v2/models/{EXAMPLE}/infer -d '{REQUEST}'\n\
         add your own: nereid add{add} model.onnx"
    ))
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::{Stage, normalise, parse_text, validate};

    use super::*;

    #[test]
    fn example_is_a_valid_configuration_with_comments() {
        let mut config = parse_text(CONFIG).unwrap();
        config.name = EXAMPLE.to_owned();
        normalise(&mut config);
        validate(&config, Stage::Final).unwrap();
        // What is commented out is valid, too.
        let lines = CONFIG.lines().filter_map(|line| line.strip_prefix("#   "));
        let more = lines.collect::<Vec<_>>().join("\n");
        let mut config = parse_text(&format!("{CONFIG}\n{more}")).unwrap();
        assert!(!config.instance_group.is_empty() && config.scheduling_choice.is_some(), "{more}");
        config.name = EXAMPLE.to_owned();
        normalise(&mut config);
        validate(&config, Stage::Final).unwrap();
    }
}
