//! Gives the shared library the name that programs look for when they start: the number changes when such programs must be built anew.
#![deny(unsafe_code)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
}
