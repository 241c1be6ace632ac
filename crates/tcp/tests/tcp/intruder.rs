//! An attacker who interferes with a connection without being able to harm it.
//!
//! He forges segments that a victim must not believe, and he makes the peer lie where TCP does not
//! depend on the truth: in SACK blocks and congestion marks. He speaks as a router, too (ICMP).
//! Whatever he does, every byte must arrive, unaltered, and both ends must close in order.

use wire::tcp::{Flags, Header, Timestamps};

use crate::network::Random;

/// What he knows of his victim: more than a real one would.
pub(crate) struct Victim {
    /// Ports and timestamps of a segment that the victim is about to believe.
    pub(crate) genuine: Header,
    /// RCV.NXT
    pub(crate) rcv_nxt: u32,
    /// SND.UNA, as far as the network knows.
    pub(crate) snd_una: u32,
    /// The largest SND.NXT so far.
    pub(crate) snd_max: u32,
    /// The handshake is complete.
    pub(crate) synchronized: bool,
}

impl Victim {
    /// A segment whose text and control bits must not count.
    pub(crate) fn forge(&self, random: &mut Random) -> (Header, Vec<u8>) {
        let mut header = self.genuine;
        header.flags = Flags(random.within(0..256) as u8);
        header.window = random.within(0..0x1_0000) as u16;
        header.ack = random.within(0..1 << 32) as u32;
        if random.percent(50) {
            header.options.timestamps = Some(Timestamps {
                value: random.within(0..1 << 32) as u32,
                echo_reply: random.within(0..1 << 32) as u32,
            });
        }
        self.lie_in_options(random, &mut header);
        let mut len = random.pick(&[0, 0, 1, 100, 1400]);
        match random.within(0..4) {
            // Far beyond any window.
            0 => {
                header.seq = self
                    .rcv_nxt
                    .wrapping_add(random.within(1 << 29..1 << 30) as u32)
            }
            // Long past.
            1 => {
                header.seq = self
                    .rcv_nxt
                    .wrapping_sub(random.within(70_000..1 << 30) as u32)
            }
            // RFC 5961 §3.2, §4.2: a reset that does not hit RCV.NXT exactly, a SYN anywhere.
            2 if self.synchronized => {
                header.seq = self.rcv_nxt.wrapping_add(random.within(1..1000) as u32);
                header.flags = random.pick(&[Flags::RST, Flags::SYN, Flags::RST | Flags::ACK]);
                len = 0;
            }
            // RFC 5961 §5.2: exactly where the text is expected, but it acknowledges what was not
            // sent.
            _ => {
                header.seq = self.rcv_nxt;
                header.ack = self.snd_max.wrapping_add(random.within(1..1 << 30) as u32);
                header.flags =
                    random.pick(&[Flags::ACK, Flags::ACK | Flags::PSH, Flags::ACK | Flags::FIN]);
            }
        }
        (header, vec![0xee; len])
    }

    /// A sequence number that an ICMP message could be about, in flight or not.
    pub(crate) fn quote(&self, random: &mut Random) -> u32 {
        let in_flight = u64::from(self.snd_max.wrapping_sub(self.snd_una));
        if random.percent(70) {
            self.snd_una
                .wrapping_add(random.within(0..in_flight + 1) as u32)
        } else {
            random.within(0..1 << 32) as u32
        }
    }

    /// Changes a genuine acknowledgment to something that an honest peer would not say.
    pub(crate) fn lie(&self, random: &mut Random, header: &mut Header) {
        if header.flags.contains(Flags::ACK) && !header.flags.contains(Flags::SYN) {
            self.lie_in_options(random, header);
            if random.percent(10) {
                header.flags = header.flags | Flags::ECE;
            }
        }
    }

    fn lie_in_options(&self, random: &mut Random, header: &mut Header) {
        let in_flight = u64::from(self.snd_max.wrapping_sub(self.snd_una));
        for place in &mut header.options.sack {
            let edge = |random: &mut Random| {
                if random.percent(90) {
                    self.snd_una
                        .wrapping_sub(100)
                        .wrapping_add(random.within(0..in_flight + 200) as u32)
                } else {
                    random.within(0..1 << 32) as u32
                }
            };
            *place = random.percent(70).then(|| (edge(random), edge(random)));
        }
    }
}
