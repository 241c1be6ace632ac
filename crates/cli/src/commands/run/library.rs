//! Where the library is that a program loads.

use std::path::{Path, PathBuf};

use failure::Failure;

/// Its name.
const NAME: &str = "libsplitway-preload.so";

/// Directories that it may lie in, from that of this program.
const PLACES: [&str; 3] = [".", "../lib", "package/lib"];

/// The library: that which was named, or the one that was built or installed with this program.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let candidates = match named {
        Some(path) => vec![path.to_owned()],
        None => beside_program()?,
    };
    for path in &candidates {
        if path.is_file() {
            return path
                .canonicalize()
                .map_err(|error| Failure::input(format!("library {}", path.display()), error));
        }
    }
    let looked: Vec<String> = candidates
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Err(Failure::input(
        format!("library {NAME}"),
        format!("it is not at {}", looked.join(", nor at ")),
    )
    .remedy(
        "Build it with `make library`, install it with `make install`, or name it with --library.",
    ))
}

fn beside_program() -> Result<Vec<PathBuf>, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::broken("looking for this program", error))?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    Ok(PLACES
        .iter()
        .map(|place| directory.join(place).join(NAME))
        .collect())
}
