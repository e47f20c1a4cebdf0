//! Has the linker offer the functions of this crate to the libraries that its tests load: programs, other
//! than libraries, offer none of theirs otherwise.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=TRITON*");
}
