//! The planned duration of a benchmark, computed from its steps: so that a whole run can be limited
//! in time.

use crate::measure::rounds::Rounds;
use crate::measure::run::WARM_UP_SECONDS;

/// Sum of the durations of steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    seconds: f64,
}

/// Servers behind their links, started and ended: Splitway with nginx and lighttpd, or alone.
const BED_SECONDS: f64 = 1.2;
const SPLITWAY_SECONDS: f64 = 0.8;

/// A load generator, started and ended, and the kernel's accounts read.
const LOAD_SECONDS: f64 = 0.25;

/// Rate at which files are written and removed.
const FILES_BYTES_PER_S: f64 = 400e6;

/// Responses per connection, on average, before the measured span; the rate at which the slower
/// servers send them; and the additional time of a TLS connection, for its handshake and the
/// encryption of these responses.
const RESPONSES_BEFORE: f64 = 2.0;
const BYTES_BEFORE_PER_S: f64 = 0.8e9;
const TLS_CONNECTION_SECONDS: f64 = 0.003;

impl Plan {
    /// Returns the time for a process of its own, and its namespaces.
    pub(crate) fn new() -> Plan {
        Plan { seconds: 0.2 }
    }

    /// Adds `files` files.
    pub(crate) fn files(&mut self, files: usize, file_bytes: u64) {
        self.seconds += files as f64 * file_bytes as f64 / FILES_BYTES_PER_S;
    }

    /// Adds `count` starts of Splitway and its peers.
    pub(crate) fn beds(&mut self, count: usize) {
        self.also(count, BED_SECONDS);
    }

    /// Adds `count` starts of Splitway without peers.
    pub(crate) fn splitways(&mut self, count: usize) {
        self.also(count, SPLITWAY_SECONDS);
    }

    /// Adds runs of a load.
    pub(crate) fn runs(&mut self, count: usize, connections: usize, file_bytes: u64, seconds: f64) {
        let bytes_before = RESPONSES_BEFORE * connections as f64 * file_bytes as f64;
        self.also(
            count,
            LOAD_SECONDS + bytes_before / BYTES_BEFORE_PER_S + seconds,
        );
    }

    /// Adds `servers` servers that take turns under a load, after a warm-up.
    pub(crate) fn turns(
        &mut self,
        rounds: &Rounds,
        servers: usize,
        connections: usize,
        file_bytes: u64,
    ) {
        if !rounds.is_quick() {
            self.runs(servers, connections, file_bytes, WARM_UP_SECONDS);
        }
        self.runs(
            servers * rounds.count(),
            connections,
            file_bytes,
            rounds.seconds(),
        );
    }

    /// Adds the same over TLS.
    pub(crate) fn tls_turns(
        &mut self,
        rounds: &Rounds,
        servers: usize,
        connections: usize,
        file_bytes: u64,
    ) {
        self.turns(rounds, servers, connections, file_bytes);
        let runs = rounds.count() + usize::from(!rounds.is_quick());
        self.also(servers * runs * connections, TLS_CONNECTION_SECONDS);
    }

    /// Adds `count` steps of `seconds` each.
    pub(crate) fn also(&mut self, count: usize, seconds: f64) {
        self.seconds += count as f64 * seconds;
    }

    /// Returns the sum, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }
}
