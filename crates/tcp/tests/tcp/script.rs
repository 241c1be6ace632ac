//! Packet traces as tests.
//!
//! A [`Script`] is one connection and the hand that feeds it. A trace is text, one step a line:
//!
//! ```text
//! < SYN 0 win 1000 mss 1000       a segment arrives
//! > SYN ACK 0 ack 1               this is sent, and nothing else before it
//! +40ms                           time passes, timers fire
//! = ESTABLISHED                   the state
//! ! Connected, Readable           the events since the last such line; `!` alone: none
//! write 300                       the application: write, virtual, read, shutdown, close,
//!                                 abort
//! icmp too big 840 seq 1          a router says so about the segment that begins there
//! icmp unreachable hard seq 1     or `soft` (RFC 5461 §2)
//! hold                            from now on departures are not reported ...
//! depart                          ... but here, for the oldest transmission that waits
//! lose                            ... or here: it never leaves; `forget`: nor do all the others
//! skip                            ... or nowhere: the report is lost
//! write 300; shutdown             both, before anything is sent; the next line belongs to
//!                                 them if this one ends with `;`
//! cork, uncork, more              TCP_CORK on and off; MSG_MORE of the write before
//! nodelay on                      or `off`: TCP_NODELAY
//! part                            another one goes on with what is left of the connection
//! rate 100000                     the application allows so many bytes/s; `rate -`: any number
//! window 10000                    the congestion window
//! ```
//!
//! Sequence numbers are relative: 0 is the SYN of either side, 1 its first byte. `1..101` is text.
//! Windows are as on the wire. Options: `mss 1000`, `ws 7`, `ts 5 7`, `sackOK`, and `sack
//! 1001..2001 3001..4001` with blocks in the order of the option (a D-SACK is a first block that
//! was received before, RFC 2883 §4); `-` stands for an absent one. ECE and CWR are flags like any
//! other; `not-ect`, `ect0` and `ce` are the ECN field of the packets. `at +5ms` in an expected
//! segment is its earliest departure, seen from when it is issued, and then it departs; `at -`: it
//! may leave at once. `real 300 file 700` is what the payload consists of: 300 bytes that the host
//! has, then 700 that only the NIC stack can read. `behind` means that something before it has not
//! departed, so that it must go the same way; `alone` that nothing holds it up. `cut 800`: into
//! packets of at most 800 payload bytes.
//!
//! In an expected segment only what is written is compared, except flags, sequence numbers and the
//! acknowledgment, which always are. All bytes are a function of their stream offset, and are
//! checked.

use std::collections::VecDeque;
use std::time::Duration;

use tcp::{
    Config, CongestionAlgorithm, Connection, ConnectionEvent, Instant, Limits, Piece, Transmit,
};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

/// The connection's initial sequence number in all traces: wraps soon.
pub(crate) const ISS: u32 = u32::MAX - 500;
/// The peer's.
pub(crate) const IRS: u32 = u32::MAX - 300;

pub(crate) const LIMITS: Limits = Limits {
    bytes_max: 1 << 20,
    pieces_max: 32,
    real_bytes_max: 4096,
    direct_bytes_max: 0,
};

/// The byte at an offset of a stream, or of an object.
pub(crate) fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8
}

