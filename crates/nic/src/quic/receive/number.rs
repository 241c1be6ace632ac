//! Packet numbers (RFC 9000 §17.1).

/// The packet number closest to `next` with these low `bytes` bytes (RFC 9000 §A.3).
pub(super) fn decode(truncated: u32, bytes: usize, next: u64) -> u64 {
    const NUMBERS: u64 = 1 << 62;
    let window = 1 << (8 * bytes);
    let half = window / 2;
    let candidate = (next & !(window - 1)) | u64::from(truncated);
    if candidate + half <= next && candidate < NUMBERS - window {
        candidate + window
    } else if candidate > next + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9000 §A.3
    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(decode(0x9b32, 2, 0xa82f_30ea + 1), 0xa82f_9b32);
    }

    /// Covers: RFC 9000 §A.3
    #[test]
    fn what_is_close_to_the_next_number_is_found_again() {
        for bytes in 1..=4 {
            let half = 1i64 << (8 * bytes - 1);
            for next in [0u64, 1, 200, 0xffff, 0x1_0000, 0xa82f_30ea, (1 << 62) - 1] {
                for distance in [-half + 1, -1000, -1, 0, 1, 1000, half - 1, half] {
                    let number = next.checked_add_signed(distance);
                    let is_close = distance.abs() <= half;
                    let Some(number) = number.filter(|it| *it < 1 << 62 && is_close) else {
                        continue;
                    };
                    let mask = (1u64 << (8 * bytes)) - 1;
                    let truncated = (number & mask) as u32;
                    assert_eq!(decode(truncated, bytes, next), number, "{bytes} {next}");
                }
            }
        }
    }

    #[test]
    fn a_number_is_always_one_that_there_is() {
        for next in [0, 5, (1 << 62) - 1] {
            for truncated in [0, 1, 0x7f, 0x80, 0xff] {
                assert!(decode(truncated, 1, next) < 1 << 62);
            }
        }
    }
}
