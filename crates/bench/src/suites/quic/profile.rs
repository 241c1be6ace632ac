//! What part of its time the host process seals and opens packets.

use std::path::Path;

use testbed::{Failure, Result};

use crate::measure::perf::{Profiler, Stack};
use crate::measure::run::Server;

/// Parts of names of functions that do: those of aws-lc for AES-GCM and ChaCha20-Poly1305, and its
/// entries.
const AEAD: [&str; 6] = ["gcm", "aes_hw", "aes_ctr", "ghash", "chacha20", "EVP_AEAD"];

/// Profiles the first process of a server during a run: the part of its samples that lies within
/// AEAD, in percent; `None` where nothing can be profiled.
pub(super) fn aead_share(
    server: &Server,
    file: &Path,
    run: impl FnOnce() -> Result<()>,
) -> Result<Option<f64>> {
    let (_, host) = server
        .processes
        .first()
        .copied()
        .ok_or_else(|| Failure::new(format!("{} has no process", server.name)))?;
    let profiler = match Profiler::start(host, file) {
        Ok(profiler) => profiler,
        Err(failure) => {
            eprintln!("the host process is not profiled: {failure}");
            run()?;
            return Ok(None);
        }
    };
    run()?;
    match profiler.stop(file) {
        Ok(stacks) => Ok(Some(share(&stacks))),
        Err(failure) => {
            eprintln!("the host process is not profiled: {failure}");
            Ok(None)
        }
    }
}

fn share(stacks: &[Stack]) -> f64 {
    let is_aead = |stack: &&Stack| {
        let innermost = stack.functions.first();
        innermost.is_some_and(|function| AEAD.iter().any(|part| function.contains(part)))
    };
    100.0 * stacks.iter().filter(is_aead).count() as f64 / stacks.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_computes_is_counted() {
        let stack = |functions: &[&str]| Stack {
            functions: functions.iter().map(|&it| it.to_owned()).collect(),
        };
        let stacks = [
            stack(&["aws_lc_0_41_0_aes_gcm_dec_update_vaes_avx512", "quic::open"]),
            stack(&["memcpy", "aws_lc_0_41_0_EVP_AEAD_CTX_open"]),
            stack(&["poll_transmit"]),
            stack(&["poll_transmit"]),
        ];
        assert_eq!(share(&stacks), 25.0);
        assert!(share(&[]).is_nan());
    }
}
