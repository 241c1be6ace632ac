//! Counters, each declared once: field, unit, kind and help.
//!
//! [`counters!`] makes a struct of `u64` fields. Sums, reports, metrics and their documentation
//! come from the declaration; nothing else lists the fields. The unit is the end of a name:
//! `_us` is microseconds, `_bytes` bytes, and without either it is a number of things.
//!
//! ```
//! counters::counters! {
//!     /// What a door has seen.
//!     pub struct Counters {
//!         /// Visitors let in.
//!         visitors: Counter,
//!         /// Visitors inside.
//!         inside: Gauge,
//!         /// The longest visit.
//!         visit_max_us: Maximum,
//!     }
//! }
//!
//! let mut all = Counters { visitors: 2, inside: 1, visit_max_us: 70 };
//! all.add(&Counters { visitors: 1, inside: 1, visit_max_us: 50 });
//! assert_eq!(all, Counters { visitors: 3, inside: 2, visit_max_us: 70 });
//! assert_eq!(all.rows().next(), Some(("visitors", 3)));
//! assert_eq!(Counters::ALL[0].help(), "Visitors let in.");
//! ```
#![forbid(unsafe_code)]

/// What kind of number a counter is, and with it the sum of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows, until its process starts again; two add up.
    Counter,
    /// Goes up and down, or is the most of something that adds up; two add up.
    Gauge,
    /// The most so far; of two, the larger.
    Maximum,
}

impl Kind {
    /// What two places have counted together. It saturates.
    pub fn sum(self, one: u64, other: u64) -> u64 {
        match self {
            Self::Counter | Self::Gauge => one.saturating_add(other),
            Self::Maximum => one.max(other),
        }
    }
}

/// The declaration of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The name of the field, with its unit at the end.
    pub name: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// The field's documentation, with space around it; see [`Counter::help`].
    #[doc(hidden)]
    pub doc: &'static str,
}

impl Counter {
    /// Returns the description of the counter, in one paragraph.
    pub fn help(&self) -> &'static str {
        self.doc.trim()
    }
}

/// Declares a struct of counters; see the [crate's documentation](crate).
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Counters:ident {
            $($(#[doc = $doc:literal])+ $name:ident: $kind:ident),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $visibility struct $Counters { $($(#[doc = $doc])+ pub $name: u64),+ }

        impl $Counters {
            /// The declarations of all fields, in their order.
            pub const ALL: &'static [$crate::Counter] = &[$($crate::Counter {
                name: stringify!($name),
                kind: $crate::Kind::$kind,
                doc: concat!($($doc),+),
            }),+];

            /// Names and values, in the order of declaration.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Adds what another place has counted; see [`Kind::sum`](counters::Kind::sum).
            #[allow(dead_code, reason = "not every struct of counters has a sum")]
            pub fn add(&mut self, other: &Self) {
                $(self.$name = $crate::Kind::$kind.sum(self.$name, other.$name);)+
            }
        }
    };
}
