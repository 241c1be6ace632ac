//! What users hold of something that all share.
//!
//! A user may hold three quarters of all that others do not hold, so that something is left however
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
    /// Of so many.
    pub(crate) fn of(total: u32) -> Self {
        Self {
            total,
            held: 0,
            of_users: HashMap::new(),
            is_almost_used_up: false,
        }
    }

    /// All that there are.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// How many are held.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// How many more a user may take.
    pub(crate) fn room(&self, user: u32) -> u32 {
        let own = self.of_users.get(&user).copied().unwrap_or_default();
        let others = self.held.saturating_sub(own);
        let unheld = self.total.saturating_sub(others);
        let most = unheld - unheld / 4;
        let free = self.total.saturating_sub(self.held);
        most.saturating_sub(own).min(free)
    }

    /// A user takes so many, which may be more than it should.
    pub(crate) fn take(&mut self, user: u32, count: u32) {
        if count > 0 {
            let own = self.of_users.entry(user).or_default();
            let before = *own;
            *own = own.saturating_add(count);
            self.held = self.held.saturating_add(*own - before);
        }
    }

    /// A user gives so many back.
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
        // Some way below, so that one more and one less is not news each time.
        if self.permille() < 700 {
            self.is_almost_used_up = false;
        }
    }

    /// True when four fifths are held, once until it was less for a while.
    pub(crate) fn is_news(&mut self) -> bool {
        self.permille() >= 800 && !std::mem::replace(&mut self.is_almost_used_up, true)
    }

    /// The user who holds most, and how many.
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
        // Those who hold too much since others came get no more.
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
