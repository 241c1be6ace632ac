//! SETUP and setup ready as bytes.

mod support;

use std::net::IpAddr;

use contract::codec::EVENT_BYTES_MAX;
use contract::limits::{MESSAGE_BYTES_MAX, SETUP_LISTENERS_MAX, SETUP_VALID_US_MAX};
use contract::setup::{Setup, SetupListener, SetupListeners, SetupOptions, SetupScope};
use contract::{Command, Event};
use proptest::prelude::*;

use support::encoded;

fn listener(scope: SetupScope, port: u16) -> SetupListener {
    SetupListener {
        scope,
        port,
        mss_v4: 1460,
        mss_v6: 1440,
        fast_open: port == 443,
    }
}

fn setup(listeners: &[u8]) -> Setup<'_> {
    Setup {
        epoch: 0x0102,
        issued_us: 3,
        host_us: 4,
        valid_us: 5,
        cookie_key: [6; 16],
        ts_offset_key: [7; 16],
        fast_open_keys: [[8; 16], [9; 16]],
        options: SetupOptions {
            receive_buffer_bytes: 8,
            receive_buffer_bytes_max: 9,
            window_scaling: true,
            timestamps: false,
            sack: true,
            ecn: false,
        },
        source_mac: [10; 6],
        listeners: SetupListeners::parse(listeners).unwrap(),
    }
}

