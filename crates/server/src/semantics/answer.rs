//! The part of a file that answers a request.

use std::ops::Range;
use std::time::Duration;

use crate::semantics::conditional::{self, Validators, Verdict};
use crate::semantics::fields::{Field, Head};
use crate::semantics::range::{self, Limits, Selection};

/// The answer to a GET or HEAD for an open file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// 200.
    Whole,
    /// 200: the request has more ranges than a response may have.
    TooManyRanges,
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

/// An open file.
#[derive(Clone, Copy)]
pub(crate) struct Opened<'a> {
    pub(crate) validators: &'a Validators,
    pub(crate) size_bytes: u64,
    /// The file has a content coding.
    pub(crate) is_coded: bool,
}

/// Decides, in the order of RFC 9110 §13.2.2: conditions, then `If-Range`, then `Range`.
pub(crate) fn of(
    head: Head<'_>,
    head_only: bool,
    file: Opened<'_>,
    unix_time: Duration,
    limits: Limits,
) -> Answer {
    if !head.present().has_conditions() {
        return Answer::Whole;
    }
    match conditional::judge(head, file.validators) {
        Verdict::NotModified => return Answer::NotModified,
        Verdict::Failed => return Answer::PreconditionFailed,
        Verdict::Proceed => {}
    }
    // RFC 9110 §14.2: `Range` has no meaning in a HEAD.
    let range = head.value(Field::Range).filter(|_| {
        !head_only
            && conditional::range_applies(head, file.validators, unix_time)
            && (!file.is_coded || takes_coded_part(head, file.validators))
    });
    let Some(range) = range else {
        return Answer::Whole;
    };
    match range::select(range, file.size_bytes, limits) {
        Selection::Whole => Answer::Whole,
        Selection::TooMany => Answer::TooManyRanges,
        Selection::One(range) => Answer::Part(range),
        // No field states whether a coding applies to a part or to the whole.
        Selection::Several(_) if file.is_coded => Answer::Whole,
        Selection::Several(ranges) => Answer::Parts(ranges),
        Selection::Unsatisfiable => Answer::Unsatisfiable,
    }
}

/// True if the client can use a part of coded content: it has another part of the same version, or
/// does not decode. A client that decodes responses cannot decode a part.
fn takes_coded_part(head: Head<'_>, validators: &Validators) -> bool {
    !head.present().has(Field::AcceptEncoding) || conditional::names_version(head, validators)
}
