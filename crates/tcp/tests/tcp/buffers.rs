//! Buffers that grow with the path: a flow fills 1 Gbit/s over 100 ms, 12.5 MB in flight.

use std::time::Duration;

use tcp::Config;

use crate::path::{Download, LONG_FAT};

/// A client whose buffer may grow to 16 MiB: more than is in flight at full rate, less than
/// overflows the queue.
fn client() -> Config {
    Config {
        receive_buffer_bytes_max: 16 << 20,
        ..Config::default()
    }
}

/// Slow start takes ten round trips to a window of 12.5 MB.
const WARM_UP: Duration = Duration::from_secs(2);

fn utilisation(server: &Config, client: &Config, real: bool) -> f64 {
    let mut download = Download::begin(LONG_FAT, server, client, real);
    download.pass(WARM_UP);
    let bytes = download.pass(Duration::from_secs(2));
    bytes as f64 / (2.0 * LONG_FAT.bytes_per_second as f64)
}

#[test]
fn one_flow_of_virtual_bytes_fills_a_long_fat_path() {
    let share = utilisation(&Config::default(), &client(), false);
    assert!(share > 0.95, "{share}");
}

#[test]
fn one_flow_of_real_bytes_fills_it_too() {
    let share = utilisation(&Config::default(), &client(), true);
    assert!(share > 0.95, "{share}");
}

#[test]
fn a_send_buffer_that_does_not_grow_is_the_limit() {
    let server = Config {
        send_buffer_bytes_max: 0,
        ..Config::default()
    };
    // 64 KiB in each round trip, of 12.5 MB.
    let share = utilisation(&server, &client(), true);
    assert!(share < 0.01, "{share}");
}

#[test]
fn a_receive_buffer_that_does_not_grow_is_the_limit() {
    let client = Config {
        receive_buffer_bytes_max: 0,
        ..Config::default()
    };
    let share = utilisation(&Config::default(), &client, false);
    assert!(share < 0.01, "{share}");
}

#[test]
fn buffers_that_are_set_do_not_grow() {
    let mut download = Download::begin(LONG_FAT, &Config::default(), &client(), true);
    download.client.set_receive_buffer_bytes(256 << 10);
    download.pass(WARM_UP);
    assert_eq!(download.client.receive_buffer_bytes(), 256 << 10);
    let mut download = Download::begin(LONG_FAT, &Config::default(), &client(), true);
    download.server.set_send_buffer_bytes(256 << 10);
    download.pass(WARM_UP);
    assert_eq!(download.server.queued_bytes(), 256 << 10);
}

#[test]
fn what_an_application_may_queue_follows_the_window() {
    let mut download = Download::begin(LONG_FAT, &Config::default(), &client(), true);
    assert_eq!(download.server.queued_bytes(), 64 << 10);
    download.pass(WARM_UP);
    let queued = download.server.queued_bytes();
    assert!(queued > 20_000_000 && queued <= 32 << 20, "{queued}");
}
