//! Everything that must pass before a change lands, step by step.
//!
//! Knows the order of the steps and how to start each, not what they check.

mod background;
mod crates;
mod python;
mod repeat;
mod sanitize;
mod semver;

use std::env;
use std::fmt;
use std::fs;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use cargo_metadata::Message;
use clap::ValueEnum;

use crate::package::{self, wheel};
use crate::project::{Project, line_of, show};
use crate::venv::Venv;
use crate::{bench, deny, docs, fetch, tidy};
use background::Background;

/// Processor seconds per run in which the embedded engine is tested with new random changes of ONNX files.
const FUZZ_SECONDS: &str = "120";

/// The test that does so: its package, its target and its name.
const FUZZ: (&str, &str, &str) =
    ("nereid-tract", "corpus", "other_changes_in_each_run_are_served_or_refused");

/// The variable that names the folder of packages under test.
const PACKAGES: &str = "NEREID_PACKAGES";

/// The packages for the tests of the step `quick`.
const QUICK_REQUIREMENTS: &str = "requirements-quick.txt";

/// Further packages for the step `guides`.
const GUIDE_REQUIREMENTS: &str = "requirements-guides.txt";

/// Further packages for the step `ai-clients`.
const AI_CLIENT_REQUIREMENTS: &str = "requirements-ai-clients.txt";

/// Further packages for the step `language-oracles`.
const LANGUAGE_ORACLE_REQUIREMENTS: &str = "requirements-language-oracles.txt";

/// NVIDIA Dynamo's parsers of tool calls: the crate with its release, and the program in it that reads outputs.
const DYNAMO_PARSERS: (&str, &str) = ("dynamo-parsers@11.0.1", "record_dynamo_batch");

/// Further packages for the benchmark `operations`.
const OPERATIONS_REQUIREMENTS: &str = "requirements-operations.txt";

/// One step of the test run, in order: quick ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Step {
    /// Formatting of the Rust code
    Fmt,
    /// The rules of the house
    Tidy,
    /// Licences, bans, sources and advisories of the dependencies
    Deny,
    /// Lints, formatting and types of the Python code
    Python,
    /// The documentation as a site, with every link and heading checked
    Docs,
    /// Lints and links of the Rust documentation, warnings refused
    Clippy,
    /// Rust tests of the whole workspace
    Unit,
    /// Instructions per request, against the committed baseline (release build of a small server)
    Guard,
    /// The server's development binary
    Build,
    /// Real clients against that binary (builds it)
    E2e,
    /// Those of the tests that need no download but small Python packages (with fmt, tidy, python, clippy and unit); runs only if named
    Quick,
    /// Models through Dragonfly's real daemon, whose first build takes 20 minutes; runs only if named
    Dragonfly,
    /// Nereid under NVIDIA Dynamo and on a cluster of Ray; runs only if named
    Clusters,
    /// Examples of the guides whose frameworks and languages the other tests do not need; runs only if named
    Guides,
    /// Clients of OpenAI's interface in Python and JavaScript, as they are released; runs only if named
    AiClients,
    /// Language models against transformers' prompts, Dynamo's parsers and Triton's vLLM backend; runs only if named
    LanguageOracles,
    /// Hundreds of models on a server with memory for a part of them, while everything goes wrong, for ten minutes, as the superuser; runs only if named
    ManyModels,
    /// Promised releases of the frameworks' libraries, CPython and Redis, before a release; runs only if named
    Versions,
    /// Tests of the crates with unsafe code under AddressSanitizer; runs only if named
    Sanitize,
    /// The crates for programs of others, packaged, built from their packages and compared with their last release; runs only if named
    Crates,
    /// All packages, as shipped, installed and started on clean machines, as the superuser; runs only if named
    Packages,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Deny => "deny",
            Self::Python => "python",
            Self::Docs => "docs",
            Self::Clippy => "clippy",
            Self::Unit => "unit",
            Self::Guard => "guard",
            Self::Build => "build",
            Self::E2e => "e2e",
            Self::Quick => "quick",
            Self::Dragonfly => "dragonfly",
            Self::Clusters => "clusters",
            Self::Guides => "guides",
            Self::AiClients => "ai-clients",
            Self::LanguageOracles => "language-oracles",
            Self::ManyModels => "many-models",
            Self::Versions => "versions",
            Self::Sanitize => "sanitize",
            Self::Crates => "crates",
            Self::Packages => "packages",
        })
    }
}

