//! Makes the linker export the functions of this crate to the libraries that its tests and examples load; by default,
//! programs export none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=TRITON*");
    println!("cargo::rustc-link-arg-examples=-Wl,--export-dynamic-symbol=TRITON*");
}