pub(crate) fn bytes_at(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

/// Timestamps off, round numbers: an MSS of 1000, an IW of 10,000. All acknowledgments may be
/// delayed.
pub(crate) fn config() -> Config {
    Config {
        mss: 1000,
        timestamps: false,
        window_scaling: false,
        receive_buffer_bytes: 10_000,
        // Windows that a reader can compute.
        congestion: CongestionAlgorithm::NewReno,
        receive_buffer_bytes_max: 10_000,
        quick_acks: 0,
        pace: false,
        ..Config::default()
    }
}

pub(crate) struct Script {
    pub(crate) config: Config,
    pub(crate) now: Instant,
    pub(crate) connection: Option<Connection>,
    pub(crate) limits: Limits,
    /// Sent and not looked at by the script, with what it consists of.
    sent: VecDeque<(Transmit, String)>,
    /// Issued, with departure not reported.
    undeparted: VecDeque<u64>,
    /// Issued, and about to depart when it is time.
    waiting: VecDeque<(Instant, u64)>,
    hold: bool,
    /// Text of the SYN that opens the connection is taken.
    is_fast_open: bool,
    written: u64,
    read: u64,
    line: String,
}

impl Script {
    /// A listener, before the SYN.
    pub(crate) fn listen(config: Config) -> Script {
        Script {
            config,
            now: Instant::from_us(1_000_000),
            connection: None,
            limits: LIMITS,
            sent: VecDeque::new(),
            undeparted: VecDeque::new(),
            waiting: VecDeque::new(),
            hold: false,
            is_fast_open: false,
            written: 0,
            read: 0,
            line: String::new(),
        }
    }

    /// A listener that takes the text of a SYN: its cookie is good.
    pub(crate) fn fast_open(config: Config) -> Script {
        Script {
            is_fast_open: true,
            ..Script::listen(config)
        }
    }

    /// An active open; the SYN waits to be looked at.
    pub(crate) fn connect(config: Config) -> Script {
        let mut script = Script::listen(config);
        script.connection = Some(Connection::connect(&config, 80, 40_000, ISS, 0, script.now));
        script.poll();
        script
    }

    /// In ESTABLISHED after a passive open, with a window of 10,000 and no options.
    pub(crate) fn established() -> Script {
        Script::established_with(config())
    }

    pub(crate) fn established_with(config: Config) -> Script {
        let mut script = Script::opened(config, "win 10000 mss 1000", 10_000);
        script.trace("= Established\n! Connected");
        script
    }

    /// After a passive open over 10 ms: what the peer's SYN says, and the window that it offers
    /// then.
    pub(crate) fn opened(config: Config, syn: &str, window: u32) -> Script {
        let mut script = Script::listen(config);
        script.trace(&format!(
            "
            < SYN 0 {syn}
            > SYN ACK 0 ack 1
            +10ms
            < ACK 1 ack 1 win {window}
            "
        ));
        script
    }

    /// In one of the states behind ESTABLISHED, with nothing in flight but what the state is about.
    pub(crate) fn in_state(state: &str) -> Script {
        let mut script = Script::established();
        script.trace(match state {
            "Established" => "",
            "FinWait1" => "shutdown\n> FIN ACK 1 ack 1",
            "FinWait2" => "shutdown\n> FIN ACK 1 ack 1\n< ACK 1 ack 2 win 10000",
            "CloseWait" => "< FIN ACK 1 ack 1 win 10000\n> ACK 1 ack 2\n! PeerFinished",
            "Closing" => {
                "shutdown\n> FIN ACK 1 ack 1\n< FIN ACK 1 ack 1 win 10000\n> ACK 2 ack 2\n\
                ! PeerFinished"
            }
            "LastAck" => {
                "< FIN ACK 1 ack 1 win 10000\n> ACK 1 ack 2\n! PeerFinished\nshutdown\n> FIN ACK 1 \
                 ack 2"
            }
            "TimeWait" => {
                "shutdown\n> FIN ACK 1 ack 1\n< FIN ACK 1 ack 2 win 10000\n> ACK 2 ack 2\n\
                 ! PeerFinished, Closed(Finished)"
            }
            other => panic!("no such state: {other}"),
        });
        script.trace(&format!("= {state}"));
        script
    }

    /// All states in which the handshake is complete.
    pub(crate) const SYNCHRONIZED: [&'static str; 6] = [
        "Established",
        "FinWait1",
        "FinWait2",
        "CloseWait",
        "Closing",
        "LastAck",
    ];

    pub(crate) fn tcp(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("a SYN has come")
    }

    /// Runs a trace; panics with the line that does not hold.
    pub(crate) fn trace(&mut self, text: &str) {
        self.poll();
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            self.line = line.to_owned();
            for step in line.trim_end_matches(';').split("; ") {
                let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
                self.step(word, rest);
            }
            if !line.ends_with(';') {
                self.poll();
            }
        }
        self.line = "end of trace".to_owned();
        self.expect_silence();
    }

    fn step(&mut self, word: &str, rest: &str) {
        if !matches!(word, ">" | "=" | "!" | "window") {
            self.expect_silence();
        }
        match word {
            "<" => self.receive(rest),
            ">" => self.expect_sent(rest),
            "=" => {
                let state = format!("{:?}", self.tcp().state());
                assert_eq!(state, rest, "at `{}`", self.line);
            }
            "!" => self.expect_events(rest),
            "write" => self.write(rest),
            "virtual" => self.write_virtual(rest),
            "read" => self.read(rest),
            "shutdown" => self.tcp().shutdown(),
            "close" => self.tcp().close(),
            "abort" => self.tcp().abort(),
            "part" => self.part(),
            "icmp" => self.icmp(rest),
            "rate" => self.tcp().set_max_pacing_rate(rest.parse().ok()),
            "cork" => self.tcp().set_cork(true),
            "uncork" => self.tcp().set_cork(false),
            "more" => self.tcp().expect_more(),
            "nodelay" => self.tcp().set_nodelay(rest == "on"),
            "window" => {
                let window = self.tcp().congestion_window().to_string();
                assert_eq!(window, rest, "the congestion window at `{}`", self.line);
            }
            "hold" => self.hold = true,
            "depart" => {
                let transmission = self.undeparted.pop_front().expect("something was held");
                let now = self.now;
                self.tcp().on_departed(transmission, now);
            }
            "lose" => {
                let transmission = self.undeparted.pop_front().expect("something was held");
                self.tcp().on_undeparted_lost(transmission);
            }
            "forget" => {
                self.undeparted.clear();
                self.tcp().on_all_undeparted_lost();
            }
            "skip" => drop(self.undeparted.pop_front().expect("something was held")),
            _ if word.starts_with('+') => self.pass(word),
            _ => panic!("unknown step in `{}`", self.line),
        }
    }

    fn expect_silence(&mut self) {
        if let Some((transmit, _)) = self.sent.front() {
            panic!(
                "before `{}`: unexpected `> {}`",
                self.line,
                describe(transmit)
            );
        }
    }

    pub(crate) fn part(&mut self) {
        let remainder = self.tcp().remainder().expect("its end alone is left");
        let connection = Connection::resume(&self.config, 80, 40_000, &remainder, self.now);
        self.connection = Some(connection);
    }

    fn poll(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while let Some(transmit) = connection.poll_transmit(self.now, &self.limits) {
            let len = transmit.range.end - transmit.range.start;
            let (content, composition) = compose(connection, &transmit);
            assert_eq!(content, len, "the pieces make up the range");
            if let Some(transmission) = transmit.transmission {
                // Nothing overtakes what waits for its time.
                let ahead = self.waiting.back().map_or(self.now, |&(at, _)| at);
                let at = transmit.not_before.map_or(ahead, |at| at.max(ahead));
                if self.hold {
                    self.undeparted.push_back(transmission);
                } else if at > self.now {
                    self.waiting.push_back((at, transmission));
                } else {
                    connection.on_departed(transmission, self.now);
                }
            }
            self.sent.push_back((transmit, composition));
            assert!(
                self.sent.len() < 1000,
                "at `{}`: does not stop sending",
                self.line
            );
        }
    }

    fn receive(&mut self, text: &str) {
        let (header, len) = parse(text);
        let mut header = Header {
            source_port: 40_000,
            destination_port: 80,
            ..header
        };
        let relative = header.seq;
        header.seq = IRS.wrapping_add(relative);
        header.ack = ISS.wrapping_add(header.ack);
        for (left, right) in header.options.sack.iter_mut().flatten() {
            *left = ISS.wrapping_add(*left);
            *right = ISS.wrapping_add(*right);
        }
        let first = u64::from(relative).saturating_sub(1);
        let payload = bytes_at(first..first + u64::from(len));
        let segment = Segment {
            header,
            payload: &payload,
            ecn: ecn_words()
                .find(|(word, _)| text.split_whitespace().any(|w| w == *word))
                .map_or(Ecn::NotEct, |(_, ecn)| ecn),
        };
        match &mut self.connection {
            Some(connection) => connection.on_segment(self.now, &segment),
            None => {
                let accept = if self.is_fast_open {
                    Connection::accept_fast_open
                } else {
                    Connection::accept
                };
                let connection = accept(&self.config, &segment, ISS, 0, self.now);
                self.connection = Some(connection.expect("an acceptable SYN"));
            }
        }
    }

    fn icmp(&mut self, text: &str) {
        let now = self.now;
        let number = |text: &str| text.parse::<u32>().expect("a number");
        let (what, seq) = text.split_once(" seq ").expect("about a segment");
        let seq = ISS.wrapping_add(number(seq));
        match what.split_once(" big ") {
            Some((_, mtu)) => {
                self.tcp().on_icmp_too_big(now, number(mtu), seq);
            }
            None => self
                .tcp()
                .on_icmp_unreachable(what == "unreachable hard", seq),
        }
    }

    fn expect_sent(&mut self, text: &str) {
        let Some((transmit, composition)) = self.sent.pop_front() else {
            panic!("expected `> {text}`, nothing is sent");
        };
        let (expected, len) = parse(text);
        let header = &transmit.header;
        let got_len = (transmit.range.end - transmit.range.start) as u32;
        let seq = header.seq.wrapping_sub(ISS);
        let ack = if header.flags.contains(Flags::ACK) {
            header.ack.wrapping_sub(IRS)
        } else {
            header.ack
        };
        let has = |word: &str| text.split_whitespace().any(|w| w == word);
        let wanted = &expected.options;
        let same = (header.flags, seq, ack, got_len)
            == (expected.flags, expected.seq, expected.ack, len)
            && (!has("win") || header.window == expected.window)
            && (!has("mss") || header.options.mss == wanted.mss)
            && (!has("ws") || header.options.window_scale == wanted.window_scale)
            && (ecn_words().all(|(word, ecn)| !has(word) || transmit.ecn == ecn))
            && (!has("ts") || header.options.timestamps == wanted.timestamps)
            && (!has("sackOK") || header.options.sack_permitted == wanted.sack_permitted)
            && (!has("sack") || relative_blocks(&header.options) == wanted.sack)
            && (!has("at") || departure_in(text) == wait(&transmit))
            && (!(has("real") || has("file")) || composition_in(text) == composition)
            && (!has("cut") || cut_in(text) == Some(transmit.mss))
            && (!has("behind") || transmit.follows_undeparted)
            && (!has("alone") || !transmit.follows_undeparted)
            && (header.source_port, header.destination_port) == (80, 40_000);
        assert!(
            same,
            "expected `> {text}`, got `> {} {composition}`",
            describe(&transmit)
        );
    }

    fn expect_events(&mut self, text: &str) {
        let mut got = Vec::new();
        while let Some(event) = self.tcp().poll_event() {
            got.push(match event {
                ConnectionEvent::Closed { reason } => format!("Closed({reason:?})"),
                ConnectionEvent::Released { object, stream_end } => {
                    format!("Released({object} {stream_end})")
                }
                other => format!("{other:?}"),
            });
        }
        assert_eq!(got.join(", "), text, "events at `{}`", self.line);
    }

    fn write(&mut self, text: &str) {
        let len: u64 = text.parse().expect("a length");
        let bytes = bytes_at(self.written..self.written + len);
        let written = self.tcp().write(&bytes);
        assert_eq!(written as u64, len, "all is taken");
        self.written += len;
    }

    /// The object and the offset in it do not matter to TCP; here the object is the stream itself.
    fn write_virtual(&mut self, text: &str) {
        let len: u64 = text.parse().expect("a length");
        let offset = self.written;
        assert_eq!(
            self.tcp().write_virtual(7, offset, len),
            len,
            "all is queued"
        );
        self.written += len;
    }

    fn read(&mut self, text: &str) {
        let len: usize = text.parse().expect("a length");
        let mut bytes = vec![0; len];
        let count = self.tcp().read(&mut bytes);
        assert_eq!(count, len, "at `{}`: so much can be read", self.line);
        assert_eq!(bytes, bytes_at(self.read..self.read + len as u64));
        self.read += len as u64;
    }

    fn pass(&mut self, text: &str) {
        let until = self.now + duration(text);
        loop {
            let departure = self.waiting.front().map(|&(at, _)| at);
            let timeout = self.tcp().next_timeout();
            if let Some(at) = departure.filter(|&at| at <= until)
                && timeout.is_none_or(|timeout| at <= timeout)
            {
                let (at, transmission) = self.waiting.pop_front().expect("there is a first");
                self.now = at;
                self.tcp().on_departed(transmission, at);
                self.poll();
                continue;
            }
            let Some(at) = timeout.filter(|&at| at <= until) else {
                break;
            };
            self.now = self.now.max(at);
            let now = self.now;
            self.tcp().on_timeout(now);
            self.poll();
            let next = self.tcp().next_timeout();
            assert!(
                next.is_none_or(|next| next > now),
                "a timer that fires for ever"
            );
        }
        self.now = until;
    }
}

