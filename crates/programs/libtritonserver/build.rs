//! Sets the SONAME under which programs and backends depend on the library. The linker exports the functions of
//! Triton's C interface, and nothing else, without symbol versions, as in the reference's library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
}
