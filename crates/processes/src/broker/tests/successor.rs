//! A broker that succeeds another: processes that its predecessor attached connect again, and
//! others pretend to be such processes.

use rustix::process::{geteuid, getpid};

use super::*;
use crate::ipc::messages::{KnownApplication, KnownProcess};

const APP: u32 = 7;
const CHANNEL: u32 = 70;
const KEY: Key = Key::new(*b"0123456789abcdef");
const NEXT_HANDLE: u32 = 1000;

fn uid() -> u32 {
    geteuid().as_raw()
}

fn pid() -> u32 {
    getpid().as_raw_nonzero().get().cast_unsigned()
}

fn application(app: u32, uid: u32) -> HostToBroker {
    HostToBroker::Application(KnownApplication {
        app,
        uid,
        modes: 30,
        next_handle: NEXT_HANDLE,
        handles: 0,
        key: KEY,
    })
}

fn process(channel: u32, pid: u32, uid: u32) -> HostToBroker {
    HostToBroker::Process(KnownProcess {
        app: APP,
        channel,
        pid,
        uid,
    })
}

fn segment() -> OwnedFd {
    Segment::create_file(Layout::of(LIMITS.of_segment()).unwrap()).unwrap()
}

/// Starts a broker to which the host process reports these attachments of its predecessor.
fn successor(known: &[HostToBroker]) -> Between {
    let mut between = Between::uninformed(settings());
    let segment = segment();
    for message in known {
        let descriptor = match message {
            HostToBroker::Application(_) => Some(&segment),
            _ => None,
        };
        fd_passing::pass(&between.host, message, descriptor).unwrap();
    }
    between.host_says(HostToBroker::Known);
    between.settle();
    between
}

/// Starts a broker whose predecessor has attached this process only.
fn successor_of_one() -> Between {
    successor(&[application(APP, uid()), process(CHANNEL, pid(), uid())])
}

fn reattach(app: u32, channel: u32, key: Key) -> Request {
    Request::Reattach {
        app: AppId(app),
        channel: ChannelId(channel),
        key,
    }
}

fn join(app: u32, key: Key) -> Request {
    Request::Join {
        app: AppId(app),
        key,
    }
}

impl Between {
    /// Returns the errno for a process with this request; its connection must be closed then.
    fn refusal_of(&mut self, request: Request) -> Errno {
        let client = self.connect();
        ask(&client, request);
        let errno = self.refused(&client);
        assert!(self.host_hears().is_none(), "{request:?}");
        errno
    }

    /// Reattaches a process, with the consent of the host process.
    fn come_again(&mut self, channel: u32) -> OwnedFd {
        let client = self.connect();
        ask(&client, reattach(APP, channel, KEY));
        self.settle();
        let app = APP;
        let heard = self.host_hears().unwrap().0;
        assert_eq!(heard, BrokerToHost::Reattach { app, channel });
        assert!(reply(&client).is_none(), "the host process has not agreed");
        self.host_says(HostToBroker::Attached { app, channel });
        self.settle();
        assert!(matches!(reply(&client), Some((Reply::Reattached, _))));
        client
    }
}

#[test]
fn no_process_is_served_before_the_host_process_has_said_what_there_is() {
    let mut between = Between::uninformed(settings());
    let client = between.connect();
    ask(&client, reattach(APP, CHANNEL, KEY));
    between.settle();
    assert!(reply(&client).is_none() && between.service.deadline().is_none());
    assert_eq!(between.service.clients(), 0);
    let known = application(APP, uid());
    fd_passing::pass(&between.host, &known, Some(&segment())).unwrap();
    between.host_says(process(CHANNEL, pid(), uid()));
    between.settle();
    assert!(between.host_hears().is_none());
    between.host_says(HostToBroker::Known);
    between.settle();
    let heard = between.host_hears().unwrap().0;
    assert!(matches!(heard, BrokerToHost::Reattach { app: APP, .. }));
}

