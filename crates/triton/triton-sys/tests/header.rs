//! Checks that the C headers, for the tests' own backends, for others' backends and for applications that embed a server, match this
//! crate.
//!
//! The headers are generated from the crate's sources. `UPDATE_HEADER=1 cargo test -p nereid-triton-sys` rewrites them.

use std::fmt::Write as _;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../");
/// The header of the tests' own backends.
const TEST_BACKENDS: &str = "tests/backends/triton.h";
/// The header for backends that is installed with the library, under the name that they include.
const BACKENDS: &str = "crates/programs/libtritonserver/include/triton/core/tritonbackend.h";
/// The header that is installed with the library, under the name that applications include.
const APPLICATIONS: &str = "crates/programs/libtritonserver/include/triton/core/tritonserver.h";

/// The header of what the library offers beside that.
const OWN: &str = "crates/programs/libtritonserver/include/nereid.h";

/// C++ compilers read declarations between these as C.
const CPLUSPLUS_BEGIN: &str = "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
const CPLUSPLUS_END: &str = "\n#ifdef __cplusplus\n}\n#endif\n";

const FUNCTIONS: [(&str, &str); 6] = [
    ("values", include_str!("../src/values.rs")),
    ("inference", include_str!("../src/inference.rs")),
    ("server", include_str!("../src/server.rs")),
    ("backend", include_str!("../src/backend.rs")),
    ("entry", include_str!("../src/entry.rs")),
    ("agent", include_str!("../src/agent.rs")),
];

#[test]
fn headers_are_up_to_date() {
    let headers = [
        (TEST_BACKENDS, header()),
        (BACKENDS, backend_header()),
        (APPLICATIONS, installed_header()),
        (OWN, own_header()),
    ];
    for (path, made) in headers {
        let file = Path::new(ROOT).join(path);
        if std::env::var_os("UPDATE_HEADER").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &made).unwrap();
        }
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(found == made, "{path} differs from triton-sys; rewrite it with UPDATE_HEADER=1");
    }
}

#[test]
fn header_declares_every_name() {
    let made = header();
    let all = triton_sys::signatures::SERVER
        .into_iter()
        .chain([triton_sys::signatures::BACKEND, triton_sys::signatures::ENTRY])
        .chain([triton_sys::signatures::AGENT, triton_sys::signatures::AGENT_ENTRY]);
    for name in all.flatten() {
        assert!(made.contains(&format!(" {name}(")), "{name}");
    }
    assert!(made.contains("typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;"));
    assert!(made.contains("TRITONSERVER_TYPE_BF16 = 14"));
    let installed = installed_header();
    for name in triton_sys::signatures::SERVER.into_iter().flatten() {
        assert!(installed.contains(&format!(" {name}(")), "{name}");
    }
    let own = own_header();
    assert!(triton_sys::signatures::OWN.iter().all(|name| own.contains(&format!(" {name}("))), "{own}");
    assert!(!installed.contains("TRITONBACKEND_") && !installed.contains("TRITONREPOAGENT_"));
    let backends = backend_header();
    for name in [triton_sys::signatures::BACKEND, triton_sys::signatures::ENTRY].into_iter().flatten() {
        assert!(backends.contains(&format!(" {name}(")), "{name}");
    }
    assert!(!backends.contains(" TRITONSERVER_ErrorNew(") && !backends.contains("TRITONREPOAGENT_"));
}

/// The contents of `tritonserver.h`, for C and C++.
fn installed_header() -> String {
    let mut text = String::from(
        "/* The C interface of libtritonserver.so, for applications with a server inside. Made from crates/triton/triton-sys by its\n \
         * tests. Not to be edited. docs/c-abi.md says more. */\n\
         #pragma once\n\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n",
    );
    text.push_str(CPLUSPLUS_BEGIN);
    version(
        &mut text,
        "TRITONSERVER",
        [triton_sys::TRITONSERVER_API_VERSION_MAJOR, triton_sys::TRITONSERVER_API_VERSION_MINOR],
    );
    opaque_types(&mut text, "TRITONSERVER_");
    let mut enumerated = String::new();
    enumerations(&mut enumerated);
    // Declarations of other headers are left out: programs may include these, too.
    let is_other = |piece: &&str| piece.contains("TRITONBACKEND_") || piece.contains("TRITONREPOAGENT_");
    for piece in enumerated.split_inclusive(";\n").filter(|piece| !is_other(piece)) {
        text.push_str(piece);
    }
    callbacks(&mut text);
    for (group, source) in FUNCTIONS {
        if ["values", "inference", "server"].contains(&group) {
            text.push('\n');
            declarations(&mut text, source);
        }
    }
    text.push_str(CPLUSPLUS_END);
    text
}

