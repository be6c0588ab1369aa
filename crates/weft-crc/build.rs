//! Says whether this compiler knows the intrinsics of 256-bit carry-less multiplication.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(has_wide_multiplication)");
    if rustversion::cfg!(since(1.89)) {
        println!("cargo:rustc-cfg=has_wide_multiplication");
    }
}
