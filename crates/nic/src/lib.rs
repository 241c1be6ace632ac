//! nic
