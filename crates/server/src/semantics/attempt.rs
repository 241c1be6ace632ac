//! Files that may answer a request: the named file, in the codings that the client accepts, and for
//! a directory each file that may be its index.

use crate::semantics::encoding::{Acceptable, Coding, Form};
use crate::semantics::mime::{self, MediaType};
use crate::semantics::site::Site;
use crate::semantics::target::{Kind, PATH_BYTES_MAX};

/// The file being tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    kind: Kind,
    /// Number of the index file.
    index: u8,
    /// Number of forms of the file tried before.
    forms_tried: u8,
    /// The file may have variants in other codings.
    pub(crate) is_negotiated: bool,
    acceptable: Acceptable,
}

impl Attempt {
    pub(crate) fn new(kind: Kind, acceptable: Acceptable) -> Self {
        Attempt {
            kind,
            index: 0,
            forms_tried: 0,
            is_negotiated: false,
            acceptable,
        }
    }

    /// Returns the form being tried; `None` if the client accepts no further form.
    fn form(&self) -> Option<Form> {
        match self.is_negotiated {
            true => self.acceptable.form(usize::from(self.forms_tried)),
            false => (self.forms_tried == 0).then_some(Form::Plain),
        }
    }

    /// Returns the coding of the file being tried.
    pub(crate) fn coding(&self) -> Option<Coding> {
        match self.form()? {
            Form::Plain => None,
            Form::Coded(coding) => Some(coding),
        }
    }

    /// True if the client accepts the file in the form being tried.
    pub(crate) fn is_acceptable(&self) -> bool {
        self.form().is_some()
    }

    /// True if the client does not accept the plain file.
    pub(crate) fn refuses_plain(&self) -> bool {
        self.is_negotiated && !self.acceptable.identity
    }

    /// Writes the path of the file being tried, below the NIC stack's root, and returns the media
    /// type of its content; `None` if no file can have this path. `path` is the resolved target.
    pub(crate) fn path(
        &mut self,
        site: &Site,
        path: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<MediaType> {
        let index = match self.kind {
            Kind::File => &[][..],
            Kind::Directory => site.index.get(usize::from(self.index))?.as_bytes(),
        };
        out.clear();
        for part in [site.root.as_bytes(), path, index] {
            if !out.is_empty() && !part.is_empty() {
                out.push(b'/');
            }
            out.extend_from_slice(part);
        }
        let media_type = site.media_types.of(out);
        self.is_negotiated = !site.precompressed.is_empty() && !mime::is_compressed(&media_type);
        if let Some(coding) = self.coding() {
            out.extend_from_slice(coding.suffix().as_bytes());
        }
        (1..=PATH_BYTES_MAX)
            .contains(&out.len())
            .then_some(media_type)
    }

    /// Returns the next attempt after a missing file; `None` after the last.
    pub(crate) fn next(mut self, site: &Site) -> Option<Self> {
        self.forms_tried += 1;
        if self.is_acceptable() {
            return Some(self);
        }
        self.index += 1;
        self.forms_tried = 0;
        let is_there = self.kind == Kind::Directory && usize::from(self.index) < site.index.len();
        is_there.then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths tried, in order.
    fn tried(site: &Site, kind: Kind, accept_encoding: &str, path: &str) -> Vec<String> {
        let values = std::iter::once(accept_encoding.as_bytes());
        let acceptable = Acceptable::new(values, &site.precompressed);
        let (mut next, mut tried) = (Some(Attempt::new(kind, acceptable)), Vec::new());
        while let Some(mut attempt) = next {
            let mut out = b"left over".to_vec();
            let is_path = attempt.path(site, path.as_bytes(), &mut out).is_some();
            if is_path && attempt.is_acceptable() {
                tried.push(String::from_utf8(out).unwrap());
            }
            next = attempt.next(site);
        }
        tried
    }

    fn site() -> Site {
        Site {
            root: "a.org".parse().unwrap(),
            index: ["index.html", "index.mp4", "sub/README"]
                .map(|name| name.parse().unwrap())
                .into(),
            precompressed: vec![Coding::Zstd, Coding::Gzip],
            ..Site::default()
        }
    }

    #[test]
    fn variants_come_before_the_file_and_indices_one_after_the_other() {
        let all = "br, gzip;q=0.9, zstd";
        for (kind, accepted, path, expected) in [
            (
                Kind::File,
                all,
                "x.css",
                &["a.org/x.css.zst", "a.org/x.css.gz", "a.org/x.css"][..],
            ),
            (Kind::File, all, "x.mp4", &["a.org/x.mp4"]),
            (Kind::File, "", "x.css", &["a.org/x.css"]),
            (
                Kind::File,
                "gzip, identity;q=0",
                "x.css",
                &["a.org/x.css.gz"],
            ),
            (Kind::File, "identity;q=0", "x.css", &[]),
            (Kind::File, "identity;q=0", "x.mp4", &["a.org/x.mp4"]),
            (
                Kind::Directory,
                "gzip",
                "d",
                &[
                    "a.org/d/index.html.gz",
                    "a.org/d/index.html",
                    "a.org/d/index.mp4",
                    "a.org/d/sub/README.gz",
                    "a.org/d/sub/README",
                ],
            ),
            (
                Kind::Directory,
                "gzip, identity;q=0",
                "",
                &[
                    "a.org/index.html.gz",
                    "a.org/index.mp4",
                    "a.org/sub/README.gz",
                ],
            ),
        ] {
            assert_eq!(
                tried(&site(), kind, accepted, path),
                expected,
                "{accepted} {path}"
            );
        }
        let plain = Site::default();
        assert_eq!(tried(&plain, Kind::Directory, all, ""), ["index.html"]);
        assert_eq!(tried(&plain, Kind::File, "identity;q=0", "a"), ["a"]);
        let bare = Site {
            index: Vec::new(),
            ..plain
        };
        assert_eq!(tried(&bare, Kind::Directory, "", "d"), [""; 0]);
    }

    #[test]
    fn a_range_is_looked_for_in_the_file_before_its_variants() {
        let acceptable = Acceptable::new([&b"gzip, zstd"[..]].into_iter(), &site().precompressed);
        let (mut next, mut tried) = (
            Some(Attempt::new(Kind::File, acceptable.for_range(None))),
            Vec::new(),
        );
        while let Some(mut attempt) = next {
            let mut out = Vec::new();
            attempt.path(&site(), b"x.css", &mut out);
            tried.push(String::from_utf8(out).unwrap());
            next = attempt.next(&site());
        }
        assert_eq!(tried, ["a.org/x.css", "a.org/x.css.zst", "a.org/x.css.gz"]);
    }

    #[test]
    fn paths_beyond_path_max_do_not_exist() {
        let name = |bytes: usize| "x".repeat(bytes);
        let longest = PATH_BYTES_MAX - "a.org/.zst".len();
        assert_eq!(tried(&site(), Kind::File, "zstd", &name(longest)).len(), 2);
        assert_eq!(
            tried(&site(), Kind::File, "zstd", &name(longest + 1)).len(),
            1
        );
        assert_eq!(
            tried(&site(), Kind::File, "zstd", &name(longest + 5)).len(),
            0
        );
    }
}