/// The contents of `tritonbackend.h`, for C and C++.
fn backend_header() -> String {
    let mut text = String::from(
        "/* Triton's C interface for backends: what they call, and what they define. Made from crates/triton/triton-sys by its tests.\n \
         * Not to be edited. docs/backends.md has an example. */\n\
         #pragma once\n\n#include \"triton/core/tritonserver.h\"\n\n",
    );
    text.push_str(CPLUSPLUS_BEGIN);
    version(
        &mut text,
        "TRITONBACKEND",
        [triton_sys::TRITONBACKEND_API_VERSION_MAJOR, triton_sys::TRITONBACKEND_API_VERSION_MINOR],
    );
    opaque_types(&mut text, "TRITONBACKEND_");
    let mut enumerated = String::new();
    enumerations(&mut enumerated);
    for piece in enumerated.split_inclusive(";\n").filter(|piece| piece.contains("TRITONBACKEND_")) {
        text.push_str(piece);
    }
    for (group, source) in FUNCTIONS {
        if ["backend", "entry"].contains(&group) {
            text.push('\n');
            declarations(&mut text, source);
        }
    }
    text.push_str(CPLUSPLUS_END);
    text
}

/// The contents of `nereid.h`, for C and C++.
fn own_header() -> String {
    let mut text = String::from(
        "/* What libtritonserver.so offers beside Triton's interface. Made from crates/triton/triton-sys by its tests. Not to be edited.\n \
         * docs/embedding.md says more. */\n\
         #pragma once\n\n#include \"triton/core/tritonserver.h\"\n\n",
    );
    text.push_str(CPLUSPLUS_BEGIN);
    declarations(&mut text, include_str!("../src/own.rs"));
    text.push_str(CPLUSPLUS_END);
    text
}

fn version(text: &mut String, interface: &str, [major, minor]: [u32; 2]) {
    writeln!(text, "#define {interface}_API_VERSION_MAJOR {major}").unwrap();
    writeln!(text, "#define {interface}_API_VERSION_MINOR {minor}\n").unwrap();
}

fn opaque_types(text: &mut String, prefix: &str) {
    for line in include_str!("../src/handles.rs").lines() {
        let name = line.strip_prefix("    ").and_then(|rest| rest.strip_suffix(';'));
        if let Some(name) = name.filter(|name| name.starts_with(prefix)) {
            writeln!(text, "typedef struct {name} {name};").unwrap();
        }
    }
    text.push('\n');
}

fn declarations(text: &mut String, source: &str) {
    for (name, arguments, result) in functions(&without_comments(source), "fn ") {
        writeln!(text, "{} {name}({});", result_type(&result), parameters(&arguments)).unwrap();
    }
}

fn header() -> String {
    let mut text = String::from(
        "/* Triton's C interface for backends and repository agents, made from crates/triton/triton-sys by its tests. Not to be edited. */\n\
         #pragma once\n\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n",
    );
    opaque_types(&mut text, "TRITON");
    enumerations(&mut text);
    callbacks(&mut text);
    for (_, source) in FUNCTIONS {
        text.push('\n');
        declarations(&mut text, source);
    }
    text
}

fn enumerations(text: &mut String) {
    let mut name = None;
    for line in include_str!("../src/enums.rs").lines() {
        if let Some(found) = line.strip_prefix("    TRITON").and_then(|rest| rest.strip_suffix(" {")) {
            name = Some(found);
            text.push_str("typedef enum {\n");
        } else if let Some(constant) = line.strip_prefix("        TRITON") {
            writeln!(text, "    TRITON{constant}").unwrap();
        } else if let ("    }", Some(found)) = (line, name.take_if(|_| line == "    }")) {
            writeln!(text, "}} TRITON{found};").unwrap();
        }
    }
    text.push('\n');
}

fn callbacks(text: &mut String) {
    let source = without_comments(include_str!("../src/callbacks.rs"));
    for piece in source.split("pub type ").skip(1) {
        let (name, rest) = piece.split_once(" =").unwrap();
        let (_, arguments, result) = functions(rest, "fn").into_iter().next().unwrap();
        let result = result.trim_end_matches([',', '>', ' ', '\n']).to_owned();
        writeln!(text, "typedef {} (*{name})({});", result_type(&result), parameters(&arguments)).unwrap();
    }
}

/// Name, arguments and result of each function; a result ends with its statement.
fn functions(source: &str, start: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for piece in source.split(start).skip(1) {
        let Some((name, rest)) = piece.split_once('(') else { continue };
        let (arguments, rest) = rest.split_once(')').unwrap();
        let result = rest.split_once(';').unwrap().0;
        let result = result.trim().strip_prefix("->").unwrap_or("").trim();
        found.push((name.trim().to_owned(), arguments.to_owned(), result.to_owned()));
    }
    found
}

fn parameters(arguments: &str) -> String {
    let each = arguments.split(',').filter(|argument| !argument.trim().is_empty());
    let all: Vec<_> = each
        .map(|argument| {
            let (name, kind) = argument.split_once(": ").unwrap();
            format!("{} {}", c_type(kind), name.trim().trim_start_matches("r#"))
        })
        .collect();
    if all.is_empty() { "void".to_owned() } else { all.join(", ") }
}

fn result_type(result: &str) -> String {
    if result.is_empty() { "void".to_owned() } else { c_type(result) }
}

fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(inner));
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("{} const*", c_type(inner));
    }
    match rust {
        "usize" => "size_t",
        "u32" => "uint32_t",
        "i32" => "int32_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        "f64" => "double",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_void" => "void",
        other => other,
    }
    .to_owned()
}

fn without_comments(source: &str) -> String {
    source.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}
