//! The functions that this program exports to plugins, and whether plugins find them.

use std::ffi::{CString, c_void};

use nereid_dylib::Library;

use crate::library::PluginError;

/// A function of this program that plugins call: its C name and its address.
pub type HostFunction = (&'static str, *const ());

/// Checks that plugins find these functions, and `api_version` among them. A program exports its functions only if it
/// was linked to do so.
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

/// The address at which libraries find a function.
fn exported(name: &str) -> Option<*const c_void> {
    let process = Library::this();
    let name = CString::new(name).ok()?;
    // SAFETY: the symbol is taken as an address and not used otherwise.
    let address = unsafe { process.get::<*mut c_void>(name.as_bytes_with_nul()) };
    address.ok().map(|symbol| symbol.as_raw_ptr().cast_const())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_the_api_of_a_kind_is_refused() {
        let error = check("TRITONCACHE_ApiVersion", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this program does not export TRITONCACHE_ApiVersion to the libraries it loads"
        );
    }

    #[test]
    fn a_function_that_libraries_would_not_find_is_named() {
        let of_this_test: HostFunction = ("of_this_test", (check as fn(_, &[_]) -> _) as *const ());
        let error = check("of_this_test", &[&[of_this_test]]).unwrap_err();
        assert!(matches!(error, PluginError::NotExported(name) if name == "of_this_test"));
    }
}
