//! The setup of both servers: Python models, and a model of a C backend for them to call.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::bench::client::{Request, post};
use crate::bench::nvidia::Nvidia;
use crate::bench::processes;
use crate::bench::reference::setup::request as binary_request;
use crate::bench::server::Server;
use crate::project::{Project, show};

/// Bytes in the tensor of a small request, and of a large one.
pub(super) const SMALL: usize = 64;
pub(super) const LARGE: usize = 1 << 20;

const HEAD: &str =
    "import numpy\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n";

const ADD_SUB: &str = r#"    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"#;

const LARGE_MODEL: &str = r#"    def execute(self, requests):
        inputs = (pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests)
        outputs = (pb_utils.Tensor("OUTPUT0", tensor.as_numpy()) for tensor in inputs)
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"#;

const DECOUPLED: &str = r#"    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for _ in range(1000):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"#;

const BLS: &str = r#"    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0")]
            inner = pb_utils.InferenceRequest(
                model_name="identity", inputs=inputs, requested_output_names=["OUTPUT0"]
            )
            answer = inner.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            output = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"#;

const TENSORS: &str = r#"max_batch_size: 8
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
"#;

const ADD_SUB_TENSORS: &str = r#"max_batch_size: 0
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ 16 ] }, { name: "INPUT1", data_type: TYPE_FP32, dims: [ 16 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ 16 ] }, { name: "OUTPUT1", data_type: TYPE_FP32, dims: [ 16 ] } ]
"#;

/// Everything that a server is started with.
pub(super) struct Setup {
    nereid: PathBuf,
    nvidia: Nvidia,
    /// The echo backend, and NVIDIA's Python backend.
    all_backends: PathBuf,
    /// The echo backend.
    echo_backend: PathBuf,
    /// The models under load.
    loaded: PathBuf,
    /// A model with 8 instances.
    eight: PathBuf,
    /// Whether Nereid, too, runs NVIDIA's library.
    library: bool,
}

impl Setup {
    pub fn new(
        project: &Project,
        folder: &Path,
        nereid: &Path,
        python: Option<&Path>,
        library: bool,
    ) -> Result<Self> {
        let nvidia = Nvidia::prepare(project, python)?;
        let (all_backends, echo_backend) = (folder.join("backends"), folder.join("echo"));
        for backends in [&all_backends, &echo_backend] {
            fs::create_dir_all(backends.join("echo"))?;
            show(
                project
                    .command("cc")
                    .args(["-std=gnu11", "-O2", "-shared", "-fPIC", "tests/backends/echo.c", "-o"])
                    .arg(backends.join("echo/libtriton_echo.so")),
            )?;
        }
        symlink(nvidia.backends().join("python"), all_backends.join("python"))?;

        let (loaded, eight) = (folder.join("loaded"), folder.join("eight"));
        write_model(&loaded, "identity", &format!("backend: \"echo\"\n{TENSORS}"), None)?;
        write_model(&loaded, "add_sub", &format!("backend: \"python\"\n{ADD_SUB_TENSORS}"), Some(ADD_SUB))?;
        write_model(&loaded, "large", &format!("backend: \"python\"\n{TENSORS}"), Some(LARGE_MODEL))?;
        write_model(&loaded, "bls", &format!("backend: \"python\"\n{TENSORS}"), Some(BLS))?;
        let decoupled = "backend: \"python\"\nmodel_transaction_policy { decoupled: true }\n";
        write_model(&loaded, "decoupled", &format!("{decoupled}{TENSORS}"), Some(DECOUPLED))?;
        let instances = "instance_group { count: 8 kind: KIND_CPU }\n";
        write_model(
            &eight,
            "eight",
            &format!("backend: \"python\"\n{instances}{TENSORS}"),
            Some(LARGE_MODEL),
        )?;
        let nereid = nereid.to_owned();
        Ok(Self { nereid, nvidia, all_backends, echo_backend, loaded, eight, library })
    }

    /// Nereid, with the model that has 8 instances.
    pub fn nereid_of_eight(&self) -> Result<Server> {
        self.start_nereid(&self.eight)
    }

    /// NVIDIA's server, with the same.
    pub fn reference_of_eight(&self) -> Result<Server> {
        self.start_reference(&self.eight)
    }

    /// Nereid, with the models under load, and checked.
    pub fn nereid(&self) -> Result<Server> {
        checked(self.start_nereid(&self.loaded)?)
    }

