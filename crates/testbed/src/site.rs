//! Files whose bytes are computed instead of stored.
//!
//! A byte is a function of its file's seed and its offset, so that a reader checks data as it
//! arrives, from any offset, and a gigabyte needs no second copy.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::{Context, Result};

/// A directory to serve.
#[derive(Debug)]
pub struct Site {
    root: PathBuf,
    outside: PathBuf,
}

impl Site {
    /// Creates an empty site, with an empty directory outside the site, in an empty directory.
    pub fn at(directory: PathBuf) -> Result<Site> {
        let site = Site {
            root: directory.join("site"),
            outside: directory.join("outside"),
        };
        for directory in [&site.root, &site.outside] {
            fs::create_dir(directory).context(|| format!("creating {}", directory.display()))?;
        }
        Ok(site)
    }

    /// Returns the directory to serve.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a directory that is not served.
    pub fn outside(&self) -> &Path {
        &self.outside
    }

    /// Makes a file of this size. Its name is its seed, so that no two files are alike.
    pub fn file(&self, name: &str, size: u64) -> Result<KnownFile> {
        self.write(KnownFile::whole(name, size))
    }

    /// Makes a file that is a hole except for these islands.
    pub fn sparse_file(
        &self,
        name: &str,
        size: u64,
        islands: Vec<Range<u64>>,
    ) -> Result<KnownFile> {
        self.write(KnownFile::new(name, size, islands))
    }

    fn write(&self, known: KnownFile) -> Result<KnownFile> {
        let path = self.root.join(known.name());
        known
            .write(&path)
            .context(|| format!("writing {}", path.display()))?;
        Ok(known)
    }
}

/// Makes a file that, from its creation on, only its owner can read.
pub fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

/// Expected content of a file.
#[derive(Clone, Debug)]
pub struct KnownFile {
    name: String,
    size: u64,
    seed: u64,
    islands: Vec<Range<u64>>,
}

/// A byte that differs from the file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the file, in bytes.
    pub offset: u64,
}

impl KnownFile {
    fn new(name: &str, size: u64, islands: Vec<Range<u64>>) -> KnownFile {
        // FNV-1a.
        let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        KnownFile {
            name: name.to_owned(),
            size,
            seed,
            islands,
        }
    }

    /// Returns a file without holes that another process has written with [`Site::file`].
    pub fn whole(name: &str, size: u64) -> KnownFile {
        KnownFile::new(name, size, std::iter::once(0..size).collect())
    }

    /// Returns its name below the root: the path of its URL, without the leading slash.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its size, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes from `offset` on, of a file without holes; none after its end.
    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = len.min(self.size.saturating_sub(offset) as usize);
        let mut bytes = vec![0; len];
        fill(self.seed, offset, &mut bytes);
        bytes
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.set_len(self.size)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        let mut buffer = vec![0; 1 << 20];
        for island in &self.islands {
            let mut offset = island.start;
            while offset < island.end {
                let len = (island.end - offset).min(buffer.len() as u64) as usize;
                fill(self.seed, offset, &mut buffer[..len]);
                file.write_all_at(&buffer[..len], offset)?;
                offset += len as u64;
            }
        }
        file.flush()
    }

    /// Compares bytes with the file's content from `offset` on.
    pub fn check(&self, mut offset: u64, mut bytes: &[u8]) -> std::result::Result<(), Mismatch> {
        while !bytes.is_empty() {
            let island = self.islands.iter().find(|island| island.end > offset);
            let (len, found) = match island {
                Some(island) if island.start <= offset => {
                    let len = bytes.len().min((island.end - offset) as usize);
                    (len, mismatch(self.seed, offset, &bytes[..len]))
                }
                hole => {
                    let end = hole.map_or(self.size, |island| island.start);
                    let len = bytes.len().min(end.saturating_sub(offset) as usize);
                    (len, bytes[..len].iter().position(|&byte| byte != 0))
                }
            };
            // A length of zero: past the end of the file.
            if let Some(at) = found.or((len == 0).then_some(0)) {
                return Err(Mismatch {
                    offset: offset + at as u64,
                });
            }
            offset += len as u64;
            bytes = &bytes[len..];
        }
        Ok(())
    }
}

/// Returns the eight bytes at `8 * index`: SplitMix64 (Steele, Lea, Flood 2014).
fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Splits a range at offsets divisible by eight; calls with each piece's position in the range and
/// its content.
fn each_word(
    seed: u64,
    offset: u64,
    len: usize,
    mut call: impl FnMut(Range<usize>, &[u8]) -> bool,
) {
    let mut at = 0;
    while at < len {
        let position = offset + at as u64;
        let within = (position % 8) as usize;
        let piece = (8 - within).min(len - at);
        if !call(
            at..at + piece,
            &word(seed, position / 8)[within..within + piece],
        ) {
            return;
        }
        at += piece;
    }
}

fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    each_word(seed, offset, buffer.len(), |range, bytes| {
        buffer[range].copy_from_slice(bytes);
        true
    });
}

fn mismatch(seed: u64, offset: u64, bytes: &[u8]) -> Option<usize> {
    let mut found = None;
    each_word(seed, offset, bytes.len(), |range, expected| {
        let start = range.start;
        if bytes[range.clone()] != *expected {
            let within = bytes[range]
                .iter()
                .zip(expected)
                .position(|(got, want)| got != want);
            found = within.map(|within| start + within);
        }
        found.is_none()
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn site() -> (tempfile::TempDir, Site) {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().to_owned()).unwrap();
        (directory, site)
    }

    proptest! {
        #[test]
        fn what_was_written_checks_from_any_offset(
            size in 0u64..5000,
            from in 0usize..5000,
            len in 0usize..5000,
        ) {
            let (_directory, site) = site();
            let known = site.file("a", size).unwrap();
            let bytes = fs::read(site.root().join("a")).unwrap();
            let from = from.min(bytes.len());
            let to = (from + len).min(bytes.len());
            prop_assert_eq!(known.check(from as u64, &bytes[from..to]), Ok(()));
        }

        #[test]
        fn a_wrong_byte_is_found_where_it_is(
            size in 1u64..5000,
            at: prop::sample::Index,
            flip in 1u8..,
        ) {
            let (_directory, site) = site();
            let known = site.file("a", size).unwrap();
            let mut bytes = fs::read(site.root().join("a")).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert_eq!(known.check(0, &bytes), Err(Mismatch { offset: at as u64 }));
        }
    }

    #[test]
    fn holes_are_zero_and_the_end_is_the_end() {
        let (_directory, site) = site();
        let known = site
            .sparse_file("a", 10_000, vec![0..100, 5000..5001])
            .unwrap();
        let mut bytes = fs::read(site.root().join("a")).unwrap();
        assert_eq!(known.check(0, &bytes), Ok(()));
        bytes[7000] = 1;
        assert_eq!(
            known.check(4000, &bytes[4000..]),
            Err(Mismatch { offset: 7000 })
        );
        assert_eq!(known.check(9999, &[0, 0]), Err(Mismatch { offset: 10_000 }));
    }

    #[test]
    fn two_files_of_one_size_differ() {
        let (_directory, site) = site();
        let known = site.file("a", 64).unwrap();
        site.file("b", 64).unwrap();
        let other = fs::read(site.root().join("b")).unwrap();
        assert!(known.check(0, &other).is_err());
    }
}
