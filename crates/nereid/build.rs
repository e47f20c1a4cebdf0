//! Has the linker offer the functions of Triton's C interface to the libraries that the program loads: programs, other
//! than libraries, offer none of theirs otherwise.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=TRITON*");
}
