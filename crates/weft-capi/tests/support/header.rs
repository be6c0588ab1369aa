//! Writes `weft.h` from the declarations in `src/native`, and the families of macros of `am.h`.
//!
//! Written here because this repository does not accept cbindgen's licence, and it would add 20 crates. The declarations are simple: each
//! is of one of seven kinds, with its documentation above it.

use std::fmt::Write as _;

/// The files, in the order in which the header has them.
pub const FILES: [&str; 6] = ["mod.rs", "name.rs", "node.rs", "bundle.rs", "endpoint.rs", "message.rs"];

const HEAD: &str = "\
/* weft.h: fast, protected communication between processes of Linux machines.
 *
 * docs/c.md shows first programs. The functions that return int return WEFT_OK or a WEFT_ERROR_ code. All arguments are checked.
 * Pointers to the opaque types are numbers that are never followed: one of an object that is gone gives WEFT_ERROR_HANDLE.
 *
 * This file is generated from crates/weft-capi/src/native: `WRITE_HEADERS=1 cargo test -p weft-capi --test headers` writes it. */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif
";

const FOOT: &str = "
#ifdef __cplusplus
}
#endif

#endif
";

/// `weft.h`, from the texts of the files.
pub fn weft_h(files: &[String]) -> String {
    let mut opaque = String::new();
    let mut types = String::new();
    let mut functions = String::new();
    for file in files {
        let lines: Vec<&str> = file.lines().collect();
        let mut docs: Vec<&str> = Vec::new();
        let mut is_c = false;
        for (at, line) in lines.iter().enumerate() {
            if let Some(doc) = line.strip_prefix("///") {
                docs.push(doc.strip_prefix(' ').unwrap_or(doc));
                continue;
            }
            if line.starts_with("#[") {
                is_c |= matches!(*line, "#[no_mangle]" | "#[repr(C)]");
                continue;
            }
            let item = Item { docs: &docs, is_c, lines: &lines[at..] };
            item.write(&mut opaque, &mut types, &mut functions);
            docs.clear();
            is_c = false;
        }
    }
    format!("{HEAD}\n{opaque}{types}{functions}{FOOT}")
}

/// A declaration, with its documentation.
struct Item<'a> {
    docs: &'a [&'a str],
    is_c: bool,
    lines: &'a [&'a str],
}

impl Item<'_> {
    fn write(&self, opaque: &mut String, types: &mut String, functions: &mut String) {
        let line = self.lines[0];
        let public = |word: &str| line.strip_prefix("pub ").and_then(|rest| rest.strip_prefix(word));
        if let Some(rest) = public("const ").filter(|rest| rest.starts_with("WEFT_")) {
            let (name, value) = rest.trim_end_matches(';').split_once(" = ").expect("NAME: TYPE = VALUE");
            let name = name.split(':').next().unwrap_or_default();
            self.comment(types, "");
            _ = writeln!(types, "#define {name} {value}\n");
        } else if let Some(name) = public("struct ").and_then(|rest| rest.strip_suffix(';')) {
            let name = c_name(name);
            self.comment(opaque, "");
            _ = writeln!(opaque, "typedef struct {name} {name};\n");
        } else if let Some(rest) = public("struct ").filter(|_| self.is_c) {
            let name = c_name(rest.trim_end_matches(" {"));
            self.comment(types, "");
            _ = writeln!(types, "typedef struct {name} {{");
            self.each_inside(|docs, field| {
                let (field, kind) = field.trim_start_matches("pub ").split_once(": ").expect("FIELD: TYPE");
                comment(types, docs, "    ");
                _ = writeln!(types, "    {};", declare(kind, field));
            });
            _ = writeln!(types, "}} {name};\n");
        } else if let Some(rest) = public("enum ").filter(|_| self.is_c) {
            let name = c_name(rest.trim_end_matches(" {"));
            self.comment(types, "");
            _ = writeln!(types, "enum {name} {{");
            self.each_inside(|docs, variant| {
                let (variant, value) = variant.split_once(" = ").expect("NAME = VALUE");
                comment(types, docs, "    ");
                _ = writeln!(types, "    {} = {value},", format!("{name}_{}", c_name(variant)).to_uppercase());
            });
            // C++ allows no comma after the last one.
            types.truncate(types.trim_end_matches(",\n").len());
            _ = writeln!(types, "\n}};\n");
        } else if let Some(rest) = public("type ").filter(|rest| rest.contains("= Option<")) {
            let name = c_name(rest.split(' ').next().unwrap_or_default());
            let text = self.joined(">;");
            self.comment(types, "");
            _ = writeln!(types, "typedef void (*{name})({});\n", parameters(&text));
        } else if self.is_c && line.contains("extern \"C\" fn ") {
            let text = self.joined(" {");
            let after = text.split_once(" fn ").expect("a function").1;
            let name = after.split('(').next().unwrap_or_default();
            let result = text.rsplit_once(" -> ").map_or("void", |(_, result)| result.trim_end_matches(" {"));
            self.comment(functions, "");
            _ = writeln!(functions, "{};\n", declare(result, &format!("{name}({})", parameters(&text))));
        }
    }

    fn comment(&self, out: &mut String, indent: &str) {
        comment(out, self.docs, indent);
    }

    /// The lines up to the one that ends a declaration, joined.
    fn joined(&self, end: &str) -> String {
        let mut text = String::new();
        for line in self.lines {
            text.push_str(line.trim());
            if line.ends_with(end) {
                break;
            }
            if !text.ends_with('(') {
                text.push(' ');
            }
        }
        text
    }

    /// Calls `each` with the documentation and the text of each line between the braces.
    fn each_inside(&self, mut each: impl FnMut(&[&str], &str)) {
        let mut docs = Vec::new();
        for line in self.lines[1..].iter().map(|line| line.trim()).take_while(|line| *line != "}") {
            match line.strip_prefix("/// ") {
                Some(doc) => docs.push(doc),
                None => {
                    each(&docs, line.trim_end_matches(','));
                    docs.clear();
                }
            }
        }
    }
}

