//! The host process, and the fetcher that it asks.

use std::fs;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use origin::message::{
    Answer, CacheStatus, HostRequest, MESSAGE_BYTES_MAX, Object, Order, segment_name,
};
use origin::{Config, Ends, FieldLimits, OriginCounters, Timeouts, Totals, Trust};

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// What tests use: small, so that there are many.
pub(crate) const SEGMENT_BYTES: u64 = 1000;

/// See the [module documentation](self).
pub(crate) struct Host {
    socket: Option<UnixDatagram>,
    orders: UnixDatagram,
    fetcher: Option<JoinHandle<Totals>>,
    directory: PathBuf,
    /// What it is asked for is there.
    origin: String,
    ticket: u64,
    /// Answers that have come before those that were waited for.
    early: Vec<Answer>,
    ready: mpsc::Receiver<()>,
    /// What each origin has a part in, as it was told last.
    told: mpsc::Receiver<Vec<(String, OriginCounters)>>,
}

/// How a request for an object has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Content(Vec<u8>),
    Refused(u16),
    Lost,
}

pub(crate) fn config(directory: &Path, url: &str) -> Config {
    Config {
        cache_dir: directory.to_owned(),
        bytes_max: 1 << 20,
        variants_max: 16,
        field_limits: FieldLimits::default(),
        segment_bytes: SEGMENT_BYTES,
        origins: vec![url.parse().unwrap()],
        trust: Trust::none(),
        timeouts: Timeouts::default(),
        boot_id: "this".to_owned(),
    }
}

impl Host {
    pub(crate) fn new(directory: &Path, url: &str) -> Host {
        Host::with(config(directory, url))
    }

    pub(crate) fn with(config: Config) -> Host {
        let (socket, end) = UnixDatagram::pair().unwrap();
        let (orders, its_orders) = UnixDatagram::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let directory = config.cache_dir.clone();
        let origin = config.origins[0].to_string();
        let (is_ready, ready) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let fetcher = thread::spawn(move || {
            let (_never, stop) = UnixStream::pair().unwrap();
            let is_ready = || {
                // Not every test waits for it.
                let _ = is_ready.send(());
            };
            let ends = Ends {
                host: OwnedFd::from(end),
                orders: OwnedFd::from(its_orders),
                stop: OwnedFd::from(stop),
            };
            origin::run(&config, ends, is_ready, |counted| {
                let origins = counted.origins.iter();
                let origins = origins.map(|(url, counters)| ((*url).to_owned(), *counters));
                tell.send(origins.collect()).is_ok()
            })
            .unwrap()
        });
        Host {
            socket: Some(socket),
            orders,
            fetcher: Some(fetcher),
            directory,
            origin,
            ticket: 0,
            early: Vec::new(),
            ready,
            told,
        }
    }

    /// Waits until the fetcher tells what each origin has a part in.
    pub(crate) fn told(&self) -> Vec<(String, OriginCounters)> {
        self.told.recv_timeout(PATIENCE).unwrap()
    }

    pub(crate) fn order(&self, order: &Order) {
        let bytes = serde_json::to_vec(order).unwrap();
        self.orders.send(&bytes).unwrap();
    }

    /// Whether the fetcher has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.fetcher.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the fetcher says that it is.
    pub(crate) fn ready(&self) {
        self.ready.recv_timeout(PATIENCE).unwrap();
    }

    /// Hangs up, and hears what the fetcher has done.
    pub(crate) fn end(mut self) -> Totals {
        // An empty message is the end where there is no other.
        self.socket.as_ref().unwrap().send(&[]).unwrap();
        self.fetcher.take().unwrap().join().unwrap()
    }

    pub(crate) fn say(&self, ask: &HostRequest) {
        let bytes = serde_json::to_vec(ask).unwrap();
        self.socket.as_ref().unwrap().send(&bytes).unwrap();
    }

    /// Asks for an object; the ticket.
    pub(crate) fn ask(&mut self, target: &str) -> u64 {
        let origin = self.origin.clone();
        self.ask_of(&origin, target)
    }

    /// The same of an origin that is perhaps not the first.
    pub(crate) fn ask_of(&mut self, origin: &str, target: &str) -> u64 {
        self.ask_with(origin, target, &[])
    }

    /// The same with fields that may select a variant.
    pub(crate) fn ask_for(&mut self, target: &str, fields: &[(&str, &str)]) -> u64 {
        let origin = self.origin.clone();
        self.ask_with(&origin, target, fields)
    }

    /// Both.
    pub(crate) fn ask_with(&mut self, origin: &str, target: &str, fields: &[(&str, &str)]) -> u64 {
        self.ticket += 1;
        let fields = fields.iter();
        self.say(&HostRequest::Object {
            ticket: self.ticket,
            origin: origin.to_owned(),
            target: target.to_owned(),
            fields: fields
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        });
        self.ticket
    }

    /// Goes on with a version, as one who has begun with it at another fetcher; the ticket.
    pub(crate) fn again(&mut self, target: &str, directory: &str) -> u64 {
        self.ticket += 1;
        self.say(&HostRequest::Again {
            ticket: self.ticket,
            origin: self.origin.clone(),
            target: target.to_owned(),
            directory: directory.to_owned(),
        });
        self.ticket
    }

