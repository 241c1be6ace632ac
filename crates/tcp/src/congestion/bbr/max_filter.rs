//! The maximum over a sliding span, kept as the maxima of its older and of its newer half.

/// Maximum over the present half of the span and the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaxFilter {
    previous: u64,
    present: u64,
}

impl MaxFilter {
    pub(super) fn update(&mut self, value: u64) {
        self.present = self.present.max(value);
    }

    /// Begins a new half: values before the present half are dropped.
    pub(super) fn advance(&mut self) {
        // A half without values is ignored.
        if self.present > 0 {
            self.previous = std::mem::take(&mut self.present);
        }
    }

    pub(super) fn max(&self) -> u64 {
        self.previous.max(self.present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_lives_for_two_halves() {
        let mut filter = MaxFilter::default();
        filter.update(9);
        filter.update(4);
        assert_eq!(filter.max(), 9);
        filter.advance();
        filter.advance();
        assert_eq!(filter.max(), 9);
        filter.update(5);
        filter.advance();
        assert_eq!(filter.max(), 5);
    }
}
