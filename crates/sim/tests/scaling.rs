//! What more workers are good for: the same crowd, served by 1, 8 and 16 of them, each with a port
//! that takes so much and no more. Time is virtual, so this tells whether workers hold each other
//! up, not how fast a processor is.

use sim::{Crowd, CrowdReport, run_crowd};

const PORT_BYTES_PER_SECOND: u64 = 4_000_000;

/// Twenty for each of 16 workers.
const CLIENTS: usize = 320;
const FILE_BYTES: u64 = 50_000;

fn serve(workers: usize) -> CrowdReport {
    let crowd = Crowd {
        seed: 4,
        clients: CLIENTS,
        files: 32,
        file_bytes: FILE_BYTES,
        begin_within_us: 0,
        workers,
        port_bytes_per_second: Some(PORT_BYTES_PER_SECOND),
        cache_bytes: 32 << 20,
        round_trip_us: 2_000,
        bytes_per_second: 50_000_000,
        loss_ppm: 0,
        disk_us_max: 200,
        within_us: 60_000_000,
    };
    // An error if any byte is wrong, or if a connection moves from one worker to another.
    run_crowd(&crowd).unwrap()
}

fn bytes_per_second(report: &CrowdReport) -> f64 {
    CLIENTS as f64 * FILE_BYTES as f64 * 1e6 / report.elapsed_us as f64
}

#[test]
fn throughput_grows_with_the_number_of_workers_and_all_have_equal_shares() {
    let mut one = None;
    println!(
        "| Workers | Elapsed, ms | Mbit/s | Against one | Connections of each | File bytes of \
         each |"
    );
    println!("|---|---|---|---|---|---|");
    for workers in [1, 8, 16] {
        let report = serve(workers);
        let rate = bytes_per_second(&report);
        let growth = rate / *one.get_or_insert(rate);
        let range =
            |values: Vec<u64>| (*values.iter().min().unwrap(), *values.iter().max().unwrap());
        let connections = range(
            report
                .shares
                .iter()
                .map(|share| share.connections as u64)
                .collect(),
        );
        let bytes = range(report.shares.iter().map(|share| share.file_bytes).collect());
        println!(
            "| {workers} | {:.1} | {:.1} | {growth:.2} | {}–{} | {}–{} |",
            report.elapsed_us as f64 / 1e3,
            rate * 8.0 / 1e6,
            connections.0,
            connections.1,
            bytes.0,
            bytes.1,
        );
        let share = (CLIENTS / workers) as u64;
        assert_eq!(report.shares.len(), workers);
        assert_eq!(connections, (share, share));
        assert_eq!(
            bytes,
            (share * FILE_BYTES, share * FILE_BYTES),
            "nothing is sent twice"
        );
        assert_eq!(report.retransmissions, 0);
        assert!(
            report.nic.port_waits > 0,
            "the ports are what it takes time for"
        );
        let most = (workers as u64 * PORT_BYTES_PER_SECOND) as f64;
        assert!(rate <= most, "{rate} B/s through ports that take {most}");
        assert!(
            growth >= 0.9 * workers as f64,
            "{growth} with {workers} workers"
        );
    }
}