/// `+5ms`
fn duration(text: &str) -> Duration {
    let number = |unit: &str| {
        text.strip_prefix('+')?
            .strip_suffix(unit)?
            .parse::<u64>()
            .ok()
    };
    number("us")
        .map(Duration::from_micros)
        .or_else(|| number("ms").map(Duration::from_millis))
        .or_else(|| number("s").map(Duration::from_secs))
        .unwrap_or_else(|| panic!("no duration: `{text}`"))
}

/// The `at` of an expected segment.
fn departure_in(text: &str) -> Option<Duration> {
    let word = text
        .split_whitespace()
        .skip_while(|word| *word != "at")
        .nth(1);
    word.filter(|word| *word != "-").map(duration)
}

/// Length of a payload, and what it consists of: `real 300 file 700`. Files are the stream itself
/// ([`Script::write_virtual`]), so a range that lies elsewhere is a wrong one.
fn compose(connection: &Connection, transmit: &Transmit) -> (u64, String) {
    let mut end = transmit.range.start;
    let mut composition = String::new();
    for piece in connection.pieces(transmit.range.clone()) {
        composition += &match piece {
            Piece::Real(bytes) => {
                end += bytes.len() as u64;
                format!(" real {}", bytes.len())
            }
            Piece::Virtual { offset, len, .. } => {
                let elsewhere = if offset == end { "" } else { "?" };
                end += len;
                format!(" file {len}{elsewhere}")
            }
        };
    }
    (
        end - transmit.range.start,
        composition.trim_start().to_owned(),
    )
}

