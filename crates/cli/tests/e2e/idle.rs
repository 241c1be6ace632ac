//! An idle splitway leaves the machine alone.

use std::time::{Duration, Instant};

use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::procfs::cpu_ns;

use crate::support::{FAMILIES, serve};

#[test]
fn without_traffic_both_processes_together_use_less_than_a_hundredth_of_a_core() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        let splitway = serve(&site);
        // It has had work before, and its clients are still connected.
        let clients = FAMILIES.map(|server| {
            let mut connection = Connection::open(server).unwrap();
            connection.get(&file).unwrap();
            connection
        });
        let used_ns = || cpu_ns(splitway.host()).unwrap() + cpu_ns(splitway.nic()).unwrap();
        let (before_ns, start) = (used_ns(), Instant::now());
        // Not a wait for something: the span that is measured.
        std::thread::sleep(Duration::from_secs(10));
        let share = (used_ns() - before_ns) as f64 / start.elapsed().as_nanos() as f64;
        println!("idle: {:.3} % of a core", share * 100.0);
        assert!(share < 0.01, "{:.3} % of a core", share * 100.0);
        drop(clients);
    });
}
