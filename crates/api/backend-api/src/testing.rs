//! A device for tests, whose memory the CPU cannot read directly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::{Buffer, DeviceBuffer, DeviceMemory, Error, Result};

/// The address at which its memory begins.
pub(crate) const START: u64 = 1 << 40;

/// A device with some memory.
pub(crate) struct Card {
    pub contents: Mutex<Vec<u8>>,
    fails: AtomicBool,
}

impl Card {
    pub(crate) fn holding(contents: &[u8]) -> Arc<Self> {
        Arc::new(Self { contents: Mutex::new(contents.to_vec()), fails: AtomicBool::new(false) })
    }

    /// Makes all further reads and writes fail.
    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    fn access(&self, address: u64, use_it: impl FnOnce(&mut [u8])) -> Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::internal("the card is gone"));
        }
        use_it(&mut self.contents.lock().unwrap()[usize::try_from(address - START).unwrap()..]);
        Ok(())
    }
}

impl DeviceMemory for Card {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<()> {
        self.access(address, |contents| target.copy_from_slice(&contents[..target.len()]))
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<()> {
        self.access(address, |contents| contents[..source.len()].copy_from_slice(source))
    }
}

/// A buffer of all the card's memory.
pub(crate) fn on_card(card: &Arc<Card>) -> Buffer {
    Buffer::device(whole(card), 0)
}

/// All of the card's memory.
pub(crate) fn whole(card: &Arc<Card>) -> DeviceBuffer {
    let len = card.contents.lock().unwrap().len();
    DeviceBuffer { address: START, len, owner: Arc::clone(card) as _ }
}
