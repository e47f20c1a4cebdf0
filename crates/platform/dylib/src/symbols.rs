//! Tables of a library's functions, looked up by name.

use libloading::os::unix::Library;

/// Declares a table of a library's functions with their symbols and types, and `of`, which looks them up. Functions
/// after the semicolon are optional.
///
/// ```
/// nereid_dylib::symbols! {
///     /// Functions of the C library.
///     struct Functions {
///         length = "strlen" => unsafe extern "C" fn(*const std::ffi::c_char) -> usize,
///         ;
///         newer = "strfry_r" => unsafe extern "C" fn(),
///     }
/// }
/// ```
#[macro_export]
macro_rules! symbols {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident {
            $($name:ident = $symbol:expr => $type:ty,)*
            $(; $($optional:ident = $optional_symbol:expr => $optional_type:ty,)*)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy)]
        $visibility struct $table {
            $($visibility $name: $type,)*
            $($($visibility $optional: Option<$optional_type>,)*)?
        }

        impl $table {
            /// Looks the functions up.
            ///
            /// # Errors
            /// The name of the first required function that is missing.
            ///
            /// # Safety
            /// The library's functions of these names have these types, and it stays open as long as the table is used.
            $visibility unsafe fn of(library: &$crate::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        $name: {
                            let name = $symbol;
                            // SAFETY: the caller guarantees the type.
                            unsafe { $crate::symbol::<$type>(library, name) }.ok_or(name)?
                        },
                    )*
                    $($(
                        $optional: {
                            let name = $optional_symbol;
                            // SAFETY: as above.
                            unsafe { $crate::symbol::<$optional_type>(library, name) }
                        },
                    )*)?
                })
            }
        }
    };
}

/// The library's symbol of that name, if it exports one.
///
/// # Safety
/// `T` is the type of a pointer to that symbol, which is used only as long as the library is open.
pub unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Option<T> {
    // SAFETY: guaranteed by the caller.
    unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_char, c_int};

    use super::*;

    type Length = unsafe extern "C" fn(*const c_char) -> usize;

    symbols! {
        /// Functions of the C library, which each process has.
        struct Present {
            length = "strlen" => Length,
            absolute = "abs" => unsafe extern "C" fn(c_int) -> c_int,
            ;
            known = "strnlen" => unsafe extern "C" fn(*const c_char, usize) -> usize,
            unknown = "strlen_of_no_release" => Length,
        }
    }

    symbols! {
        struct Missing {
            length = "strlen" => Length,
            unknown = "strlen_of_no_release" => Length,
        }
    }

    #[test]
    fn required_and_optional_functions_are_looked_up() {
        // SAFETY: the C library declares the functions so, and is never closed.
        let found = unsafe { Present::of(&Library::this()) }.unwrap();
        // SAFETY: a string and numbers, as the functions require.
        let results = unsafe {
            (
                (found.length)(c"four".as_ptr()),
                (found.absolute)(-7),
                found.known.unwrap()(c"four".as_ptr(), 2),
            )
        };
        assert_eq!(results, (4, 7, 2));
        assert!(found.unknown.is_none());
    }

    #[test]
    fn missing_required_function_is_named() {
        // SAFETY: as above.
        let missing = unsafe { Missing::of(&Library::this()) };
        assert_eq!(missing.map(|found| (found.length, found.unknown)).err(), Some("strlen_of_no_release"));
    }
}
