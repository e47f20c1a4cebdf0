//! Models written in Python: each instance runs in a process of its own, with the interpreter that the user has.
//!
//! This crate is the server's side; `module/` is what runs within the interpreter.

#![forbid(unsafe_code)]

pub mod module;
