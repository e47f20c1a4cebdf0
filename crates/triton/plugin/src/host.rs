//! The functions that this program exports to plugins, and the check that plugins find them.

use std::ffi::{CStr, CString, OsStr, OsString, c_void};
use std::os::unix::ffi::OsStrExt;

use libloading::os::unix::{RTLD_GLOBAL, RTLD_NOW};
use nereid_dylib::Library;

use crate::library::PluginError;

/// A function of this program that plugins call: its C name and its address.
pub type HostFunction = (&'static str, *const ());

/// Checks that plugins find these functions, and `api_version` among them. A program exports its functions only if it
/// was linked to do so, and a library only after [`make_visible`] was called.
pub(crate) fn check(api_version: &str, host: &[&[HostFunction]]) -> Result<(), PluginError> {
    let functions = || host.iter().flat_map(|table| table.iter());
    if !functions().any(|(name, _)| *name == api_version) {
        return Err(PluginError::NotExported(api_version.to_owned()));
    }
    // The dynamic loader may also find another function of the same name first.
    let hidden =
        functions().find(|(name, address)| exported(name).is_none_or(|found| found.cast() != *address));
    hidden.map_or(Ok(()), |(name, _)| Err(PluginError::NotExported((*name).to_owned())))
}

/// Makes the functions of the library that contains `function` visible to all libraries loaded from now on: to
/// plugins, and to libraries with a stand-in for `libtritonserver.so`, whose functions then come second. This is
/// needed because Python, for example, loads the dependencies of a module for that module alone.
pub fn make_visible(function: *const ()) {
    let Some(path) = library_of(function) else { return };
    // SAFETY: the library is loaded already, so none of its code runs.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL | libc::RTLD_NOLOAD) };
    // Keeps the library loaded as long as this code may run. If opening fails, the check before plugins are loaded
    // reports the hidden function.
    std::mem::forget(library);
}

/// The file of the library or program that contains a function.
fn library_of(function: *const ()) -> Option<OsString> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address is allowed; the result is a place for the information.
    let found = unsafe { libc::dladdr(function.cast(), &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: after success, the name is a text that the dynamic loader keeps.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(OsStr::from_bytes(name.to_bytes()).to_owned())
}

/// The address that libraries find for a function.
fn exported(name: &str) -> Option<*const c_void> {
    let process = Library::this();
    let name = CString::new(name).ok()?;
    // SAFETY: the symbol is only used as an address.
    let address = unsafe { process.get::<*mut c_void>(name.as_bytes_with_nul()) };
    address.ok().map(|symbol| symbol.as_raw_ptr().cast_const())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_the_api_of_a_kind_is_refused() {
        let error = check("TRITONCACHE_ApiVersion", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this program does not export TRITONCACHE_ApiVersion to the libraries it loads"
        );
    }

    #[test]
    fn hidden_host_function_is_reported_by_name() {
        let of_this_test: HostFunction = ("of_this_test", (check as fn(_, &[_]) -> _) as *const ());
        let error = check("of_this_test", &[&[of_this_test]]).unwrap_err();
        assert!(matches!(error, PluginError::NotExported(name) if name == "of_this_test"));
    }
}
