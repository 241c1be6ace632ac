//! What reordering costs: how much later a download ends where packets overtake each other.

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use tcp::CongestionAlgorithm;

use crate::nic_stack::FILE_BYTES;
use crate::world::{Receive, World};

/// How many packets of a thousand are late, by up to 5 ms, either way.
const LATE: [u64; 4] = [0, 10, 50, 100];

/// The link, and what may wait for it: a round trip.
const LINK_MBIT_PER_S: u64 = 100;
const QUEUE_US_MAX: u64 = 40_000;

/// What makes each way 20 ms long.
const DETOUR_US: u64 = 10_000;

/// Downloads of all of a file, one after the other.
const DOWNLOADS: usize = 16;

/// The time that downloads over a path of 20 ms take, in microseconds.
fn download_us(
    algorithm: CongestionAlgorithm,
    late: u64,
    random: &mut dyn FnMut(u64) -> u64,
) -> u64 {
    let mut world = World::new(algorithm, Receive::Host, random);
    world.connect(Cipher::Aes128Gcm);
    world.run_until_connected();
    let begun_us = world.now_us();
    world.link_mbit_per_s = LINK_MBIT_PER_S;
    world.queue_us_max = QUEUE_US_MAX;
    world.detour_us = DETOUR_US;
    world.weather = Weather {
        late,
        ..Weather::default()
    };
    for _ in 0..DOWNLOADS {
        world.request(0, 1, 0, FILE_BYTES);
        world.run_until_finished();
    }
    world.now_us() - begun_us
}

#[test]
fn goodput_is_nine_tenths_where_one_packet_in_ten_is_overtaken() {
    each_seed(3, |random| {
        for algorithm in CongestionAlgorithm::ALL {
            let times_us = LATE.map(|late| download_us(algorithm, late, random));
            let [in_order_us, ..] = times_us;
            let goodput = times_us.map(|us| in_order_us as f64 / us as f64);
            println!("{algorithm:?}: {goodput:.2?} of in-order goodput");
            let is_enough = goodput.iter().all(|share| *share >= 0.9);
            assert!(is_enough, "{algorithm:?}: {goodput:?}");
        }
    });
}