    /// NVIDIA's server, with the same, and checked.
    pub fn reference(&self) -> Result<Server> {
        checked(self.start_reference(&self.loaded)?)
    }

    fn start_nereid(&self, repository: &Path) -> Result<Server> {
        let (backends, engine) =
            if self.library { (&self.all_backends, "library") } else { (&self.echo_backend, "builtin") };
        let engine = format!("--backend-config=python,engine={engine}");
        self.start("nereid", &self.nereid, repository, backends, &[engine])
    }

    fn start_reference(&self, repository: &Path) -> Result<Server> {
        self.start("tritonserver", &self.nvidia.program(), repository, &self.all_backends, &[])
    }

    fn start(
        &self,
        name: &'static str,
        program: &Path,
        repository: &Path,
        backends: &Path,
        flags: &[String],
    ) -> Result<Server> {
        let mut flags = flags.to_vec();
        flags.push(format!("--backend-directory={}", backends.display()));
        self.nvidia.start(name, program, repository, &flags)
    }

    /// Resident memory of the models' interpreter with numpy alone.
    pub fn bare_mebibytes(&self) -> Result<f64> {
        let mut child = Command::new(self.nvidia.python().join("bin/python3"))
            .args(["-c", "import numpy, sys; sys.stdout.write('here'); sys.stdout.flush(); sys.stdin.read()"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start Python")?;
        let mut output = child.stdout.take().context("no output")?;
        let heard = output.read_exact(&mut [0; 4]);
        let bytes = processes::resident_bytes(child.id());
        // The end of its input ends it.
        drop(child.stdin.take());
        child.wait()?;
        heard.context("Python cannot import numpy")?;
        Ok(bytes? as f64 / 1_048_576.0)
    }
}

/// Makes sure that the requests are answered as they should be.
fn checked(server: Server) -> Result<Server> {
    for (request, bytes) in [
        (add_sub(), SMALL),
        (request("large", LARGE), LARGE),
        (request("bls", SMALL), SMALL),
        (request("identity", SMALL), SMALL),
    ] {
        let answer = post(server.address, &request)?;
        let text = || format!("{} {}", answer.head, String::from_utf8_lossy(&answer.body));
        ensure!(answer.status == 200, "{} refuses {}: {}", server.name, request.path, text());
        // The difference of equal numbers is zero; the other models return their input.
        let is_right = match request.path.contains("add_sub") {
            true => answer.body.ends_with(&[0; SMALL]),
            false => answer.body.ends_with(&request.body[request.body.len() - bytes..]),
        };
        ensure!(is_right, "{}: wrong answer of {}", server.name, request.path);
    }
    Ok(server)
}

fn write_model(repository: &Path, name: &str, configuration: &str, code: Option<&str>) -> Result<()> {
    let version = repository.join(name).join("1");
    fs::create_dir_all(&version)?;
    fs::write(repository.join(name).join("config.pbtxt"), configuration)?;
    if let Some(code) = code {
        fs::write(version.join("model.py"), format!("{HEAD}{code}"))?;
    }
    Ok(())
}

/// A request with a binary tensor both ways.
pub(super) fn request(model: &str, bytes: usize) -> Request {
    binary_request(model, bytes)
}

/// A request for the sum and the difference of 16 numbers, binary both ways.
pub(super) fn add_sub() -> Request {
    let tensor = |name: &str| {
        format!(
            r#"{{"name":"{name}","shape":[16],"datatype":"FP32","parameters":{{"binary_data_size":{SMALL}}}}}"#
        )
    };
    let output = |name: &str| format!(r#"{{"name":"{name}","parameters":{{"binary_data":true}}}}"#);
    let json = format!(
        r#"{{"inputs":[{},{}],"outputs":[{},{}]}}"#,
        tensor("INPUT0"),
        tensor("INPUT1"),
        output("OUTPUT0"),
        output("OUTPUT1")
    );
    let header_length = json.len();
    let mut body = json.into_bytes();
    body.resize(header_length + 2 * SMALL, 0x3f);
    Request { path: "/v2/models/add_sub/infer".to_owned(), header_length, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_for_sums_has_both_tensors_behind_its_json() {
        let request = add_sub();
        let (json, tensors) = request.body.split_at(request.header_length);
        assert!(json.ends_with(b"}]}") && tensors == [0x3f; 2 * SMALL]);
    }
}
