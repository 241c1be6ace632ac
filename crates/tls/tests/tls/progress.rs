//! How far a response has come.

use std::sync::Arc;

use fakes::keys::SUITES;
use fakes::site::Site;
use fakes::tls_pair::Pair;

#[test]
fn the_first_byte_of_a_file_that_is_not_acknowledged_is_known_at_every_step() {
    const HEADER: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
    const OFFSET: u64 = 1000;
    const LEN: u64 = 100_000;
    let site = Site::plain();
    for suite in SUITES {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        assert_eq!(pair.server.connection.agreed(), None);
        pair.pump().unwrap();
        let agreed = pair.server.connection.agreed().cloned();
        assert_eq!(agreed.as_ref(), Some(pair.agreed()));

        let connection = &mut pair.server.connection;
        assert_eq!(connection.first_virtual(), None);
        connection.write(HEADER);
        assert_eq!(connection.first_virtual(), None);
        connection.write_range(7, OFFSET, LEN);
        connection.write_range(8, 0, 10);
        assert_eq!(connection.first_virtual(), Some((7, OFFSET)), "it waits");
        let begin = pair.server.nic_stream_end();
        pair.server.transmit();
        let end = pair.server.nic_stream_end();
        assert!(end > begin + LEN);
        let connection = &mut pair.server.connection;
        let before = connection.acknowledged_bytes();
        for upto in (begin..=end).step_by(997).chain([end - 1, end]) {
            connection.acknowledge(upto, |_| {});
            let acknowledged = connection.acknowledged_bytes() - before;
            let of_files = acknowledged.saturating_sub(HEADER.len() as u64);
            let expected = match of_files {
                of_first if of_first < LEN => Some((7, OFFSET + of_first)),
                of_both if of_both < LEN + 10 => Some((8, of_both - LEN)),
                _ => None,
            };
            assert_eq!(connection.first_virtual(), expected, "{upto} of {end}");
        }
        assert_eq!(connection.first_virtual(), None);
    }
}
