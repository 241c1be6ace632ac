//! Gives the shared library that Cargo makes the name that programs are linked with. It exports
//! what has a C name: rustc hides all else. Versions of symbols has only the library of packages,
//! which scripts/library.sh links; it says why.

/// Another number, when a program linked before no longer runs with it.
const SONAME: &str = "libsplitway.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
}
