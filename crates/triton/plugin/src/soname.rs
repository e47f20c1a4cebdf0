//! Provides a stand-in for `libtritonserver.so`, which a plugin's library may name as a dependency.
//!
//! A plugin may be linked against Triton's `libtritonserver.so`, under that name or a packager's variant. The dynamic
//! loader then requires a library of that name (its SONAME) first. The server's functions are in this program, so the
//! library may be empty: only its name counts. An empty library is a few hundred bytes, which this file writes, so
//! that the program stays a single file and its build needs no second linker run. It is loaded from memory, and from
//! then on the dynamic loader uses it for every library of that name.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use nereid_dylib::LoadError;
use object::Endianness;
use object::elf::{DT_NEEDED, Dyn64, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::library::PluginError;

/// The prefix of the names of the server's library, which packagers keep.
const SERVER: &str = "libtritonserver";

/// The names that already have a stand-in, for the life of the process, since plugins are never unloaded.
static PROVIDED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Provides the server's libraries that a library depends on.
///
/// # Errors
/// The file is not a shared library.
pub(crate) fn provide_for(library: &Path) -> Result<(), PluginError> {
    let wrong = |reason: String| PluginError::NotALibrary { path: library.to_owned(), reason };
    let contents = fs::read(library).map_err(|error| wrong(error.to_string()))?;
    let names = dependencies(&contents).map_err(|error| wrong(error.to_string()))?;
    // A dependency of the library may itself depend on the usual name.
    let usual = "libtritonserver.so".to_owned();
    for name in names.into_iter().filter(|name| name.starts_with(SERVER)).chain([usual]) {
        provide(&name)?;
    }
    Ok(())
}

/// The libraries that a library depends on, by name.
fn dependencies(contents: &[u8]) -> object::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(contents)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, contents)?;
    let Some((entries, link)) = sections.dynamic(endian, contents)? else { return Ok(Vec::new()) };
    let strings = sections.strings(endian, contents, link)?;
    let needed = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    let name = |entry: &Dyn64<Endianness>| {
        let name = entry.string(endian, strings)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    };
    needed.map(name).collect()
}

fn provide(name: &str) -> Result<(), PluginError> {
    let mut provided = PROVIDED.lock().unwrap_or_else(PoisonError::into_inner);
    if provided.iter().any(|known| known == name) {
        return Ok(());
    }
    // If this code is in that library, it is loaded already.
    // SAFETY: nothing is loaded, so no code runs.
    if let Ok(library) = unsafe { Library::open(Some(name), RTLD_NOW | libc::RTLD_NOLOAD) } {
        std::mem::forget(library);
        provided.push(name.to_owned());
        return Ok(());
    }
    let failed = |reason: String| PluginError::StandIn { name: name.to_owned(), reason };
    let descriptor = memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| failed(error.to_string()))?;
    let mut file = fs::File::from(descriptor);
    file.write_all(&empty_library(name)).map_err(|error| failed(error.to_string()))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the library has no code, so none runs when it is loaded.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    let library = library.map_err(|error| failed(LoadError::new(Path::new(name), &error).reason))?;
    // The library stays loaded for the life of the process, which reserves its name. The descriptor stays open, too:
    // the loader would take a second file at the same path for the first.
    std::mem::forget((library, file));
    provided.push(name.to_owned());
    Ok(())
}

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SYMBOL: usize = 24;

/// An empty shared library with that name, for the machine that this program runs on.
///
/// The format follows the System V ABI for 64 bits: a header, two segments (the entire file; its dynamic section),
/// the dynamic section, the mandatory first symbol, an empty hash table, and the names.
fn empty_library(name: &str) -> Vec<u8> {
    let dynamic = HEADER + 2 * SEGMENT;
    let symbols = dynamic + 6 * 16;
    let hash = symbols + SYMBOL;
    let strings = hash + 4 * 4;
    let size = strings + 1 + name.len() + 1;

    let mut file = Elf64::default();
    file.bytes(&[0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "little") { 1 } else { 2 }, 1, 0]);
    file.bytes(&[0; 8]);
    file.half(3).half(MACHINE).word(1).long(0).long(HEADER).long(0).word(0);
    file.half(HEADER as u16).half(SEGMENT as u16).half(2).half(0).half(0).half(0);
    // Loaded in full, readable.
    file.word(1).word(4).long(0).long(0).long(0).long(size).long(size).long(0x1000);
    // The dynamic section, writable because the linker writes addresses into it on some machines.
    file.word(2).word(4).long(dynamic).long(dynamic).long(dynamic).long(6 * 16).long(6 * 16).long(8);
    for (tag, value) in [(14, 1), (4, hash), (5, strings), (6, symbols), (10, size - strings), (0, 0)] {
        file.long(tag).long(value);
    }
    file.bytes(&[0; SYMBOL]);
    file.word(1).word(1).word(0).word(0);
    file.bytes(b"\0").bytes(name.as_bytes()).bytes(b"\0");
    file.0
}

/// The ELF number of this machine.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// An ELF file under construction.
#[derive(Default)]
struct Elf64(Vec<u8>);

impl Elf64 {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn half(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn long(&mut self, value: usize) -> &mut Self {
        self.bytes(&(value as u64).to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_library_contains_only_its_name() {
        let bytes = empty_library("libtritonserver-1234.so");
        assert_eq!(dependencies(&bytes).unwrap(), [""; 0]);
        let name = b"\0libtritonserver-1234.so\0";
        assert!(bytes.ends_with(name));
    }

    #[test]
    fn needed_libraries_are_read() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(dependencies(&own).unwrap().iter().any(|name| name.starts_with("libc.so")));
        let cut = dependencies(&own[..own.len() / 2]);
        assert!(cut.is_err() || cut.unwrap().is_empty());
    }

    #[test]
    fn stand_in_satisfies_the_dynamic_loader() {
        let name = "libtritonserver-of-a-test.so.7";
        // SAFETY: no library of that name exists, or else it has no code.
        let open = || unsafe { Library::open(Some(name), RTLD_NOW) };
        assert!(open().is_err());
        provide(name).unwrap();
        provide(name).unwrap();
        open().unwrap();
    }

    #[test]
    fn non_library_is_refused_by_name() {
        let error = provide_for(Path::new("/etc/hostname")).unwrap_err().to_string();
        assert!(error.starts_with("/etc/hostname is not a shared library: "), "{error}");
    }
}
