//! The NIC stacks that a server is to have: a NIC process of its own, one that runs already, or
//! another machine.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use failure::Failure;
use netsetup::device::Inventory;
use netsetup::seqpacket;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use config::Config;
use config::control_link::{MacAddress, NicPlace};
use config::key_file;
use config::root::check_root;

/// Where the content comes from.
pub(crate) enum NicSource {
    /// A NIC process of our own reads below this directory.
    Root(PathBuf),
    /// A NIC process that is there already, to which this socket is connected.
    Attached {
        path: PathBuf,
        /// `None`: it is not there yet.
        socket: Option<OwnedFd>,
    },
    /// A NIC stack on another machine.
    Remote {
        interface: String,
        peer: MacAddress,
        key_file: PathBuf,
    },
}

impl NicSource {
    /// The NIC stacks that were asked for, in the order of their numbers. One that is missing is an
    /// error only if there is no other.
    pub(crate) fn check_all(config: &Config) -> Result<Vec<Self>, Failure> {
        let nic = &config.nic;
        let mut sources = Vec::new();
        if let Some(root) = &nic.root {
            check_root(root)?;
            sources.push(Self::Root(root.clone()));
        }
        let is_alone = nic.root.is_none() && nic.attach.len() == 1;
        for place in &nic.attach {
            sources.push(Self::check(&place.0, nic.key_file.as_deref(), is_alone)?);
        }
        Ok(sources)
    }

    fn check(place: &NicPlace, key_file: Option<&Path>, is_alone: bool) -> Result<Self, Failure> {
        match place {
            NicPlace::Socket(path) => {
                let socket = match connect(path) {
                    Err(failure) if is_alone => return Err(failure),
                    connected => connected.ok(),
                };
                Ok(Self::Attached {
                    path: path.clone(),
                    socket,
                })
            }
            NicPlace::Ethernet { interface, peer } => {
                let key_file = key_file.unwrap_or(Path::new(""));
                key_file::read(key_file)?;
                Inventory::take()?.device(interface)?;
                Ok(Self::Remote {
                    interface: interface.clone(),
                    peer: *peer,
                    key_file: key_file.to_owned(),
                })
            }
        }
    }

    /// What people call the NIC stack.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Root(_) => "NIC process".to_owned(),
            Self::Attached { path, .. } => format!("NIC process at {}", path.display()),
            Self::Remote {
                interface, peer, ..
            } => format!("NIC stack at {peer} on {interface}"),
        }
    }
}

/// Connects to a NIC process that runs alone.
fn connect(path: &Path) -> Result<OwnedFd, Failure> {
    let what = format!("NIC socket {}", path.display());
    let remedy = format!(
        "Start one with `splitway nic DIR --dev IFACE --socket {}`.",
        path.display()
    );
    let failed = |errno| match errno {
        Errno::NOENT => Failure::input(&what, "there is none").remedy(&remedy),
        Errno::CONNREFUSED => {
            Failure::input(&what, "no NIC process listens there any more").remedy(&remedy)
        }
        Errno::ACCESS => Failure::input(&what, errno)
            .remedy("Only the user who runs the NIC process may connect."),
        errno => Failure::input(&what, errno),
    };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    seqpacket::connect(&address).map_err(failed)
}
