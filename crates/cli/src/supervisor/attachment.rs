//! The interface of the stack: an existing one, or a veth pair created for it.

use std::cell::RefCell;
use std::net::IpAddr;

use failure::Failure;
use netsetup::address_lock::{AddressLock, AddressLockError};
use netsetup::cidr::Cidr;
use netsetup::device::{self, Inventory};
use netsetup::veth::{self, INNER_NAME, OUTER_NAME, VethPair};
use sandbox::privileges;

use crate::supervisor::shared_interface::SharedInterface;
use config::{Config, Network};
use processes::ipc::shared_link::SharedLink;

/// See the [module documentation](self).
pub(crate) struct Attachment {
    /// The interface that the host and NIC processes use.
    pub(crate) device: String,
    /// Empty if they are shared.
    addresses: Vec<Cidr>,
    gateways: Vec<IpAddr>,
    pair: Option<VethPair>,
    /// The interface, if the kernel has its addresses as well. They may change.
    pub(crate) shared: Option<RefCell<SharedInterface>>,
    _claims: Vec<AddressLock>,
}

impl Attachment {
    pub(crate) fn attach(config: &Config) -> Result<Self, Failure> {
        match &config.network.interface {
            Some(device) if config.network.share => Ok(Self {
                device: device.clone(),
                addresses: Vec::new(),
                gateways: Vec::new(),
                pair: None,
                shared: Some(RefCell::new(SharedInterface::take(device, config)?)),
                _claims: Vec::new(),
            }),
            Some(device) => Self::attach_to_device(device, config),
            None => Self::attach_to_pair(config),
        }
    }

    fn attach_to_device(device: &str, config: &Config) -> Result<Self, Failure> {
        let inventory = Inventory::take()?;
        let interface = inventory.device(device)?;
        let addresses = config.network.addresses.iter();
        let addresses: Vec<Cidr> = addresses.map(|address| address.0).collect();
        inventory.check_addresses(&addresses)?;
        device::check_gateways(&config.network.gateways, &addresses)?;
        privileges::require(
            &format!("sending packets on {device}"),
            privileges::FOR_DEVICE,
        )?;
        let claim = |cidr: &Cidr| {
            AddressLock::acquire(format!("{} {}", interface.index, cidr.address)).map_err(|error| {
                claim_failed(config, cidr.address, &error).remedy(
                    "Give this one an address of its own with --addr, or end the other one.",
                )
            })
        };
        let claims = addresses.iter().map(claim).collect::<Result<_, _>>()?;
        Ok(Self {
            device: device.to_owned(),
            addresses,
            gateways: config.network.gateways.clone(),
            pair: None,
            shared: None,
            _claims: claims,
        })
    }

    fn attach_to_pair(config: &Config) -> Result<Self, Failure> {
        privileges::require(
            &format!("making the link {OUTER_NAME}"),
            privileges::FOR_VETH_PAIR,
        )?;
        let claim = AddressLock::acquire(OUTER_NAME).map_err(|error| {
            claim_failed(config, veth::STACK_V4.address, &error).remedy(format!(
                "Both would make the link {OUTER_NAME}. Give this one an interface and an address \
                 of its own\nwith --dev and --addr, or end the other one."
            ))
        })?;
        let pair = VethPair::create(config.network.mtu.unwrap_or(Network::MTU))?;
        Ok(Self {
            device: INNER_NAME.to_owned(),
            addresses: pair.stack_addresses.clone(),
            gateways: config.network.gateways.clone(),
            pair: Some(pair),
            shared: None,
            _claims: vec![claim],
        })
    }

    /// Returns whether the stack has no IPv6 address although it could.
    pub(crate) fn lacks_ipv6(&self) -> bool {
        self.pair.is_some() && !self.addresses.iter().any(|cidr| cidr.address.is_ipv6())
    }

    /// Returns the present addresses.
    pub(crate) fn addresses(&self) -> Vec<Cidr> {
        match &self.shared {
            Some(shared) => shared.borrow().addressing().addresses.clone(),
            None => self.addresses.clone(),
        }
    }

    /// Returns the present gateways.
    pub(crate) fn gateways(&self) -> Vec<IpAddr> {
        match &self.shared {
            Some(shared) => shared.borrow().addressing().gateways.clone(),
            None => self.gateways.clone(),
        }
    }

    /// Returns the stack's ports, if the kernel has its addresses as well.
    pub(crate) fn shared_link(&self) -> Option<SharedLink> {
        let shared = self.shared.as_ref();
        shared.map(|shared| shared.borrow().link().clone())
    }

    pub(crate) fn ip_addresses(&self) -> Vec<IpAddr> {
        self.addresses().iter().map(|cidr| cidr.address).collect()
    }

    pub(crate) fn remove(self) -> Result<(), Failure> {
        self.pair.map_or(Ok(()), VethPair::remove)
    }
}

/// Reports a claim that failed. A stack owns all ports of its addresses, so two stacks with one
/// address are refused even if their ports differ.
fn claim_failed(config: &Config, address: IpAddr, error: &AddressLockError) -> Failure {
    let ports = config.ports(false).chain(config.ports(true));
    let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
    let what = match &ports[..] {
        // The stack serves programs only.
        [] => format!("address {address}"),
        ports => format!("port {} of {address}", ports.join(", ")),
    };
    match error {
        AddressLockError::Taken(_) => Failure::input(what, format!("the address is {error}")),
        AddressLockError::System(_) => Failure::broken(what, error),
    }
}
