//! What of a file a request is answered with.

use std::ops::Range;
use std::time::Duration;

use crate::semantics::conditional::{self, Validators, Verdict};
use crate::semantics::fields::{Field, Head};
use crate::semantics::range::{self, Limits, Selection};

/// What a GET or HEAD for a file that is open gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// 200.
    Whole,
    /// 200: more ranges are asked for than a response may have.
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

/// A file that is open.
#[derive(Clone, Copy)]
pub(crate) struct Opened<'a> {
    pub(crate) validators: &'a Validators,
    pub(crate) size_bytes: u64,
    /// It has a content coding.
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
    // RFC 9110 §14.2: a range of a HEAD has no meaning.
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
        // Nothing says whether a coding is that of a part or of what the parts come from.
        Selection::Several(_) if file.is_coded => Answer::Whole,
        Selection::Several(ranges) => Answer::Parts(ranges),
        Selection::Unsatisfiable => Answer::Unsatisfiable,
    }
}

/// True if the client can make use of a part of coded content: it has another part of this very
/// version, or does not decode. One that decodes what it gets cannot decode a part.
fn takes_coded_part(head: Head<'_>, validators: &Validators) -> bool {
    !head.present().has(Field::AcceptEncoding) || conditional::names_version(head, validators)
}
