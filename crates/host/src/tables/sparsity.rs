//! When a table that has grown for a crowd gives memory back.

/// Places that a table keeps when they are vacant.
const PLACES_KEPT_MAX: usize = 1024;

/// Number of entries removed from a table since it last shrank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sparsity {
    removed: usize,
}

impl Sparsity {
    /// An entry was removed: `len` are left, in `places`. Returns true if the table should shrink,
    /// which may go through all entries: when a crowd has gone, and each time that half of the rest
    /// has gone as well.
    #[inline]
    pub(crate) fn on_removed(&mut self, len: usize, places: usize) -> bool {
        self.removed += 1;
        let is_sparse = places > PLACES_KEPT_MAX && len < places / 8 && self.removed >= len;
        if is_sparse {
            self.removed = 0;
        }
        is_sparse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gives_memory_back_when_a_crowd_has_gone_and_then_ever_less_often() {
        let mut sparsity = Sparsity::default();
        let lens = (0..16_000).rev();
        let given_back: Vec<usize> = lens
            .filter(|&len| sparsity.on_removed(len, 16_000))
            .collect();
        assert_eq!(given_back[..3], [1999, 999, 499]);
        assert_eq!(given_back.last(), Some(&0));
        assert!(given_back.len() < 16);
        let mut small = Sparsity::default();
        assert!(!(0..1024).rev().any(|len| small.on_removed(len, 1024)));
    }
}
