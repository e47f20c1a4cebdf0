//! The `nereid` command. See [`nereid_cli::command`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use nereid_allocator::Heap;

/// Servers within other programs leave the allocator to them.
#[global_allocator]
static HEAP: Heap = Heap;

fn main() -> ExitCode {
    nereid_cli::command()
}
