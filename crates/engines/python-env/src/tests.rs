//! Complete environments, created with this machine's Python.

use std::cell::RefCell;
use std::fs;
use std::process::Command;

use nereid_sandbox::{Level, Policy};
use tempfile::TempDir;

use super::*;

/// A model's folder and a cache.
struct Place {
    root: TempDir,
    policy: Policy,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("model")).unwrap();
        Self { root, policy: Policy::default() }
    }

    /// Under a level, with the model's folder readable.
    fn under(level: Level) -> Self {
        let mut place = Self::new();
        place.policy = Policy { level, readable: vec![place.at("model")], ..Policy::default() };
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn settings(&self) -> Settings {
        Settings { cache: Some(self.at("cache")), ..Settings::default() }
    }

    fn prepare(&self, parameter: Option<&str>) -> (Result<Environment, Error>, Vec<String>) {
        self.prepare_by(&Environments::new(self.settings()), parameter)
    }

    fn prepare_by(
        &self,
        environments: &Environments,
        parameter: Option<&str>,
    ) -> (Result<Environment, Error>, Vec<String>) {
        let lines = RefCell::new(Vec::new());
        let model = self.at("model");
        let requested =
            Requested { model_folder: &model, execution_env_path: parameter, policy: &self.policy };
        let outcome = environments.prepare(&requested, &|line| lines.borrow_mut().push(line.to_owned()));
        (outcome, lines.into_inner())
    }

    /// Packs a folder as a `.tar.gz` in the model's folder.
    fn pack(&self, folder: &str) {
        let done = Command::new("tar")
            .args(["--format=gnu", "-czf"])
            .arg(self.at("model/env.tar.gz"))
            .arg("-C")
            .arg(self.at(folder))
            .arg(".")
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// A virtual environment that contains a module `inside`.
    fn venv(&self, name: &str) -> PathBuf {
        let python = interpreter::of_server(&Settings::default()).unwrap().0.program;
        let folder = self.at(name);
        run(Command::new(python).args(["-m", "venv", "--without-pip"]).arg(&folder));
        let packages = glob(&folder.join("lib"), "python3").join("site-packages");
        fs::write(packages.join("inside.py"), "WORD = 'packed'\n").unwrap();
        folder
    }
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn glob(folder: &Path, start: &str) -> PathBuf {
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(start);
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir() && named(path))
        .unwrap()
}

/// Runs a script with the environment's interpreter; returns its output.
fn python(environment: &Environment, script: &str) -> String {
    let mut command = Command::new(&environment.interpreter);
    command.args(["-c", script]);
    for (name, value) in &environment.variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    run(&mut command)
}

const ARCHIVE: Option<&str> = Some("$$TRITON_MODEL_DIRECTORY/env.tar.gz");

#[test]
fn model_without_requests_gets_the_servers_interpreter() {
    let place = Place::new();
    let (found, lines) = place.prepare(None);
    let found = found.unwrap();
    assert_eq!(
        python(&found, "import sys; print('%d.%d.%d' % sys.version_info[:3])"),
        found.version.to_string()
    );
    assert!(found.variables.is_empty() && lines.is_empty());
    // An empty value counts as unset, and nothing is cached.
    assert_eq!(place.prepare(Some("")).0.unwrap().interpreter, found.interpreter);
    assert!(!place.at("cache").exists());
}

#[test]
fn folder_is_used_in_place() {
    let place = Place::new();
    place.venv("model/env");
    let found = place.prepare(Some("$$TRITON_MODEL_DIRECTORY/env")).0.unwrap();
    assert_eq!(python(&found, "import inside; print(inside.WORD)"), "packed");
    let folder = place.at("model/env").canonicalize().unwrap();
    assert_eq!(python(&found, "import os; print(os.environ['VIRTUAL_ENV'])"), folder.display().to_string());
    assert!(!place.at("cache").exists());
}

#[test]
fn folder_may_only_set_variables() {
    let place = Place::new();
    fs::create_dir_all(place.at("model/env/bin")).unwrap();
    fs::write(place.at("model/env/bin/activate"), "export MARK=4711\n").unwrap();
    let found = place.prepare(Some("$$TRITON_MODEL_DIRECTORY/env")).0.unwrap();
    assert_eq!(found.variables, [("MARK".into(), Some("4711".into()))]);
    assert_eq!(python(&found, "import os; print(os.environ['MARK'])"), "4711");
}

#[test]
fn archive_is_unpacked_once_per_content() {
    let place = Place::new();
    place.venv("packed");
    place.pack("packed");
    let (found, lines) = place.prepare(ARCHIVE);
    let found = found.unwrap();
    assert_eq!(python(&found, "import inside; print(inside.WORD)"), "packed");
    assert!(found.interpreter.starts_with(place.at("cache")), "{}", found.interpreter.display());
    assert!(lines.iter().any(|line| line.starts_with("unpacking ")), "{lines:?}");

    // Another model and server, with equal content under another name.
    fs::rename(place.at("model/env.tar.gz"), place.at("elsewhere.tgz")).unwrap();
    let (again, lines) = place.prepare(Some(place.at("elsewhere.tgz").to_str().unwrap()));
    assert_eq!((again.unwrap().interpreter, lines), (found.interpreter.clone(), Vec::new()));

    fs::write(glob(&place.at("packed/lib"), "python3").join("site-packages/inside.py"), "WORD = 'new'\n")
        .unwrap();
    place.pack("packed");
    let (other, _) = place.prepare(ARCHIVE);
    let other = other.unwrap();
    assert_ne!(other.interpreter, found.interpreter);
    assert_eq!(python(&other, "import inside; print(inside.WORD)"), "new");
    assert_eq!(python(&found, "import inside; print(inside.WORD)"), "packed");
}

#[test]
fn damaged_environment_is_unpacked_again() {
    let place = Place::new();
    place.venv("packed");
    place.pack("packed");
    let environments = Environments::new(place.settings());
    let found = place.prepare_by(&environments, ARCHIVE).0.unwrap();
    let folder = glob(&place.at("cache"), "archive-").join("env");
    let damages: [&dyn Fn(); 3] = [
        &|| fs::remove_dir_all(folder.join("bin")).unwrap(),
        &|| fs::remove_file(folder.join("bin/activate")).unwrap(),
        &|| {
            fs::remove_file(folder.join("bin/python3")).unwrap();
            fs::write(folder.join("bin/python3"), "").unwrap();
        },
    ];
    for damage in damages {
        damage();
        let (again, lines) = place.prepare_by(&environments, ARCHIVE);
        assert_eq!(again.unwrap().interpreter, found.interpreter);
        assert!(lines.iter().any(|line| line.contains("is damaged and will be recreated")), "{lines:?}");
    }
    assert_eq!(python(&found, "import inside; print(inside.WORD)"), "packed");
}

#[test]
fn invalid_archives_are_refused_and_leave_nothing() {
    for (name, part) in
        [("none", "needs a script 'bin/activate'"), ("old", "is Python 3.8.18; models need 3.9 or newer")]
    {
        let place = Place::new();
        fs::create_dir_all(place.at("packed/bin")).unwrap();
        fs::write(place.at("packed/readme"), "").unwrap();
        if name == "old" {
            use std::os::unix::fs::PermissionsExt as _;
            fs::write(place.at("packed/bin/activate"), "").unwrap();
            let python = place.at("packed/bin/python3");
            fs::write(&python, "#!/bin/sh\nprintf '3.8.18\\ncpython\\n\\n\\n'\n").unwrap();
            fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        }
        place.pack("packed");
        let error = place.prepare(ARCHIVE).0.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        let left: Vec<_> =
            fs::read_dir(place.at("cache")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let is_lock = |name: &str| name.ends_with(".lock") || name.ends_with(".used");
        assert!(left.iter().all(|name| is_lock(name.to_str().unwrap())), "{left:?}");
    }
}

#[test]
fn environments_are_prepared_within_the_sandbox() {
    let parameters = [Some("$$TRITON_MODEL_DIRECTORY/env"), ARCHIVE, None];
    for level in [Level::Off, Level::Basic, Level::On, Level::Required] {
        let place = Place::under(level);
        place.venv("model/env");
        place.venv("packed");
        place.pack("packed");
        let base = interpreter::of_server(&Settings::default()).unwrap().0.program;
        run(Command::new(&base).args(["-c", WHEEL]).arg(place.at("model")).arg("1.0"));
        fs::write(place.at("model/requirements.txt"), "--no-index\n--find-links .\ngreeting==1.0\n").unwrap();
        for (parameter, script) in
            parameters.into_iter().zip(["import inside", "import inside", "import greeting"])
        {
            let (found, lines) = place.prepare(parameter);
            let found = found.unwrap_or_else(|error| panic!("{level:?} {parameter:?}: {error} {lines:?}"));
            python(&found, script);
            let names = |name: &&str| found.variables.iter().any(|(variable, _)| variable == *name);
            assert_eq!(["HOME", "TMPDIR", "TMP", "TEMP"].iter().find(|name| names(name)), None, "{level:?}");
            assert!(found.folders.iter().any(|folder| found.interpreter.starts_with(folder)), "{found:?}");
        }
    }
}

#[test]
fn scripts_of_environments_reach_no_further_than_the_model() {
    for (level, expected) in [(Level::Basic, true), (Level::On, false)] {
        for script in
            ["cat {secret}", "echo x > {model}/written", "kill -0 {server}", "cat /proc/{server}/cmdline"]
        {
            let place = Place::under(level);
            fs::create_dir_all(place.at("model/env/bin")).unwrap();
            fs::write(place.at("secret"), "key").unwrap();
            let script = script
                .replace("{secret}", &place.at("secret").display().to_string())
                .replace("{model}", &place.at("model").display().to_string())
                .replace("{server}", &std::process::id().to_string());
            fs::write(place.at("model/env/bin/activate"), format!("{script} && export REACHED=1\n")).unwrap();
            let found = place.prepare(Some("$$TRITON_MODEL_DIRECTORY/env")).0;
            let reached = found.is_ok_and(|found| found.variables.iter().any(|(name, _)| name == "REACHED"));
            // No level lets a process signal the server.
            assert_eq!(reached, expected && !script.starts_with("kill"), "{level:?} {script}");
        }
    }
}

/// A wheel that holds one module, written by hand.
const WHEEL: &str = "
import sys, zipfile
name = 'greeting-%s' % sys.argv[2]
with zipfile.ZipFile('%s/%s-py3-none-any.whl' % (sys.argv[1], name), 'w') as wheel:
    wheel.writestr('greeting.py', 'WORD = %r' % sys.argv[2])
    info = name + '.dist-info/'
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: greeting\\nVersion: %s\\n' % sys.argv[2])
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', '')
";

#[test]
fn requirements_are_installed_once_per_content() {
    let place = Place::new();
    let base = interpreter::of_server(&Settings::default()).unwrap().0.program;
    fs::create_dir(place.at("model/wheels")).unwrap();
    for version in ["1.0", "2.0"] {
        run(Command::new(&base).args(["-c", WHEEL]).arg(place.at("model/wheels")).arg(version));
    }
    let list = |version: &str| format!("--no-index\n--find-links wheels\ngreeting=={version}\n");
    fs::write(place.at("model/requirements.txt"), list("1.0")).unwrap();
    let (found, lines) = place.prepare(None);
    let found = found.unwrap();
    assert_eq!(python(&found, "import greeting; print(greeting.WORD)"), "1.0");
    assert!(lines.iter().any(|line| line.starts_with("installing ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("greeting")), "{lines:?}");
    let (again, lines) = place.prepare(None);
    assert_eq!((again.unwrap().interpreter, lines), (found.interpreter.clone(), Vec::new()));

    fs::write(place.at("model/requirements.txt"), list("2.0")).unwrap();
    let other = place.prepare(None).0.unwrap();
    assert_eq!(python(&other, "import greeting; print(greeting.WORD)"), "2.0");
    assert_ne!(other.interpreter, found.interpreter);

    // The error quotes the installer, and nothing is left behind.
    fs::write(place.at("model/requirements.txt"), list("3.0")).unwrap();
    let entries =
        || fs::read_dir(place.at("cache")).unwrap().filter(|it| it.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(entries(), 2);
    let error = place.prepare(None).0.unwrap_err().to_string();
    assert!(error.contains("greeting==3.0") && error.contains("install-requirements=false"), "{error}");
    assert_eq!(entries(), 2);

    let settings = Settings { installs_requirements: false, ..place.settings() };
    let (plain, lines) = place.prepare_by(&Environments::new(settings), None);
    assert!(plain.unwrap().variables.is_empty() && lines.is_empty());
}