/// Runs the named steps, or the default ones, and closes with one line that sums them up.
pub fn run(project: &Project, named: &[Step]) -> Result<()> {
    let plan = plan(named);
    let start = Instant::now();
    let mut passed = Vec::new();
    let mut background = BackgroundCommands { no_fuzz: plan.contains(&Step::Quick), ..Default::default() };
    if plan.contains(&Step::E2e) {
        let mut fetch = project.command(env::current_exe()?);
        background.fetch = Some(Background::start(project, "fetch", fetch.args(["fetch", "tests"]))?);
    }
    for (position, step) in plan.iter().enumerate() {
        println!("\n=== {step} ({} of {})", position + 1, plan.len());
        let start = Instant::now();
        let result = step.run(project, &mut background).and_then(|()| background.check());
        let took = start.elapsed();
        if let Err(error) = result {
            println!("=== {step} failed after {}", seconds(took));
            return Err(anyhow!("{error:#}")).context(failure(*step, &passed, &plan[position + 1..]));
        }
        println!("=== {step} passed in {}", seconds(took));
        passed.push((*step, took));
    }
    if let Some(fuzz) = background.fuzz {
        let (name, waited) = fuzz.finish()?;
        println!("\n=== {name} passed, {} after the last step", seconds(waited));
    }
    println!("\nxtask test: passed in {}: {}", seconds(start.elapsed()), list(&passed));
    Ok(())
}

/// The background commands of a test run.
#[derive(Default)]
struct BackgroundCommands {
    /// Fetches what the end-to-end tests need.
    fetch: Option<Background>,
    /// Random changes of ONNX files.
    fuzz: Option<Background>,
    /// Leaves them out.
    no_fuzz: bool,
}

impl BackgroundCommands {
    /// Fails if a background command has failed. The tests fetch any missing file again.
    fn check(&mut self) -> Result<()> {
        self.fuzz.as_mut().map_or(Ok(()), Background::check)
    }
}

/// The steps to run, in order, without duplicates, with the steps that they require.
fn plan(named: &[Step]) -> Vec<Step> {
    if named.is_empty() {
        return Step::value_variants().iter().copied().filter(|step| !step.only_if_named()).collect();
    }
    let mut plan = named.to_vec();
    if plan.contains(&Step::Quick) {
        plan.extend([Step::Fmt, Step::Tidy, Step::Python, Step::Clippy, Step::Unit]);
    }
    if plan.iter().any(|step| step.needs_binary()) {
        plan.push(Step::Build);
    }
    plan.sort();
    plan.dedup();
    plan
}

impl Step {
    /// Steps outside of the default run.
    fn only_if_named(self) -> bool {
        use Step::{
            AiClients, Clusters, Crates, Dragonfly, Guides, LanguageOracles, ManyModels, Packages, Quick,
            Sanitize, Versions,
        };
        matches!(
            self,
            Quick
                | Dragonfly
                | Clusters
                | Guides
                | AiClients
                | LanguageOracles
                | ManyModels
                | Versions
                | Sanitize
                | Crates
                | Packages
        )
    }

    /// Steps that start the server's development binary.
    fn needs_binary(self) -> bool {
        use Step::{
            AiClients, Clusters, Dragonfly, E2e, Guides, LanguageOracles, ManyModels, Quick, Versions,
        };
        matches!(
            self,
            E2e | Quick | Dragonfly | Clusters | Guides | AiClients | LanguageOracles | ManyModels | Versions
        )
    }

