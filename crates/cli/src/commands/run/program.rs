//! The program to run: its path, and whether it loads libraries.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use failure::Failure;
use object::read::elf::{ElfFile32, ElfFile64};
use object::{Object, ObjectSection, elf};
use rustix::fs::{Access, access};
use rustix::process::{getegid, geteuid, getuid};

/// Returns the path of a program, searched in `PATH` if its name has no slash, as execvp(3) does.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let what = || format!("program {}", name.display());
    let own = Path::new(name);
    if name.as_encoded_bytes().contains(&b'/') {
        return match access(own, Access::EXEC_OK) {
            Ok(()) if own.is_file() => Ok(own.to_owned()),
            Ok(()) => Err(Failure::input(what(), "it is not a file")),
            Err(errno) => Err(Failure::input(what(), errno)),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut places = std::env::split_paths(&path).map(|place| place.join(own));
    places
        .find(|place| place.is_file() && access(place, Access::EXEC_OK).is_ok())
        .ok_or_else(|| {
            Failure::input(what(), format!("it is not in {}", path.display()))
                .remedy("Name it by its path.")
        })
}

/// Fails with a reason if the program would use the kernel's sockets: without the library, or with
/// `--compat` (`is_supervised`) without the filter.
pub(crate) fn check(path: &Path, is_supervised: bool) -> Result<(), Failure> {
    let what = format!("program {}", path.display());
    let failed = |error| Failure::input(&what, error);
    let metadata = path.metadata().map_err(failed)?;
    let changes_user = metadata.mode() & 0o4000 != 0 && metadata.uid() != geteuid().as_raw();
    let changes_group = metadata.mode() & 0o2000 != 0 && metadata.gid() != getegid().as_raw();
    if changes_user || changes_group {
        let why = if is_supervised {
            "it runs as another user or group (setuid), which it does not get under a filter of \
             others (no_new_privs)"
        } else {
            "it runs as another user or group (setuid), so the loader takes no library from here"
        };
        return Err(Failure::input(&what, why).remedy("Run it as that user."));
    }
    let mut capabilities = [0; 64];
    let has_capabilities =
        rustix::fs::getxattr(path, "security.capability", &mut capabilities).is_ok();
    if has_capabilities && !is_supervised && !getuid().is_root() {
        let why = "its file has capabilities, so the loader takes no library from here";
        return Err(Failure::input(&what, why).remedy(USE_COMPAT));
    }
    // A program without read permission cannot be inspected.
    let Ok(bytes) = std::fs::read(path) else {
        return Ok(());
    };
    match obstacle(&bytes) {
        Some((_, remedy)) if is_supervised && remedy == USE_COMPAT => Ok(()),
        Some((why, remedy)) => Err(Failure::input(&what, why).remedy(remedy)),
        None => Ok(()),
    }
}

/// Remedy for a program that loads no library.
const USE_COMPAT: &str = "Start it with `splitway run --compat`, which answers its calls itself.";

/// Returns why a program does not load the library, and the remedy.
pub(super) fn obstacle(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    if !bytes.starts_with(&elf::ELFMAG) {
        // A script: its interpreter loads the library, or is reported for not loading it.
        return None;
    }
    let (loads_libraries, is_go) = match ElfFile64::<object::Endianness>::parse(bytes) {
        Ok(file) => (has_interpreter(&file), has_go_build_id(&file)),
        Err(_) if ElfFile32::<object::Endianness>::parse(bytes).is_ok() => {
            return Some((
                "it is a program of 32 bits, which have no sockets here",
                "Use one that is built for this machine.",
            ));
        }
        // Not a program: the kernel reports the error.
        Err(_) => return None,
    };
    if needs_musl(bytes) {
        return Some((
            "it is linked with musl, whose loader cannot load the library",
            USE_COMPAT,
        ));
    }
    if is_go {
        return Some((
            "it is written in Go, which makes system calls without the C library",
            USE_COMPAT,
        ));
    }
    (!loads_libraries).then_some((
        "it is linked statically, so it loads no library",
        USE_COMPAT,
    ))
}

/// Returns whether a program names the loader of musl.
fn needs_musl(bytes: &[u8]) -> bool {
    const LOADER: &[u8] = b"/ld-musl-";
    let Ok(file) = ElfFile64::<object::Endianness>::parse(bytes) else {
        return false;
    };
    let interpreter = interpreter(&file).and_then(|header| {
        use object::read::elf::ProgramHeader;
        header.data(file.endian(), bytes).ok()
    });
    interpreter.is_some_and(|name| name.windows(LOADER.len()).any(|part| part == LOADER))
}

fn has_interpreter(file: &ElfFile64<'_>) -> bool {
    interpreter(file).is_some()
}

fn interpreter<'a>(file: &ElfFile64<'a>) -> Option<&'a elf::ProgramHeader64<object::Endianness>> {
    use object::read::elf::ProgramHeader;
    let endian = file.endian();
    let mut headers = file.elf_program_headers().iter();
    headers.find(|header| header.p_type(endian) == elf::PT_INTERP)
}

fn has_go_build_id(file: &ElfFile64<'_>) -> bool {
    let mut sections = file.sections();
    sections.any(|section| section.name() == Ok(".note.go.buildid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(find(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        let failure = find(OsStr::new("no-such-program")).unwrap_err().to_string();
        assert!(
            failure.starts_with("program no-such-program: it is not in /"),
            "{failure}"
        );
        let failure = find(OsStr::new("/bin")).unwrap_err().to_string();
        assert_eq!(failure, "program /bin: it is not a file");
    }

    #[test]
    fn one_that_loads_no_library_is_refused() {
        check(Path::new("/bin/sh"), false).unwrap();
        let whole = std::fs::read("/bin/sh").unwrap();
        assert_eq!(obstacle(&whole), None);
        // Without program headers, it names no interpreter.
        let mut without = whole;
        without[56..58].fill(0);
        let (why, remedy) = obstacle(&without).unwrap();
        assert!(why.contains("statically") && remedy == USE_COMPAT);
        assert_eq!(obstacle(b"#!/bin/sh\n"), None);
        let whole = std::fs::read("/bin/sh").unwrap();
        let loader = b"/lib64/ld-linux-x86-64.so.2";
        let place = whole.windows(loader.len()).position(|part| part == loader);
        if let Some(place) = place {
            let mut of_musl = whole;
            of_musl[place..place + loader.len()].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0\0\0");
            let (why, remedy) = obstacle(&of_musl).unwrap();
            assert!(why.contains("musl") && remedy == USE_COMPAT);
        }
    }
}
