//! However TCP cuts the client's bytes, the outcome is the same. A failure prints the seed that
//! replays it (`PROPTEST_RNG_SEED`).

use std::io::Write;
use std::sync::Arc;

use proptest::prelude::*;

use fakes::forger::Forger;
use fakes::keys::SUITES;
use fakes::site::Site;
use fakes::tls_pair::Pair;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_session_survives_any_split(
        suite in 0..SUITES.len(),
        cuts in prop::collection::vec(1_usize..300, 1..40),
        request_bytes in 1_usize..100_000,
    ) {
        let site = Site::plain();
        let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[suite])));
        let request: Vec<u8> = (0..request_bytes).map(|n| n as u8).collect();
        let mut cuts = cuts.into_iter().cycle();
        let mut written = 0;
        loop {
            written += pair.client.writer().write(&request[written..]).unwrap();
            let mut to_server = Vec::new();
            while pair.client.wants_write() {
                pair.client.write_tls(&mut to_server).unwrap();
            }
            let mut rest = &to_server[..];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                pair.server.receive(piece);
                rest = behind;
            }
            let to_client = pair.server.transmit();
            if to_server.is_empty() && to_client.is_empty() {
                break;
            }
            pair.client_receives(&to_client).unwrap();
        }
        prop_assert!(pair.server.received == request);
        pair.download(1, 100_000);
    }

    #[test]
    fn a_session_survives_any_noise(
        suite in 0..SUITES.len(),
        noise in prop::collection::vec(any::<u8>(), 0..400),
        at in 0_usize..400,
        flip in 1_u8..,
    ) {
        // A changed byte never gets through, and nothing panics.
        let site = Site::plain();
        let mut forger = Forger::new(&site, SUITES[suite]);
        let mut record = forger.tx.seal(forger.tx_number, 23, &noise);
        let at = at % record.len();
        record[at] ^= flip;
        forger.send_raw(&record);
        forger.send_raw(&noise);
        // TLS 1.3 takes no notice of a record's version, but it is authenticated.
        prop_assert!(forger.server.received.is_empty());
        let mut server = fakes::tls_server::TlsServer::new(&site);
        server.receive(&noise);
        server.transmit();
    }
}