    pub(crate) fn want(&self, ticket: u64, segment: u64) {
        self.want_to(ticket, segment..u64::MAX);
    }

    /// Wants the first of these, and is going to need no others.
    pub(crate) fn want_to(&self, ticket: u64, segments: Range<u64>) {
        self.say(&HostRequest::Segment {
            ticket,
            segment: segments.start,
            end: segments.end,
        });
    }

    /// A segment that was said to be there is not.
    pub(crate) fn missing(&self, ticket: u64, segment: u64) {
        self.say(&HostRequest::Missing {
            ticket,
            segment,
            end: u64::MAX,
        });
    }

    pub(crate) fn done(&self, ticket: u64) {
        self.say(&HostRequest::Done { ticket });
    }

    /// The next answer to this ticket.
    pub(crate) fn hear(&mut self, ticket: u64) -> Answer {
        let is_it = |answer: &Answer| ticket_of(answer) == ticket;
        loop {
            if let Some(index) = self.early.iter().position(is_it) {
                return self.early.remove(index);
            }
            let mut bytes = vec![0; MESSAGE_BYTES_MAX];
            let count = self.socket.as_ref().unwrap().recv(&mut bytes);
            let count = count.expect("an answer in time");
            self.early
                .push(serde_json::from_slice(&bytes[..count]).unwrap());
        }
    }

    /// Whether nothing that has come so far is for these tickets.
    pub(crate) fn said_nothing_to(&mut self, tickets: &[u64]) -> bool {
        let socket = self.socket.as_ref().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut all = std::mem::take(&mut self.early);
        while let Ok(count) = socket.recv(&mut bytes) {
            all.push(serde_json::from_slice(&bytes[..count]).unwrap());
        }
        all.iter()
            .all(|answer| !tickets.contains(&ticket_of(answer)))
    }

    /// The object, or how else it has ended.
    pub(crate) fn object(&mut self, ticket: u64) -> Result<Object, Outcome> {
        match self.hear(ticket) {
            Answer::Object { object, .. } => Ok(object),
            Answer::Refused { refusal, .. } => Err(Outcome::Refused(refusal.status)),
            Answer::Lost { .. } => Err(Outcome::Lost),
            answer @ (Answer::EarlyHints { .. } | Answer::Segment { .. }) => panic!("{answer:?}"),
        }
    }

    /// Waits for a segment, and reads it.
    pub(crate) fn segment(
        &mut self,
        ticket: u64,
        object: &Object,
        segment: u64,
    ) -> Result<Vec<u8>, Outcome> {
        self.want(ticket, segment);
        match self.hear(ticket) {
            Answer::Segment { segment: there, .. } => assert_eq!(there, segment),
            Answer::Lost { .. } => return Err(Outcome::Lost),
            answer => panic!("{answer:?}"),
        }
        let path = self
            .directory
            .join(&object.directory)
            .join(segment_name(segment));
        Ok(fs::read(path).unwrap())
    }

    /// How an object, or that there is none, has come that is asked for now.
    pub(crate) fn how(&mut self, target: &str) -> CacheStatus {
        let ticket = self.ask(target);
        let answer = self.hear(ticket);
        self.done(ticket);
        match answer {
            Answer::Object { how, .. } | Answer::Refused { how, .. } => how,
            answer => panic!("{answer:?}"),
        }
    }

    /// All of an object that was asked for.
    pub(crate) fn read(&mut self, ticket: u64) -> Outcome {
        let object = match self.object(ticket) {
            Ok(object) => object,
            Err(outcome) => return outcome,
        };
        let mut content = Vec::new();
        for segment in 0..object.size_bytes.div_ceil(object.segment_bytes) {
            match self.segment(ticket, &object, segment) {
                Ok(bytes) => content.extend(bytes),
                Err(outcome) => return outcome,
            }
        }
        assert_eq!(content.len() as u64, object.size_bytes);
        self.done(ticket);
        Outcome::Content(content)
    }

    /// Asks for all of an object.
    pub(crate) fn get(&mut self, target: &str) -> Outcome {
        self.get_with(target, &[])
    }

    /// The same with fields that may select a variant.
    pub(crate) fn get_with(&mut self, target: &str, fields: &[(&str, &str)]) -> Outcome {
        let ticket = self.ask_for(target, fields);
        self.read(ticket)
    }
}

fn ticket_of(answer: &Answer) -> u64 {
    match *answer {
        Answer::Object { ticket, .. }
        | Answer::EarlyHints { ticket, .. }
        | Answer::Refused { ticket, .. }
        | Answer::Segment { ticket, .. }
        | Answer::Lost { ticket, .. } => ticket,
    }
}

/// Files of content below the cache directory, and how long they are together.
pub(crate) fn cached(directory: &Path) -> (usize, u64) {
    let (mut count, mut bytes) = (0, 0);
    let mut next = vec![directory.to_owned()];
    while let Some(directory) = next.pop() {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                next.push(path);
            } else if path
                .file_name()
                .is_some_and(|name| name != "meta" && name != "sums" && name != "boot")
            {
                count += 1;
                bytes += entry.metadata().map_or(0, |meta| meta.len());
            }
        }
    }
    (count, bytes)
}
