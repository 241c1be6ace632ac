//! Writes pcapng (draft-ietf-opsawg-pcapng), the format of Wireshark and tcpdump, with several
//! interfaces in one file.

use std::io::{self, Write};

/// Block types (§11.1).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// `LINKTYPE_ETHERNET`
const ETHERNET: u16 = 1;

/// Options of all blocks (§3.5), of a section header, of an interface, of its statistics.
const COMMENT: u16 = 1;
const SHB_OS: u16 = 3;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// Times are in nanoseconds: 10⁻⁹ s.
const NANOSECONDS: u8 = 9;

/// A file of one section.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    into: W,
    /// The block being made.
    block: Vec<u8>,
}

/// An interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interface<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: &'a str,
    pub(crate) comment: &'a str,
    pub(crate) snaplen: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a file, whose interfaces are numbered in this order.
    pub(crate) fn new(into: W, program: &str, interfaces: &[Interface<'_>]) -> io::Result<Self> {
        let mut writer = Self {
            into,
            block: Vec::new(),
        };
        writer.begin(SECTION_HEADER);
        // Byte-order magic, version 1.0, and a length that is not known.
        writer.put(&0x1a2b_3c4d_u32.to_le_bytes());
        writer.put(&1_u16.to_le_bytes());
        writer.put(&0_u16.to_le_bytes());
        writer.put(&u64::MAX.to_le_bytes());
        writer.option(SHB_OS, b"Linux");
        writer.option(SHB_USERAPPL, program.as_bytes());
        writer.end_options();
        writer.end()?;
        for interface in interfaces {
            writer.begin(INTERFACE_DESCRIPTION);
            writer.put(&ETHERNET.to_le_bytes());
            writer.put(&[0; 2]);
            writer.put(&interface.snaplen.to_le_bytes());
            writer.option(IF_NAME, interface.name.as_bytes());
            writer.option(IF_DESCRIPTION, interface.description.as_bytes());
            writer.option(IF_TSRESOL, &[NANOSECONDS]);
            writer.option(COMMENT, interface.comment.as_bytes());
            writer.end_options();
            writer.end()?;
        }
        Ok(writer)
    }

    /// Writes a packet of `len` bytes that begins with `bytes`.
    pub(crate) fn packet(
        &mut self,
        interface: usize,
        time_ns: u64,
        len: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.begin(ENHANCED_PACKET);
        self.put(&(interface as u32).to_le_bytes());
        self.put_time(time_ns);
        self.put(&(bytes.len() as u32).to_le_bytes());
        self.put(&(len as u32).to_le_bytes());
        self.put(bytes);
        self.pad();
        self.end()
    }

    /// Writes the final statistics of an interface: packets received, and packets dropped among
    /// them.
    pub(crate) fn statistics(
        &mut self,
        interface: usize,
        time_ns: u64,
        received: u64,
        dropped: u64,
    ) -> io::Result<()> {
        self.begin(INTERFACE_STATISTICS);
        self.put(&(interface as u32).to_le_bytes());
        self.put_time(time_ns);
        self.option(ISB_IFRECV, &received.to_le_bytes());
        self.option(ISB_IFDROP, &dropped.to_le_bytes());
        self.end_options();
        self.end()
    }

    /// Flushes the output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }

    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.put(&block_type.to_le_bytes());
        // Block length, set at its end.
        self.put(&[0; 4]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    fn put_time(&mut self, time_ns: u64) {
        self.put(&((time_ns >> 32) as u32).to_le_bytes());
        self.put(&(time_ns as u32).to_le_bytes());
    }

    fn pad(&mut self) {
        let len = self.block.len().next_multiple_of(4);
        self.block.resize(len, 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        // A longer value is truncated to the maximum length of an option.
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    /// `opt_endofopt`
    fn end_options(&mut self) {
        self.put(&[0; 4]);
    }

    fn end(&mut self) -> io::Result<()> {
        let len = (self.block.len() as u32 + 4).to_le_bytes();
        self.put(&len);
        if let Some(place) = self.block.get_mut(4..8) {
            place.copy_from_slice(&len);
        }
        self.into.write_all(&self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the blocks of a file: their types and bodies.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let (block_type, len) = (word(file), word(&file[4..]) as usize);
            assert_eq!(len % 4, 0);
            assert_eq!(word(&file[len - 4..]) as usize, len, "at both ends");
            blocks.push((block_type, file[8..len - 4].to_vec()));
            file = &file[len..];
        }
        blocks
    }

    #[test]
    fn a_file_has_its_interfaces_first_and_each_packet_names_one() {
        let interface = |name| Interface {
            name,
            description: "what it is",
            comment: "nothing is cut",
            snaplen: 256,
        };
        let mut file = Vec::new();
        let both = [interface("received"), interface("sent")];
        let mut writer = Writer::new(&mut file, "splitway", &both).unwrap();
        let time_ns = 0x1234_5678_9abc_def0;
        writer.packet(1, time_ns, 1500, &[7; 13]).unwrap();
        writer.statistics(0, time_ns, 5, 2).unwrap();
        let blocks = blocks(&file);
        let types: Vec<u32> = blocks.iter().map(|(block_type, _)| *block_type).collect();
        assert_eq!(types, [0x0a0d_0d0a, 1, 1, 6, 5]);
        let packet = [
            &1_u32.to_le_bytes()[..],
            &0x1234_5678_u32.to_le_bytes(),
            &0x9abc_def0_u32.to_le_bytes(),
            &13_u32.to_le_bytes(),
            &1500_u32.to_le_bytes(),
            &[7; 13],
            &[0; 3],
        ];
        assert_eq!(blocks[3].1, packet.concat());
        for (place, name) in [(1, "received"), (2, "sent")] {
            let body = &blocks[place].1;
            // After link type and snaplen: `if_name`.
            assert_eq!(
                body[..12],
                [1, 0, 0, 0, 0, 1, 0, 0, 2, 0, name.len() as u8, 0]
            );
            assert_eq!(&body[12..12 + name.len()], name.as_bytes());
            let resolution = [9, 0, 1, 0, 9, 0, 0, 0];
            assert!(body.windows(8).any(|option| option == resolution));
        }
    }
}
