//! How fast a worker seals, against the cipher alone, on the same core in the same run.
//!
//! Sixty-four flows send a file that is in memory, in records of 16 KiB, AES-256-GCM, TLS 1.3,
//! through a port that takes packets and does nothing with them. What is timed is all that the NIC
//! stack does: commands, planning, sealing, reports. The cipher alone seals one record of 16 KiB
//! again and again, from one place to another.
//!
//! `cargo bench -p splitway-nic --bench seal` prints both and their ratio; nothing fails. Rounds of
//! both alternate, and the fastest of each counts, so that what else the machine does matters
//! little.
//!
//! Then a thousand flows that take turns with SENDs of two segments, as over slow paths: a record
//! leaves in six of them. What counts there is how many bytes were sealed for each byte that was
//! sent.
//!
//! Last, packets of QUIC, by cipher: nanoseconds for each, from the commands to the port, against
//! the cipher alone on as many bytes, where they are.

mod rig;

use std::hint::black_box;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use contract::tls::{Cipher, ContentType, Key, Records, Suite, Version};
use contract::{Command, FlowId, Segment};
use rig::quic::{DATAGRAM_BYTES, PACKETS, QuicRig};
use rig::{FILE, FILE_BYTES, MSS, Rig, Wanted};

const FLOWS: u64 = 64;
const ROUNDS: usize = 30;
const RECORD_BYTES: usize = 16 << 10;
/// What one flow sends in a round: a run of records.
const RUN_BYTES: usize = FILE_BYTES;
const SMALL_FLOWS: u64 = 1000;
const SMALL_SEND_BYTES: u64 = 2 * MSS as u64;
const SUITE: Suite = Suite {
    version: Version::Tls13,
    cipher: Cipher::Aes256Gcm,
};
const KEY: [u8; 32] = [7; 32];

fn main() {
    for superpacket_max in [64 << 10, 257 << 10] {
        let mut sealing = Sealing::new(superpacket_max, FLOWS);
        sealing.round(0);
        let (mut worker, mut cipher) = (0.0f64, 0.0f64);
        for round in 1..=ROUNDS {
            cipher = cipher.max(cipher_alone());
            worker = worker.max(sealing.round(round as u64));
        }
        println!(
            "superpackets of {:>3} KiB: the worker seals {worker:.2} GB/s, aws-lc alone \
             {cipher:.2} GB/s: {:.0} %",
            superpacket_max >> 10,
            100.0 * worker / cipher
        );
    }
    let mut sealing = Sealing::new(64 << 10, SMALL_FLOWS);
    let gb_per_s = sealing.small_sends();
    let counters = sealing.0.worker.counters();
    println!(
        "{SMALL_FLOWS} flows, SENDs of {SMALL_SEND_BYTES} bytes: {gb_per_s:.2} GB/s, {:.2} bytes \
         sealed for each that was sent",
        counters.sealed_bytes as f64 / counters.sealed_sent_bytes as f64
    );
    for (cipher, algorithm) in [
        (Cipher::Aes128Gcm, &AES_128_GCM),
        (Cipher::Aes256Gcm, &AES_256_GCM),
        (Cipher::ChaCha20Poly1305, &CHACHA20_POLY1305),
    ] {
        let mut rig = QuicRig::new(cipher, FLOWS);
        quic_round(&mut rig, 0);
        let (mut worker_ns, mut cipher_ns) = (f64::MAX, f64::MAX);
        for round in 1..=ROUNDS {
            cipher_ns = cipher_ns.min(packet_alone(algorithm));
            worker_ns = worker_ns.min(quic_round(&mut rig, round as u64));
        }
        println!(
            "packets of QUIC, {cipher:?}: the worker {worker_ns:.0} ns, aws-lc alone \
             {cipher_ns:.0} ns: {:.0} %",
            100.0 * cipher_ns / worker_ns
        );
    }
}

/// Each flow has some QSENDs, which come eight at a time. Nanoseconds per packet.
fn quic_round(rig: &mut QuicRig, round: u64) -> f64 {
    const SENDS: u64 = 4 * FLOWS;
    const TURN: u64 = 8;
    let mut time = Duration::ZERO;
    for turn in 0..SENDS / TURN {
        let first = round * SENDS + turn * TURN;
        rig.send(first..first + TURN);
        let start = Instant::now();
        rig.run_until(TURN);
        time += start.elapsed();
    }
    time.as_nanos() as f64 / (SENDS * PACKETS) as f64
}

