//! Profiles of processes: samples of `perf`, by class.
//!
//! The innermost function decides the class. Release builds have no frame pointers, so callers in
//! user mode are uncertain; classes do not depend on them.

use std::path::Path;

use rustix::process::Pid;
use testbed::Result;

use crate::measure::perf::{Profiler, Stack};
use crate::measure::results::Measures;

/// A class of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Aead,
    HeaderProtection,
    Copies,
    Kernel,
    Control,
}

/// Parts of names of functions that encrypt a single block: the header protection mask and, once
/// per packet, the mask of the GCM tag.
const BLOCK: [&str; 6] = [
    "new_mask",
    "header_protection",
    "aes_hw_encrypt",
    "aes_hw_ecb",
    "AES_ecb",
    "AES_encrypt",
];

/// Parts of names of functions that seal and open: aws-lc's AES-GCM and ChaCha20-Poly1305, and its
/// entry points.
const AEAD: [&str; 8] = [
    "gcm", "aes_hw", "aes_ctr", "ghash", "chacha20", "poly1305", "EVP_AEAD", "aead",
];

/// Parts of names of functions that copy, in user mode and in the kernel.
const COPIES: [&str; 10] = [
    "memcpy",
    "memmove",
    "rep_movs",
    "copyin",
    "copyout",
    "copy_user",
    "copy_from_iter",
    "copy_to_iter",
    "copy_page_to_iter",
    "skb_copy_bits",
];

impl Class {
    pub(super) const ALL: [Class; 5] = [
        Class::Aead,
        Class::HeaderProtection,
        Class::Copies,
        Class::Kernel,
        Class::Control,
    ];

    /// The suffix of its measures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Aead => "aead",
            Class::HeaderProtection => "header_protection",
            Class::Copies => "copies",
            Class::Kernel => "kernel",
            Class::Control => "control",
        }
    }

    fn of(stack: &Stack) -> Class {
        let innermost = stack.functions.first().map_or("", String::as_str);
        let is_one_of = |parts: &[&str]| parts.iter().any(|part| innermost.contains(part));
        if is_one_of(&COPIES) {
            Class::Copies
        } else if stack.is_in_kernel {
            Class::Kernel
        } else if is_one_of(&BLOCK) {
            Class::HeaderProtection
        } else if is_one_of(&AEAD) {
            Class::Aead
        } else {
            Class::Control
        }
    }
}

/// A process by name, and its sampled stacks.
pub(super) type Profile = (&'static str, Vec<Stack>);

/// Profiles processes while a closure runs; returns its result and each process's sampled stacks,
/// none where it cannot be profiled.
pub(super) fn during<T>(
    processes: &[(&'static str, Pid)],
    directory: &Path,
    run: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Profile>)> {
    let begun: Vec<_> = processes
        .iter()
        .map(|&(name, pid)| {
            let file = directory.join(format!("{name}.perf"));
            (name, Profiler::start(pid, &file), file)
        })
        .collect();
    let come_to = run()?;
    let mut found = Vec::new();
    for (name, profiler, file) in begun {
        let stacks = profiler.and_then(|profiler| profiler.stop(&file));
        let stacks = stacks.unwrap_or_else(|failure| {
            eprintln!("{name} is not profiled: {failure}");
            Vec::new()
        });
        found.push((name, stacks));
    }
    Ok((come_to, found))
}

/// Measures from a process's sampled stacks and its CPU time per gigabyte; `None` without samples.
pub(super) fn measures(stacks: &[Stack], cpu_s_per_gb: f64) -> Option<Measures> {
    if stacks.is_empty() {
        return None;
    }
    let mut measures = Measures::from([("samples".to_owned(), stacks.len() as f64)]);
    for class in Class::ALL {
        let is_of = |stack: &&Stack| Class::of(stack) == class;
        let share = stacks.iter().filter(is_of).count() as f64 / stacks.len() as f64;
        let name = class.name();
        measures.insert(format!("percent.{name}"), 100.0 * share);
        measures.insert(format!("cpu_s_per_gb.{name}"), share * cpu_s_per_gb);
    }
    Some(measures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::perf::tests::stack;

    #[test]
    fn the_innermost_function_decides() {
        for (is_in_kernel, functions, class) in [
            (
                false,
                &["aws_lc_0_41_0_aes_gcm_enc_update_vaes_avx512", "seal"][..],
                Class::Aead,
            ),
            (false, &["aws_lc_0_41_0_EVP_AEAD_CTX_open"], Class::Aead),
            (
                false,
                &["aws_lc_0_41_0_aes_hw_encrypt"],
                Class::HeaderProtection,
            ),
            (
                false,
                &["aws_lc_0_41_0_aes_hw_ctr32_encrypt_blocks"],
                Class::Aead,
            ),
            (
                false,
                &["aws_lc_rs::aead::quic::cipher_new_mask"],
                Class::HeaderProtection,
            ),
            (
                false,
                &["__memmove_avx_unaligned_erms", "aws_lc_0_41_0_EVP_AEAD"],
                Class::Copies,
            ),
            (true, &["rep_movs_alternative", "packet_snd"], Class::Copies),
            (true, &["_copy_from_iter"], Class::Copies),
            (true, &["veth_xmit", "packet_snd", "sendmsg"], Class::Kernel),
            (
                false,
                &["poll_transmit", "aws_lc_0_41_0_EVP_AEAD"],
                Class::Control,
            ),
            (false, &[""], Class::Control),
        ] {
            let stack = stack(is_in_kernel, functions);
            assert_eq!(Class::of(&stack), class, "{functions:?}");
        }
    }

    #[test]
    fn shares_are_of_the_process_and_add_up() {
        let stacks = [
            stack(false, &["gcm_seal"]),
            stack(true, &["_copy_from_iter"]),
            stack(true, &["_copy_from_iter"]),
            stack(false, &["poll_transmit"]),
        ];
        let measures = measures(&stacks, 0.2).unwrap();
        assert_eq!(measures["percent.copies"], 50.0);
        assert_eq!(measures["cpu_s_per_gb.aead"], 0.05);
        let sum: f64 = Class::ALL
            .iter()
            .map(|class| measures[&format!("percent.{}", class.name())])
            .sum();
        assert_eq!(sum, 100.0);
        assert_eq!(super::measures(&[], 0.2), None);
    }
}
