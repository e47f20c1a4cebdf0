//! Reports changes in the repositories as soon as the file system notices them.
//!
//! Notifications do not identify the change; a poll has to find it. They are also unreliable: network file systems, and
//! repositories that are removed and restored, change silently. So the server keeps polling.

use std::path::PathBuf;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

/// Watches for as long as it lives.
#[derive(Debug)]
pub struct Watch {
    _watcher: RecommendedWatcher,
}

impl Watch {
    /// Watches repositories recursively. `changed` is called from a separate thread, one or more times per change.
    ///
    /// # Errors
    /// The first repository that cannot be watched, and why.
    pub fn new(repositories: &[PathBuf], changed: impl Fn() + Send + 'static) -> Result<Self, String> {
        let on_event = move |event: notify::Result<Event>| {
            // An error means that changes may have been missed.
            if event.map_or(true, |event| is_change(event.kind)) {
                changed();
            }
        };
        let mut watcher = notify::recommended_watcher(on_event).map_err(|error| error.to_string())?;
        for repository in repositories {
            watcher
                .watch(repository, RecursiveMode::Recursive)
                .map_err(|error| format!("cannot watch '{}': {error}", repository.display()))?;
        }
        Ok(Self { _watcher: watcher })
    }
}

/// Reading is an access too, and must not trigger the next poll.
fn is_change(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// Waits for a notification and drains the channel.
    fn wait_for_change(news: &Receiver<()>) {
        news.recv_timeout(LONG).expect("nothing was reported");
        while news.recv_timeout(Duration::from_millis(50)).is_ok() {}
    }

    #[test]
    fn writes_in_new_folders_are_reported_and_reads_are_not() {
        let repository = tempfile::tempdir().unwrap();
        fs::create_dir_all(repository.path().join("m/1")).unwrap();
        let (sender, news) = channel();
        let changed = move || sender.send(()).unwrap_or_default();
        let _watch = Watch::new(&[repository.path().to_owned()], changed).unwrap();
        fs::write(repository.path().join("m/1/model.onnx"), "a").unwrap();
        wait_for_change(&news);
        fs::create_dir_all(repository.path().join("n/1")).unwrap();
        wait_for_change(&news);
        fs::write(repository.path().join("n/1/model.onnx"), "b").unwrap();
        wait_for_change(&news);
        fs::remove_dir_all(repository.path().join("m")).unwrap();
        wait_for_change(&news);
        fs::read(repository.path().join("n/1/model.onnx")).unwrap();
        fs::read_dir(repository.path()).unwrap().for_each(drop);
        fs::write(repository.path().join("n/last"), "c").unwrap();
        wait_for_change(&news);
        assert!(is_change(EventKind::Access(AccessKind::Close(AccessMode::Write))));
        assert!(!is_change(EventKind::Access(AccessKind::Open(AccessMode::Any))));
    }

    #[test]
    fn missing_repository_cannot_be_watched() {
        let error = Watch::new(&["no/such/folder".into()], || {}).unwrap_err();
        assert!(error.starts_with("cannot watch 'no/such/folder': "), "{error}");
    }
}
