//! The life cycle of a connection: connect, serve commands, reconnect after a pause.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::exchange::{Command, ExchangeEnd, exchange};
use super::resp::{NotRedis, Replies, Reply, write_command};
use super::settings::RedisSettings;
use super::tls::Tls;

/// First and longest pause before reconnecting.
const WAITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// A connection that lasted this long resets the pause.
const GOOD: Duration = Duration::from_secs(10);

/// The start of each refusal that blames the settings. Redis also refuses while it loads its data or has too many clients,
/// which passes.
const SETTINGS_REFUSALS: [&str; 11] = [
    "WRONGPASS ",
    "NOAUTH ",
    "NOPERM ",
    "DENIED ",
    "ERR AUTH ",
    "ERR Client sent AUTH",
    "ERR invalid password",
    // Releases before 6.0 have no users.
    "ERR wrong number of arguments for 'auth'",
    "ERR DB index",
    "ERR invalid DB index",
    "ERR SELECT ",
];

/// The reason why a connection failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum ConnectError {
    /// Redis refuses the login or the database of the settings.
    #[error("{0}")]
    Settings(String),
    /// Any other failure, which may pass.
    #[error("{0}")]
    Unavailable(String),
}

impl ConnectError {
    fn refused(refusal: String) -> Self {
        if SETTINGS_REFUSALS.iter().any(|start| refusal.starts_with(start)) {
            Self::Settings(refusal)
        } else {
            Self::Unavailable(refusal)
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// The Redis server, shared by all connections.
pub(super) struct Place {
    pub settings: RedisSettings,
    tls: Option<Tls>,
    /// Number of connections that are up.
    up: AtomicUsize,
    /// Whether the log already reports that no connection is up.
    is_reported: AtomicBool,
}

/// The state of a connection visible to senders.
#[derive(Default)]
pub(super) struct Link(AtomicBool);

impl Link {
    /// Whether the connection accepts commands.
    pub(super) fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A stream of bytes, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Place {
    /// # Errors
    /// Files of TLS that cannot be used.
    pub(super) fn new(settings: RedisSettings) -> Result<Self, String> {
        let tls = settings.tls.as_ref().map(|tls| Tls::new(tls, &settings.host)).transpose()?;
        Ok(Self { settings, tls, up: AtomicUsize::new(0), is_reported: AtomicBool::new(false) })
    }

    /// Host and port.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.settings.host, self.settings.port)
    }

    fn came_up(&self, link: &Link) {
        self.up.fetch_add(1, Ordering::AcqRel);
        link.0.store(true, Ordering::Release);
        if self.is_reported.swap(false, Ordering::AcqRel) {
            tracing::info!("the response cache in Redis at {} has recovered", self.name());
        } else {
            tracing::debug!("connected to the response cache in Redis at {}", self.name());
        }
    }

    /// Warns once per outage.
    fn failed(&self, why: &str) {
        if self.up.load(Ordering::Acquire) == 0 && !self.is_reported.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                "the response cache in Redis at {} cannot be used: {why}; nothing is cached until it recovers",
                self.name()
            );
        }
    }

    /// Makes a connection that answers, within the time limit of the settings.
    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, ConnectError> {
        let limit = self.settings.connect_timeout;
        let late = |_| ConnectError::Unavailable(format!("no answer within {} ms", limit.as_millis()));
        timeout(limit, self.open()).await.map_err(late)?
    }

    async fn open(&self) -> Result<Box<dyn Stream>, ConnectError> {
        let RedisSettings { host, port, .. } = &self.settings;
        let socket = TcpStream::connect((host.as_str(), *port)).await?;
        socket.set_nodelay(true)?;
        let mut stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(Tls { connector, name }) => {
                let secured = connector.connect(name.clone(), socket).await;
                Box::new(secured.map_err(|error| ConnectError::Unavailable(format!("TLS: {error}")))?)
            }
        };
        greet(&mut stream, &self.settings).await?;
        Ok(stream)
    }
}

/// Logs in, and selects the database.
async fn greet(stream: &mut impl Stream, settings: &RedisSettings) -> Result<(), ConnectError> {
    let unavailable = |why: &str| ConnectError::Unavailable(why.to_owned());
    let db = settings.db.to_string();
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    match (&settings.user, &settings.password) {
        (Some(user), password) => {
            let password = password.as_deref().unwrap_or_default();
            commands.push(vec![b"AUTH", user.as_bytes(), password.as_bytes()]);
        }
        (None, Some(password)) => commands.push(vec![b"AUTH", password.as_bytes()]),
        (None, None) => {}
    }
    if settings.db > 0 {
        commands.push(vec![b"SELECT", db.as_bytes()]);
    }
    commands.push(vec![b"PING"]);
    let (mut replies, mut arrived) = (Replies::new(0), BytesMut::new());
    for command in commands {
        let mut written = Vec::new();
        write_command(&mut written, &command);
        stream.write_all(&written).await?;
        stream.flush().await?;
        loop {
            match replies.next(&mut arrived) {
                Ok(Some(Reply::Line(_))) => break,
                Ok(Some(Reply::Refusal(refusal))) => return Err(ConnectError::refused(refusal)),
                Ok(Some(Reply::Value(_))) | Err(NotRedis) => {
                    return Err(unavailable("the server does not speak Redis's protocol"));
                }
                Ok(None) => {}
            }
            if stream.read_buf(&mut arrived).await? == 0 {
                return Err(unavailable("the server closed the connection"));
            }
        }
    }
    Ok(())
}

/// Maintains a connection until all command senders are dropped, starting with the outcome of the `first` attempt, if it
/// was made.
pub(super) async fn run(
    place: Arc<Place>,
    link: Arc<Link>,
    mut commands: mpsc::Receiver<Command>,
    mut first: Option<Result<Box<dyn Stream>, ConnectError>>,
) {
    let mut wait = WAITS[0];
    loop {
        let connected = match first.take() {
            Some(connected) => connected,
            None => place.connect().await,
        };
        let why = match connected {
            Err(error) => error.to_string(),
            Ok(stream) => {
                let begin = Instant::now();
                place.came_up(&link);
                let ended = exchange(stream, &mut commands, &place.settings).await;
                link.0.store(false, Ordering::Release);
                place.up.fetch_sub(1, Ordering::AcqRel);
                if begin.elapsed() >= GOOD {
                    wait = WAITS[0];
                }
                match ended {
                    ExchangeEnd::Unwanted => return,
                    ExchangeEnd::Failed(why) => why,
                }
            }
        };
        place.failed(&why);
        let mut waited = pin!(sleep(wait));
        loop {
            tokio::select! {
                () = &mut waited => break,
                // A command sent while the connection ended is dropped: its request proceeds as after a miss.
                command = commands.recv() => if command.is_none() { return },
            }
        }
        wait = (wait * 2).min(WAITS[1]);
    }
}