/// The `cut` of an expected segment.
fn cut_in(text: &str) -> Option<u16> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "cut");
    words.nth(1)?.parse().ok()
}

/// The composition of an expected segment.
fn composition_in(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let pieces = words
        .windows(2)
        .filter(|pair| matches!(pair[0], "real" | "file"))
        .map(|pair| pair.join(" "));
    pieces.collect::<Vec<_>>().join(" ")
}

/// How long a transmission must wait.
fn wait(transmit: &Transmit) -> Option<Duration> {
    let not_before = transmit.not_before?;
    Some(not_before.since(transmit.issued)).filter(|wait| !wait.is_zero())
}

/// The SACK blocks that we send, relative to the peer's SYN.
fn relative_blocks(options: &Options) -> [Option<(u32, u32)>; 4] {
    options.sack.map(|block| {
        let (left, right) = block?;
        Some((left.wrapping_sub(IRS), right.wrapping_sub(IRS)))
    })
}

fn ecn_words() -> impl Iterator<Item = (&'static str, Ecn)> {
    [
        ("not-ect", Ecn::NotEct),
        ("ect0", Ecn::Ect0),
        ("ce", Ecn::Ce),
    ]
    .into_iter()
}

fn parse(text: &str) -> (Header, u32) {
    let mut header = Header::default();
    let mut len = 0;
    let mut words = text.split_whitespace().peekable();
    let mut flags = Flags::default();
    let number = |word: Option<&str>| -> u32 {
        let word = word.unwrap_or_else(|| panic!("a number is missing in `{text}`"));
        let number: i64 = word
            .parse()
            .unwrap_or_else(|_| panic!("no number: `{word}` in `{text}`"));
        number as u32
    };
    let optional = |word: Option<&str>| {
        word.filter(|word| *word != "-")
            .map(|word| number(Some(word)))
    };
    while let Some(word) = words.next() {
        match word {
            "FIN" => flags = flags | Flags::FIN,
            "SYN" => flags = flags | Flags::SYN,
            "RST" => flags = flags | Flags::RST,
            "PSH" => flags = flags | Flags::PSH,
            "ACK" => flags = flags | Flags::ACK,
            "URG" => flags = flags | Flags::URG,
            "ECE" => flags = flags | Flags::ECE,
            "CWR" => flags = flags | Flags::CWR,
            "not-ect" | "ect0" | "ce" => {}
            "." => {}
            "ack" => header.ack = number(words.next()),
            "win" => header.window = number(words.next()) as u16,
            "mss" => header.options.mss = optional(words.next()).map(|mss| mss as u16),
            "ws" => header.options.window_scale = optional(words.next()).map(|shift| shift as u8),
            "ts" => {
                header.options.timestamps = optional(words.next()).map(|value| Timestamps {
                    value,
                    echo_reply: number(words.next()),
                });
            }
            "sackOK" => header.options.sack_permitted = words.next_if_eq(&"-").is_none(),
            "sack" => {
                let mut places = header.options.sack.iter_mut();
                if words.next_if_eq(&"-").is_some() {
                    continue;
                }
                while let Some(block) = words.next_if(|word| word.contains("..")) {
                    let (left, right) = block.split_once("..").expect("it is a range");
                    let place = places.next().expect("four blocks at most");
                    *place = Some((number(Some(left)), number(Some(right))));
                }
            }
            "at" | "real" | "file" | "cut" => drop(words.next()),
            "behind" | "alone" => {}
            range => match range.split_once("..") {
                Some((start, end)) => {
                    header.seq = number(Some(start));
                    len = number(Some(end)).wrapping_sub(header.seq);
                }
                None => header.seq = number(Some(range)),
            },
        }
    }
    header.flags = flags;
    (header, len)
}

