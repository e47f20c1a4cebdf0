//! Makes the linker export the functions of Triton's C interface to the libraries that the program loads; by default,
//! programs export none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=TRITON*");
}
