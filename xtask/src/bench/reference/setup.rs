//! The setup of both servers: models, backend libraries, an environment, a region of shared memory, requests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::bench::client::{Request, post};
use crate::bench::nvidia::Nvidia;
use crate::bench::server::Server;
use crate::project::{Project, show};

/// Bytes in the tensor of a small request, and of a large one.
pub(super) const SMALL: usize = 64;
pub(super) const LARGE: usize = 1 << 20;

/// The program that runs a Python model of NVIDIA's backend.
const STUB: &str = "triton_python_backend_stub";

/// Inputs and outputs of every model.
const TENSORS: &str = r#"max_batch_size: 8
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
"#;

const ENSEMBLE: &str = r#"platform: "ensemble"
ensemble_scheduling {
  step [
    { model_name: "identity" model_version: -1
      input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "BETWEEN" } },
    { model_name: "identity" model_version: -1
      input_map { key: "INPUT0" value: "BETWEEN" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
  ]
}
"#;

const PYTHON_MODEL: &str = r#"import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = (pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests)
        outputs = (pb_utils.Tensor("OUTPUT0", tensor.as_numpy()) for tensor in inputs)
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"#;

/// Everything that a server is started with.
pub(super) struct Setup {
    nereid: PathBuf,
    nvidia: Nvidia,
    backends: PathBuf,
    /// Models of the echo backend.
    small: PathBuf,
    /// The other models and a Python model.
    all: PathBuf,
    pub region: Region,
}

impl Setup {
    /// Servers run on `core` only, if one is given.
    pub fn new(
        project: &Project,
        folder: &Path,
        nereid: &Path,
        python: Option<&Path>,
        core: Option<u32>,
    ) -> Result<Self> {
        let nvidia = Nvidia::prepare(project, python)?.on_core(core);
        let backends = folder.join("backends");
        fs::create_dir_all(backends.join("echo"))?;
        symlink(nvidia.backends().join("python"), backends.join("python"))?;
        show(
            project
                .command("cc")
                .args(["-std=gnu11", "-O2", "-shared", "-fPIC", "tests/backends/echo.c", "-o"])
                .arg(backends.join("echo/libtriton_echo.so")),
        )?;

        let (small, all) = (folder.join("small"), folder.join("all"));
        for repository in [&small, &all] {
            write_model(repository, "identity", "backend: \"echo\"\n")?;
            write_model(repository, "ensemble", ENSEMBLE)?;
        }
        write_model(&all, "python", "backend: \"python\"\n")?;
        fs::write(all.join("python/1/model.py"), PYTHON_MODEL)?;
        Ok(Self { nereid: nereid.to_owned(), nvidia, backends, small, all, region: Region::new()? })
    }

    /// Nereid, with small models alone.
    pub fn nereid_at_rest(&self) -> Result<Server> {
        self.start("nereid", &self.nereid, &self.small)
    }

    /// NVIDIA's server, with small models alone.
    pub fn reference_at_rest(&self) -> Result<Server> {
        self.start("tritonserver", &self.nvidia.program(), &self.small)
    }

    /// Nereid, with all models, and checked.
    pub fn nereid(&self) -> Result<Server> {
        self.checked(self.start("nereid", &self.nereid, &self.all)?)
    }

    /// NVIDIA's server, with all models, and checked.
    pub fn reference(&self) -> Result<Server> {
        self.checked(self.start("tritonserver", &self.nvidia.program(), &self.all)?)
    }

    /// Starts a server: both receive the same flags and the same environment.
    fn start(&self, name: &'static str, program: &Path, repository: &Path) -> Result<Server> {
        let backends = format!("--backend-directory={}", self.backends.display());
        // Nereid would otherwise use its own backend.
        let engine = "--backend-config=python,engine=library".to_owned();
        self.nvidia.start(name, program, repository, &[backends, engine])
    }

    /// Registers the region and checks the answer to each request.
    fn checked(&self, server: Server) -> Result<Server> {
        let ask = |request: &Request| {
            let answer = post(server.address, request)?;
            let text = || format!("{} {}", answer.head, String::from_utf8_lossy(&answer.body));
            ensure!(answer.status == 200, "{} refuses {}: {}", server.name, request.path, text());
            Ok(answer)
        };
        ask(&self.region.registration())?;
        ask(&self.region.request("identity"))?;
        for (model, bytes) in
            [("identity", SMALL), ("identity", LARGE), ("ensemble", SMALL), ("python", SMALL)]
        {
            let request = request(model, bytes);
            let answer = ask(&request)?;
            let tensor = &request.body[request.header_length..];
            ensure!(answer.body.ends_with(tensor), "{}: {model} does not return the tensor", server.name);
        }
        ensure!(server.runs(STUB)?, "{} does not run models on NVIDIA's Python backend", server.name);
        Ok(server)
    }
}

fn write_model(repository: &Path, name: &str, kind: &str) -> Result<()> {
    fs::create_dir_all(repository.join(name).join("1"))?;
    fs::write(repository.join(name).join("config.pbtxt"), format!("name: \"{name}\"\n{kind}{TENSORS}"))?;
    Ok(())
}

/// A request with a binary tensor both ways.
pub(in crate::bench) fn request(model: &str, bytes: usize) -> Request {
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{}],"datatype":"FP32","parameters":{{"binary_data_size":{bytes}}}}}],"outputs":[{{"name":"OUTPUT0","parameters":{{"binary_data":true}}}}]}}"#,
        bytes / 4
    );
    let header_length = json.len();
    let mut body = json.into_bytes();
    body.resize(header_length + bytes, 0x3f);
    Request { path: format!("/v2/models/{model}/infer"), header_length, body }
}

/// A file in shared memory with space for an input, followed by an output.
pub(super) struct Region {
    key: String,
    file: PathBuf,
}

impl Region {
    fn new() -> Result<Self> {
        let key = format!("/nereid-bench-{}", std::process::id());
        let file = PathBuf::from(format!("/dev/shm{key}"));
        fs::write(&file, vec![0x3f; 2 * LARGE])
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { key, file })
    }

    fn registration(&self) -> Request {
        let body = format!(r#"{{"key":"{}","offset":0,"byte_size":{}}}"#, self.key, 2 * LARGE).into_bytes();
        let path = "/v2/systemsharedmemory/region/bench/register".to_owned();
        Request { path, header_length: body.len(), body }
    }

    /// A request whose input and output are in the region.
    pub fn request(&self, model: &str) -> Request {
        let place = |offset| {
            format!(
                r#""parameters":{{"shared_memory_region":"bench","shared_memory_byte_size":{LARGE},"shared_memory_offset":{offset}}}"#
            )
        };
        let body = format!(
            r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{}],"datatype":"FP32",{}}}],"outputs":[{{"name":"OUTPUT0",{}}}]}}"#,
            LARGE / 4,
            place(0),
            place(LARGE)
        )
        .into_bytes();
        Request { path: format!("/v2/models/{model}/infer"), header_length: body.len(), body }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_tensor_behind_its_json() {
        let request = request("m", SMALL);
        let (json, tensor) = request.body.split_at(request.header_length);
        assert!(json.ends_with(b"}]}") && tensor == [0x3f; SMALL]);
        assert_eq!(request.path, "/v2/models/m/infer");
    }

    #[test]
    fn a_region_ends_with_its_owner() {
        let region = Region::new().unwrap();
        let file = region.file.clone();
        assert_eq!(fs::metadata(&file).unwrap().len(), 2 * LARGE as u64);
        drop(region);
        assert!(!file.exists());
    }
}
