//! Exports the host functions defined in the tests: by default, programs export none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=TRITON*");
}
