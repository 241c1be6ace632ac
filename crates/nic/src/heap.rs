//! Free heap memory, for the kernel.

/// Gives back what is free amid the heap, which takes milliseconds. What is free at its end goes
/// back without this.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: malloc_trim(3) may be called by any thread at any time: it takes the locks of the
    // arenas, and touches free memory alone.
    unsafe { libc::malloc_trim(0) };
}

/// Gives back what is free amid the heap, as far as this C library does not on its own.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