    fn run(self, project: &Project, background: &mut BackgroundCommands) -> Result<()> {
        match self {
            Self::Fmt => {
                show(&mut project.cargo(&["fmt", "--all", "--", "--check"]))?;
                // The fuzz targets are a separate workspace.
                show(&mut project.cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--", "--check"]))
            }
            Self::Tidy => tidy::run(project),
            Self::Deny => deny::run(project, &deny::Deny::default()),
            Self::Python => python::run(project),
            Self::Docs => docs::run(project, &docs::Docs::default()),
            Self::Clippy => {
                for features in [&[][..], &["--no-default-features"]] {
                    let clippy = ["clippy", "--workspace", "--all-targets"];
                    show(project.cargo(&clippy).args(features).args(["--", "-D", "warnings"]))?;
                }
                let mut doc = project.cargo(&["doc", "--workspace", "--no-deps"]);
                show(doc.env("RUSTDOCFLAGS", "-D warnings"))
            }
            Self::Unit => {
                let program = build_tests(project)?;
                if !background.no_fuzz {
                    // Runs at low priority behind the other steps.
                    let mut fuzz = project.command("nice");
                    fuzz.arg(program)
                        .args([FUZZ.2, "--exact", "--nocapture"])
                        .env("NEREID_FUZZ_SECONDS", FUZZ_SECONDS);
                    background.fuzz = Some(Background::start(project, "fuzz", &mut fuzz)?);
                }
                show(&mut project.cargo(&["test", "--workspace"]))
            }
            Self::Guard => bench::guard(project),
            // Builds the whole workspace with its tests, so that nothing is built twice.
            Self::Build => show(&mut project.cargo(&["build", "--workspace", "--all-targets"])),
            Self::E2e => end_to_end(project, background),
            Self::Quick => quick(project),
            Self::Dragonfly => dragonfly(project),
            Self::Clusters => clusters(project),
            Self::Guides => guides(project),
            Self::AiClients => ai_clients(project),
            Self::LanguageOracles => language_oracles(project),
            Self::ManyModels => many_models(project),
            Self::Versions => versions(project),
            Self::Sanitize => sanitize::run(project),
            Self::Crates => crates::run(project),
            Self::Packages => packages(project),
        }
    }
}

/// The Python environment of the end-to-end tests.
pub fn end_to_end_environment(project: &Project) -> Result<Venv> {
    let all = requirements(project, "requirements.txt")?;
    let quick = requirements(project, QUICK_REQUIREMENTS)?;
    // The text has to be complete: it identifies the environment.
    Venv::with(project, "end-to-end", &all.replace(&format!("-r {QUICK_REQUIREMENTS}\n"), &quick))
}

/// The environment of the benchmark `operations`, with the clients of the tests.
pub fn operations_environment(project: &Project) -> Result<Venv> {
    let quick = requirements(project, QUICK_REQUIREMENTS)?;
    Venv::with(project, "operations", &(quick + &requirements(project, OPERATIONS_REQUIREMENTS)?))
}

fn requirements(project: &Project, name: &str) -> Result<String> {
    let list = project.root.join("tests/end_to_end").join(name);
    fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))
}

