//! Gives the library the name by which programs and backends depend on it. The linker exports the functions of Triton's C
//! interface, and nothing else, without symbol versions, as in the reference's library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
}
