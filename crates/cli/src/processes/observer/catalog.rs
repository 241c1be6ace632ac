//! Which metric each counter of a process is.

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It grows, until the process starts again.
    Counter,
    /// It goes up and down, or is a maximum.
    Gauge,
    /// How many were how long.
    Histogram,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Clone, Debug)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) help: String,
}

/// A counter of a process, by the name that it has there, and its metric.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) counter: String,
    pub(crate) metric: Metric,
    /// The counter is in microseconds, the metric in seconds.
    pub(crate) is_us: bool,
}

impl Counted {
    /// `name`: without `splitway_` before it and `_total` behind it. Times end with `_us` here.
    fn new(counter: String, name: &str, kind: Kind, help: &str) -> Self {
        let in_seconds = name.strip_suffix("_us");
        let unit = in_seconds.map_or_else(|| name.to_owned(), |name| format!("{name}_seconds"));
        let total = match kind {
            Kind::Counter => "_total",
            Kind::Gauge | Kind::Histogram => "",
        };
        let help = match in_seconds {
            Some(_) => help.replace(" in microseconds", " in seconds"),
            None => help.to_owned(),
        };
        Self {
            counter,
            metric: Metric {
                name: format!("splitway_{unit}{total}"),
                kind,
                help: help.trim().to_owned(),
            },
            is_us: in_seconds.is_some(),
        }
    }
}

/// What the host process tells besides what its stack counts: names there, and what they mean.
const HOST: [(&str, Kind, &str); 27] = {
    use Kind::{Counter, Gauge};
    [
        (
            "http_connections_accepted",
            Counter,
            "Connections that the server has taken.",
        ),
        (
            "http_connections_closed",
            Counter,
            "Connections of the server that are over.",
        ),
        (
            "http_requests",
            Counter,
            "Request heads that were answered, whole or broken.",
        ),
        (
            "http_responses_1xx",
            Counter,
            "Responses begun with a status of 1xx.",
        ),
        (
            "http_responses_2xx",
            Counter,
            "Responses begun with a status of 2xx.",
        ),
        (
            "http_responses_3xx",
            Counter,
            "Responses begun with a status of 3xx.",
        ),
        (
            "http_responses_4xx",
            Counter,
            "Responses begun with a status of 4xx.",
        ),
        (
            "http_responses_5xx",
            Counter,
            "Responses begun with a status of 5xx.",
        ),
        (
            "http_real_bytes",
            Counter,
            "Bytes of response heads and error pages handed to the host stack.",
        ),
        (
            "http_virtual_bytes",
            Counter,
            "Bytes of files promised to clients, which the host never has.",
        ),
        (
            "http_head_timeouts",
            Counter,
            "Requests that did not arrive in time.",
        ),
        (
            "http_idle_timeouts",
            Counter,
            "Kept-alive connections closed because no further request came.",
        ),
        (
            "http_stall_timeouts",
            Counter,
            "Connections aborted because the client acknowledged nothing for too long.",
        ),
        (
            "http_rate_timeouts",
            Counter,
            "Connections aborted because the client acknowledged less than `rate_min`.",
        ),
        (
            "http_open_timeouts",
            Counter,
            "Requests answered 503 because the NIC stack did not open their file in time.",
        ),
        (
            "http_contents_lost",
            Counter,
            "Connections aborted because the rest of an object of an origin is not to be had.",
        ),
        (
            "http_linger_timeouts",
            Counter,
            "Connections aborted because the client did not close after the last response.",
        ),
        (
            "access_records_lost",
            Counter,
            "Accesses in no log and no metric, because the observer was behind.",
        ),
        (
            "connections",
            Gauge,
            "Connections in the host stack's table.",
        ),
        (
            "connections_orphaned",
            Gauge,
            "Connections whose FIN is sent: they wait for their clients alone.",
        ),
        (
            "connections_half_open",
            Gauge,
            "Handshakes under way, cookies not counted.",
        ),
        (
            "connection_memory_bytes",
            Gauge,
            "Memory of connections for what their clients send, real bytes to be sent, and TLS.",
        ),
        ("connections_time_wait", Gauge, "Connections in TIME-WAIT."),
        ("files_open", Gauge, "Files open below, or being opened."),
        ("sends_outstanding", Gauge, "SENDs issued and not departed."),
        (
            "commands_waiting",
            Gauge,
            "Small commands that wait for room in a ring.",
        ),
        (
            "error_lines_lost",
            Counter,
            "Lines for the error log that found no room on their way.",
        ),
    ]
};

