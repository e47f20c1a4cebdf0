//! Shared memory of a client, for tensors that no connection carries. Linux alone has it under this path.

use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use bytes::Bytes;

use crate::tensor::{Contents, Region, element_count, strings_size};
use crate::{DataType, Error, Tensor};

/// Where the system keeps shared memory.
const FOLDER: &str = "/dev/shm";

/// Shared memory that a server on the same machine reads inputs from and writes outputs to. It is removed on drop; unregister it
/// before.
#[derive(Debug)]
pub struct SharedMemory {
    name: String,
    size: usize,
    file: File,
    path: PathBuf,
}

impl SharedMemory {
    /// Creates shared memory of `size` bytes. The region has the same name at the server. The name must be unused.
    ///
    /// # Errors
    /// The name is in use or has a slash, or the system has no memory left.
    pub fn create(name: &str, size: usize) -> Result<Self, Error> {
        let failed = |error| Error::invalid(format!("cannot create the shared memory '{name}': {error}"));
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(failed(io::ErrorKind::InvalidFilename.into()));
        }
        let path = PathBuf::from(FOLDER).join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let memory = Self { name: name.to_owned(), size, file, path };
        memory.file.set_len(size as u64).map_err(failed)?;
        Ok(memory)
    }

    /// The name of the region.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bytes of the region.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The key by which a server opens the memory.
    pub(crate) fn key(&self) -> String {
        format!("/{}", self.name)
    }

    /// Writes a tensor at `offset`, and returns the input that refers to it.
    ///
    /// # Errors
    /// The tensor does not fit.
    pub fn store(&self, offset: usize, tensor: &Tensor) -> Result<Tensor, Error> {
        let bytes = tensor.bytes()?;
        self.check(offset, bytes.len())?;
        self.file.write_all_at(bytes, offset as u64).map_err(|error| self.failed(&error))?;
        let region = Region { name: self.name.clone(), offset, size: bytes.len() };
        let shape = tensor.shape().to_vec();
        Ok(Tensor::in_region(tensor.name().to_owned(), tensor.data_type(), shape, region))
    }

    /// Reads an output that a server placed here.
    ///
    /// # Errors
    /// The output is not in this memory.
    pub fn load(&self, output: &Tensor) -> Result<Tensor, Error> {
        let region = match output.contents() {
            Contents::Region(region) if region.name == self.name => region,
            _ => return Err(Error::invalid(format!("output '{}' is not in '{}'", output.name(), self.name))),
        };
        self.check(region.offset, region.size)?;
        let mut bytes = vec![0; region.size];
        self.file.read_exact_at(&mut bytes, region.offset as u64).map_err(|error| self.failed(&error))?;
        if output.data_type() == DataType::Bytes {
            // The region may be larger than the strings in it.
            let size = element_count(output.shape()).and_then(|count| strings_size(&bytes, count));
            bytes.truncate(size.unwrap_or(bytes.len()));
        }
        Tensor::from_bytes(output.name(), output.data_type(), output.shape(), Bytes::from(bytes))
    }

    fn check(&self, offset: usize, size: usize) -> Result<(), Error> {
        if offset.checked_add(size).is_some_and(|end| end <= self.size) {
            return Ok(());
        }
        let (name, all) = (&self.name, self.size);
        Err(Error::invalid(format!("{size} bytes at {offset} are outside the {all} bytes of '{name}'")))
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::invalid(format!("cannot use the shared memory '{}': {error}", self.name))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // Nobody could act on a failure: the memory may be removed already.
        let _ = remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(part: &str, size: usize) -> SharedMemory {
        SharedMemory::create(&format!("nereid-client-{}-{part}", std::process::id()), size).unwrap()
    }

    #[test]
    fn tensors_are_read_as_written() {
        let memory = memory("round", 64);
        let tensor = Tensor::new("x", [2, 3], [1_i32, 2, 3, 4, 5, 6]).unwrap();
        let stored = memory.store(40, &tensor).unwrap();
        assert!(stored.bytes().unwrap_err().to_string().contains("shared memory"));
        assert_eq!(memory.load(&stored).unwrap(), tensor);
        assert!(memory.load(&tensor).is_err());
        let strings = Tensor::strings("y", [2], ["a", "ü"]).unwrap();
        memory.store(0, &strings).unwrap();
        let region = Region { name: memory.name().to_owned(), offset: 0, size: 40 };
        let output = Tensor::in_region("y".into(), DataType::Bytes, vec![2], region);
        assert_eq!(memory.load(&output).unwrap(), strings);
        for offset in [41, 64, usize::MAX] {
            assert!(memory.store(offset, &tensor).unwrap_err().to_string().contains("outside"), "{offset}");
        }
    }

    #[test]
    fn memory_is_removed_on_drop_and_names_are_unique() {
        let first = memory("unique", 1);
        let name = first.name().to_owned();
        assert!(SharedMemory::create(&name, 1).unwrap_err().to_string().contains("cannot create"));
        drop(first);
        assert!(SharedMemory::create(&name, 1).is_ok());
        for name in ["", "a/b", "../x", "."] {
            assert!(SharedMemory::create(name, 1).is_err(), "{name}");
        }
    }
}
