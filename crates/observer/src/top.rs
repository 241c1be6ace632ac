//! The most requested files of any number, in bounded memory: the space-saving algorithm (Metwally,
//! Agrawal, El Abbadi 2005).

use std::collections::HashMap;

/// Most files with counts.
const FILES_MAX: usize = 1024;

/// Longest name, in bytes; longer ones are cut.
const NAME_BYTES_MAX: usize = 256;

/// Counts of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Popularity {
    /// Requests, at most: includes those of the file that it replaced.
    pub requests: u64,
    /// Bytes sent since the file has counts.
    pub bytes: u64,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Top {
    files: HashMap<Box<[u8]>, Popularity>,
}

impl Top {
    /// Counts a completed response to this target.
    pub(crate) fn note(&mut self, target: &[u8], bytes: u64) {
        let path = target
            .split(|&byte| byte == b'?')
            .next()
            .unwrap_or_default();
        let path = &path[..path.len().min(NAME_BYTES_MAX)];
        if let Some(known) = self.files.get_mut(path) {
            known.requests += 1;
            known.bytes += bytes;
            return;
        }
        let mut requests = 1;
        if self.files.len() >= FILES_MAX {
            let least = self.files.iter().min_by_key(|(_, known)| known.requests);
            if let Some((name, known)) = least.map(|(name, known)| (name.clone(), *known)) {
                self.files.remove(&name);
                requests += known.requests;
            }
        }
        self.files
            .insert(path.into(), Popularity { requests, bytes });
    }

    /// The most requested files, at most `count`.
    pub(crate) fn first(&self, count: usize) -> Vec<(String, Popularity)> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by(|(name, known), (other_name, other)| {
            (other.requests, name).cmp(&(known.requests, other_name))
        });
        let files = files.into_iter().take(count);
        files
            .map(|(name, known)| (String::from_utf8_lossy(name).into_owned(), *known))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_asked_for_most_are_known_however_many_there_are() {
        let mut top = Top::default();
        for number in 0..20_000u32 {
            top.note(format!("/{number}").as_bytes(), 1);
            for (name, every) in [("/often?x=1", 10), ("/now%20and%20then", 20)] {
                if number % every == 0 {
                    top.note(name.as_bytes(), 100);
                }
            }
        }
        assert!(top.files.len() <= FILES_MAX);
        let first = top.first(2);
        let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["/often", "/now%20and%20then"]);
        assert!((2_000..2_100).contains(&first[0].1.requests), "{first:?}");
        assert!(first[0].1.bytes >= 190_000, "{first:?}");
    }
}
