//! Makes the linker export the functions of this crate to the libraries that its tests load; by default, programs
//! export none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=TRITON*");
}
