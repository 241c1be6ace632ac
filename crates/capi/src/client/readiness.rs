//! Readiness of split sockets in the bits of poll(2) and epoll(7).

use rustix::event::epoll::EventFlags;
use socket_channel::{AppRecord, Readiness};

use super::process::{Process, errno};
use super::sets::{Interest, Member, Set, Source};
use super::socket::note;

/// Bits reported even if not requested.
pub(crate) const ALWAYS: u32 = EventFlags::ERR.union(EventFlags::HUP).bits();

const EDGE: u32 = EventFlags::ET.bits();
pub(crate) const ONE_SHOT: u32 = EventFlags::ONESHOT.bits();

/// Bits of a socket whose state is lost.
const GONE: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ERR)
    .union(EventFlags::HUP);

/// Returns the readiness of a socket; the bits of poll(2) are the same.
pub(crate) fn bits(process: &Process, record: AppRecord<'_>) -> u32 {
    let notes = record
        .app_flags()
        .load(std::sync::atomic::Ordering::Acquire);
    // A server that goes on with its other sockets would look at this one for ever.
    if notes & note::LEFT != 0 {
        return 0;
    }
    let look = process.link.check().and(record.look().map_err(errno));
    let Ok(look) = look else {
        return GONE.bits();
    };
    let is_shut = notes & note::SHUT_READ != 0;
    let Readiness {
        readable,
        writable,
        peer_finished,
        error,
        hangup,
        priority,
    } = look.readiness();
    let conditions = [
        (readable || is_shut, EventFlags::IN | EventFlags::RDNORM),
        (writable, EventFlags::OUT | EventFlags::WRNORM),
        (peer_finished || is_shut, EventFlags::RDHUP),
        (
            error || process.sends.has_completed(record),
            EventFlags::ERR,
        ),
        (hangup, EventFlags::HUP),
        (priority, EventFlags::PRI),
    ];
    let set = conditions.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(EventFlags::empty(), |all, (_, flag)| all | flag)
        .bits()
}

/// Returns the readiness among `wanted`; if there is none, requests a hint for the next change.
pub(crate) fn bits_or_hint(process: &Process, record: AppRecord<'_>, wanted: u32) -> u32 {
    loop {
        let edge = record.edge();
        let ready = bits(process, record) & (wanted | ALWAYS);
        if ready != 0 || record.want(process.link.channel(), edge) {
            return ready;
        }
    }
}

/// Counts what makes an edge, given the edges of a socket's record.
pub(crate) fn changes(process: &Process, edge: u64) -> u64 {
    // Each counter only grows, and so does the sum. The end of the host stack changes no record.
    let is_gone = process.link.check().is_err();
    edge.wrapping_add(process.sends.changes())
        .wrapping_add(is_gone.into())
}

/// Events reported by a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The record hints the next change, which leads to the next report.
    pub(crate) is_hinted: bool,
}

/// Returns the member's present events, which then count as reported. If there are none, requests a
/// hint for the next change.
pub(crate) fn report(process: &Process, member: &Member) -> Option<Report> {
    report_by(process, member, &mut member.interest())
}

/// Like [`report`], for a given interest, in which the events count as reported.
fn report_by(process: &Process, member: &Member, interest: &mut Interest) -> Option<Report> {
    if member.is_removed() || interest.is_spent {
        return None;
    }
    let (events, data) = (interest.events, interest.data);
    let mut is_hinted = false;
    let ready = match &member.source {
        Source::Set(set) => {
            let is_ready = set.upgrade().is_some_and(|set| is_ready(process, &set));
            if is_ready {
                EventFlags::IN.bits() & events
            } else {
                0
            }
        }
        Source::Socket(id) => {
            let record = process.record(*id).ok()?;
            loop {
                let edge = record.edge();
                let changes = changes(process, edge);
                let is_reported = events & EDGE != 0 && interest.edge == Some(changes);
                let ready = bits(process, record) & (events | ALWAYS);
                if ready != 0 && !is_reported {
                    interest.edge = Some(changes);
                    is_hinted = events & EDGE != 0 && record.want(process.link.channel(), edge);
                    break ready;
                }
                let is_over = process.link.check().is_err() || record.flags().is_err();
                if is_over || record.want(process.link.channel(), edge) {
                    break 0;
                }
            }
        }
    };
    if ready == 0 {
        return None;
    }
    interest.is_spent = events & ONE_SHOT != 0;
    Some(Report {
        events: ready,
        data,
        is_hinted,
    })
}

/// Reports whether a set would report a split member; the member's events do not count as reported.
pub(crate) fn is_ready(process: &Process, set: &Set) -> bool {
    let mut is_ready = false;
    let _scan = set.scan();
    for _ in 0..set.candidates.len() {
        let Some(member) = set.candidates.pop() else {
            break;
        };
        // A copy of the interest: another thread may change the member's own meanwhile.
        let mut interest = *member.interest();
        if report_by(process, &member, &mut interest).is_some() {
            member.queue();
            is_ready = true;
        } else if matches!(member.source, Source::Set(_)) && !member.is_removed() {
            member.queue();
        }
    }
    is_ready
}
