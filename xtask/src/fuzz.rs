//! Runs the fuzz targets, each for a limited time, on a copy of their corpus.
//!
//! The targets define the properties. They build with the stable compiler: without a sanitizer libFuzzer needs no
//! other, and in code without `unsafe` a sanitizer finds no more than a plain build.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::project::{Project, show};

/// The version to build if none is installed.
const CARGO_FUZZ: &str = "0.13.1";

/// Configurations as text and as JSON, which other tests have for themselves.
const CONFIGS: &str = "crates/api/model-config/tests/configs";

/// Which targets run, and for how long.
#[derive(Args)]
pub struct Fuzz {
    /// Run only these targets [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<Target>,
    /// Duration of each target
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u32,
}

/// One program of `fuzz/fuzz_targets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The text format's readers and its printer
    Text,
    /// A configuration from its text to what is served
    Config,
    /// The JSON reader and writer
    Json,
    /// A body of an inference request over HTTP to a request, and tensors to JSON
    Infer,
    /// A body of the generate extension to a request
    Generate,
    /// A ModelInfer message of gRPC to a request
    #[value(name = "grpc_infer")]
    GrpcInfer,
    /// Bytes of a gRPC connection to frames, and of a call to messages
    #[value(name = "grpc_bytes")]
    GrpcBytes,
    /// Texts that a backend passes across the C boundary
    #[value(name = "c_texts")]
    CTexts,
    /// An entry of a response cache outside of the server
    #[value(name = "cache_entry")]
    CacheEntry,
    /// An ONNX file in the embedded engine, and requests to its model
    Onnx,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Config => "config",
            Self::Json => "json",
            Self::Infer => "infer",
            Self::Generate => "generate",
            Self::GrpcInfer => "grpc_infer",
            Self::GrpcBytes => "grpc_bytes",
            Self::CTexts => "c_texts",
            Self::CacheEntry => "cache_entry",
            Self::Onnx => "onnx",
        }
    }

    /// Folders with seed inputs, relative to the root.
    fn corpus(self) -> &'static [&'static str] {
        match self {
            Self::Text | Self::Config => {
                &["fuzz/corpus/config", "crates/api/model-config/src/text/tests", CONFIGS]
            }
            Self::Json => &["fuzz/corpus/json", CONFIGS],
            Self::Infer => &["fuzz/corpus/infer"],
            Self::Generate => &["fuzz/corpus/generate"],
            Self::GrpcInfer => &["fuzz/corpus/grpc_infer"],
            Self::GrpcBytes => &["fuzz/corpus/grpc_bytes"],
            Self::CTexts => &["fuzz/corpus/c_texts", CONFIGS],
            Self::CacheEntry => &["fuzz/corpus/cache_entry"],
            Self::Onnx => &["fuzz/corpus/onnx"],
        }
    }
}

/// Runs the named targets, or all. The first input that breaks one ends it, and stays in `fuzz/artifacts`.
pub fn run(project: &Project, fuzz: &Fuzz) -> Result<()> {
    let program = find(project)?;
    let dictionary = write_dictionary(project)?;
    let targets = if fuzz.targets.is_empty() { Target::value_variants() } else { &fuzz.targets };
    for target in targets {
        // New inputs are kept here, so that the next run starts from them; the corpus itself stays unchanged.
        let found = project.scratch("fuzz").join(target.name());
        fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
        show(
            project
                .command(&program)
                .args(["fuzz", "run", "--sanitizer", "none", "--target-dir"])
                .arg(project.target.join("fuzz"))
                .arg(target.name())
                .arg(&found)
                .args(target.corpus())
                .arg("--")
                .arg(format!("-max_total_time={}", fuzz.seconds))
                .arg(format!("-dict={}", dictionary.display()))
                // An input that takes ten seconds or two gigabytes is a finding too.
                .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]),
        )
        .with_context(|| {
            format!("'{}' broke; its input is in fuzz/artifacts/{0}: add it to fuzz/corpus", target.name())
        })?;
    }
    println!("xtask fuzz: {} targets, {} seconds each: nothing found", targets.len(), fuzz.seconds);
    Ok(())
}

/// The cargo-fuzz on the path, or else one built here once.
fn find(project: &Project) -> Result<PathBuf> {
    let installed = PathBuf::from("cargo-fuzz");
    let works = |program: &PathBuf| {
        let asked =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    if works(&installed) {
        return Ok(installed);
    }
    let folder = project.scratch("cargo-fuzz");
    let own = folder.join("bin/cargo-fuzz");
    if !works(&own) {
        show(
            project
                .cargo(&["install", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ, "--root"])
                .arg(&folder),
        )?;
    }
    Ok(own)
}

/// Gives the fuzzer the schema's words, which it would hardly think up.
fn write_dictionary(project: &Project) -> Result<PathBuf> {
    let schema = project.root.join("proto/model_config.proto");
    let text = fs::read_to_string(&schema).with_context(|| format!("cannot read {}", schema.display()))?;
    let words = dictionary(&text);
    if words.is_empty() {
        bail!("{} has no words", schema.display());
    }
    let folder = project.scratch("fuzz");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join("dictionary.txt");
    fs::write(&file, words).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// The words of the schema outside its comments, a line each, in quotes.
fn dictionary(schema: &str) -> String {
    let code = schema.lines().map(|line| line.split("//").next().unwrap_or_default());
    let words = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let mut words: Vec<_> =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())).collect();
    words.sort_unstable();
    words.dedup();
    words.iter().map(|word| format!("\"{word}\"\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_has_each_word_of_the_schema_once() {
        let schema = "// A comment.\nmessage Model { // more\n  string name = 1;\n  string TYPE_2 = 2;\n}\n";
        assert_eq!(dictionary(schema), "\"Model\"\n\"TYPE_2\"\n\"message\"\n\"name\"\n\"string\"\n");
    }

    #[test]
    fn every_target_has_its_program_and_its_corpus() {
        let project = Project::find().unwrap();
        let mut programs: Vec<_> = fs::read_dir(project.root.join("fuzz/fuzz_targets"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        programs.sort();
        let mut named: Vec<_> =
            Target::value_variants().iter().map(|target| format!("{}.rs", target.name())).collect();
        named.sort();
        assert_eq!(programs, named);
        for target in Target::value_variants() {
            for folder in target.corpus() {
                assert!(project.root.join(folder).is_dir(), "{folder}");
            }
        }
    }
}
