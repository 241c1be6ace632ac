//! What the cache is for: many clients at once, over the real stacks.

use sim::{Crowd, run_crowd};

const BLOCK_BYTES: u64 = 64 << 10;

#[test]
fn a_thousand_viewers_of_one_file_cost_one_read_of_each_block() {
    let crowd = Crowd {
        seed: 1,
        clients: 1000,
        files: 1,
        file_bytes: 200_000,
        begin_within_us: 2_000_000,
        workers: 1,
        port_bytes_per_second: None,
        cache_bytes: 32 << 20,
        round_trip_us: 20_000,
        bytes_per_second: 1_000_000,
        loss_ppm: 50_000,
        disk_us_max: 2_000,
        within_us: 300_000_000,
    };
    let report = run_crowd(&crowd).unwrap();
    let nic = report.nic;
    // One packet in twenty is lost, and what is sent again for it is in memory.
    let packets = 1000 * crowd.file_bytes / 1448;
    assert!(report.retransmissions > packets / 50, "{report:?}");
    assert_eq!(nic.reads, crowd.file_bytes.div_ceil(BLOCK_BYTES));
    assert_eq!(nic.read_bytes, crowd.file_bytes);
    assert!(nic.block_hits > 1000 * nic.reads);
}

#[test]
fn a_cache_of_32_mb_serves_500_connections_over_100_ms_alike() {
    let crowd = Crowd {
        seed: 2,
        clients: 500,
        files: 500,
        file_bytes: 600_000,
        begin_within_us: 0,
        workers: 1,
        port_bytes_per_second: None,
        cache_bytes: 32 << 20,
        round_trip_us: 100_000,
        bytes_per_second: 1_000_000,
        loss_ppm: 0,
        disk_us_max: 500,
        within_us: 60_000_000,
    };
    // No client fails, or not all would have every byte.
    let report = run_crowd(&crowd).unwrap();
    let nic = report.nic;
    println!(
        "{:.1} s, Jain's index {:.3}, {nic:?}",
        report.elapsed_us as f64 / 1e6,
        report.jain_index()
    );
    assert!(nic.block_waits > 1000, "pins fill the cache: {nic:?}");
    assert!(
        nic.pins_broken < nic.reads / 100,
        "hardly anything is given up: {nic:?}"
    );
    assert!(report.jain_index() >= 0.9, "{}", report.jain_index());
    let least = report.bytes_at_first_end.iter().min().unwrap();
    assert!(*least > crowd.file_bytes / 2, "{least}");
}

#[test]
fn a_small_cache_with_losses_stops_no_client() {
    let crowd = Crowd {
        seed: 3,
        clients: 200,
        files: 200,
        file_bytes: 400_000,
        begin_within_us: 0,
        workers: 1,
        port_bytes_per_second: None,
        cache_bytes: 0,
        round_trip_us: 100_000,
        bytes_per_second: 500_000,
        loss_ppm: 20_000,
        disk_us_max: 500,
        within_us: 120_000_000,
    };
    let report = run_crowd(&crowd).unwrap();
    let nic = report.nic;
    println!(
        "{:.1} s, Jain's index {:.3}, {nic:?}",
        report.elapsed_us as f64 / 1e6,
        report.jain_index()
    );
    assert!(nic.block_waits > 1000, "{nic:?}");
    assert!(report.bytes_at_first_end.iter().all(|bytes| *bytes > 0));
}
