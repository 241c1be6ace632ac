//! The constructor: reads the environment before `main`.

use std::os::fd::BorrowedFd;

use capi::abi::set_default_options;
use capi::client::{
    Options, application_file, receive_notices, reuse_descriptors, tally, watch_for_forks,
};

use crate::attached::complain;
use crate::copies;
use crate::descriptors;
use crate::environment::{
    APPLICATION_FILE, CONNECT, ExecEnvironment, LISTEN, LOADED, SPLICE, TALLY,
};
use crate::exec;
use crate::inherited;
use crate::kernel::kernel;
use crate::library;
use crate::rules::Rules;
use crate::settings::{self, Settings};
use crate::streams;

/// Initializes the library. The loader calls it before `main`: `scripts/library.sh` passes its name
/// to the linker.
#[unsafe(no_mangle)]
pub extern "C" fn splitway_preload_start() {
    let rules = |name: &str| {
        let list = std::env::var(name).unwrap_or_default();
        Rules::parse(&list).unwrap_or_else(|bad| {
            complain(&format!("{name}: {bad}"));
            Rules::default()
        })
    };
    receive_notices(|notice| complain(&notice.to_string()));
    // A failure is retried, and reported, when the process attaches.
    watch_for_forks();
    reuse_descriptors();
    exec::find();
    copies::find();
    library::find();
    streams::find();
    descriptors::look_at_standard();
    settings::init(Settings {
        listen: rules(LISTEN),
        connect: rules(CONNECT),
        splice: rules(SPLICE),
        exec_environment: ExecEnvironment::read(),
    });
    let number = |name: &str| {
        let number = std::env::var(name).ok()?.parse::<libc::c_int>();
        number.ok().filter(|fd| *fd >= 0)
    };
    // SAFETY: the number is not -1. The callee refuses a number that is closed or no such file.
    let file = |name: &str| number(name).map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    if let Some(file) = file(TALLY) {
        let _ = tally::count_in(file);
    }
    if let Some(file) = file(APPLICATION_FILE) {
        let _ = application_file::use_file(file);
    }
    match Options::from_environment() {
        Ok(options) => {
            let joins = options.application.is_some();
            set_default_options(options);
            if joins {
                // The key is secret, and of no use to the program.
                // SAFETY: there is no other thread yet.
                unsafe { libc::unsetenv(c"SPLITWAY_APPLICATION".as_ptr()) };
            }
            if joins || application_file::is_known() {
                inherited::recover();
            }
        }
        Err(error) => complain(&error.to_string()),
    }
    if let Some(fd) = number(LOADED) {
        // SAFETY: the pointer is that of a byte. The kernel rejects a number that is no descriptor.
        unsafe {
            kernel!(SYS_write, fd, [1u8].as_ptr(), 1usize);
            kernel!(SYS_close, fd);
            // So that no child mistakes another descriptor for this one.
            libc::unsetenv(c"SPLITWAY_LOADED".as_ptr());
        }
    }
}
