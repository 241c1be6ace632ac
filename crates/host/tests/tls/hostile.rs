//! NIC stacks that say what makes no sense end at most the connections that they name.

use std::sync::Arc;

use contract::{Event, FlowId, RejectReason};
use host::app::CloseReason;
use proptest::prelude::*;

use crate::client::Secured;
use crate::rig::{Rig, answer};
use fakes::keys::SUITES;
use fakes::site::{Site, UNIX_TIME};

fn amid_a_download() -> (Secured, FlowId) {
    let mut secured = Secured::new(SUITES[1]);
    secured.ask(&["300000"]);
    secured.run_until(|secured| secured.received.len() > 50_000);
    let flow = FlowId(secured.rig.app.accepted[0].0);
    (secured, flow)
}

fn is_reset(secured: &mut Secured) {
    secured.run_until(|secured| secured.rig.client_closed.is_some());
    assert_eq!(secured.rig.client_closed, Some(tcp::CloseReason::Reset));
    assert_eq!(secured.close_reason(), Some(CloseReason::DataPlaneFailed));
    assert!(
        !secured.is_closed,
        "what is missing is not to be overlooked"
    );
    assert!(answer(300_000).starts_with(&secured.received));
}

#[test]
fn a_tag_that_contradicts_another_ends_the_connection() {
    let (mut secured, flow) = amid_a_download();
    secured.rig.nic.report(&Event::Sealed {
        flow,
        epoch: 0,
        number: 1_000,
        tags: [[7; 16]].into(),
    });
    is_reset(&mut secured);
    assert_eq!(secured.rig.stack.counters().events_invalid, 1);
}

#[test]
fn a_nic_stack_that_refuses_keys_or_records_ends_their_connection() {
    for reason in [
        RejectReason::UnknownKey,
        RejectReason::KeyConflict,
        RejectReason::TooManyKeys,
        RejectReason::RecordsConflict,
        RejectReason::TooManyRecords,
        RejectReason::RecordsOutOfFile,
    ] {
        let (mut secured, flow) = amid_a_download();
        let id = flow.0;
        secured.rig.nic.report(&Event::Rejected { reason, id });
        is_reset(&mut secured);
        let counters = secured.rig.stack.counters();
        assert_eq!(
            (counters.events_invalid, counters.tls_records_rejected),
            (0, 1)
        );
    }
}

/// It speaks no TLS, though others do.
#[test]
fn records_of_a_connection_without_tls_are_nonsense() {
    let mut rig = Rig::new();
    let site = Site::plain();
    rig.stack.set_unix_time(UNIX_TIME);
    rig.stack.serve_tls(443, Arc::clone(&site.config));
    rig.ask(&["3000"]);
    rig.run_until(|rig| rig.received.len() == 3_002);
    let flow = FlowId(rig.app.accepted[0].0);
    let (epoch, number) = (0, 0);
    for event in [
        Event::Sealed {
            flow,
            epoch,
            number,
            tags: [[7; 16]].into(),
        },
        Event::SealMismatch {
            send: contract::SendId(1),
            flow,
            epoch,
            number,
        },
        Event::Rejected {
            reason: RejectReason::UnknownKey,
            id: flow.0,
        },
    ] {
        rig.nic.report(&event);
    }
    rig.step();
    assert_eq!(rig.stack.counters().events_invalid, 3);
    rig.ask(&["500"]);
    rig.run_until(|rig| rig.received.len() == 3_002 + 502);
}

fn event() -> impl Strategy<Value = Event> {
    let flow = prop_oneof![
        (0u64..4).prop_map(|n| FlowId(n << 32)),
        any::<u64>().prop_map(FlowId)
    ];
    let sealed =
        (flow.clone(), 0u16..3, 0u64..40, 1usize..5).prop_map(|(flow, epoch, number, count)| {
            Event::Sealed {
                flow,
                epoch,
                number,
                tags: vec![[9; 16]; count].into(),
            }
        });
    let mismatch =
        (flow.clone(), 0u16..3, 0u64..40, any::<u64>()).prop_map(|(flow, epoch, number, send)| {
            Event::SealMismatch {
                send: contract::SendId(send),
                flow,
                epoch,
                number,
            }
        });
    let rejected = flow.prop_map(|flow| Event::Rejected {
        reason: RejectReason::UnknownRecords,
        id: flow.0,
    });
    prop_oneof![sealed, mismatch, rejected]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn hostile_events_end_at_most_the_connections_they_name(
        hostile in proptest::collection::vec((0usize..60, event()), 1..20),
    ) {
        let mut secured = Secured::new(SUITES[1]);
        secured.ask(&["100000"]);
        secured.rig.nic.lenient = true;
        secured.rig.app.lenient = true;
        for step in 0..60 {
            for (_, event) in hostile.iter().filter(|(at, _)| *at == step) {
                secured.rig.nic.report(event);
            }
            secured.step();
        }
        prop_assert!(answer(100_000).starts_with(&secured.received));
        secured.rig.nic.work.clear();
        secured.reconnect();
        secured.ask(&["1000"]);
        secured.run_until(|secured| secured.received.len() == 1002);
        prop_assert!(secured.received == answer(1000));
    }
}