/// Documentation as a C comment, without the parts for readers of Rust.
fn comment(out: &mut String, docs: &[&str], indent: &str) {
    let docs: Vec<&str> =
        docs.iter().copied().take_while(|doc| *doc != "# Safety").filter(|doc| !doc.is_empty()).collect();
    if !docs.is_empty() {
        _ = writeln!(out, "{indent}/* {} */", docs.join(&format!("\n{indent} * ")));
    }
}

/// The parameters of a function, as C has them.
fn parameters(text: &str) -> String {
    let open = text.find('(').expect("parameters");
    let open = if text[..open].ends_with("fn") || text[..open].contains(" fn ") {
        open
    } else {
        text.find("fn(").expect("a function") + 2
    };
    let close = text.rfind(')').expect("parameters");
    let inside = text[open + 1..close].trim().trim_end_matches(',');
    let all: Vec<String> = inside
        .split(", ")
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let (name, kind) = parameter.split_once(": ").expect("NAME: TYPE");
            declare(kind, name)
        })
        .collect();
    if all.is_empty() {
        "void".to_owned()
    } else {
        all.join(", ")
    }
}

/// A declaration of C: the type and the declared name.
fn declare(kind: &str, what: &str) -> String {
    let kind = kind.trim().trim_end_matches(',');
    if let Some(rest) = kind.strip_prefix("*const ") {
        return declare(rest, &format!("*{what}")).replacen("", if rest.starts_with('*') { "" } else { "const " }, 1);
    }
    if let Some(rest) = kind.strip_prefix("*mut ") {
        return declare(rest, &format!("*{what}"));
    }
    if let Some((of, count)) = kind.strip_prefix('[').and_then(|rest| rest.trim_end_matches(']').split_once("; ")) {
        return declare(of, &format!("{what}[{count}]"));
    }
    let name = match kind {
        "c_int" => "int".to_owned(),
        "c_char" => "char".to_owned(),
        "c_void" | "void" => "void".to_owned(),
        "u8" => "uint8_t".to_owned(),
        "u32" => "uint32_t".to_owned(),
        "u64" => "uint64_t".to_owned(),
        "usize" => "size_t".to_owned(),
        other => c_name(other),
    };
    format!("{name} {what}")
}

/// `CamelCase` as `snake_case`.
fn c_name(name: &str) -> String {
    let mut out = String::new();
    for (at, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && at > 0 {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// The numbers of arguments.
const COUNTS: std::ops::RangeInclusive<usize> = 0..=16;

/// The families of `am.h`: the name before the number, the parameters before the arguments, and the call with its own arguments last.
pub const FAMILIES: [(&str, &str, &str); 7] = [
    ("AM_Request", "ep, dest, h", "am_request((ep), (dest), (h), "),
    ("AM_RequestI", "ep, dest, h, src, nbytes", "am_request_i((ep), (dest), (h), (src), (nbytes), "),
    (
        "AM_RequestXfer",
        "ep, dest, off, h, src, nbytes",
        "am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, ",
    ),
    (
        "AM_RequestXferAsync",
        "ep, dest, off, h, src, nbytes",
        "am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, ",
    ),
    ("AM_Reply", "token, h", "am_reply((token), (h), "),
    ("AM_ReplyI", "token, h, src, nbytes", "am_reply_i((token), (h), (src), (nbytes), "),
    ("AM_ReplyXfer", "token, off, h, src, nbytes", "am_reply_xfer((token), (off), (h), (src), (nbytes), "),
];

/// The same for gets, which the report defines with 4 and with 8 arguments.
pub const GETS: [(&str, &str); 2] = [("AM_GetXfer", "0"), ("AM_GetXferAsynch", "1")];

/// The part of `am.h` that is generated.
pub fn families() -> String {
    let names = |count: usize| (0..count).map(|at| format!("a{at}")).collect::<Vec<_>>().join(", ");
    let after =
        |first: &str, count: usize| if count == 0 { first.to_owned() } else { format!("{first}, {}", names(count)) };
    let mut out = String::from("#define AM_ARGS_0() 0, AM_NO_ARGS_\n");
    for count in COUNTS.skip(1) {
        let casts: Vec<String> = (0..count).map(|at| format!("(int32_t)(a{at})")).collect();
        _ = writeln!(
            out,
            "#define AM_ARGS_{count}({}) {count}, AM_ARGS_OF_({count}, {})",
            names(count),
            casts.join(", ")
        );
    }
    for (name, first, call) in FAMILIES {
        out.push('\n');
        for count in COUNTS {
            _ = writeln!(
                out,
                "#define {name}{count}({}) {call}AM_ARGS_{count}({}))",
                after(first, count),
                names(count)
            );
        }
    }
    out.push('\n');
    for count in [4, 8] {
        for (name, is_async) in GETS {
            let first = after("ep, dest, src_off, h, off, nbytes", count);
            let call = "am_get_xfer((ep), (dest), (src_off), (h), (off), (nbytes), ";
            _ = writeln!(out, "#define {name}{count}({first}) {call}{is_async}, AM_ARGS_{count}({}))", names(count));
        }
    }
    out
}