fn describe(transmit: &Transmit) -> String {
    let header = &transmit.header;
    let mut text = String::new();
    let names = [
        (Flags::FIN, "FIN "),
        (Flags::SYN, "SYN "),
        (Flags::RST, "RST "),
        (Flags::PSH, "PSH "),
        (Flags::ACK, "ACK "),
        (Flags::ECE, "ECE "),
        (Flags::CWR, "CWR "),
    ];
    for (flag, name) in names {
        if header.flags.contains(flag) {
            text += name;
        }
    }
    let seq = header.seq.wrapping_sub(ISS);
    let len = (transmit.range.end - transmit.range.start) as u32;
    text += &match len {
        0 => format!("{seq}"),
        _ => format!("{seq}..{}", seq.wrapping_add(len)),
    };
    if header.flags.contains(Flags::ACK) {
        text += &format!(" ack {}", header.ack.wrapping_sub(IRS));
    }
    let Options {
        mss,
        window_scale,
        timestamps,
        sack_permitted,
        ..
    } = header.options;
    text += &format!(" {:?} win {}", transmit.ecn, header.window);
    if let Some(mss) = mss {
        text += &format!(" mss {mss}");
    }
    if let Some(shift) = window_scale {
        text += &format!(" ws {shift}");
    }
    if let Some(timestamps) = timestamps {
        text += &format!(" ts {} {}", timestamps.value, timestamps.echo_reply);
    }
    if sack_permitted {
        text += " sackOK";
    }
    let blocks = relative_blocks(&header.options);
    if blocks[0].is_some() {
        text += " sack";
    }
    for (left, right) in blocks.into_iter().flatten() {
        text += &format!(" {left}..{right}");
    }
    if let Some(wait) = wait(transmit) {
        text += &format!(" at +{}us", wait.as_micros());
    }
    text
}
