//! Common parts of all tables: medians with their spread, and verdicts.

use serde::Serialize;

/// The median of some values, and their extremes; no numbers if there are no values.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let median = if values.len().is_multiple_of(2) {
            (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
        } else {
            at(middle)
        };
        Spread {
            median,
            min: at(0),
            max: at(values.len().wrapping_sub(1)),
        }
    }

    /// Returns the table cell: median (least–most), one value if all are the same, or nothing.
    pub(crate) fn cell(&self, digits: usize) -> String {
        if self.median.is_nan() {
            return String::new();
        }
        if self.min == self.max {
            return format!("{:.digits$}", self.median);
        }
        format!(
            "{:.digits$} ({:.digits$}–{:.digits$})",
            self.median, self.min, self.max
        )
    }
}

/// Returns the verdict on a promise.
pub(crate) fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "NOT MET" }
}

/// Conditions that have a column: name and heading.
pub(crate) type Conditions = &'static [(&'static str, &'static str)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0].into_iter());
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
    }

    #[test]
    fn the_median_of_an_odd_number_is_the_middle_one() {
        let spread = Spread::of([9.0, 1.0, 5.0].into_iter());
        assert_eq!((spread.median, spread.min, spread.max), (5.0, 1.0, 9.0));
    }

    #[test]
    fn there_is_nothing_to_show_of_no_values() {
        assert_eq!(Spread::of([].into_iter()).cell(2), "");
    }
}
