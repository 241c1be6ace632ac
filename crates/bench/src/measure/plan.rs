//! How long a benchmark is going to take, from what it is going to do: so that a whole run can be
//! promised to end in time.

use crate::measure::rounds::Rounds;
use crate::measure::run::WARM_UP_SECONDS;

/// What takes time, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    seconds: f64,
}

/// Servers behind their links, started and ended: Splitway with nginx and lighttpd, or alone.
const BED_SECONDS: f64 = 1.2;
const SPLITWAY_SECONDS: f64 = 0.8;

/// A load generator, started and ended, and the kernel's accounts read.
const LOAD_SECONDS: f64 = 0.25;

/// Files are made so fast, and removed.
const FILES_BYTES_PER_S: f64 = 400e6;

/// Before it is measured, each connection has two responses on average, which come so fast from the
/// slower servers; over TLS it also takes so much longer, for its handshake and for what the
/// servers have to encrypt until then.
const RESPONSES_BEFORE: f64 = 2.0;
const BYTES_BEFORE_PER_S: f64 = 0.8e9;
const TLS_CONNECTION_SECONDS: f64 = 0.003;

impl Plan {
    /// A process of its own, and its namespaces.
    pub(crate) fn new() -> Plan {
        Plan { seconds: 0.2 }
    }

    /// So many files.
    pub(crate) fn files(&mut self, files: usize, file_bytes: u64) {
        self.seconds += files as f64 * file_bytes as f64 / FILES_BYTES_PER_S;
    }

    /// Splitway and its peers, so often.
    pub(crate) fn beds(&mut self, count: usize) {
        self.also(count, BED_SECONDS);
    }

    /// Splitway without peers, so often.
    pub(crate) fn splitways(&mut self, count: usize) {
        self.also(count, SPLITWAY_SECONDS);
    }

    /// Runs of a load.
    pub(crate) fn runs(&mut self, count: usize, connections: usize, file_bytes: u64, seconds: f64) {
        let bytes_before = RESPONSES_BEFORE * connections as f64 * file_bytes as f64;
        self.also(
            count,
            LOAD_SECONDS + bytes_before / BYTES_BEFORE_PER_S + seconds,
        );
    }

    /// So many servers that take turns under a load, after they have been warmed up.
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

    /// The same over TLS.
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

    /// Something else, so often.
    pub(crate) fn also(&mut self, count: usize, seconds: f64) {
        self.seconds += count as f64 * seconds;
    }

    /// All of it.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }
}
