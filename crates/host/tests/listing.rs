//! LIST: what a directory has, of one NIC stack or of several, some of which go away meanwhile.

mod rig;

use contract::{Event, FileId, FileMeta};
use host::app::AppEvent;
use rig::Rig;

/// The file server answers with all names, and a full stop when there are no more.
fn listed(rig: &mut Rig) -> String {
    rig.run_until(|rig| rig.received.ends_with(b".") || rig.received.ends_with(b"no"));
    let text = String::from_utf8(std::mem::take(&mut rig.received)).unwrap();
    assert_eq!(rig.stack.counters().events_invalid, 0);
    assert_eq!(rig.stack.usage().files, 0, "nothing is left of it");
    text
}

fn errors(rig: &Rig) -> Vec<u16> {
    let failed = rig.app.events.iter().filter_map(|event| match event {
        AppEvent::OpenFailed { errno, .. } => Some(*errno),
        _ => None,
    });
    failed.collect()
}

fn two_roots(names: [&[&'static str]; 2], are_replicas: bool) -> Rig {
    let mut rig = Rig::with_nics(2, |config| config.roots_are_replicas = are_replicas);
    for (number, names) in names.into_iter().enumerate() {
        rig.nic(number).names = names.to_vec();
    }
    rig
}

#[test]
fn a_directory_comes_in_parts_and_one_that_is_not_there_fails() {
    let mut rig = Rig::with_nics(1, |_| {});
    rig.ask(&["list"]);
    assert_eq!(listed(&mut rig), "no");
    rig.nic.names = vec!["a", "b", "c", "d", "e"];
    rig.ask(&["list"]);
    assert_eq!(listed(&mut rig), "a b c d e .");
    assert_eq!(rig.nic.listed, [0, 0, 2, 4]);
    assert_eq!(errors(&rig), [2]);
}

#[test]
fn a_change_between_two_parts_is_reported() {
    let mut rig = Rig::with_nics(1, |_| {});
    rig.nic.names = vec!["a", "b", "c"];
    rig.nic.holds_lists = true;
    rig.ask(&["list"]);
    rig.run_until(|rig| !rig.nic.lists.is_empty());
    rig.nic.list();
    rig.run_until(|rig| rig.nic.listed.len() == 2);
    rig.nic.meta.mtime_ns = 1;
    rig.nic.list();
    assert_eq!(listed(&mut rig), "a b ! c .");
}

#[test]
fn a_nic_process_that_follows_another_is_asked_for_the_same_part() {
    let mut rig = Rig::with_nics(1, |_| {});
    rig.nic.names = vec!["a", "b", "c", "d", "e"];
    rig.nic.holds_lists = true;
    rig.ask(&["list"]);
    rig.run_until(|rig| !rig.nic.lists.is_empty());
    for expected in [0, 2, 4] {
        // It dies with the question, and the next one too.
        for _ in 0..2 {
            let names = rig.nic.names.clone();
            rig.restart_nic();
            (rig.nic.names, rig.nic.holds_lists) = (names, true);
            rig.run_until(|rig| !rig.nic.lists.is_empty());
            assert_eq!(rig.nic.listed, [expected]);
        }
        rig.nic.list();
        rig.run_until(|rig| expected == 4 || rig.nic.listed.len() == 2);
    }
    assert_eq!(listed(&mut rig), "a b c d e .");
}

#[test]
fn roots_that_are_no_copies_are_listed_one_after_the_other() {
    for (names, expected) in [
        (
            [&["a", "b", "c"][..], &["d", "e", "f"]],
            ["a b c d e f .", "d e f a b c ."],
        ),
        ([&["a"], &[]], ["a .", "a ."]),
        ([&[], &["d", "e", "f"]], ["d e f .", "d e f ."]),
        ([&[], &[]], ["no", "no"]),
    ] {
        let mut rig = two_roots(names, false);
        rig.ask(&["list"]);
        let found = listed(&mut rig);
        assert!(expected.contains(&&*found), "{names:?}: {found}");
    }
}

#[test]
fn a_root_that_cannot_be_read_is_not_taken_for_one_that_has_nothing() {
    const EACCES: u16 = 13;
    const EBUSY: u16 = 16;
    for (failing, errno) in [(0, EBUSY), (1, EBUSY), (0, EACCES), (1, EACCES)] {
        // Whichever is asked first.
        for names in [[&["a"][..], &["d"]], [&[], &[]]] {
            let mut rig = two_roots(names, false);
            rig.nic(failing).list_errno = Some(errno);
            rig.ask(&["list"]);
            let found = listed(&mut rig);
            assert!(["no", "a no", "d no"].contains(&&*found), "{found}");
            assert_eq!(errors(&rig), [errno], "of {failing}");
        }
        // Of copies the other one has all.
        let mut rig = two_roots([&["a"], &["a"]], true);
        rig.nic(failing).list_errno = Some(errno);
        rig.ask(&["list"]);
        assert_eq!(listed(&mut rig), "a .");
    }
}

#[test]
fn a_busy_nic_stack_is_not_asked_to_begin_again() {
    const EBUSY: u16 = 16;
    const EINVAL: u16 = 22;
    const ESTALE: u16 = 116;
    for (errno, told) in [(EBUSY, EBUSY), (EINVAL, ESTALE)] {
        let mut rig = Rig::with_nics(1, |_| {});
        rig.nic.names = vec!["a", "b", "c"];
        rig.nic.holds_lists = true;
        rig.ask(&["list"]);
        rig.run_until(|rig| !rig.nic.lists.is_empty());
        rig.nic.list();
        rig.run_until(|rig| !rig.nic.lists.is_empty());
        rig.nic.list_errno = Some(errno);
        rig.nic.list();
        assert_eq!(listed(&mut rig), "a b no");
        assert_eq!(errors(&rig), [told]);
    }
}

#[test]
fn of_copies_one_is_enough() {
    let names = &["a", "b", "c"][..];
    let mut rig = two_roots([names, names], true);
    rig.ask(&["list"]);
    assert_eq!(listed(&mut rig), "a b c .");
    assert_eq!(rig.nic(0).listed.len() + rig.nic(1).listed.len(), 2);
}

/// The one of two NIC stacks that has a question.
fn asked(rig: &mut Rig) -> usize {
    rig.run_until(|rig| !rig.nic.lists.is_empty() || !rig.others[0].lists.is_empty());
    usize::from(rig.nic.lists.is_empty())
}

/// The client asks for a listing, and both NIC stacks hold what they are asked for: which is asked
/// first.
fn asked_and_held(rig: &mut Rig) -> usize {
    for number in 0..2 {
        rig.nic(number).holds_lists = true;
    }
    rig.ask(&["list"]);
    asked(rig)
}

#[test]
fn a_question_that_a_nic_stack_takes_along_is_put_to_its_copy_or_begun_again() {
    let names = &["a", "b", "c"][..];
    let mut rig = two_roots([names, names], true);
    let first = asked_and_held(&mut rig);
    rig.lose_nic(first);
    // Nothing had been told: the other one may as well.
    assert_eq!(asked(&mut rig), 1 - first);
    rig.bring_nic(first);
    rig.nic(first).holds_lists = true;
    rig.nic(1 - first).list();
    assert_eq!(asked(&mut rig), 1 - first, "it has begun");
    let begun_us = rig.now_us;
    rig.lose_nic(1 - first);
    rig.run_until(|rig| rig.received.ends_with(b"no"));
    assert!(
        (5_000_000..6_000_000).contains(&(rig.now_us - begun_us)),
        "it was waited for"
    );
    const ESTALE: u16 = 116;
    assert_eq!(errors(&rig), [ESTALE]);
    assert_eq!(rig.received, b"a b no");
}

#[test]
fn a_nic_stack_that_is_back_in_time_goes_on_where_it_was() {
    let names = &["a", "b", "c"][..];
    let mut rig = two_roots([names, &["d"]], false);
    let first = asked_and_held(&mut rig);
    for one in [first, 1 - first] {
        assert_eq!(asked(&mut rig), one);
        if rig.nic(one).names.len() == 3 {
            rig.nic(one).list();
            assert_eq!(asked(&mut rig), one);
        } else if one == first {
            // Nothing has been told: it would be asked of the other one.
            rig.nic(one).list();
            continue;
        }
        rig.lose_nic(one);
        for _ in 0..1000 {
            rig.step();
        }
        rig.bring_nic(one);
        rig.nic(one).holds_lists = true;
        assert_eq!(asked(&mut rig), one);
        rig.nic(one).list();
    }
    let found = listed(&mut rig);
    assert!(["a b c d .", "d a b c ."].contains(&&*found), "{found}");
}

#[test]
fn a_nic_stack_that_stays_away_leaves_its_part_out() {
    let mut rig = two_roots([&["a"], &["d"]], false);
    let first = asked_and_held(&mut rig);
    rig.lose_nic(1 - first);
    let begun_us = rig.now_us;
    rig.nic(first).list();
    let found = listed(&mut rig);
    assert_eq!(found, ["a .", "d ."][first]);
    assert!((5_000_000..6_000_000).contains(&(rig.now_us - begun_us)));
}

#[test]
fn a_nic_stack_that_goes_when_it_has_told_all_is_not_asked_again() {
    let mut rig = two_roots([&["a"], &["d"]], false);
    let first = asked_and_held(&mut rig);
    rig.nic(first).list();
    assert_eq!(asked(&mut rig), 1 - first);
    rig.lose_nic(first);
    let begun_us = rig.now_us;
    rig.nic(1 - first).list();
    let found = listed(&mut rig);
    assert_eq!(found, ["a d .", "d a ."][first]);
    assert!(rig.now_us - begun_us < 1_000_000, "it was not waited for");
}

#[test]
fn answers_that_make_no_sense_are_counted_and_do_no_harm() {
    let mut rig = Rig::with_nics(1, |_| {});
    rig.nic.lenient = true;
    rig.nic.names = vec!["a"];
    rig.nic.holds_lists = true;
    rig.ask(&["list"]);
    rig.run_until(|rig| !rig.nic.lists.is_empty());
    let (file, _) = rig.nic.lists[0];
    let listed_of = |file| Event::Listed {
        file,
        part: Box::default(),
    };
    let meta = FileMeta::default();
    // A directory is not opened, and this one was not asked for.
    rig.nic.report(&Event::Opened { file, meta });
    rig.nic.report(&listed_of(FileId(77)));
    rig.run_until(|rig| rig.stack.counters().events_invalid == 2);
    rig.nic.list();
    rig.run_until(|rig| rig.received == b"a .");
    // Nor is it told twice, nor a file told as a directory.
    rig.nic.report(&listed_of(file));
    rig.run_until(|rig| rig.stack.counters().events_invalid == 3);
    rig.nic_works = false;
    rig.ask(&["2000"]);
    rig.run_until(|rig| !rig.nic.work.is_empty());
    rig.nic.report(&listed_of(FileId(0)));
    rig.run_until(|rig| rig.stack.counters().events_invalid == 4);
    rig.nic_works = true;
    rig.run_until(|rig| rig.received.len() == 3 + 2_002);
}

#[test]
fn who_goes_before_the_answer_leaves_nothing_behind() {
    let mut rig = Rig::with_nics(1, |_| {});
    rig.nic.names = vec!["a"];
    rig.nic.holds_lists = true;
    rig.ask(&["list"]);
    rig.run_until(|rig| !rig.nic.lists.is_empty());
    rig.client.abort();
    rig.run_until(|rig| rig.stack.connections() == 0);
    assert_eq!(rig.stack.usage().files, 1, "its answer is on its way");
    rig.nic.list();
    rig.run_until(|rig| rig.stack.usage().files == 0);
    assert_eq!(rig.stack.counters().events_invalid, 0);
}
