//! The files, the clients' requests, and checks of the responses.

use std::ops::Range;

use testbed::http::Head;
use testbed::site::KnownFile;

/// Sizes of files, in bytes, and the percentage of requests for each.
const SIZES: [(u64, u64); 5] = [
    (1_000, 30),
    (10_000, 30),
    (100_000, 25),
    (1_000_000, 14),
    (10_000_000, 1),
];

/// Number of files of each size.
const FILES_OF_A_SIZE: usize = 20;

/// First of the files that take some time to transfer.
const FIRST_LARGE: usize = 2 * FILES_OF_A_SIZE;

/// Random numbers: Xorshift, the same in each run.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Seeds the generator. Xorshift never leaves zero.
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// All files.
#[derive(Debug)]
pub(super) struct Shelf {
    files: Vec<KnownFile>,
}

/// A request: for a file, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    file: usize,
    /// Bytes of the file that the response must contain.
    pub(super) part: Range<u64>,
    is_range: bool,
}

impl Shelf {
    pub(super) fn new() -> Shelf {
        let files = SIZES.iter().flat_map(|&(size, _)| {
            (0..FILES_OF_A_SIZE)
                .map(move |index| KnownFile::whole(&format!("{size}-{index}"), size))
        });
        Shelf {
            files: files.collect(),
        }
    }

    pub(super) fn files(&self) -> &[KnownFile] {
        &self.files
    }

    /// Returns a whole file of random size.
    pub(super) fn any(&self, random: &mut Random) -> Wish {
        let mut percent = random.below(100);
        let mut size = 0;
        while percent >= SIZES[size].1 {
            percent -= SIZES[size].1;
            size += 1;
        }
        self.whole(size * FILES_OF_A_SIZE, FILES_OF_A_SIZE, random)
    }

    /// Returns a whole file that takes some time to transfer.
    pub(super) fn large(&self, random: &mut Random) -> Wish {
        self.whole(FIRST_LARGE, 2 * FILES_OF_A_SIZE, random)
    }

    fn whole(&self, first: usize, count: usize, random: &mut Random) -> Wish {
        let file = first + random.below(count as u64) as usize;
        Wish {
            file,
            part: 0..self.files[file].size(),
            is_range: false,
        }
    }

    /// Returns a part of a file, of random length.
    pub(super) fn part(&self, random: &mut Random) -> Wish {
        let whole = self.any(random);
        let start = random.below(whole.part.end);
        let len = 1 + random.below(whole.part.end - start);
        Wish {
            part: start..start + len,
            is_range: true,
            ..whole
        }
    }

    /// Returns the HTTP request.
    pub(super) fn request(&self, wish: &Wish) -> String {
        let name = self.files[wish.file].name();
        let range = if wish.is_range {
            format!("Range: bytes={}-{}\r\n", wish.part.start, wish.part.end - 1)
        } else {
            String::new()
        };
        format!("GET /{name} HTTP/1.1\r\nHost: test\r\n{range}\r\n")
    }

    /// Checks the head of a response; the error is the expected head.
    pub(super) fn check_head(&self, wish: &Wish, head: &Head) -> Result<(), String> {
        let size = self.files[wish.file].size();
        let Range { start, end } = wish.part;
        let range = wish
            .is_range
            .then(|| format!("bytes {start}-{}/{size}", end - 1));
        let status = if wish.is_range { 206 } else { 200 };
        let length = head.content_length().ok();
        let is_right = head.status == status
            && length == Some(end - start)
            && head.field("content-range") == range.as_deref();
        is_right.then_some(()).ok_or_else(|| {
            format!(
                "{status} with {range:?} of {} was expected, and not {head:?}",
                self.files[wish.file].name()
            )
        })
    }

    /// Checks bytes of a response from `offset` on; the error names the first wrong one.
    pub(super) fn check(&self, wish: &Wish, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let file = &self.files[wish.file];
        file.check(wish.part.start + offset, bytes)
            .map_err(|mismatch| format!("{}: wrong byte at {}", file.name(), mismatch.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Head {
        Head::parse(text).unwrap()
    }

    #[test]
    fn wishes_are_of_all_sizes_and_lie_within_files() {
        let (shelf, mut random) = (Shelf::new(), Random::new(7));
        assert_eq!(SIZES.iter().map(|(_, percent)| percent).sum::<u64>(), 100);
        let mut wanted = [0; SIZES.len()];
        for _ in 0..10_000 {
            let whole = shelf.any(&mut random);
            wanted[whole.file / FILES_OF_A_SIZE] += 1;
            let part = shelf.part(&mut random);
            assert!(part.part.start < part.part.end, "{part:?}");
            assert!(part.part.end <= shelf.files[part.file].size(), "{part:?}");
            assert!(shelf.large(&mut random).part.end >= 100_000);
        }
        for ((_, percent), wanted) in SIZES.iter().zip(wanted) {
            let share = wanted as f64 / 10_000.0 * 100.0;
            assert!(
                (share - *percent as f64).abs() < 2.0,
                "{wanted}: {percent} %"
            );
        }
    }

    #[test]
    fn an_answer_must_be_what_was_asked_for() {
        let shelf = Shelf::new();
        let mut wish = Wish {
            file: 0,
            part: 0..1000,
            is_range: false,
        };
        let whole = head("HTTP/1.1 200 OK\r\nContent-Length: 1000");
        let range =
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 5-14/1000";
        assert_eq!(shelf.check_head(&wish, &whole), Ok(()));
        assert!(shelf.check_head(&wish, &head(range)).is_err());
        assert!(
            shelf
                .check_head(&wish, &head("HTTP/1.1 503 No\r\nContent-Length: 1000"))
                .is_err()
        );
        (wish.part, wish.is_range) = (5..15, true);
        assert!(shelf.request(&wish).contains("Range: bytes=5-14\r\n"));
        assert_eq!(shelf.check_head(&wish, &head(range)), Ok(()));
        assert!(
            shelf
                .check_head(&wish, &head(&range.replace("5-14", "6-15")))
                .is_err()
        );
        assert!(shelf.check_head(&wish, &whole).is_err());
    }

    #[test]
    fn bytes_are_those_of_the_part() {
        let shelf = Shelf::new();
        let directory = tempfile::tempdir().unwrap();
        let site = testbed::site::Site::at(directory.path().to_owned()).unwrap();
        let file = &shelf.files[0];
        site.file(file.name(), file.size()).unwrap();
        let bytes = std::fs::read(site.root().join(file.name())).unwrap();
        let wish = Wish {
            file: 0,
            part: 5..15,
            is_range: true,
        };
        assert_eq!(shelf.check(&wish, 2, &bytes[7..15]), Ok(()));
        assert!(shelf.check(&wish, 2, &bytes[6..14]).is_err());
    }
}
