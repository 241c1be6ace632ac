//! Which users and groups may attach, and their rights then.

use config::Text;
use config::socket_values::{AddressRange, PortRange};
use serde::{Deserialize, Serialize};

use crate::ipc::messages::SocketRights;

/// The first port that needs no rule.
const UNPRIVILEGED: u16 = 1024;

/// A rule of `[sockets]`, with users and groups by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The user that it is about; none: all.
    pub uid: Option<u32>,
    /// The group that it is about; none: all.
    pub gid: Option<u32>,
    /// Ports that may be listened on; none: those that need no rule.
    pub listen: Option<Vec<Text<PortRange>>>,
    /// Addresses of the stack that may be used; none: all.
    pub addresses: Vec<Text<AddressRange>>,
    /// Connections may be opened.
    pub connect: bool,
}

impl Rule {
    /// The rule that holds where none is configured.
    const UNSAID: Rule = Rule {
        uid: None,
        gid: None,
        listen: None,
        addresses: Vec::new(),
        connect: true,
    };

    fn is_about(&self, uid: u32, gid: u32) -> bool {
        self.uid.is_none_or(|it| it == uid) && self.gid.is_none_or(|it| it == gid)
    }

    fn rights(&self, uid: u32) -> SocketRights {
        let unsaid = || {
            let first = if uid == 0 { 1 } else { UNPRIVILEGED };
            PortRange::new(first, u16::MAX)
                .map(Text)
                .into_iter()
                .collect()
        };
        SocketRights {
            listen: self.listen.clone().unwrap_or_else(unsaid),
            addresses: self.addresses.clone(),
            connect: self.connect,
        }
    }
}

/// The rights of a user's processes; `None` if they may not attach.
pub(crate) fn rights_of(rules: &[Rule], uid: u32, gid: u32) -> Option<SocketRights> {
    if rules.is_empty() {
        return Some(Rule::UNSAID.rights(uid));
    }
    let rule = rules.iter().find(|rule| rule.is_about(uid, gid))?;
    Some(rule.rights(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(texts: &[&str]) -> Option<Vec<Text<PortRange>>> {
        Some(
            texts
                .iter()
                .map(|text| Text(text.parse().unwrap()))
                .collect(),
        )
    }

    #[test]
    fn without_rules_the_low_ports_are_roots() {
        let (user, root) = (rights_of(&[], 1000, 1000), rights_of(&[], 0, 0));
        let (user, root) = (user.unwrap(), root.unwrap());
        assert!(user.connect && root.connect);
        assert_eq!(
            [80, 1023, 1024, 65535].map(|port| user.may_listen(port)),
            [false, false, true, true]
        );
        assert!([1, 80, 1023, 1024, 65535].map(|port| root.may_listen(port)) == [true; 5]);
        assert!(user.may_use("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn the_first_rule_about_a_user_counts() {
        let rules = [
            Rule {
                uid: Some(33),
                listen: ports(&["80", "8000-8001"]),
                addresses: vec![Text("10.77.0.0/24".parse().unwrap())],
                connect: false,
                ..Rule::UNSAID
            },
            Rule {
                gid: Some(33),
                listen: ports(&[]),
                ..Rule::UNSAID
            },
            Rule {
                uid: Some(7),
                gid: Some(8),
                ..Rule::UNSAID
            },
            Rule {
                uid: Some(33),
                ..Rule::UNSAID
            },
        ];
        let web = rights_of(&rules, 33, 33).unwrap();
        assert!(!web.connect);
        assert_eq!(
            [80, 81, 8001, 8002].map(|port| web.may_listen(port)),
            [true, false, true, false]
        );
        assert!(web.may_use("10.77.0.9".parse().unwrap()));
        assert!(!web.may_use("fd77::2".parse().unwrap()));
        let group = rights_of(&rules, 1, 33).unwrap();
        assert!(group.connect && !group.may_listen(5000));
        assert!(rights_of(&rules, 7, 8).unwrap().may_listen(5000));
        for (uid, gid) in [(7, 7), (8, 8), (0, 0)] {
            assert_eq!(rights_of(&rules, uid, gid), None, "{uid} {gid}");
        }
    }
}
