//! Splitway's own counters, for each gigabyte sent.

use super::{Bound, Results};

/// Name, process, counter.
const COUNTED: [(&str, &str, &str); 4] = [
    ("SENDs per GB", "host", "sends"),
    (
        "frames received by the host (ACKs and requests) per GB",
        "host",
        "frames_received",
    ),
    ("ACKDs per GB", "host", "ackds"),
    ("superpackets per GB", "nic", "superpackets"),
];

impl Results {
    /// Returns the sum of a process's counter over all servers.
    fn counter(&self, process: &str, name: &str) -> f64 {
        let counters = self.counters.iter();
        let values = counters.filter_map(|counted| counted[process][name].as_f64());
        values.sum()
    }

    /// Adds the counters over all runs to the checks, if any bytes were sent.
    pub(super) fn tell_counts(&mut self) {
        let gb = self.counter("nic", "file_sent_bytes") / 1e9;
        if gb == 0.0 {
            return;
        }
        for (what, process, name) in COUNTED {
            let each = self.counter(process, name) / gb;
            self.check(format!("Splitway's own count: {what}"), each, Bound::None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;

    #[test]
    fn counts_are_of_all_servers_and_for_each_gigabyte() {
        let mut results = results(&[]);
        results.tell_counts();
        assert!(results.checks().is_empty(), "nothing was counted");
        for (sends, gb) in [(8000, 2), (4000, 1)] {
            results.count(serde_json::json!({
                "host": { "sends": sends, "frames_received": 9000, "ackds": 10 },
                "nic": { "superpackets": 8000, "file_sent_bytes": gb * 1_000_000_000u64 },
            }));
        }
        results.tell_counts();
        let first = &results.checks()[0];
        assert_eq!(first.what, "Splitway's own count: SENDs per GB");
        assert_eq!((first.value, first.met), (Some(4000.0), true));
    }
}
