//! Measures the cost of a request in a model's process, without the server: `cargo bench -p nereid-python --bench
//! module -- [INTERPRETER]`. The interpreter, by default `python3`, needs numpy.
//!
//! The model adds and subtracts two arrays of 16 numbers, or of a quarter million: 1 MiB.

use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nereid_python::module;
use nereid_worker_protocol::tensor::Request;
use nereid_worker_protocol::{Channel, VERSION, call};

const MODEL: &str = r#"
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            outputs = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"#;

struct Process {
    child: Child,
    calls: Channel,
    _side: Channel,
}

impl Process {
    fn start(interpreter: &str) -> Result<Self, Box<dyn Error>> {
        let folder = env::temp_dir().join(format!("nereid-module-{}", std::process::id())).join("1");
        fs::create_dir_all(&folder)?;
        let (library, model) = (folder.join("module.so"), folder.join("model.py"));
        module::write_library(&mut fs::File::create(&library)?)?;
        fs::write(&model, MODEL)?;
        let (mut calls, theirs) = Channel::pair()?;
        let (side, their_side) = Channel::pair()?;
        let mut command = Command::new(interpreter);
        command.args(["-I", "-c", module::BOOTSTRAP]).arg(&library).stdin(theirs);
        let child = command.spawn()?;
        drop(command);
        let mut start = calls.sender.message(call::START);
        start.u32(VERSION);
        start.send_with(Some(std::os::fd::AsFd::as_fd(&their_side)))?;
        let mut process = Self { child, calls, _side: side };
        process.expect(call::HELLO)?;
        let text = |path: &std::path::Path| path.display().to_string();
        let (model, repository) = (text(&model), text(folder.parent().unwrap_or(&folder)));
        let arguments = [
            ("model_config", "{}"),
            ("model_repository", &*repository),
            ("model_version", "1"),
            ("nereid.model_file", &*model),
        ];
        let mut initialize = process.calls.sender.message(call::INITIALIZE);
        initialize.pairs(arguments.into_iter());
        initialize.send()?;
        process.expect(call::INITIALIZED)?;
        fs::remove_dir_all(folder.parent().unwrap_or(&folder))?;
        Ok(process)
    }

    fn expect(&mut self, kind: u16) -> io::Result<()> {
        let answer = self.calls.receiver.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if answer.kind() == kind {
            return Ok(());
        }
        let error_text = answer.reader().failure().map(|failure| failure.message.to_owned());
        Err(io::Error::other(format!("answer {}: {error_text:?}", answer.kind())))
    }

    fn execute(&mut self, values: &[u8]) -> io::Result<()> {
        let mut message = self.calls.sender.message(call::EXECUTE);
        message.count(1);
        message.request(&Request { handle: 1, ..Request::default() });
        message.count(2);
        for name in ["A", "B"] {
            // Elements of FP32.
            message.tensor(name, 11, &[values.len() as i64 / 4], values.len(), |target| {
                target.copy_from_slice(values)
            })?;
        }
        message.send()?;
        let answer = self.calls.receiver.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut reader = answer.reader();
        let (_, count, outcome) = (reader.u64()?, reader.count(1)?, reader.outcome()?);
        match outcome {
            call::Outcome::Response(response) if count == 1 && response.outputs.len() == 2 => Ok(()),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// The CPU time of the process.
    fn processor_time(&self) -> io::Result<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.child.id()))?;
        let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
        Ok(Duration::from_nanos(nanoseconds.unwrap_or(0)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let interpreter = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let mut process = Process::start(interpreter.as_deref().unwrap_or("python3"))?;
    for (length, count) in [(64, 50_000), (1 << 20, 2_000)] {
        let values = vec![0; length];
        for _ in 0..count / 10 {
            process.execute(&values)?;
        }
        let (began, used) = (Instant::now(), process.processor_time()?);
        for _ in 0..count {
            process.execute(&values)?;
        }
        let (elapsed, used) = (began.elapsed(), process.processor_time()? - used);
        let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(count);
        println!(
            "{length:>8} bytes an input: {:.1} us a request, of which the process computes {:.1} us",
            each(elapsed),
            each(used)
        );
    }
    Ok(())
}
