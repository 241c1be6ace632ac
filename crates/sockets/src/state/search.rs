//! A search through all sockets of an application, some in each turn.

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Search {
    places: usize,
    next: usize,
    left: usize,
}

impl Search {
    /// Starts to visit each of the first `places` places once, even if other searches start
    /// meanwhile. `places` never decreases.
    pub(crate) fn begin(&mut self, places: usize) {
        (self.places, self.left) = (places, places);
    }

    /// Reports whether no place is left to visit.
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Returns the next place, in a circle.
    pub(crate) fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let place = if self.next < self.places {
            self.next
        } else {
            0
        };
        self.next = place + 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_visited_after_the_last_beginning() {
        let mut search = Search::default();
        assert!(search.is_over() && search.next().is_none());
        search.begin(5);
        let first: Vec<usize> = (0..3).map(|_| search.next().unwrap()).collect();
        assert_eq!(first, [0, 1, 2]);
        search.begin(5);
        let all: Vec<usize> = std::iter::from_fn(|| search.next()).collect();
        assert_eq!(all, [3, 4, 0, 1, 2]);
        assert!(search.is_over());
        // Places have been added.
        search.begin(7);
        let all: Vec<usize> = std::iter::from_fn(|| search.next()).collect();
        assert_eq!(all, [3, 4, 5, 6, 0, 1, 2]);
        search.begin(0);
        assert!(search.is_over());
    }
}