/// Nanoseconds of the cipher for what a datagram is sealed of.
fn packet_alone(algorithm: &'static Algorithm) -> f64 {
    const TIMES: u64 = 10_000;
    const HEADER_BYTES: usize = 11;
    let key = UnboundKey::new(algorithm, &KEY[..algorithm.key_len()]).expect("a key");
    let key = LessSafeKey::new(key);
    let mut text = vec![1; DATAGRAM_BYTES - HEADER_BYTES - algorithm.tag_len()];
    let start = Instant::now();
    for number in 0..TIMES {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from([3; HEADER_BYTES]), &mut text);
        let _ = black_box(tag.expect("the length is a packet's"));
    }
    start.elapsed().as_nanos() as f64 / TIMES as f64
}

/// GB/s of the cipher on records of 16 KiB.
fn cipher_alone() -> f64 {
    const RECORDS: u64 = 4096;
    let key = UnboundKey::new(&AES_256_GCM, &KEY).expect("a key");
    let key = LessSafeKey::new(key);
    let plaintext = vec![1; RECORD_BYTES];
    let mut ciphertext = vec![0; RECORD_BYTES];
    let start = Instant::now();
    for number in 0..RECORDS {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let header = Aad::from([23, 3, 3, 0x40, 0x11]);
        let mut suffix = [0; 17];
        key.seal_out_of_place_scatter(
            nonce,
            header,
            &plaintext,
            &mut ciphertext,
            &[23],
            &mut suffix,
        )
        .expect("the lengths are a record's");
        black_box(&ciphertext);
    }
    RECORDS as f64 * RECORD_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
}

struct Sealing(Rig);

impl Sealing {
    fn new(superpacket_max: usize, flows: u64) -> Sealing {
        let mut rig = Rig::new(superpacket_max);
        for flow in 0..flows {
            rig.tell(&Command::Key(Key {
                flow: FlowId(flow),
                epoch: 1,
                suite: SUITE,
                key: &KEY,
                iv: [9; 12],
            }));
        }
        rig.run_until(0);
        Sealing(rig)
    }

    /// Each flow sends a run, in SENDs of 256 KiB. GB/s of plaintext.
    fn round(&mut self, round: u64) -> f64 {
        let start = Instant::now();
        for flow in 0..FLOWS {
            let (run, run_bytes) = self.define(flow, round);
            for (id, at) in (0..run_bytes).step_by(256 << 10).enumerate() {
                let len = (run_bytes - at).min(256 << 10);
                self.send(id as u64, flow, run + at, len, run);
            }
        }
        self.0.run_until(FLOWS * 5);
        (FLOWS * RUN_BYTES as u64) as f64 / start.elapsed().as_secs_f64() / 1e9
    }

    /// All flows send a run, in turn and little at a time. GB/s of the stream.
    fn small_sends(&mut self) -> f64 {
        let mut run_bytes = 0;
        for flow in 0..SMALL_FLOWS {
            (_, run_bytes) = self.define(flow, 0);
        }
        self.0.run_until(0);
        let sends = run_bytes / SMALL_SEND_BYTES;
        let start = Instant::now();
        for send in 0..sends {
            let at = send * SMALL_SEND_BYTES;
            for flow in 0..SMALL_FLOWS {
                self.send(send, flow, at, SMALL_SEND_BYTES, at);
            }
            self.0.run_until(SMALL_FLOWS);
        }
        let bytes = SMALL_FLOWS * sends * SMALL_SEND_BYTES;
        bytes as f64 / start.elapsed().as_secs_f64() / 1e9
    }

    /// Defines the run of a flow in this round: where it begins in the stream, and how long it is
    /// there.
    fn define(&mut self, flow: u64, round: u64) -> (u64, u64) {
        let count = (RUN_BYTES / RECORD_BYTES) as u64;
        let mut records = Records {
            flow: FlowId(flow),
            epoch: 1,
            number: round * count,
            stream_offset: 0,
            content_type: ContentType::ApplicationData,
            record_plaintext_bytes: RECORD_BYTES as u16,
            follow_bytes: 0,
            segments: [Segment::File {
                file: FILE,
                offset: 0,
                len: RUN_BYTES as u32,
            }]
            .into(),
            tags: &[],
        };
        let run_bytes = records.stream_bytes(SUITE);
        records.stream_offset = round * run_bytes;
        let run = records.stream_offset;
        self.0.tell(&Command::Records(records));
        (run, run_bytes)
    }

    fn send(&mut self, id: u64, flow: u64, stream_offset: u64, len: u64, acked_offset: u64) {
        self.0.send(Wanted {
            id,
            flow,
            stream_offset,
            acked_offset,
            segment: Segment::Sealed { len: len as u32 },
        });
    }
}
