//! HTTP: KServe's protocol with Triton's extensions, OpenAI's interface, and the console.

use std::sync::Arc;

use nereid_console::{Console, Gpu, Parts};
use nereid_http::{Router, TransportOptions};
use nereid_kserve::{HttpOptions, KserveHttp};
use nereid_metrics::GpuReading;
use nereid_net::listener::Listener;
use nereid_openai::{AnswerFolder, AnswerStore, OpenAi, OpenAiOptions, OpenAiPrefix};

use super::{Endpoint, Face, FaceContext, Serving};

/// HTTP: KServe's protocol with Triton's extensions.
#[derive(Clone, Debug)]
pub struct Http {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The face itself. Its `regions`, `log` and `load_reports` are the server's.
    pub options: HttpOptions,
    /// Whether browsers get the console at `/`.
    pub console: bool,
    /// OpenAI's interface at `/v1`, if it is served.
    pub openai: Option<OpenAiSettings>,
    /// Limits of connections.
    pub transport: TransportOptions,
}

/// The settings of OpenAI's interface.
#[derive(Clone, Debug)]
pub struct OpenAiSettings {
    /// The largest number of tokens of an answer where a request has no limit and the model needs one.
    pub default_max_tokens: u64,
    /// The most bytes of stored answers; 0 to store none.
    pub stored_bytes: usize,
    /// A folder for them, in addition to memory.
    pub stored_folder: Option<AnswerFolder>,
    /// A further path below which it is served.
    pub path_prefix: Option<OpenAiPrefix>,
}

impl OpenAiSettings {
    /// The face with these settings, and the rules of another. All of a server have one store of answers.
    fn face(self, context: &FaceContext, options: &HttpOptions) -> OpenAi {
        let answers = context.answers.get_or_init(|| match self.stored_folder {
            Some(folder) => AnswerStore::with_folder(self.stored_bytes, folder),
            None => AnswerStore::new(self.stored_bytes),
        });
        let options = OpenAiOptions {
            max_input_size: options.max_input_size,
            default_max_tokens: self.default_max_tokens,
            answers: answers.clone(),
            path_prefix: self.path_prefix,
            forwarded_headers: options.forwarded_headers.clone(),
            access: options.access.clone(),
            cors: options.cors.clone(),
        };
        OpenAi::new(Arc::clone(&context.server), options)
    }
}

impl Default for OpenAiSettings {
    /// As of the face.
    fn default() -> Self {
        let OpenAiOptions { default_max_tokens, path_prefix, .. } = OpenAiOptions::default();
        let stored_bytes = AnswerStore::DEFAULT_BYTES;
        Self { default_max_tokens, stored_bytes, stored_folder: None, path_prefix }
    }
}

impl Default for Http {
    /// On every interface, at Triton's port, in clear text.
    fn default() -> Self {
        Self {
            endpoint: Endpoint::every_interface(8000),
            options: HttpOptions::default(),
            console: true,
            openai: Some(OpenAiSettings::default()),
            transport: TransportOptions::default(),
        }
    }
}

impl Face for Http {
    fn protocol(&self) -> &'static str {
        "HTTP"
    }

    fn service(&self) -> &'static str {
        "HTTPService"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let (options, end) = (context.http_options(self.options), context.http_end());
        let openai = self.openai.map(|settings| settings.face(&context, &options));
        let console = self.console.then(|| {
            let (server, log) = (Arc::clone(&context.server), Arc::clone(&options.log));
            let console = Console::new(server, log, options.access.clone());
            let exposition = Arc::clone(&context.exposition);
            let console = console.with_parts(Parts {
                advisor: Some(Arc::clone(&context.advisor)),
                changes: Some(Arc::clone(&context.changes)),
                gpus: Some(Arc::new(move || exposition.gpus().into_iter().map(gpu).collect())),
            });
            // Ends with the server, or with the runtime.
            tokio::spawn(context.closing.run_until_cancelled_owned(console.sampling().run()));
            console
        });
        let mut router = Router::from(KserveHttp::new(context.server, options));
        if let Some(openai) = openai {
            router = router.and(openai);
        }
        if let Some(console) = console {
            router = router.and(console);
        }
        Box::pin(nereid_http::serve(listener, router, self.transport, end))
    }
}

fn gpu(reading: GpuReading) -> Gpu {
    let GpuReading { uuid, utilization, memory_used, memory_total, power_usage, .. } = reading;
    Gpu { name: uuid, utilization, memory_used, memory_total, power: power_usage }
}

/// HTTP on a port of its own for the console. Its pages use the whole interface, so that is there, too.
#[derive(Clone, Debug)]
pub struct ConsolePort(pub Http);

impl Face for ConsolePort {
    fn protocol(&self) -> &'static str {
        "console"
    }

    fn service(&self) -> &'static str {
        "Console"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        Box::new(self.0).serve(listener, context)
    }
}

/// HTTP on a port of its own for OpenAI's interface, and nothing else.
#[derive(Clone, Debug)]
pub struct OpenAiPort(pub Http);

impl Face for OpenAiPort {
    fn protocol(&self) -> &'static str {
        "OpenAI"
    }

    fn service(&self) -> &'static str {
        "OpenAI"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let Http { options, openai, transport, .. } = self.0;
        let (options, end) = (context.http_options(options), context.http_end());
        let face = openai.unwrap_or_default().face(&context, &options);
        Box::pin(nereid_http::serve(listener, Router::from(face), transport, end))
    }
}
