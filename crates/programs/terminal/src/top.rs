//! `nereid top`: the models of a server and what they do, live in a terminal or once as plain lines.

mod activity;
mod metrics;
mod poll;
mod screen;
mod view;

use std::io::{IsTerminal as _, Write, stdin, stdout};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use self::activity::Activity;
use self::poll::Poll;
use self::screen::{Screen, keys};
use self::view::{Outcome, View};
use crate::connection::{Access, Connection};

/// The options of the overview.
#[derive(Clone, Debug)]
pub struct Top {
    /// How the server is reached.
    pub access: Access,
    /// How the metrics are reached. Without metrics, their columns and lines stay empty.
    pub metrics: Access,
    /// Models to watch on servers that do not list theirs.
    pub models: Vec<String>,
    /// The interval of polls.
    pub interval: Duration,
    /// Whether the overview is printed once, as lines.
    pub once: bool,
    /// Whether there are colours.
    pub colors: bool,
}

/// Shows the overview until a key or a signal ends it, or prints it once to `out`.
///
/// # Errors
/// The options are invalid, or the overview is printed once and the server does not answer.
pub async fn top(options: &Top, out: &mut dyn Write) -> Result<(), String> {
    let server = Connection::new(options.access.clone())?;
    let metrics = Connection::new(options.metrics.clone())?;
    let mut poll = Poll::new(server, metrics, options.models.clone());
    let mut activity = Activity::default();
    if options.once || !stdout().is_terminal() || !stdin().is_terminal() {
        // Rates need two polls.
        activity.add(poll.next().await?);
        sleep(options.interval).await;
        activity.add(poll.next().await?);
        let text = view::lines(&options.access.address.to_string(), &activity);
        return crate::infer::written(out.write_all(text.as_bytes()));
    }
    let (polled, mut polls) = mpsc::channel(1);
    let interval = options.interval;
    tokio::spawn(async move {
        // Ends with the receiver.
        while polled.send(poll.next().await).await.is_ok() {
            sleep(interval).await;
        }
    });
    let mut view = View::new(options.access.address.to_string(), options.colors);
    let failed = |error| format!("cannot listen to signals: {error}");
    let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut screen = Screen::enter().map_err(|error| format!("cannot use the terminal: {error}"))?;
    let mut keys = keys().map_err(|error| format!("cannot read keys: {error}"))?;
    loop {
        screen.draw(|width, height| view.frame(&activity, width, height));
        tokio::select! {
            polled = polls.recv() => match polled {
                Some(Ok(snapshot)) => {
                    view.failure = None;
                    activity.add(snapshot);
                }
                Some(Err(reason)) => view.failure = Some(reason),
                None => return Ok(()),
            },
            key = keys.recv() => match key.map(|key| view.press(key)) {
                Some(Outcome::Stay) => {}
                Some(Outcome::Leave) | None => return Ok(()),
            },
            _ = terminated.recv() => return Ok(()),
            _ = resized.recv() => {}
        }
    }
}
