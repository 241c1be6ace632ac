//! Checks that no two plaintexts are sealed under one key and nonce, from all packets that leave
//! the ports of all NIC workers of the run, and from the commands and events about records.
//!
//! A record has one place in one stream, and all its bytes that ever leave must come from one
//! sealing: every byte equals the byte sent at its place before, and every worker that sends a part
//! of the record has the same tag for it. One ciphertext has one plaintext, so keys are needed only
//! to distinguish records. The clients check that records open.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use contract::tls::{Key, Records, Suite, Tag};
use contract::{Command, Event, FlowId};

use crate::audit::SentBytes;
use crate::router;
use crate::violation::{Check, ensure, violation};

/// Identity of a worker, from its start without state, among all workers of the run.
pub(crate) type Life = u64;

/// A record of a flow: epoch and number.
type Id = (u16, u64);

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct NonceCheck {
    flows: HashMap<FlowId, Flow>,
    /// The flow of each peer's address.
    remotes: HashMap<SocketAddr, FlowId>,
    /// Place of the record with this key and number. The key includes its IV.
    places: HashMap<(Vec<u8>, u64), (FlowId, u64, u64)>,
    /// Tags that each worker can know.
    lives: HashMap<Life, Tags>,
    /// Records of which two workers have sent some bytes.
    pub(crate) resealed: u64,
}

#[derive(Debug, Default)]
struct Flow {
    keys: HashMap<u16, (Suite, Vec<u8>)>,
    /// Sequence number of the stream's first byte.
    base_seq: Option<u32>,
    /// Records, by place in the stream.
    records: BTreeMap<u64, Record>,
    sent: SentBytes,
}

#[derive(Debug)]
struct Record {
    id: Id,
    end: u64,
    /// Tag of the bytes sent, and the first worker that reported it.
    left: Option<(Tag, Life)>,
}

/// Tags known to one worker.
#[derive(Debug, Default)]
struct Tags {
    known: HashMap<(FlowId, Id), Tag>,
    /// Records that the worker has sent bytes of, before a report of their tags.
    unseen: HashSet<(FlowId, u64)>,
}

/// A superpacket that has left, or was dropped by the port.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) remote: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) payload: Vec<u8>,
}

