//! The Huffman code of RFC 7541 §5.2, which QPACK uses (RFC 9204 §4.1.2).
//!
//! The code is canonical: codes of one length follow each other in order of their symbols, and
//! longer ones follow shorter ones. So the lengths define it.

/// Length of each symbol's code, in bits (RFC 7541 Appendix B). The last one is EOS.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// Longest code, in bits.
const LENGTH_MAX: usize = 30;

/// Codes of at most this length have a lookup table.
const QUICK_BITS: usize = 8;

/// The symbol that no string may contain.
const EOS: u16 = 256;

/// Tables derived from the lengths.
struct Code {
    /// Symbols in order of their codes.
    symbols: [u16; 257],
    /// For each length: the end of its codes, its first code, and the first symbol's place.
    lengths: [(u32, u32, u16); LENGTH_MAX + 1],
    /// By the next bits: the symbol that they begin with, and its length; 0 if it is longer.
    quick: [(u8, u8); 1 << QUICK_BITS],
}

const CODE: Code = {
    let mut code = Code {
        symbols: [0; 257],
        lengths: [(0, 0, 0); LENGTH_MAX + 1],
        quick: [(0, 0); 1 << QUICK_BITS],
    };
    let (mut next, mut place, mut length) = (0_u64, 0, 1);
    while length <= LENGTH_MAX {
        let (first, first_place) = (next, place);
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                code.symbols[place] = symbol as u16;
                if length <= QUICK_BITS {
                    let mut tail = 0;
                    while tail < 1 << (QUICK_BITS - length) {
                        let bits = ((next as usize) << (QUICK_BITS - length)) | tail;
                        code.quick[bits] = (symbol as u8, length as u8);
                        tail += 1;
                    }
                }
                (next, place) = (next + 1, place + 1);
            }
            symbol += 1;
        }
        let shift = 32 - length;
        // All codes of 30 bits are assigned, so the last end is 2 to the 32.
        let end = next << shift;
        let end = if end > u32::MAX as u64 {
            u32::MAX
        } else {
            end as u32
        };
        code.lengths[length] = (end, first as u32, first_place as u16);
        next <<= 1;
        length += 1;
    }
    assert!(
        place == LENGTHS.len() && next == 1 << (LENGTH_MAX + 1),
        "a complete code"
    );
    code
};

/// A string that is not valid: it has EOS, or padding longer than seven bits or other than a prefix
/// of EOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Appends the decoded string.
pub fn decode(string: &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    let mut bytes = string.iter();
    // The next bits, leading, and their number.
    let (mut bits, mut count) = (0_u64, 0);
    loop {
        while count <= 56 {
            let Some(&byte) = bytes.next() else { break };
            bits |= u64::from(byte) << (56 - count);
            count += 8;
        }
        if count == 0 {
            return Ok(());
        }
        let (symbol, length) = match CODE.quick[(bits >> (64 - QUICK_BITS)) as usize] {
            (_, 0) => long_symbol((bits >> 32) as u32),
            (symbol, length) => (u16::from(symbol), usize::from(length)),
        };
        if length > count {
            // The remaining bits are padding.
            let ones = u64::MAX << (64 - count);
            return if count < 8 && bits == ones {
                Ok(())
            } else {
                Err(Invalid)
            };
        }
        if symbol == EOS {
            return Err(Invalid);
        }
        out.push(symbol as u8);
        bits <<= length;
        count -= length;
    }
}

