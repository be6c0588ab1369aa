//! The headers match the library and compile in every C and C++ that they are for; the manual pages match the headers; and the library
//! exports nothing else.

#[path = "support/header.rs"]
mod header;
#[path = "support/manual.rs"]
mod manual;
mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use support::{built, crate_dir, run_well, Folder, STRICT};

const BEGIN: &str = "/* generated from here on: tests/headers.rs writes it */\n";
const END: &str = "/* generated up to here */\n";

fn include(name: &str) -> PathBuf {
    crate_dir().join("include").join(name)
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Compares a committed file with what is generated; with `WRITE_HEADERS=1` in the environment, writes it.
fn hold(path: &str, generated: &str) {
    let (path, name) = (crate_dir().join(path), path);
    if std::env::var_os("WRITE_HEADERS").is_some() {
        std::fs::write(&path, generated).expect("the file can be written");
    }
    let committed = read(path);
    let differs = committed.lines().zip(generated.lines()).find(|(one, other)| one != other);
    assert!(
        committed == generated,
        "{name} is not what is generated (first difference: {differs:?}); WRITE_HEADERS=1 cargo test -p weft-capi --test headers writes it"
    );
}

#[test]
fn weft_h_is_what_the_library_declares() {
    let files: Vec<String> = header::FILES.iter().map(|file| read(crate_dir().join("src/native").join(file))).collect();
    let generated = header::weft_h(&files);
    // The generator found declarations of each kind.
    for part in [
        "#define WEFT_OK 0",
        "typedef struct weft_node weft_node;",
        "WEFT_ERROR_IN_HANDLER",
        "(*weft_handler)",
        "int weft_request(",
    ] {
        assert!(generated.contains(part), "{part} is missing in\n{generated}");
    }
    hold("include/weft.h", &generated);
}

#[test]
fn the_families_of_am_h_have_all_numbers_of_arguments() {
    let committed = read(include("am.h"));
    let (head, rest) = committed.split_once(BEGIN).expect("am.h has a generated part");
    let (_, foot) = rest.split_once(END).expect("and its end");
    hold("include/am.h", &format!("{head}{BEGIN}{}{END}{foot}", header::families()));
}

#[test]
fn manual_pages_are_what_the_headers_say() {
    let mut redirects = String::new();
    for name in ["weft.h", "am.h", "am_spmd.h"] {
        let page = manual::page(name, &read(include(name)));
        hold(&format!("man/{name}.3"), &page.text);
        page.functions.iter().for_each(|function| redirects += &format!("{function} {name}\n"));
    }
    hold("man/redirects.txt", &redirects);
    let exports = read(crate_dir().join("exports.txt"));
    for name in exports.lines().chain(["AM_Request", "AM_SetHandler", "AM_RequestXferAsync0"]) {
        assert!(redirects.lines().any(|line| line.split(' ').next() == Some(name)), "{name} is on no page");
    }
}

#[test]
fn all_functions_of_the_headers_are_exported_and_nothing_else() {
    let nm = run_well(Command::new("nm").args(["-D", "--defined-only"]).arg(built("libweft_c.so")));
    let text = String::from_utf8(nm.stdout).expect("names are text");
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let list = read(crate_dir().join("exports.txt"));
    let listed: BTreeSet<&str> = list.lines().collect();
    if std::env::var_os("WRITE_HEADERS").is_some() {
        let names: Vec<&str> = exported.iter().copied().collect();
        std::fs::write(crate_dir().join("exports.txt"), names.join("\n") + "\n").expect("the list can be written");
        return;
    }
    let strays: Vec<_> =
        exported.iter().filter(|name| !["AM_", "am_", "weft_"].iter().any(|p| name.starts_with(p))).collect();
    assert!(strays.is_empty(), "the library shows {strays:?}");
    assert_eq!(exported, listed, "exports.txt lists what programs rely on");
    let headers: String = ["am.h", "am_spmd.h", "weft.h"].into_iter().map(|name| read(include(name))).collect();
    for name in exported {
        assert!(headers.contains(&format!("{name}(")), "{name} is in no header");
    }
}

/// A program that includes both headers, in either order, and uses a macro of each family and number.
fn user(first: &str, second: &str) -> String {
    let mut text = format!("#include <{first}>\n#include <{second}>\nint use(ep_t ep, void *token, void *src);\nint use(ep_t ep, void *token, void *src) {{\n    int sum = 0;\n");
    for count in 0..=16 {
        let args: String = (0..count).map(|at| format!(", {at}")).collect();
        for call in [
            format!("AM_Request{count}(ep, 0, 1{args})"),
            format!("AM_RequestI{count}(ep, 0, 1, src, 8{args})"),
            format!("AM_RequestXfer{count}(ep, 0, 16, 1, src, 8{args})"),
            format!("AM_RequestXferAsync{count}(ep, 0, 16, 1, src, 8{args})"),
            format!("AM_Reply{count}(token, 1{args})"),
            format!("AM_ReplyI{count}(token, 1, src, 8{args})"),
            format!("AM_ReplyXfer{count}(token, 16, 1, src, 8{args})"),
        ] {
            text += &format!("    sum += {call};\n");
        }
    }
    text += "    sum += AM_GetXfer4(ep, 0, 0, 1, 0, 8, 1, 2.5, 3L, 4) + AM_GetXferAsynch8(ep, 0, 0, 1, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8);\n";
    text += "    return sum + AM_Request(ep, 0, 1, 2, 3, 4) + AM_ReplyI(token, 1, src, 8, 0) + AM_SetHandler(ep, 1, use);\n}\n";
    text
}

#[test]
fn headers_are_clean_in_all_languages() {
    let folder = Folder::new("clean");
    let has_clang = Command::new("clang").arg("--version").output().is_ok_and(|output| output.status.success());
    for (name, first, second) in
        [("one", "am.h", "weft.h"), ("two", "weft.h", "am.h"), ("three", "am_spmd.h", "weft.h")]
    {
        for (suffix, compilers, standards) in [
            ("c", [("gcc", true), ("clang", has_clang)], &["c11", "c17", "c2x"][..]),
            ("cc", [("g++", true), ("clang++", has_clang)], &["c++17", "c++20"][..]),
        ] {
            let source = folder.path().join(format!("{name}.{suffix}"));
            let text = user(first, second);
            // `use` is declared with other parameters than a handler's: the macro casts it.
            std::fs::write(&source, text).expect("a source file");
            for (compiler, _) in compilers.iter().filter(|(_, is_there)| *is_there) {
                for standard in standards {
                    let mut command = Command::new(compiler);
                    command.arg(format!("-std={standard}")).args(STRICT).arg("-I").arg(crate_dir().join("include"));
                    run_well(command.args(["-fsyntax-only"]).arg(&source));
                }
            }
        }
    }
}
