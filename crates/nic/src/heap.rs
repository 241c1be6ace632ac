//! Returns free heap memory to the kernel.

/// Returns free memory amid the heap, which takes milliseconds. Free memory at its end is returned
/// without this.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: malloc_trim(3) may be called by any thread at any time: it takes the locks of the
    // arenas, and touches free memory alone.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing: this C library has no malloc_trim(3).
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
