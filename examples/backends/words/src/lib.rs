//! An example of a backend: returns a text word by word, as a language model would.
//!
//! A decoupled model sends one response per word, from its own thread; any other sends all words at once. The example
//! shows configuration completion, parameters of requests and of the configuration, streaming, cancellation and errors.
//! `README.md` in its folder explains how to build and run it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use triton_backend::{
    Backend, BackendContext, Batch, DataType, Error, Instance, InstanceContext, Model, ModelConfig,
    ModelContext, Parameter, Request, Responder, Result,
};

/// Settings shared by all models of this backend: the default pause.
struct Words {
    pause: Duration,
}

/// A loaded model.
struct WordsModel {
    is_decoupled: bool,
    /// Between one word and the next.
    pause: Duration,
}

/// An instance of the model.
struct WordsInstance {
    model: Arc<WordsModel>,
    /// Threads that may still send words. They are joined before the instance ends: they run code of this library.
    streams: Vec<JoinHandle<()>>,
}

impl Backend for Words {
    type Model = WordsModel;

    fn start(context: &BackendContext<'_>) -> Result<Self> {
        // `--backend-config=words,pause-ms=20`
        let pause = context.setting("pause-ms")?;
        Ok(Self { pause: pause.as_deref().map_or(Ok(Duration::ZERO), milliseconds)? })
    }
}

impl Model for WordsModel {
    type Backend = Words;
    type Instance = WordsInstance;

    fn complete_config(_: &Arc<Words>, _: &ModelContext<'_>, config: &mut ModelConfig) -> Result<()> {
        config.add_input("TEXT", DataType::Bytes, &[1]);
        config.add_output("WORD", DataType::Bytes, &[-1]);
        Ok(())
    }

    fn load(backend: &Arc<Words>, context: &ModelContext<'_>) -> Result<Self> {
        let config = context.config()?;
        if config.max_batch_size() > 0 {
            return Err(Error::invalid_argument(
                "max_batch_size must be 0: texts differ in their number of words",
            ));
        }
        // `parameters { key: "pause_ms" value { string_value: "20" } }`
        let pause = config.parameter("pause_ms").map_or(Ok(backend.pause), milliseconds)?;
        triton_backend::info!("words: model {} version {}", context.name(), context.version());
        Ok(Self { is_decoupled: config.is_decoupled(), pause })
    }
}

impl Instance for WordsInstance {
    type Model = WordsModel;

    fn start(model: &Arc<WordsModel>, _: &InstanceContext<'_>) -> Result<Self> {
        Ok(Self { model: Arc::clone(model), streams: Vec::new() })
    }

    fn execute(&mut self, batch: &mut Batch) -> Result<()> {
        self.streams.retain(|stream| !stream.is_finished());
        for request in &*batch {
            // An error concerns only its own request, so it is sent as that request's answer.
            if let Err(error) = self.answer(request) {
                request.fail(error)?;
            }
        }
        Ok(())
    }
}

impl WordsInstance {
    fn answer(&mut self, request: &Request) -> Result<()> {
        let words = words_of(request)?;
        if !self.model.is_decoupled {
            let mut response = request.respond()?;
            response.bytes_output("WORD", &[words.len() as i64], &words)?;
            return response.send_last();
        }
        // The request itself is released when `execute` returns; the responder stays valid.
        let responder = request.responder()?;
        let pause = self.model.pause;
        let stream = thread::spawn(move || {
            if let Err(error) = stream(&responder, &words, pause) {
                // If the client has left, the error has no receiver; the final response is sent anyway.
                drop(responder.fail(error));
            }
        });
        self.streams.push(stream);
        Ok(())
    }
}

impl Drop for WordsInstance {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            // A panic of a stream has answered its request with an error already.
            drop(stream.join());
        }
    }
}

/// The words requested.
fn words_of(request: &Request) -> Result<Vec<String>> {
    let texts = request.input("TEXT")?.to_byte_strings()?;
    let text = texts.first().map(Vec::as_slice).unwrap_or_default();
    let limit = match request.parameter("max_words") {
        None => usize::MAX,
        Some(Parameter::Int(limit)) => usize::try_from(limit)
            .map_err(|_| Error::invalid_argument(format!("max_words is {limit}: must be 0 or more")))?,
        Some(other) => {
            return Err(Error::invalid_argument(format!("max_words is {other:?}: must be an integer")));
        }
    };
    Ok(std::str::from_utf8(text)?.split_whitespace().take(limit).map(str::to_owned).collect())
}

/// A response for each word, and the end.
fn stream(responder: &Responder, words: &[String], pause: Duration) -> Result<()> {
    for word in words {
        if responder.is_cancelled() {
            return Err(Error::cancelled());
        }
        let mut response = responder.respond()?;
        response.bytes_output("WORD", &[1], &[word])?;
        response.send()?;
        thread::sleep(pause);
    }
    responder.finish()
}

fn milliseconds(text: &str) -> Result<Duration> {
    let count = text.parse().map_err(|_| {
        Error::invalid_argument(format!("invalid pause '{text}': must be a whole number of milliseconds"))
    })?;
    Ok(Duration::from_millis(count))
}

triton_backend::export_backend!(Words);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_whole_milliseconds() {
        assert_eq!(milliseconds("20"), Ok(Duration::from_millis(20)));
        for wrong in ["", "-1", "2.5", "soon"] {
            assert!(milliseconds(wrong).unwrap_err().message().contains("whole number"), "{wrong}");
        }
    }
}
