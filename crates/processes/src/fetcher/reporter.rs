//! Reports of the fetcher's counters to the supervisor: of all origins together, and of the most
//! requested ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::ipc::child::tell_if_writable;
use crate::ipc::messages::FromFetcher;
use observer::Report;
use observer::counter_names;

/// Most origins with a report of their own, so that their reports fit into an empty pipe. The
/// counters of the others are summed.
const ORIGINS_TOLD_MAX: usize = 64;

/// Name of the sum.
const OTHERS: &str = "others";

/// In a fetcher: reports the counters of each origin.
#[derive(Debug, Default)]
pub(crate) struct FetcherReporter {
    /// Counters in the last reports.
    told: BTreeMap<String, origin::OriginCounters>,
    /// Origins with a report of their own, permanently: their counters must not move to the sum of
    /// the others.
    apart: BTreeSet<String>,
}

impl FetcherReporter {
    /// Reports changed counters to the supervisor as far as that does not block; returns true if
    /// all are reported.
    pub(crate) fn report(&mut self, counted: &origin::Counted<'_>) -> bool {
        let mut is_all = true;
        for (name, counters) in self.apart(counted) {
            if self.told.get(name) != Some(&counters) {
                let is_sent = tell_if_writable(FromFetcher::Counters {
                    origin: Some(name.to_owned()),
                    report: Report::now(counter_names::origin(&counters)),
                });
                is_all &= is_sent;
                if is_sent {
                    self.told.insert(name.to_owned(), counters);
                }
            }
        }
        let report = Report::now(counter_names::fetcher(&counted.total));
        is_all
            & tell_if_writable(FromFetcher::Counters {
                origin: None,
                report,
            })
    }

    /// Returns the counters to report: those of origins with their own reports, and the sum of the
    /// others.
    fn apart<'a>(
        &mut self,
        counted: &origin::Counted<'a>,
    ) -> Vec<(&'a str, origin::OriginCounters)> {
        let mut apart = Vec::new();
        let mut others: Option<origin::OriginCounters> = None;
        for &(name, counters) in &counted.origins {
            if self.apart.len() < ORIGINS_TOLD_MAX && !self.apart.contains(name) {
                self.apart.insert(name.to_owned());
            }
            if self.apart.contains(name) {
                apart.push((name, counters))
            } else {
                others.get_or_insert_default().add(&counters)
            }
        }
        apart.extend(others.map(|counters| (OTHERS, counters)));
        apart
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::messages::Line;

    #[test]
    fn what_a_fetcher_tells_is_written_at_once() {
        let rows = counter_names::fetcher(&origin::Totals::default()).into_iter();
        let rows = rows.map(|(name, _)| (name, u64::MAX));
        let report = Report {
            cpu_user_us: u64::MAX,
            cpu_system_us: u64::MAX,
            memory_bytes_max: u64::MAX,
            counters: rows.collect(),
        };
        let longest = "x".repeat(origin::OriginUrl::BYTES_MAX);
        let line = serde_json::to_vec(&Line::Says(FromFetcher::Counters {
            origin: Some(longest),
            report,
        }))
        .unwrap();
        assert!(line.len() < 4096, "PIPE_BUF: {}", line.len());
    }

    #[test]
    fn of_many_origins_some_are_reported_together() {
        let one = origin::OriginCounters {
            hits: 1,
            ..origin::OriginCounters::default()
        };
        let urls: Vec<String> = (0..100)
            .map(|number| format!("http://{number:02}"))
            .collect();
        // Origins requested for the first time later precede the others.
        let mut teller = FetcherReporter::default();
        let mut alone = Vec::new();
        for count in [0, 1, 64, 65, 100] {
            let counted = origin::Counted {
                total: origin::Totals::default(),
                origins: urls[100 - count..]
                    .iter()
                    .map(|url| (&**url, one))
                    .collect(),
            };
            let mut apart = teller.apart(&counted);
            let hits: u64 = apart.iter().map(|(_, counters)| counters.hits).sum();
            assert_eq!((apart.len(), hits), (count.min(65), count as u64));
            apart.retain(|(name, _)| *name != OTHERS);
            assert!(
                alone
                    .iter()
                    .all(|name| apart.iter().any(|it| it.0 == *name))
            );
            alone = apart.into_iter().map(|(name, _)| name.to_owned()).collect();
        }
    }
}
