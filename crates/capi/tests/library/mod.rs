//! The shared library, linked as packages have it from what Cargo has built beside the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where it is: a link to it, beside one of its soname.
pub(crate) fn library() -> PathBuf {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(link).clone()
}

fn link() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().skip(1).map(|it| it.join("libsplitway.a"));
    let mut there = built.filter(|path| path.exists());
    let archive = there.next();
    let archive = archive.expect("Cargo builds the library with its tests");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/library.sh");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library");
    let mut linking = Command::new(script);
    let done = linking.arg("link").args([&archive, &place]).output();
    let done = done.unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    assert_eq!(errors, "", "the linker has nothing to say");
    place.join("libsplitway.so")
}
