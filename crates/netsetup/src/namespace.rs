//! A user and network namespace for a process that has no privileges, or a reason why there is
//! none.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};
use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;

use crate::netlink::Netlink;
use failure::Failure;
use sandbox::privileges;

/// Every namespace has this interface, and it comes first.
const LOOPBACK_INDEX: u32 = 1;

/// Moves the process, which must have one thread, into namespaces of its own, and takes the
/// loopback interface up there. Returns a description of the namespaces.
pub fn enter() -> Result<&'static str, Failure> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let entered = enter_as_root_of_a_user_namespace(uid.as_raw(), gid.as_raw());
    let kind = match entered {
        Ok(()) => "a user and network namespace",
        // A privileged process needs no user namespace, where they are forbidden.
        Err(_) if is_privileged() && unshare(CloneFlags::CLONE_NEWNET).is_ok() => {
            "a network namespace"
        }
        Err((step, error)) => return Err(forbidden(step, &error, &Settings::read())),
    };
    let taken_up = Netlink::open().and_then(|mut netlink| netlink.set_up(LOOPBACK_INDEX));
    match taken_up {
        Ok(()) => Ok(kind),
        // AppArmor lets the namespace be created, and then denies the privileges in it.
        Err(error) => Err(forbidden(
            "taking the loopback interface up in it",
            &error.error,
            &Settings::read(),
        )),
    }
}

fn is_privileged() -> bool {
    privileges::effective().is_ok_and(|effective| effective.contains(CapabilitySet::SYS_ADMIN))
}

fn enter_as_root_of_a_user_namespace(uid: u32, gid: u32) -> Result<(), (&'static str, io::Error)> {
    // A program with file capabilities does not own its /proc/self, and could not set its mapping.
    if !matches!(
        rustix::process::dumpable_behavior(),
        Ok(DumpableBehavior::Dumpable)
    ) {
        let error = io::Error::from(io::ErrorKind::PermissionDenied);
        return Err(("creating a user namespace with file capabilities", error));
    }
    let step = "creating a user and network namespace";
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
        .map_err(|errno| (step, errno.into()))?;
    // user_namespaces(7): without a privilege outside, a process maps itself, and gives setgroups
    // up.
    fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
        .map_err(|error| ("becoming root of the user namespace", error))
}

/// Settings that may forbid it; each is a number in a file below `/proc/sys`, if the kernel has it.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    /// `kernel.apparmor_restrict_unprivileged_userns` (Ubuntu 23.10 and later).
    apparmor_restrict: Option<u64>,
    /// `kernel.unprivileged_userns_clone` (Debian's kernels).
    userns_clone: Option<u64>,
    /// `user.max_user_namespaces`.
    max_user_namespaces: Option<u64>,
    /// `user.max_net_namespaces`.
    max_net_namespaces: Option<u64>,
}

impl Settings {
    fn read() -> Self {
        let number = |name: &str| {
            fs::read_to_string(format!("/proc/sys/{name}"))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        Self {
            apparmor_restrict: number("kernel/apparmor_restrict_unprivileged_userns"),
            userns_clone: number("kernel/unprivileged_userns_clone"),
            max_user_namespaces: number("user/max_user_namespaces"),
            max_net_namespaces: number("user/max_net_namespaces"),
        }
    }

    /// Returns commands that remove the obstacles.
    fn remedies(&self) -> Vec<&'static str> {
        let candidates = [
            (
                self.apparmor_restrict == Some(1),
                "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (
                self.userns_clone == Some(0),
                "sudo sysctl kernel.unprivileged_userns_clone=1",
            ),
            (
                self.max_user_namespaces == Some(0),
                "sudo sysctl user.max_user_namespaces=10000",
            ),
            (
                self.max_net_namespaces == Some(0),
                "sudo sysctl user.max_net_namespaces=10000",
            ),
        ];
        candidates
            .iter()
            .filter(|(applies, _)| *applies)
            .map(|(_, command)| *command)
            .collect()
    }
}

fn forbidden(step: &str, error: &io::Error, settings: &Settings) -> Failure {
    let remedies = settings.remedies();
    let allow = if remedies.is_empty() {
        "A container or a security module seems to forbid it to processes without privileges."
            .to_owned()
    } else {
        format!(
            "This machine forbids it to processes without privileges. Allow it until the next \
             start:\n  {}",
            remedies.join("\n  ")
        )
    };
    Failure::input(step, error).remedy(format!(
        "{allow}\nOr run the demonstration with privileges, still in a namespace of its own: sudo \
         splitway demo"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: Settings) -> String {
        let failure = forbidden(
            "creating",
            &io::Error::from(io::ErrorKind::PermissionDenied),
            &settings,
        );
        assert_eq!(failure.exit_code(), 2);
        failure.to_string()
    }

    #[test]
    fn the_setting_that_stands_in_the_way_is_named() {
        let none = Settings::default();
        let open = Settings {
            apparmor_restrict: Some(0),
            userns_clone: Some(1),
            max_user_namespaces: Some(9),
            ..none
        };
        assert!(!text(open).contains("sysctl") && text(open).contains("container"));
        assert!(
            text(Settings {
                apparmor_restrict: Some(1),
                ..none
            })
            .contains("apparmor_restrict_unprivileged_userns=0")
        );
        assert!(
            text(Settings {
                userns_clone: Some(0),
                ..none
            })
            .contains("unprivileged_userns_clone=1")
        );
        assert!(
            text(Settings {
                max_user_namespaces: Some(0),
                ..none
            })
            .contains("max_user_namespaces=")
        );
        assert!(text(none).contains("sudo splitway demo"));
    }
}
