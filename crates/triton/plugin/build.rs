//! Exports the host functions that the tests define: a program exports none of its functions otherwise.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=TRITON*");
}