#[test]
fn a_process_that_comes_again_gets_handles_and_children_and_its_end_is_reported() {
    let mut between = successor_of_one();
    let client = between.come_again(CHANNEL);
    ask(&client, more_handles(2));
    between.settle();
    let (heard, ends) = between.host_hears().unwrap();
    let expected = BrokerToHost::Handles {
        app: APP,
        channel: CHANNEL,
        first: NEXT_HANDLE,
    };
    assert_eq!((heard, ends.len()), (expected, 2));
    let Some((Reply::Handles { first, count, .. }, _)) = reply(&client) else {
        panic!("no handles");
    };
    assert_eq!((first.0, count), (NEXT_HANDLE, 2), "none has two owners");
    let (child, theirs) = seqpacket::pair().unwrap();
    send(&client, &Request::Adopt.encode(), &[theirs.as_fd()]).unwrap();
    drop(theirs);
    let (process, _) = between.attaching();
    assert!(process.app == APP && process.channel != CHANNEL);
    let (attached, ends) = between.agree(&process, &child);
    assert_eq!((attached.key, attached.modes, ends.len()), (KEY, 30, 4));
    drop(client);
    between.settle();
    let gone = BrokerToHost::Gone {
        app: APP,
        channel: CHANNEL,
    };
    assert_eq!(between.host_hears().unwrap().0, gone);
}

#[test]
fn a_child_that_was_forked_before_joins_the_application() {
    let mut between = successor_of_one();
    let child = between.connect();
    ask(&child, join(APP, KEY));
    let (process, ends) = between.attaching();
    assert_eq!((process.app, process.uid, ends.len()), (APP, uid(), 3));
    assert!(process.application.is_none() && process.channel != CHANNEL);
    let (attached, ends) = between.agree(&process, &child);
    assert_eq!((attached.app.0, attached.key, ends.len()), (APP, KEY, 4));
    ask(&child, more_handles(1));
    between.settle();
    let answer = reply(&child);
    assert!(matches!(answer, Some((Reply::Handles { count: 1, .. }, _))));
    while between.host_hears().is_some() {}
    // Processes of the predecessor count: with one more the limit is reached.
    let second = between.connect();
    ask(&second, join(APP, KEY));
    let (process, _) = between.attaching();
    between.agree(&process, &second);
    assert_eq!(between.refusal_of(join(APP, KEY)), Errno::USERS);
    // A process that never connects again makes room once the host process reports its end.
    between.host_says(HostToBroker::Ended {
        app: APP,
        channel: CHANNEL,
    });
    between.settle();
    let third = between.connect();
    ask(&third, join(APP, KEY));
    let (process, _) = between.attaching();
    between.agree(&process, &third);
    let errno = between.refusal_of(reattach(APP, CHANNEL, KEY));
    assert_eq!(errno, Errno::SHUTDOWN);
}

#[test]
fn what_does_not_know_the_key_or_the_channel_is_refused() {
    let mut between = successor_of_one();
    let mut wrong = KEY.bytes();
    wrong[15] ^= 1;
    let wrong = Key::new(wrong);
    let refusals = [
        (reattach(APP, CHANNEL, wrong), Errno::ACCESS),
        (join(APP, wrong), Errno::ACCESS),
        (reattach(APP, CHANNEL + 1, KEY), Errno::SHUTDOWN),
        (reattach(APP + 1, CHANNEL, KEY), Errno::SHUTDOWN),
        (join(APP + 1, KEY), Errno::SHUTDOWN),
    ];
    for (request, errno) in refusals {
        assert_eq!(between.refusal_of(request), errno, "{request:?}");
    }
    assert_eq!(between.service.clients(), 0);
    between.come_again(CHANNEL);
}

#[test]
fn a_channel_does_not_lead_into_another_application() {
    let known = [
        application(APP + 1, uid()),
        application(APP, uid()),
        process(CHANNEL, pid(), uid()),
        process(CHANNEL + 1, pid(), uid()),
    ];
    let mut between = successor(&known);
    let errno = between.refusal_of(reattach(APP + 1, CHANNEL, KEY));
    assert_eq!(errno, Errno::SHUTDOWN);
    let _one = between.come_again(CHANNEL);
    between.come_again(CHANNEL + 1);
}

