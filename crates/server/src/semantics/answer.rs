//! What of a file a request is answered with.

use std::ops::Range;
use std::time::Duration;

use crate::semantics::conditional::{self, Validators, Verdict};
use crate::semantics::fields::{Field, Head};
use crate::semantics::range::{self, Selection};

/// What a GET or HEAD for a file that is open gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// 200.
    Whole,
    /// 206 with one range.
    Part(Range<u64>),
    /// 206 with several.
    Parts(Vec<Range<u64>>),
    /// 304.
    NotModified,
    /// 412.
    PreconditionFailed,
    /// 416.
    Unsatisfiable,
}

/// Decides, in the order of RFC 9110 §13.2.2: conditions, then `If-Range`, then `Range`.
pub(crate) fn of(
    head: Head<'_>,
    head_only: bool,
    validators: &Validators,
    size_bytes: u64,
    unix_time: Duration,
    ranges_max: usize,
) -> Answer {
    if !head.present().has_conditions() {
        return Answer::Whole;
    }
    match conditional::judge(head, validators) {
        Verdict::NotModified => return Answer::NotModified,
        Verdict::Failed => return Answer::PreconditionFailed,
        Verdict::Proceed => {}
    }
    // RFC 9110 §14.2: a range of a HEAD has no meaning.
    let range = head
        .value(Field::Range)
        .filter(|_| !head_only && conditional::range_applies(head, validators, unix_time));
    let Some(range) = range else {
        return Answer::Whole;
    };
    match range::select(range, size_bytes, ranges_max) {
        Selection::Whole => Answer::Whole,
        Selection::One(range) => Answer::Part(range),
        Selection::Several(ranges) => Answer::Parts(ranges),
        Selection::Unsatisfiable => Answer::Unsatisfiable,
    }
}