/// Builds the tests of the workspace. Returns the program with the fuzz test.
fn build_tests(project: &Project) -> Result<PathBuf> {
    let mut cargo = project.cargo(&["test", "--workspace", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let line = line_of(&cargo);
    println!("$ {line}");
    let mut child = cargo.spawn()?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut program = None;
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message?
            && artifact.target.is_test()
            && artifact.target.name == FUZZ.1
            && artifact.package_id.repr.contains(FUZZ.0)
        {
            program = artifact.executable;
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    let program = program.with_context(|| format!("package {} has no test {}", FUZZ.0, FUZZ.1))?;
    Ok(program.into_std_path_buf())
}

/// Runs the clients' tests against the binary that the build step left.
fn end_to_end(project: &Project, background: &mut BackgroundCommands) -> Result<()> {
    if let Some(Err(error)) = background.fetch.take().map(Background::finish) {
        println!("{error:#}; the tests try again");
    }
    fetch::examples(project)?;
    wheel::pack(project, "dev")?;
    let venv = end_to_end_environment(project)?;
    let mut all = pytest_command(
        project,
        &venv,
        &["tests/end_to_end", "--dist", "loadfile", "-n", &workers().to_string()],
    );
    repeat::run(&pytest_cache(project), &mut all, |failed| {
        // pytest names tests from the folder of its settings on.
        let names: Vec<_> = failed.iter().map(|name| format!("tests/end_to_end/{name}")).collect();
        pytest_command(project, &venv, &names.iter().map(String::as_str).collect::<Vec<_>>())
    })
}

/// Runs the listed tests in an environment without large packages.
fn quick(project: &Project) -> Result<()> {
    let venv = Venv::with(project, "end-to-end-quick", &requirements(project, QUICK_REQUIREMENTS)?)?;
    let list = "@tests/end_to_end/quick.txt";
    pytest(project, &venv, &[list, "--dist", "loadfile", "-n", &workers().to_string()])
}

/// Runs the tests with the daemon, which they build.
fn dragonfly(project: &Project) -> Result<()> {
    pytest(project, &end_to_end_environment(project)?, &["tests/end_to_end/clouds/real_dragonfly.py"])
}

/// Runs the tests with the programs of clusters, which they fetch.
fn clusters(project: &Project) -> Result<()> {
    wheel::pack(project, "dev")?;
    let files = [
        "dynamo_workers",
        "dynamo_page",
        "ray_fleet",
        "ray_page",
        "ray_serve",
        "ray_serve_haproxy",
        "ray_serve_page",
    ]
    .map(|file| format!("tests/end_to_end/clusters/{file}.py"));
    pytest(project, &end_to_end_environment(project)?, &files.each_ref().map(String::as_str))
}

/// Follows the guides that need further frameworks, in an environment of their own, and languages, which have to be installed.
fn guides(project: &Project) -> Result<()> {
    let quick = requirements(project, QUICK_REQUIREMENTS)?;
    let venv = Venv::with(project, "guides", &(quick + &requirements(project, GUIDE_REQUIREMENTS)?))?;
    let files =
        ["framework_exports.py", "other_clients.py"].map(|file| format!("tests/end_to_end/guides/{file}"));
    let mut pytest = pytest_command(project, &venv, &files.each_ref().map(String::as_str));
    // An export takes minutes on a busy machine.
    show(pytest.args(["-o", "faulthandler_timeout=900"]))
}

/// Runs the clients of OpenAI's interface, in an environment of their own. node has to be installed.
fn ai_clients(project: &Project) -> Result<()> {
    let quick = requirements(project, QUICK_REQUIREMENTS)?;
    let venv = Venv::with(project, "ai-clients", &(quick + &requirements(project, AI_CLIENT_REQUIREMENTS)?))?;
    let files = ["python_ai_clients.py", "python_ai_editors.py", "javascript_ai_clients.py"]
        .map(|file| format!("tests/end_to_end/clients/{file}"));
    pytest(project, &venv, &files.each_ref().map(String::as_str))
}

/// Compares prompts with transformers and tool calls with NVIDIA Dynamo's parsers, which it builds, and runs Triton's vLLM backend.
fn language_oracles(project: &Project) -> Result<()> {
    let quick = requirements(project, QUICK_REQUIREMENTS)?;
    let venv = Venv::with(
        project,
        "language-oracles",
        &(quick + &requirements(project, LANGUAGE_ORACLE_REQUIREMENTS)?),
    )?;
    let files =
        ["frameworks/chat_templates.py", "frameworks/tool_call_oracle.py", "python/real_vllm_backend.py"];
    let files = files.map(|file| format!("tests/end_to_end/{file}"));
    let mut pytest = pytest_command(project, &venv, &files.each_ref().map(String::as_str));
    // Fetching the templates takes minutes on a busy machine.
    pytest.args(["-o", "faulthandler_timeout=900"]);
    show(pytest.env("NEREID_DYNAMO_PARSERS", dynamo_parsers(project)?))
}

/// Builds the program of Dynamo's parsers, unless it is there. It takes minutes.
fn dynamo_parsers(project: &Project) -> Result<PathBuf> {
    let (package, program) = DYNAMO_PARSERS;
    let home = project.scratch("dynamo-parsers");
    let (root, target) = (home.join(package), home.join("target"));
    let path = root.join("bin").join(program);
    if !path.exists() {
        let mut install =
            project.cargo(&["install", "--quiet", "--locked", "--debug", package, "--bin", program]);
        install.arg("--root").arg(&root).arg("--target-dir").arg(&target);
        show(install.env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
        fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))?;
    }
    Ok(path)
}

/// Runs the long form of the test of many models, which prints what happened.
fn many_models(project: &Project) -> Result<()> {
    let file = "tests/end_to_end/models/many_models.py";
    let mut pytest = pytest_command(project, &end_to_end_environment(project)?, &[file, "--capture=no"]);
    show(pytest.args(["-o", "faulthandler_timeout=1800"]))
}

/// Runs the tests with every promised release, which they fetch.
fn versions(project: &Project) -> Result<()> {
    let files = [
        "clients/openai_releases.py",
        "frameworks/library_versions.py",
        "frameworks/llamacpp_releases.py",
        "frameworks/many_language_requests.py",
        "frameworks/test_language_traffic.py",
        "python/python_versions.py",
        "scheduling/redis_versions.py",
    ];
    let files = files.map(|file| format!("tests/end_to_end/{file}"));
    let files = files.each_ref().map(String::as_str);
    let mut pytest = pytest_command(project, &end_to_end_environment(project)?, &files);
    // The requests take minutes.
    pytest.args(["-o", "faulthandler_timeout=1800"]);
    pytest.env("NEWEST_LLAMACPP", fetch::llama_server::build(project)?.library);
    show(pytest.env("NEREID_LANGUAGE_REQUESTS", "10000"))
}

/// Makes the packages and installs them on clean machines. `NEREID_PACKAGES` names a folder of packages made before.
fn packages(project: &Project) -> Result<()> {
    let environment = end_to_end_environment(project)?;
    let folder = match env::var_os(PACKAGES) {
        Some(folder) => PathBuf::from(folder),
        None => package::for_tests(project)?,
    };
    let tests = "tests/end_to_end/packages";
    let files = ["archive", "bill_of_materials", "deb", "image", "wheel"];
    let files = files.map(|file| format!("{tests}/{file}.py"));
    let mut pytest = pytest_command(project, &environment, &files.each_ref().map(String::as_str));
    // Making a clean machine takes minutes. The only server that these tests start is the packaged one.
    pytest.args(["-o", "faulthandler_timeout=900"]);
    pytest.env("NEREID_BINARY", "/bin/true").env(PACKAGES, folder).env("NEREID_XTASK", env::current_exe()?);
    show(&mut pytest)
}

/// Runs tests. Those of a file share servers and take measurements, so a file's run sequentially.
fn pytest(project: &Project, venv: &Venv, arguments: &[&str]) -> Result<()> {
    show(&mut pytest_command(project, venv, arguments))
}

fn pytest_command(project: &Project, venv: &Venv, arguments: &[&str]) -> Command {
    let mut command = venv.command(project, &["-m", "pytest"]);
    command.args(arguments);
    command.arg("-o").arg(format!("cache_dir={}", pytest_cache(project).display()));
    command.env("NEREID_BINARY", project.target.join("debug/nereid"));
    command
}

fn pytest_cache(project: &Project) -> PathBuf {
    project.scratch("pytest-cache")
}

/// Number of end-to-end test files to run in parallel. The tests wait longer than they compute, so there are three times as
/// many workers as processors, plus one, but not more, so as not to disturb tests that measure time.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(5, |processors| (3 * processors.get() + 1).min(8))
}

fn failure(step: Step, passed: &[(Step, Duration)], left: &[Step]) -> String {
    let mut line = format!("test: FAILED at {step}");
    if !passed.is_empty() {
        line += &format!(" (passed: {})", list(passed));
    }
    if !left.is_empty() {
        let left: Vec<_> = left.iter().map(Step::to_string).collect();
        line += &format!(" (not run: {})", left.join(", "));
    }
    line
}

fn list(steps: &[(Step, Duration)]) -> String {
    steps.iter().map(|(step, took)| format!("{step} {}", seconds(*took))).collect::<Vec<_>>().join(", ")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_arguments_select_every_step_in_order() {
        assert_eq!(
            plan(&[]),
            [
                Step::Fmt,
                Step::Tidy,
                Step::Deny,
                Step::Python,
                Step::Docs,
                Step::Clippy,
                Step::Unit,
                Step::Guard,
                Step::Build,
                Step::E2e
            ]
        );
    }

    #[test]
    fn named_steps_run_once_and_in_the_fixed_order() {
        assert_eq!(plan(&[Step::Unit, Step::Fmt, Step::Unit]), [Step::Fmt, Step::Unit]);
        assert_eq!(plan(&[Step::Sanitize]), [Step::Sanitize]);
        assert_eq!(plan(&[Step::Packages, Step::Crates]), [Step::Crates, Step::Packages]);
    }

    #[test]
    fn end_to_end_step_includes_the_build() {
        assert_eq!(plan(&[Step::E2e]), [Step::Build, Step::E2e]);
        assert_eq!(plan(&[Step::Dragonfly]), [Step::Build, Step::Dragonfly]);
        assert_eq!(plan(&[Step::Clusters]), [Step::Build, Step::Clusters]);
        assert_eq!(plan(&[Step::AiClients]), [Step::Build, Step::AiClients]);
        assert_eq!(plan(&[Step::LanguageOracles]), [Step::Build, Step::LanguageOracles]);
        assert_eq!(plan(&[Step::ManyModels]), [Step::Build, Step::ManyModels]);
        assert_eq!(plan(&[Step::Versions]), [Step::Build, Step::Versions]);
        assert_eq!(
            plan(&[Step::Quick]),
            [Step::Fmt, Step::Tidy, Step::Python, Step::Clippy, Step::Unit, Step::Build, Step::Quick]
        );
    }

    #[test]
    fn steps_display_their_command_line_names() {
        for step in Step::value_variants() {
            assert_eq!(step.to_possible_value().unwrap().get_name(), step.to_string());
        }
    }

    #[test]
    fn failure_lists_passed_and_skipped_steps() {
        let line =
            failure(Step::Tidy, &[(Step::Fmt, Duration::from_millis(1500))], &[Step::Deny, Step::Unit]);
        assert_eq!(line, "test: FAILED at tidy (passed: fmt 1.5 s) (not run: deny, unit)");
    }
}