/// What NIC workers count: the name there, the metric's, and what it means.
const NIC: [(&str, &str, Kind, &str); nic::Counters::ROWS] = {
    use Kind::{Counter, Gauge};
    [
        ("OPEN commands", "opens", Counter, "OPEN commands taken."),
        ("LIST commands", "lists", Counter, "LIST commands taken."),
        ("CLOS commands", "closes", Counter, "CLOS commands taken."),
        ("SEND commands", "sends", Counter, "SEND commands taken."),
        ("ACKD commands", "ackds", Counter, "ACKD commands taken."),
        (
            "commands rejected",
            "commands_rejected",
            Counter,
            "Commands answered with Rejected.",
        ),
        (
            "opens failed",
            "opens_failed",
            Counter,
            "OPENs and LISTs that failed.",
        ),
        (
            "reads failed",
            "reads_failed",
            Counter,
            "SENDs that failed while reading.",
        ),
        (
            "packets",
            "packets",
            Counter,
            "Packets on the wire, after cutting.",
        ),
        (
            "superpackets",
            "superpackets",
            Counter,
            "Superpackets handed to the port.",
        ),
        (
            "file bytes sent",
            "file_sent_bytes",
            Counter,
            "Bytes of file content handed to the port.",
        ),
        (
            "inline bytes sent",
            "inline_sent_bytes",
            Counter,
            "Inline bytes handed to the port.",
        ),
        ("reads", "reads", Counter, "Reads started."),
        (
            "bytes read",
            "read_bytes",
            Counter,
            "Bytes read from files.",
        ),
        (
            "block hits",
            "block_hits",
            Counter,
            "Blocks that a superpacket needed and found in memory, or on their way.",
        ),
        (
            "block misses",
            "block_misses",
            Counter,
            "Blocks that a superpacket needed and that had to be read for it.",
        ),
        (
            "reads shared",
            "reads_shared",
            Counter,
            "Of the hits: the block was being read already.",
        ),
        (
            "blocks evicted",
            "blocks_evicted",
            Counter,
            "Cached blocks that have made way for others.",
        ),
        (
            "pins broken",
            "pins_broken",
            Counter,
            "Pinned blocks that have made way for others.",
        ),
        (
            "waits for blocks",
            "block_waits",
            Counter,
            "Times that a flow had to wait for blocks.",
        ),
        (
            "blocks read ahead",
            "blocks_ahead",
            Counter,
            "Of the reads, those of blocks that no flow needed yet.",
        ),
        (
            "blocks read ahead, used",
            "blocks_ahead_used",
            Counter,
            "Blocks that were read ahead and then needed.",
        ),
        (
            "blocks read ahead, wasted",
            "blocks_ahead_wasted",
            Counter,
            "Blocks that were read ahead and have gone unneeded.",
        ),
        (
            "blocks in use, peak",
            "blocks_used_max",
            Gauge,
            "Most blocks in use, being read or pinned at once.",
        ),
        (
            "blocks pinned, peak",
            "blocks_pinned_max",
            Gauge,
            "Most blocks pinned at once.",
        ),
        ("KEY commands", "keys", Counter, "KEY commands taken."),
        (
            "RECORDS commands",
            "record_runs",
            Counter,
            "RECORDS commands taken.",
        ),
        (
            "sealed bytes sent",
            "sealed_sent_bytes",
            Counter,
            "Bytes of TLS records handed to the port.",
        ),
        (
            "records sealed",
            "records_sealed",
            Counter,
            "TLS records sealed for the first time.",
        ),
        (
            "records sealed again",
            "records_sealed_again",
            Counter,
            "TLS records sealed once more.",
        ),
        (
            "records sent on from their tail",
            "records_from_tail",
            Counter,
            "TLS records that went on without being sealed again.",
        ),
        (
            "bytes sealed",
            "sealed_bytes",
            Counter,
            "Bytes of TLS records made by sealing, again or for the first time.",
        ),
        (
            "seal mismatches",
            "seal_mismatches",
            Counter,
            "SENDs that failed because a record would have been sealed otherwise.",
        ),
        (
            "waits for the event ring",
            "ring_waits",
            Counter,
            "Times that a superpacket waited for room in the event ring.",
        ),
        (
            "superpackets dropped by the link",
            "port_drops",
            Counter,
            "Superpackets that the link dropped.",
        ),
        (
            "superpackets refused by the port",
            "port_failures",
            Counter,
            "Superpackets that the port refused.",
        ),
        (
            "waits for the port",
            "port_waits",
            Counter,
            "Times that the port was busy.",
        ),
        ("sleeps", "sleeps", Counter, "Times that the worker slept."),
        (
            "paced SENDs",
            "paced",
            Counter,
            "SENDs taken that named an earliest departure.",
        ),
        (
            "paced SENDs held shorter than asked",
            "holds_shortened",
            Counter,
            "Of these, SENDs that asked to be held for too long.",
        ),
        (
            "paced SENDs late, total us",
            "paced_late_us",
            Counter,
            "Time by which paced SENDs left later than their earliest departure, in microseconds.",
        ),
        (
            "paced SENDs late, most us",
            "paced_late_max_us",
            Gauge,
            "The latest of them, in microseconds.",
        ),
        (
            "paced SENDs late by over 1 ms",
            "paced_late",
            Counter,
            "Paced SENDs that were later than a millisecond.",
        ),
    ]
};

