//! Files of every size that has gone wrong somewhere.

use std::time::Instant;

use testbed::http::{Connection, download};
use testbed::namespace::{isolated, isolated_long};
use testbed::site::{KnownFile, Site};
use testbed::splitway::HTTP_V4;

use crate::support::{FAMILIES, serve, started};

/// Around nothing, a segment's payload (1448 bytes over IPv4 with timestamps, 1428 over IPv6), a
/// page, an initial window, a superpacket; and larger.
fn sizes() -> Vec<u64> {
    let mut sizes = vec![0, 1, 4095, 4096, 4097, 500_000, 1_000_000, 1 << 20];
    sizes.extend(1427..=1430);
    sizes.extend(1447..=1461);
    sizes.extend([14_479, 14_480, 14_481, 65_535, 65_536, 65_537]);
    sizes
}

fn files(site: &Site) -> Vec<KnownFile> {
    sizes()
        .into_iter()
        .map(|size| site.file(&format!("of-{size}"), size).unwrap())
        .collect()
}

#[test]
fn a_file_of_any_size_arrives_whole_on_a_connection_of_its_own() {
    isolated(|site| {
        let files = files(&site);
        let _splitway = serve(&site);
        for server in FAMILIES {
            for file in &files {
                download(server, file).unwrap();
            }
        }
    });
}

#[test]
fn files_of_all_sizes_arrive_whole_one_after_the_other() {
    isolated(|site| {
        let files = files(&site);
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            for file in files.iter().chain(files.iter().rev()) {
                connection.get(file).unwrap();
            }
        }
    });
}

#[test]
fn a_gibibyte_arrives_whole() {
    isolated(|site| {
        let file = site.file("gibibyte", 1 << 30).unwrap();
        let _splitway = serve(&site);
        let start = Instant::now();
        download(HTTP_V4, &file).unwrap();
        println!("a gibibyte in {:?}", start.elapsed());
    });
}

/// A file that is longer than 32 bits can say, with something to read on both sides of that border.
fn large_file(site: &Site) -> KnownFile {
    const BORDER: u64 = 1 << 32;
    const MIB: u64 = 1 << 20;
    let size = BORDER + 64 * MIB + 1;
    let islands = vec![0..32 * MIB, BORDER - MIB..BORDER + MIB, size - MIB..size];
    site.sparse_file("large", size, islands).unwrap()
}

#[test]
fn the_beginning_of_a_file_over_four_gibibytes_arrives_and_the_rest_is_not_wanted() {
    isolated(|site| {
        let (large, small) = (large_file(&site), site.file("small", 10_000).unwrap());
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = started(server, &large);
            connection.read_file_part(&large, 0..100 << 20).unwrap();
            drop(connection);
            download(server, &small).unwrap();
        }
    });
}

#[test]
#[ignore = "takes a minute"]
fn a_file_over_four_gibibytes_arrives_whole() {
    isolated_long(|site| {
        let large = large_file(&site);
        let _splitway = serve(&site);
        for server in FAMILIES {
            download(server, &large).unwrap();
        }
    });
}