/// The symbol whose code, longer than [`QUICK_BITS`], begins these bits.
fn long_symbol(bits: u32) -> (u16, usize) {
    for (length, &(end, first, place)) in CODE.lengths.iter().enumerate().skip(QUICK_BITS + 1) {
        if bits < end || length == LENGTH_MAX {
            let code = bits >> (32 - length);
            return (
                CODE.symbols[usize::from(place) + (code - first) as usize],
                length,
            );
        }
    }
    unreachable!("the longest code is the last")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of a symbol, and its length.
    fn code(symbol: usize) -> (u32, usize) {
        let length = usize::from(LENGTHS[symbol]);
        let (_, first, place) = CODE.lengths[length];
        let mut symbols = CODE.symbols[usize::from(place)..].iter();
        let nth = symbols
            .position(|&known| usize::from(known) == symbol)
            .unwrap();
        (first + nth as u32, length)
    }

    fn encode(symbols: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for &symbol in symbols {
            let (code, length) = code(symbol.into());
            bits += &format!("{code:0length$b}");
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        let bytes = bits.as_bytes().chunks(8);
        bytes
            .map(|byte| u8::from_str_radix(str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    fn decoded(string: &[u8]) -> Result<Vec<u8>, Invalid> {
        let mut out = Vec::new();
        decode(string, &mut out).map(|()| out)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        let bytes = (0..digits.len()).step_by(2);
        bytes
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect()
    }

    /// Covers: RFC 7541 §B
    #[test]
    fn codes_are_those_of_the_text() {
        for (symbol, expected) in [
            (0, (0x1ff8, 13)),
            (1, (0x7f_ffd8, 23)),
            (9, (0xff_ffea, 24)),
            (10, (0x3fff_fffc, 30)),
            (13, (0x3fff_fffd, 30)),
            (22, (0x3fff_fffe, 30)),
            (48, (0x0, 5)),
            (97, (0x3, 5)),
            (32, (0x14, 6)),
            (122, (0x7b, 7)),
            (38, (0xf8, 8)),
            (127, (0xfff_fffc, 28)),
            (128, (0xf_ffe6, 20)),
            (249, (0xfff_fffe, 28)),
            (255, (0x3ff_ffee, 26)),
            (256, (0x3fff_ffff, 30)),
        ] {
            assert_eq!(code(symbol), expected, "{symbol}");
        }
    }

    /// Covers: RFC 7541 §C.4, RFC 7541 §C.6
    #[test]
    fn examples_of_the_text_decode() {
        for (string, text) in [
            ("f1e3 c2e5 f23a 6ba0 ab90 f4ff", "www.example.com"),
            ("a8eb 1064 9cbf", "no-cache"),
            ("25a8 49e9 5ba9 7d7f", "custom-key"),
            ("25a8 49e9 5bb8 e8b4 bf", "custom-value"),
            ("6402", "302"),
            ("aec3 771a 4b", "private"),
            (
                "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            (
                "9d29 ad17 1863 c78f 0b97 c8e9 ae82 ae43 d3",
                "https://www.example.com",
            ),
            ("640e ff", "307"),
            ("9bd9 ab", "gzip"),
            (
                "94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 \
                 3160 65c0 03ed 4ee5 b106 3d50 07",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
        ] {
            assert_eq!(decoded(&hex(string)).as_deref(), Ok(text.as_bytes()));
        }
    }

    /// Covers: RFC 7541 §5.2
    #[test]
    fn every_pair_of_symbols_decodes() {
        for first in 0..=255 {
            assert_eq!(decoded(&encode(&[first])), Ok(vec![first]));
            for second in 0..=255 {
                let both = [first, second, first];
                assert_eq!(decoded(&encode(&both)).as_deref(), Ok(&both[..]));
            }
        }
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(decoded(&encode(&all)), Ok(all));
        assert_eq!(decoded(b""), Ok(vec![]));
    }

    /// Covers: RFC 7541 §5.2
    #[test]
    fn padding_is_the_beginning_of_eos_and_no_more_than_seven_bits() {
        // `0` and three bits of padding.
        assert_eq!(decoded(&[0b0000_0111]).as_deref(), Ok(&b"0"[..]));
        for wrong in [0b0000_0011, 0b0000_0110, 0b0000_0101, 0b0000_0000] {
            let result = decoded(&[wrong]);
            assert_eq!(result, Err(Invalid), "{wrong:08b}");
        }
        // Eight bits of padding, and EOS itself.
        assert_eq!(decoded(&[0b0000_0111, 0xff]), Err(Invalid));
        assert_eq!(decoded(&[0xff]), Err(Invalid));
        assert_eq!(decoded(&[0xff; 4]), Err(Invalid));
        assert_eq!(decoded(&[0xff; 100]), Err(Invalid));
        // A truncated code.
        let cut = encode(&[1]);
        assert_eq!(decoded(&cut[..2]), Err(Invalid));
    }
}
