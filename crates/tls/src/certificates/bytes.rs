//! [`Files`] as bytes, for a process that has no access to the file system.
//!
//! Each field has its length before it, in 4 bytes, little-endian. There is no version: both ends
//! are one program.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::Files;

const LENGTH_BYTES: usize = 4;

impl Files {
    /// Encodes all files, including the private keys, for [`Files::from_bytes`].
    pub fn to_bytes(all: &[Files]) -> Zeroizing<Vec<u8>> {
        let fields = || all.iter().flat_map(Files::fields);
        let bytes = fields().map(|field| LENGTH_BYTES + field.len()).sum();
        // Reserves all memory at once: a growing vector leaves copies behind.
        let mut to = Zeroizing::new(Vec::with_capacity(bytes));
        for field in fields() {
            to.extend_from_slice(&(field.len() as u32).to_le_bytes());
            to.extend_from_slice(field);
        }
        to
    }

    /// Decodes the bytes of [`Files::to_bytes`]; `None` if they are invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Vec<Files>> {
        let mut rest = bytes;
        let mut all = Vec::new();
        while !rest.is_empty() {
            let certificate_path = path(field(&mut rest)?);
            let certificate = field(&mut rest)?.to_vec();
            let key_path = path(field(&mut rest)?);
            let key = Zeroizing::new(field(&mut rest)?.to_vec());
            let ocsp_path = field(&mut rest)?;
            let ocsp = field(&mut rest)?;
            all.push(Files {
                certificate_path,
                certificate,
                key_path,
                key,
                ocsp: (!ocsp_path.is_empty()).then(|| (path(ocsp_path), ocsp.to_vec())),
            });
        }
        Some(all)
    }

    fn fields(&self) -> [&[u8]; 6] {
        let ocsp = self.ocsp.as_ref();
        let (ocsp_path, ocsp) =
            ocsp.map_or((Path::new(""), &[][..]), |(path, bytes)| (path, bytes));
        [
            self.certificate_path.as_os_str().as_bytes(),
            &self.certificate,
            self.key_path.as_os_str().as_bytes(),
            &self.key,
            ocsp_path.as_os_str().as_bytes(),
            ocsp,
        ]
    }
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (field, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(field)
}

fn path(bytes: &[u8]) -> PathBuf {
    std::ffi::OsString::from_vec(bytes.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> [Files; 2] {
        let plain = Files::from_pem("made for trying out", "a chain", "a key");
        let stapled = Files {
            ocsp: Some(("ocsp.der".into(), vec![0x30, 0])),
            key_path: "other.key".into(),
            ..plain.clone()
        };
        [plain, stapled]
    }

    #[test]
    fn what_is_made_bytes_of_comes_back() {
        let files = files();
        let bytes = Files::to_bytes(&files);
        assert_eq!(bytes.len(), bytes.capacity(), "nothing was copied");
        let back = Files::from_bytes(&bytes).unwrap();
        assert_eq!(back.len(), 2);
        for (before, after) in files.iter().zip(&back) {
            assert_eq!(before.fields(), after.fields());
            assert_eq!(before.ocsp, after.ocsp);
        }
        assert!(Files::from_bytes(&[]).unwrap().is_empty());
    }

    #[test]
    fn bytes_that_are_cut_off_are_none() {
        let files = files();
        let bytes = Files::to_bytes(&files);
        let first = Files::to_bytes(&files[..1]).len();
        for end in (1..bytes.len()).filter(|end| *end != first) {
            assert!(Files::from_bytes(&bytes[..end]).is_none(), "{end}");
        }
    }
}