#[test]
fn a_process_of_another_user_is_refused_unless_it_is_the_same_process() {
    let (other, none) = (uid() + 1, 0);
    let attached_by = |app_uid, pid, channel_uid| {
        let process = process(CHANNEL, pid, channel_uid);
        successor(&[application(APP, app_uid), process])
    };
    let mut between = attached_by(other, none, other);
    for request in [reattach(APP, CHANNEL, KEY), join(APP, KEY)] {
        assert_eq!(between.refusal_of(request), Errno::ACCESS, "{request:?}");
    }
    // It has changed its user since it attached.
    let mut between = attached_by(other, pid(), other);
    assert_eq!(between.refusal_of(join(APP, KEY)), Errno::ACCESS);
    between.come_again(CHANNEL);
    // The process has this user, or its application.
    for mut between in [
        attached_by(other, none, uid()),
        attached_by(uid(), none, other),
    ] {
        let child = between.connect();
        ask(&child, join(APP, KEY));
        let (process, _) = between.attaching();
        between.agree(&process, &child);
        between.come_again(CHANNEL);
    }
}

#[test]
fn a_process_that_lives_on_another_connection_does_not_come_twice() {
    let mut between = successor_of_one();
    let client = between.connect();
    ask(&client, reattach(APP, CHANNEL, KEY));
    between.settle();
    assert!(between.host_hears().is_some());
    // While the host process is asked, and afterwards.
    let again = reattach(APP, CHANNEL, KEY);
    assert_eq!(between.refusal_of(again), Errno::BUSY);
    between.host_says(HostToBroker::Attached {
        app: APP,
        channel: CHANNEL,
    });
    between.settle();
    assert!(matches!(reply(&client), Some((Reply::Reattached, _))));
    assert_eq!(between.refusal_of(again), Errno::BUSY);
    // Nor on its existing connection.
    ask(&client, again);
    between.settle();
    assert!(is_cut_off(&client));
}

#[test]
fn a_process_whose_channel_the_host_process_has_ended_is_refused_and_forgotten() {
    let mut between = successor_of_one();
    let client = between.connect();
    ask(&client, reattach(APP, CHANNEL, KEY));
    between.settle();
    let (app, channel) = (APP, CHANNEL);
    let heard = between.host_hears().unwrap().0;
    assert_eq!(heard, BrokerToHost::Reattach { app, channel });
    // The end of the process was on its way already.
    between.host_says(HostToBroker::Ended { app, channel });
    between.host_says(HostToBroker::Refused {
        app,
        channel,
        errno: Errno::SHUTDOWN.raw_os_error().cast_unsigned(),
    });
    assert_eq!(between.refused(&client), Errno::SHUTDOWN);
    assert!(between.host_hears().is_none(), "it knows");
    assert_eq!(between.service.clients(), 0);
    between.host_says(HostToBroker::Detached { app });
    between.settle();
    assert_eq!(between.service.applications(), 0);
}

#[test]
fn applications_of_the_broker_before_count_until_they_are_detached() {
    let known: Vec<_> = (0..4).map(|app| application(APP + app, uid())).collect();
    let mut between = successor(&known);
    let attach = Request::Attach { modes: 0 };
    assert_eq!(between.refusal_of(attach), Errno::USERS);
    between.host_says(HostToBroker::Detached { app: APP });
    between.settle();
    let (_client, process) = between.attached();
    assert!(!(APP..APP + 4).contains(&process.app));
}

#[test]
fn numbers_of_the_broker_before_are_not_given_again() {
    let next = settings().first_number;
    let mut between = successor(&[
        application(APP, uid()),
        process(next, pid(), uid()),
        application(next + 1, uid()),
    ]);
    let client = between.connect();
    ask(&client, Request::Attach { modes: 0 });
    let (attaching, _) = between.attaching();
    for number in [attaching.app, attaching.channel] {
        assert!(number != 0 && number != next + 1, "{number}");
    }
    assert_ne!(attaching.channel, next);
}

#[test]
fn a_flood_of_guesses_is_held_back_and_the_process_comes_through() {
    let mut between = successor_of_one();
    let before = between.now;
    let mut refused = 0;
    let held = loop {
        let client = between.connect();
        let mut guess = KEY.bytes();
        guess[refused % Key::BYTES] ^= 0x55;
        ask(&client, reattach(APP, CHANNEL, Key::new(guess)));
        for _ in 0..4 {
            between.service.turn(before).unwrap();
        }
        match reply(&client) {
            Some((Reply::Refused { .. }, _)) => refused += 1,
            Some(other) => panic!("{other:?}"),
            None => break client,
        }
    };
    assert_eq!(refused, 256, "a burst, and no more without time");
    assert!(between.host_hears().is_none());
    between.now += Duration::from_secs(1);
    assert_eq!(between.refused(&held), Errno::ACCESS);
    between.come_again(CHANNEL);
}
