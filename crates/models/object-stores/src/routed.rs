//! Reads ranges of objects through a [`Route`], and checks that they belong to the listed object.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nereid_core::Progress;
use nereid_repository::{Route, RoutedObject, Way};
use object_store::ObjectMeta;

use crate::digests::bare;
use crate::locator::Locator;
use crate::progress::REPORTED;

/// A route for objects.
#[derive(Clone)]
pub(crate) struct ObjectRoute {
    route: Arc<dyn Route>,
    is_used: bool,
}

/// A range to write to a file.
pub(crate) struct Range<'a> {
    pub object: &'a ObjectMeta,
    /// The first missing byte. Advances as data is written.
    pub from: &'a mut u64,
    pub end: u64,
    pub file: &'a File,
    pub progress: &'a Progress,
}

/// Why a range is incomplete.
pub(crate) enum RoutedError {
    /// A message without secrets.
    Route(String),
    Write(io::Error),
}

impl ObjectRoute {
    pub(crate) fn new(route: Arc<dyn Route>) -> Self {
        Self { route, is_used: true }
    }

    /// Whether objects use this route.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// From now on, fetch from the bucket.
    pub(crate) fn give_up(&mut self) {
        self.is_used = false;
    }

    /// Whether the bucket may replace a failed route.
    pub(crate) fn may_fall_back(&self) -> bool {
        self.route.may_fall_back()
    }

    /// Counts bytes that the bucket delivered in place of the route.
    pub(crate) fn count_from_store(&self, bytes: u64) {
        self.route.count(Way::Store, bytes);
    }

    /// Reads a range.
    pub(crate) async fn read(&self, range: Range<'_>, locator: &Locator) -> Result<(), RoutedError> {
        let (object, before) = (range.object, *range.from);
        let progress = range.progress;
        let mut unreported = 0;
        let outcome = self.read_all(range, locator, &mut unreported).await;
        if unreported > 0 {
            progress.advance(unreported);
        }
        outcome.inspect_err(|error| {
            if let RoutedError::Route(message) = error {
                let name = self.route.name();
                tracing::debug!(
                    "'{}' does not come by {name} from byte {before}: {message}",
                    object.location
                );
            }
        })
    }

    async fn read_all(
        &self,
        range: Range<'_>,
        locator: &Locator,
        unreported: &mut u64,
    ) -> Result<(), RoutedError> {
        let Range { object, from, end, file, progress } = range;
        let failed = |message: String| RoutedError::Route(format!("{}: {message}", self.route.name()));
        let url = locator.url(&object.location).await.map_err(|error| {
            // The library's message may contain a signed URL.
            failed(match error {
                object_store::Error::NotSupported { .. } => "the store signs no addresses".into(),
                _ => "the credentials sign no addresses".to_owned(),
            })
        })?;
        let asked = RoutedObject {
            url,
            etag: object.e_tag.as_deref().map(|etag| bare(etag).to_owned()),
            size: object.size,
            range: (*from > 0 || end < object.size).then_some(*from..end),
        };
        let mut answer = self.route.get(asked).await.map_err(|error| failed(error.to_string()))?;
        if answer.size.is_some_and(|size| size != object.size) {
            return Err(failed("brings another size than that of the object".into()));
        }
        let etags = answer.etag.as_deref().zip(object.e_tag.as_deref());
        if etags.is_some_and(|(one, other)| bare(one) != bare(other)) {
            return Err(failed("brings another ETag than that of the object".into()));
        }
        while let Some(bytes) = answer.body.next().await {
            let bytes = bytes.map_err(|error| failed(error.to_string()))?;
            if bytes.len() as u64 > end - *from {
                return Err(failed("brings more than was asked for".into()));
            }
            file.write_all_at(&bytes, *from).map_err(RoutedError::Write)?;
            *from += bytes.len() as u64;
            *unreported += bytes.len() as u64;
            self.route.count(Way::Route, bytes.len() as u64);
            if *unreported >= REPORTED {
                progress.advance(std::mem::take(unreported));
            }
        }
        if *from < end {
            return Err(failed("the answer ended too early".into()));
        }
        Ok(())
    }
}
