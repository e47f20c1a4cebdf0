//! A bucket with retries: pauses between attempts, and fresh credentials when the old ones are refused.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use nereid_http_client::{Connector, Environment, Patience};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::address::Address;
use crate::connect::{Connection, connect};
use crate::errors::{Failure, FailureKind};

/// Limits of the listing of a repository, which is kept in memory.
#[derive(Clone, Copy, Debug)]
pub struct ListingLimits {
    /// The most objects.
    pub objects: usize,
    /// The most bytes of their names and ETags.
    pub bytes: usize,
}

impl ListingLimits {
    /// The objects of a listing, or the limit that they exceed.
    async fn collect(
        self,
        mut listing: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> object_store::Result<Result<Vec<ObjectMeta>, String>> {
        let (mut objects, mut bytes) = (Vec::new(), 0);
        while let Some(object) = listing.try_next().await? {
            bytes += object.location.as_ref().len() + object.e_tag.as_ref().map_or(0, String::len);
            if objects.len() >= self.objects {
                return Ok(Err(format!("the listing exceeds the limit of {} objects", self.objects)));
            }
            if bytes > self.bytes {
                return Ok(Err(format!("the listing exceeds the limit of {} bytes of names", self.bytes)));
            }
            objects.push(object);
        }
        Ok(Ok(objects))
    }
}

impl Default for ListingLimits {
    fn default() -> Self {
        Self { objects: 500_000, bytes: 64 << 20 }
    }
}

/// The bucket of an address.
pub(crate) struct Bucket {
    pub address: Address,
    environment: Environment,
    connector: Connector,
    pub patience: Patience,
    listings: ListingLimits,
    /// How many bytes of objects were received from it.
    pub fetched: AtomicU64,
    /// Opened by the first request.
    current: Mutex<Option<Arc<Connection>>>,
}

impl Bucket {
    pub(crate) fn new(
        address: Address,
        environment: Environment,
        connector: Connector,
        patience: Patience,
        listings: ListingLimits,
    ) -> Self {
        Self {
            address,
            environment,
            connector,
            patience,
            listings,
            fetched: AtomicU64::new(0),
            current: Mutex::default(),
        }
    }

    /// Runs a request: again after a pause if the failure may be temporary, and once more with newly read credentials
    /// if the current ones are refused.
    pub(crate) async fn attempt<T, F>(&self, act: impl Fn(Arc<dyn ObjectStore>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let (mut attempts, mut is_renewed) = (0, false);
        loop {
            let connection = self.connection().await?;
            let failure = match act(Arc::clone(&connection.store)).await {
                Ok(done) => return Ok(done),
                Err(error) => Failure::of(&error, &connection.secrets),
            };
            match failure.kind {
                FailureKind::Denied if !is_renewed => {
                    is_renewed = true;
                    self.forget(&connection).await;
                }
                FailureKind::Unavailable if attempts + 1 < self.patience.attempts => {
                    tracing::debug!("'{}': {}; trying again", self.address, failure.message);
                    sleep(self.patience.pause(attempts)).await;
                    attempts += 1;
                }
                _ => return Err(failure),
            }
        }
    }

    /// The objects in a folder, given by its path in the bucket.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>, Failure> {
        let path = object_store::path::Path::parse(folder)
            .map_err(|error| Failure::new(FailureKind::NotFound, error.to_string()))?;
        let prefix = (!folder.is_empty()).then_some(path);
        let limits = self.listings;
        let listed = self.attempt(|store| {
            let prefix = prefix.clone();
            async move { limits.collect(store.list(prefix.as_ref())).await }
        });
        listed.await?.map_err(|message| Failure::new(FailureKind::Refused, message))
    }

    /// A file at the root of the repository, if it exists.
    pub(crate) async fn read(&self, file: &str, limit: u64) -> Result<Option<Vec<u8>>, Failure> {
        let folder = &self.address.path;
        let path = if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") };
        let path = object_store::path::Path::parse(path)
            .map_err(|error| Failure::new(FailureKind::NotFound, error.to_string()))?;
        let read = self.attempt(|store| {
            let path = path.clone();
            async move {
                let answer = store.get(&path).await?;
                let is_short = answer.meta.size <= limit;
                Ok(if is_short { Some(answer.bytes().await?.to_vec()) } else { None })
            }
        });
        match read.await {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) => {
                Err(Failure::new(FailureKind::Refused, format!("the file is longer than {limit} bytes")))
            }
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The open bucket. Credentials are read when it is opened.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &*current {
            return Ok(Arc::clone(connection));
        }
        let connection = connect(&self.address, &self.environment, &self.connector).await;
        let connection = connection.map_err(|message| Failure::new(FailureKind::Refused, message))?;
        Ok(Arc::clone(current.insert(Arc::new(connection))))
    }

    /// Drops refused credentials, unless another request has already done so.
    pub(crate) async fn forget(&self, refused: &Arc<Connection>) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, refused)) {
            tracing::info!("'{}' refuses the credentials; reading them again", self.address);
            *current = None;
        }
    }
}
