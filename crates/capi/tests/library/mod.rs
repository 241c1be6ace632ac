//! The shared library that Cargo has built beside the test.

use std::path::PathBuf;

/// Where it is.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().skip(1).map(|it| it.join("libsplitway.so"));
    let mut there = built.filter(|path| path.exists());
    there
        .next()
        .expect("Cargo builds the library with its tests")
}
