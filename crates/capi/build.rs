//! Gives the shared library the name that programs are linked with. What it exports is what has a C
//! name: rustc hides all else.

/// Another number, when a program linked before no longer runs with it.
const SONAME: &str = "libsplitway.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
}
