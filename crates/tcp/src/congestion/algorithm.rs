//! The names of the congestion control algorithms.

use std::fmt;
use std::str::FromStr;

/// Congestion control of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// Slow start and congestion avoidance of RFC 5681 with appropriate byte counting.
    NewReno,
    /// CUBIC (RFC 9438), with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// BBR version 3 (draft-ietf-ccwg-bbr). Paces.
    Bbr,
}

impl CongestionAlgorithm {
    /// All algorithms.
    pub const ALL: [CongestionAlgorithm; 3] = [
        CongestionAlgorithm::Cubic,
        CongestionAlgorithm::Bbr,
        CongestionAlgorithm::NewReno,
    ];

    /// Returns true if the algorithm sets a rate at which data leaves.
    #[inline]
    pub(crate) fn paces(self) -> bool {
        self == CongestionAlgorithm::Bbr
    }

    /// Returns true if the algorithm uses delivery rate samples.
    pub(crate) fn uses_rate(self) -> bool {
        self == CongestionAlgorithm::Bbr
    }

    /// Returns the algorithm's name, which [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            CongestionAlgorithm::NewReno => "newreno",
            CongestionAlgorithm::Cubic => "cubic",
            CongestionAlgorithm::Bbr => "bbr",
        }
    }
}

impl fmt::Display for CongestionAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no algorithm of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm {
    name: String,
}

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no congestion control `{}`; there is",
            self.name
        )?;
        for (i, algorithm) in CongestionAlgorithm::ALL.iter().enumerate() {
            let separator = if i == 0 { " " } else { ", " };
            write!(f, "{separator}{algorithm}")?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for CongestionAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<CongestionAlgorithm, UnknownAlgorithm> {
        CongestionAlgorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownAlgorithm { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_found_by_its_name() {
        for algorithm in CongestionAlgorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "vegas".parse::<CongestionAlgorithm>().unwrap_err();
        assert!(error.to_string().contains("`vegas`; there is cubic, "));
    }
}
