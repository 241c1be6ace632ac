//! Shares of users in a common resource.
//!
//! A user may hold three quarters of all that others do not hold, so that something is left even if
//! many users take as much as they can: the dynamic thresholds of Choudhury and Hahne (IEEE/ACM
//! Transactions on Networking 6(2), 1998), with a factor of 3.

use std::collections::HashMap;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Shares {
    total: u32,
    held: u32,
    of_users: HashMap<u32, u32>,
    is_almost_used_up: bool,
}

impl Shares {
    /// Returns the shares in a resource of `total` units, none held.
    pub(crate) fn of(total: u32) -> Self {
        Self {
            total,
            held: 0,
            of_users: HashMap::new(),
            is_almost_used_up: false,
        }
    }

    /// Returns the total number of units.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Returns the number of held units.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Returns how many more units a user may take.
    pub(crate) fn room(&self, user: u32) -> u32 {
        let own = self.of_users.get(&user).copied().unwrap_or_default();
        let others = self.held.saturating_sub(own);
        let unheld = self.total.saturating_sub(others);
        let most = unheld - unheld / 4;
        let free = self.total.saturating_sub(self.held);
        most.saturating_sub(own).min(free)
    }

    /// Takes `count` units for a user, even beyond its share.
    pub(crate) fn take(&mut self, user: u32, count: u32) {
        if count > 0 {
            let own = self.of_users.entry(user).or_default();
            let before = *own;
            *own = own.saturating_add(count);
            self.held = self.held.saturating_add(*own - before);
        }
    }

    /// Returns `count` units of a user.
    pub(crate) fn give_back(&mut self, user: u32, count: u32) {
        let Some(own) = self.of_users.get_mut(&user) else {
            return;
        };
        let count = count.min(*own);
        *own -= count;
        self.held -= count;
        if *own == 0 {
            self.of_users.remove(&user);
        }
        // Well below, so that small changes are not reported each time.
        if self.permille() < 700 {
            self.is_almost_used_up = false;
        }
    }

    /// Returns true when four fifths are held, once until the share has fallen clearly.
    pub(crate) fn is_news(&mut self) -> bool {
        self.permille() >= 800 && !std::mem::replace(&mut self.is_almost_used_up, true)
    }

    /// Returns the user with the most units, and their number.
    pub(crate) fn largest(&self) -> Option<(u32, u32)> {
        let users = self.of_users.iter().map(|(&user, &count)| (user, count));
        users.max_by_key(|&(_, count)| count)
    }

    fn permille(&self) -> u64 {
        u64::from(self.held) * 1000 / u64::from(self.total.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &mut Shares, user: u32) -> u32 {
        let mut taken = 0;
        while shares.room(user) > 0 {
            shares.take(user, 1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn some_are_left_for_another_user() {
        let mut shares = Shares::of(16_000);
        assert_eq!(take_all(&mut shares, 1), 12_000);
        assert_eq!(take_all(&mut shares, 2), 3_000);
        assert_eq!(take_all(&mut shares, 3), 750);
        // Users above their share since others came get no more.
        assert_eq!((shares.room(1), shares.room(2)), (0, 0));
        assert!(shares.room(4) > 100);
        shares.give_back(1, 12_000);
        assert!(shares.room(2) > 3_000);
        assert_eq!(shares.held(), 3_750);
    }

    #[test]
    fn no_more_are_given_back_than_were_taken() {
        let mut shares = Shares::of(10);
        shares.take(1, 3);
        shares.give_back(1, 5);
        shares.give_back(2, 5);
        assert_eq!((shares.held(), shares.room(1)), (0, 8));
        shares.take(1, 20);
        assert_eq!((shares.held(), shares.room(1), shares.room(2)), (20, 0, 0));
    }

    #[test]
    fn four_fifths_are_news_once() {
        let mut shares = Shares::of(10);
        shares.take(1, 5);
        shares.take(2, 2);
        assert!(!shares.is_news());
        shares.take(1, 1);
        assert!(shares.is_news() && !shares.is_news());
        assert_eq!(shares.largest(), Some((1, 6)));
        shares.give_back(1, 1);
        shares.take(1, 1);
        assert!(!shares.is_news());
        shares.give_back(1, 2);
        shares.take(1, 2);
        assert!(shares.is_news());
    }
}