/// What a fetcher counts, in its order: the first ones by origin.
const FETCHER: [(&str, Kind, &str); 18] = {
    use Kind::{Counter, Gauge};
    [
        (
            "origin_asked",
            Counter,
            "Objects of an origin that clients have asked for.",
        ),
        (
            "origin_hits",
            Counter,
            "Of these, those that were there, fresh or stale.",
        ),
        (
            "origin_misses",
            Counter,
            "Of these, those that the origin was asked for, was being asked for, or is left alone \
             with.",
        ),
        (
            "origin_coalesced",
            Counter,
            "Of these, those that waited for a request that was under way.",
        ),
        (
            "origin_stale",
            Counter,
            "Answered from what was stale, while the origin was asked or because it failed.",
        ),
        (
            "origin_passed",
            Counter,
            "For one client alone, since they may not be shared.",
        ),
        (
            "origin_requests",
            Counter,
            "Requests to an origin, without those repeated after a failure.",
        ),
        (
            "origin_revalidated",
            Counter,
            "Of these, those that were answered 304.",
        ),
        (
            "origin_failures",
            Counter,
            "Of these, those that have failed or were broken off.",
        ),
        (
            "origin_lost",
            Counter,
            "Downloads that ended early because the rest of their version was not to be had.",
        ),
        (
            "origin_fetched_bytes",
            Counter,
            "Content that has come from an origin.",
        ),
        (
            "origin_damaged_segments",
            Counter,
            "Segments that were missing in the cache directory, or not as they were written.",
        ),
        (
            "origin_no_room",
            Counter,
            "Answers of an origin that were refused since the cache had no room for all of them \
             (503).",
        ),
        (
            "origin_evicted_variants",
            Counter,
            "Variants that have made room for others of the same target.",
        ),
        (
            "origin_evicted_objects",
            Counter,
            "Objects that have made room for others in the cache directory.",
        ),
        (
            "origin_evicted_bytes",
            Counter,
            "Content that was removed from the cache directory, for others or because it was out \
             of date.",
        ),
        (
            "origin_cached_objects",
            Gauge,
            "Objects in the cache directory, whole or in parts.",
        ),
        (
            "origin_cached_bytes",
            Gauge,
            "Content in the cache directory.",
        ),
    ]
};

/// What a fetcher counts.
pub(crate) fn fetcher() -> Vec<Counted> {
    let rows = FETCHER.iter();
    let rows =
        rows.map(|(name, kind, meaning)| Counted::new((*name).to_owned(), name, *kind, meaning));
    rows.collect()
}

/// What the host process counts.
pub(crate) fn host() -> Vec<Counted> {
    let stack = host::Counters::MEANINGS.iter().map(|(name, meaning)| {
        Counted::new(
            (*name).to_owned(),
            &format!("host_{name}"),
            Kind::Counter,
            meaning,
        )
    });
    let rest = HOST.iter().map(|(name, kind, meaning)| {
        Counted::new(beside_stack(name), &format!("host_{name}"), *kind, meaning)
    });
    stack.chain(rest).collect()
}

/// What each worker of a NIC process counts.
pub(crate) fn nic() -> Vec<Counted> {
    let rows = NIC.iter().map(|(counter, name, kind, meaning)| {
        Counted::new(
            (*counter).to_owned(),
            &format!("nic_{name}"),
            *kind,
            meaning,
        )
    });
    rows.collect()
}

/// What the host process calls what its stack does not count: some has the name of something that
/// the stack counts.
pub(crate) fn beside_stack(name: &str) -> String {
    format!("host {name}")
}