#[test]
fn the_layout_of_setup_and_setup_ready() {
    let v4: IpAddr = "10.0.0.2".parse().unwrap();
    let listeners = [
        listener(SetupScope::One(v4), 80),
        listener(SetupScope::All, 443),
    ];
    let listeners = SetupListeners::to_bytes(&listeners);
    let bytes = encoded(&Command::Setup(setup(&listeners)));
    let mut expected = vec![176, 0, 0, 0, 18, 0, 0, 0];
    for word in [0x0102u64, 3, 4, 5] {
        expected.extend(word.to_le_bytes());
    }
    expected.extend([[6; 16], [7; 16], [8; 16], [9; 16]].concat());
    expected.extend([8, 0, 0, 0, 9, 0, 0, 0, 1, 0, 1, 0]);
    expected.extend([10, 10, 10, 10, 10, 10, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
    expected.extend([80, 0, 0xb4, 5, 0xa0, 5, 3, 0]);
    expected.extend([0; 16]);
    expected.extend([0xbb, 1, 0xb4, 5, 0xa0, 5, 0, 1]);
    assert_eq!(bytes, expected);

    let ready = Event::SetupReady {
        epoch: 0x0102,
        steering: 7,
    };
    let mut bytes = Vec::new();
    ready.encode(&mut bytes);
    let expected = [
        24, 0, 0, 0, 146, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
    assert_eq!(Event::decode(&bytes), Ok(ready));
}

#[test]
fn what_breaks_a_rule_does_not_decode() {
    let listeners = SetupListeners::to_bytes(&[listener(SetupScope::All, 443)]);
    let good = encoded(&Command::Setup(setup(&listeners)));
    for (at, value, rule) in [
        (112, 2, "a flag is 0 or 1"),
        (115, 2, "a flag is 0 or 1"),
        (122, 1, "what is reserved is zero"),
        (128, 1, "all addresses have none"),
        (146, 0, ""),
        (150, 3, "an address is of its family"),
        (150, 5, "the scope is known"),
        (151, 2, "a flag is 0 or 1"),
        (39, 1, "a SETUP is good for at most SETUP_VALID_US_MAX"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let broken = Command::decode(&bytes)
            .err()
            .map(|malformed| malformed.rule);
        assert_eq!(broken.unwrap_or_default(), rule, "byte {at}");
    }
    let mut no_mss = good.clone();
    (no_mss[146], no_mss[147]) = (0, 0);
    assert_eq!(
        Command::decode(&no_mss).unwrap_err().rule,
        "mss is not zero"
    );
    let rule = SetupListeners::parse(&listeners[1..]).unwrap_err();
    assert_eq!(rule, "listeners fill the message");

    let most = vec![listener(SetupScope::AllV4, 1); SETUP_LISTENERS_MAX];
    let bytes = SetupListeners::to_bytes(&most);
    let longest = encoded(&Command::Setup(setup(&bytes)));
    assert!(longest.len() <= MESSAGE_BYTES_MAX);
    assert!(Command::decode(&longest).is_ok());
    let too_many = [bytes, SetupListeners::to_bytes(&most[..1])].concat();
    let rule = SetupListeners::parse(&too_many).unwrap_err();
    assert_eq!(rule, "there are at most SETUP_LISTENERS_MAX listeners");
}

#[test]
fn keys_are_not_printed() {
    let text = format!("{:?}", Command::Setup(setup(&[])));
    for key in ["6, 6", "7, 7", "8, 8", "9, 9"] {
        assert!(!text.contains(key), "{text}");
    }
}

#[test]
fn scopes_cover_what_they_say() {
    let [v4, v6]: [IpAddr; 2] = ["10.0.0.2", "fd77::2"].map(|ip| ip.parse().unwrap());
    let covers = |scope: SetupScope| [v4, v6].map(|ip| scope.covers(ip));
    assert_eq!(covers(SetupScope::All), [true, true]);
    assert_eq!(covers(SetupScope::AllV4), [true, false]);
    assert_eq!(covers(SetupScope::AllV6), [false, true]);
    assert_eq!(covers(SetupScope::One(v6)), [false, true]);
}

fn any_listener() -> impl Strategy<Value = SetupListener> {
    let scope = prop_oneof![
        Just(SetupScope::All),
        Just(SetupScope::AllV4),
        Just(SetupScope::AllV6),
        any::<IpAddr>().prop_map(SetupScope::One),
    ];
    (scope, any::<u16>(), 1u16.., 1u16.., any::<bool>()).prop_map(
        |(scope, port, mss_v4, mss_v6, fast_open)| SetupListener {
            scope,
            port,
            mss_v4,
            mss_v6,
            fast_open,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None, // a failure prints the message
        ..ProptestConfig::default()
    })]

    #[test]
    fn setup_survives(
        listeners in prop::collection::vec(any_listener(), 0..20),
        (epoch, issued_us, host_us) in any::<(u64, u64, u64)>(),
        valid_us in 0..=SETUP_VALID_US_MAX,
        keys in any::<[[u8; 16]; 4]>(),
        (bytes, bytes_max) in any::<(u32, u32)>(),
        flags in any::<[bool; 4]>(),
        source_mac in any::<[u8; 6]>(),
        change in (any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let listeners_bytes = SetupListeners::to_bytes(&listeners);
        let parsed = SetupListeners::parse(&listeners_bytes).unwrap();
        prop_assert_eq!(parsed.iter().collect::<Vec<_>>(), listeners);
        let command = Command::Setup(Setup {
            epoch,
            issued_us,
            host_us,
            valid_us,
            cookie_key: keys[0],
            ts_offset_key: keys[1],
            fast_open_keys: [keys[2], keys[3]],
            options: SetupOptions {
                receive_buffer_bytes: bytes,
                receive_buffer_bytes_max: bytes_max,
                window_scaling: flags[0],
                timestamps: flags[1],
                sack: flags[2],
                ecn: flags[3],
            },
            source_mac,
            listeners: parsed,
        });
        let mut bytes = encoded(&command);
        prop_assert_eq!(Command::decode(&bytes), Ok(command));
        *change.0.get_mut(&mut bytes) = change.1;
        if let Ok(command) = Command::decode(&bytes) {
            prop_assert_eq!(encoded(&command), bytes);
        }
    }

    #[test]
    fn setup_ready_survives(epoch in any::<u64>(), steering in any::<u32>()) {
        let event = Event::SetupReady { epoch, steering };
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        prop_assert!(bytes.len() <= EVENT_BYTES_MAX);
        prop_assert_eq!(Event::decode(&bytes), Ok(event));
    }
}