impl NonceCheck {
    /// Checks a command that is about to reach a worker.
    pub(crate) fn on_command(&mut self, life: Life, command: &Command<'_>) -> Check {
        match command {
            Command::Key(key) => self.on_key(key),
            Command::Records(records) => self.on_records(life, records),
            Command::Send(send) => {
                if let Some(flow) = self.flows.get_mut(&send.flow)
                    && let Some(remote) = router::tcp_destination(send.header)
                    && let Some(seq) = router::tcp_seq(send.header)
                {
                    flow.base_seq = Some(seq.wrapping_sub(send.stream_offset as u32));
                    self.remotes.insert(remote, send.flow);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_key(&mut self, key: &Key<'_>) -> Check {
        let flow = self.flows.entry(key.flow).or_default();
        let bytes = [key.key, &key.iv].concat();
        let known = flow
            .keys
            .entry(key.epoch)
            .or_insert((key.suite, bytes.clone()));
        ensure(*known == (key.suite, bytes), || {
            format!("two keys for epoch {} of {:?}", key.epoch, key.flow)
        })
    }

    fn on_records(&mut self, life: Life, records: &Records<'_>) -> Check {
        let Some(flow) = self.flows.get_mut(&records.flow) else {
            return violation(format!("{:?} has records and no key", records.flow));
        };
        let Some((suite, key)) = flow.keys.get(&records.epoch) else {
            return violation(format!("{:?} has records without a key", records.flow));
        };
        let known = &mut self.lives.entry(life).or_default().known;
        let each = u64::from(records.record_plaintext_bytes);
        let mut left = records.plaintext_bytes();
        let mut start = records.stream_offset;
        for (number, index) in (records.number..).zip(0..) {
            let bytes = left.min(each) + suite.overhead_bytes() as u64;
            let end = start + bytes;
            let place = (records.flow, start, end);
            let before = self.places.entry((key.clone(), number)).or_insert(place);
            ensure(*before == place, || {
                format!("record {number} under one key is {before:?} and {place:?}")
            })?;
            let id = (records.epoch, number);
            let record = flow.records.entry(start).or_insert(Record {
                id,
                end,
                left: None,
            });
            ensure((record.id, record.end) == (id, end), || {
                format!(
                    "{:?} and {id:?} are both at {start} of {:?}",
                    record.id, records.flow
                )
            })?;
            if let Some(tag) = records.tags.get(index) {
                known.insert((records.flow, id), *tag);
            }
            left = left.saturating_sub(each);
            start = end;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Checks a superpacket that has left a worker.
    pub(crate) fn on_left(&mut self, life: Life, left: &Left) -> Check {
        let Some(id) = self.remotes.get(&left.remote) else {
            return Ok(());
        };
        let Some((flow, base_seq)) = self.flows.get_mut(id).and_then(|flow| {
            let base_seq = flow.base_seq?;
            Some((flow, base_seq))
        }) else {
            return Ok(());
        };
        // No stream of the simulation is long enough for sequence numbers to wrap.
        let start = u64::from(left.seq.wrapping_sub(base_seq));
        let end = start + left.payload.len() as u64;
        let tags = self.lives.entry(life).or_default();
        let before = flow.records.range(..=start).next_back();
        let first = before.map_or(start, |(&place, _)| place);
        for (&place, record) in flow.records.range_mut(first..end) {
            if record.end <= start {
                continue;
            }
            match tags.known.get(&(*id, record.id)) {
                Some(tag) => {
                    self.resealed += u64::from(record.leaves(*id, life, *tag)?);
                }
                None => {
                    tags.unseen.insert((*id, place));
                }
            }
        }
        ensure(flow.sent.is_the_same(start, &left.payload), || {
            format!(
                "what leaves at {start}..{end} of {id:?} is not what has left there before: two \
                 plaintexts under one nonce"
            )
        })
    }

    /// Checks a worker's event.
    pub(crate) fn on_event(&mut self, life: Life, event: &Event) -> Check {
        let Event::Sealed {
            flow: id,
            epoch,
            number,
            tags: said,
        } = event
        else {
            return Ok(());
        };
        let tags = self.lives.entry(life).or_default();
        for (number, tag) in (*number..).zip(said) {
            let record = (*epoch, number);
            let before = tags.known.insert((*id, record), *tag);
            ensure(before.is_none_or(|before| before == *tag), || {
                format!("a worker has two tags for record {record:?} of {id:?}")
            })?;
            let Some(flow) = self.flows.get_mut(id) else {
                continue;
            };
            let mut unseen = tags.unseen.iter().copied();
            let waits = unseen.find(|(other, place)| {
                other == id && flow.records.get(place).is_some_and(|it| it.id == record)
            });
            if let Some(waits) = waits
                && tags.unseen.remove(&waits)
                && let Some(record) = flow.records.get_mut(&waits.1)
            {
                self.resealed += u64::from(record.leaves(*id, life, *tag)?);
            }
        }
        Ok(())
    }

    /// Checks a worker that has ended, and all of whose events were passed on.
    pub(crate) fn on_end(&mut self, life: Life) -> Check {
        let tags = self.lives.remove(&life).unwrap_or_default();
        let unsaid = tags.unseen.len();
        ensure(unsaid == 0, || {
            format!("of {unsaid} records something has left, and their tags were not said before")
        })
    }

    /// Forgets a worker that has ended, and some of whose events are lost.
    pub(crate) fn on_lost(&mut self, life: Life) {
        self.lives.remove(&life);
    }
}

impl Record {
    /// Notes that bytes of the record leave with this tag. Returns true if another worker has sent
    /// bytes of the record before.
    fn leaves(&mut self, flow: FlowId, life: Life, tag: Tag) -> Result<bool, crate::Violation> {
        let (first, by) = *self.left.get_or_insert((tag, life));
        ensure(first == tag, || {
            format!(
                "record {:?} of {flow:?} leaves with another tag than before: two plaintexts under \
                 one nonce",
                self.id
            )
        })?;
        Ok(by != life)
    }
}
