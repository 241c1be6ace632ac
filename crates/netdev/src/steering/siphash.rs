//! SipHash-1-3 (Aumasson and Bernstein, 2012) in eBPF: a round for each 64 bits of the message,
//! three at the end.
//!
//! | Register | Holds |
//! |---|---|
//! | 0 – 3 | the state |
//! | 4 | scratch |
//! | 5 | 64 bits of the message |

use super::assembler::{Assembler, FRAME, Op64, R0, R1, R2, R3, R4, R5, R8, R9, Register, Width};
use super::map::KEY_WORD;

const STATE: [Register; 4] = [R0, R1, R2, R3];
const SCRATCH: Register = R4;
const MESSAGE: Register = R5;

/// Constants that are combined with the key: "somepseudorandomlygeneratedbytes".
const INITIAL: [u64; 4] = [
    0x736f_6d65_7073_6575,
    0x646f_7261_6e64_6f6d,
    0x6c79_6765_6e65_7261,
    0x7465_6462_7974_6573,
];

/// Loads the lower half of the hash of `words` into register 8: their places on the stack, an odd
/// number. Register 9 holds the first element of the map, with the key. Registers 0 to 5 change.
pub(super) fn hash(code: &mut Assembler, words: &[i16]) {
    let [v0, v1, v2, v3] = STATE;
    let key = 4 * KEY_WORD as i16;
    code.load(Width::Double, v0, R9, key);
    code.load(Width::Double, v1, R9, key + 8);
    code.copy(v2, v0);
    code.copy(v3, v1);
    for (register, initial) in STATE.into_iter().zip(INITIAL) {
        code.set_double(SCRATCH, initial);
        code.with_register_64(Op64::Xor, register, SCRATCH);
    }
    let (pairs, rest) = words.as_chunks();
    for [lower, upper] in pairs {
        code.load(Width::Word, MESSAGE, FRAME, *lower);
        code.load(Width::Word, SCRATCH, FRAME, *upper);
        code.with_64(Op64::Lsh, SCRATCH, 32);
        code.with_register_64(Op64::Or, MESSAGE, SCRATCH);
        compress(code);
    }
    let [last] = rest else {
        unreachable!("addresses come in pairs of words, ports in one");
    };
    // The length, in bytes, ends the message.
    code.load(Width::Word, MESSAGE, FRAME, *last);
    code.set(SCRATCH, 4 * words.len() as u32);
    code.with_64(Op64::Lsh, SCRATCH, 56);
    code.with_register_64(Op64::Or, MESSAGE, SCRATCH);
    compress(code);
    code.with_64(Op64::Xor, v2, 0xff);
    for _ in 0..3 {
        round(code);
    }
    for register in [v1, v2, v3] {
        code.with_register_64(Op64::Xor, v0, register);
    }
    code.copy_word(R8, v0);
}

/// Mixes 64 bits of the message into the state.
fn compress(code: &mut Assembler) {
    let [v0, _, _, v3] = STATE;
    code.with_register_64(Op64::Xor, v3, MESSAGE);
    round(code);
    code.with_register_64(Op64::Xor, v0, MESSAGE);
}

fn round(code: &mut Assembler) {
    let [v0, v1, v2, v3] = STATE;
    half_round(code, [v0, v1, v2, v3], [13, 16]);
    half_round(code, [v2, v1, v0, v3], [17, 21]);
}

fn half_round(code: &mut Assembler, [a, b, c, d]: [Register; 4], [s, t]: [i32; 2]) {
    code.with_register_64(Op64::Add, a, b);
    code.with_register_64(Op64::Add, c, d);
    code.rotate_left(b, s, SCRATCH);
    code.rotate_left(d, t, SCRATCH);
    code.with_register_64(Op64::Xor, b, a);
    code.with_register_64(Op64::Xor, d, c);
    code.rotate_left(a, 32, SCRATCH);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [docs/offload.md](../../../../docs/offload.md) states the numbers.
    #[test]
    fn the_hash_takes_so_many_instructions_of_a_program() {
        let count = |words: i16| {
            let mut code = Assembler::default();
            let words: Vec<i16> = (0..words).collect();
            hash(&mut code, &words);
            code.finish().len()
        };
        assert_eq!([count(3), count(9)], [193, 307]);
    }
}
