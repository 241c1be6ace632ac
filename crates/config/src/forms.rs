//! JSON schema for values written as text: names or a pattern (ECMA 262). The program accepts
//! nothing outside it; the schema may accept more.

use host::CongestionAlgorithm;
use netem::conditions::Rate;
use netsetup::cidr::Cidr;
use observer::AccessFormat;
use proxy::{Balance, Forwarded, HostPattern, Mode, Protocol, Version};
use serde_json::{Value, json};
use server::{
    Coding, ForwardedField, HostName, HttpVersion, Method, Pattern, RelativePath, Scheme, Template,
};

use crate::connection_memory::ConnectionMemory;
use crate::control_link::NicPlace;
use crate::http::LeastRate;
use crate::log_level::LogLevel;
use crate::log_place::LogPlace;
use crate::origin_place::{OriginChoice, OriginPlace};
use crate::proxy::{BackendAddress, CheckMode, StatusRange};
use crate::quic::{Preferred, ReceiveOption};
use crate::size::{SIZE_UNITS, Size};
use crate::socket_values::{AddressRange, PortRange};
use crate::tcp_values::{EcnOption, KeepaliveOption, PacingOption};
use crate::text::{Form, TIME_UNITS, Time};
use crate::tls_names::{CipherName, VersionName};

fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    let names: Vec<&str> = names.into_iter().collect();
    json!({ "type": "string", "enum": names })
}

fn pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

fn any() -> Value {
    json!({ "type": "string" })
}

fn time_units() -> String {
    let units: Vec<&str> = TIME_UNITS.iter().map(|(unit, _)| *unit).collect();
    units.join("|")
}

fn size() -> Value {
    let units: String = SIZE_UNITS.iter().map(|(unit, _)| *unit).collect();
    pattern(&format!("^\\+?[0-9]+[{units}]?$"))
}

/// Rates, with units in any case.
fn rate() -> String {
    let units = ["kbit", "mbit", "gbit", "bit"].map(in_any_case);
    format!("[0-9.]+({})", units.join("|"))
}

/// Times above zero.
pub(crate) fn time_above_zero() -> String {
    format!("^0*[1-9][0-9]*({})$", time_units())
}

/// A pattern for the text in any case.
fn in_any_case(text: &str) -> String {
    let letters = text
        .chars()
        .map(|letter| match letter.is_ascii_alphabetic() {
            true => format!("[{letter}{}]", letter.to_ascii_uppercase()),
            false => letter.to_string(),
        });
    letters.collect()
}

macro_rules! forms {
    ($($type:ty => $form:expr;)*) => {
        $(
            impl Form for $type {
                fn form() -> Value {
                    $form
                }
            }
        )*
    };
}

forms! {
    AccessFormat => names(["combined", "combined-cache", "json"]);
    AddressRange => pattern("^[0-9A-Fa-f:.]+(/\\+?[0-9]+)?$");
    BackendAddress => pattern("^(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9._-]+):\\+?[0-9]+$");
    Balance => pattern("^(round-robin|least-connections|maglev|maglev-header:.+)$");
    CheckMode => names(CheckMode::NAMES.map(|(_, name)| name));
    Cidr => pattern("^[0-9A-Fa-f:.]+/\\+?[0-9]+$");
    CipherName => {
        let names = CipherName::names().map(in_any_case);
        pattern(&format!("^({})$", names.collect::<Vec<_>>().join("|")))
    };
    Coding => names(Coding::ALL.map(Coding::name));
    CongestionAlgorithm => names(CongestionAlgorithm::ALL.map(CongestionAlgorithm::name));
    ConnectionMemory => size();
    EcnOption => names(EcnOption::NAMES.map(|(_, name)| name));
    Forwarded => names(["off", "x-forwarded-for", "forwarded", "both"]);
    ForwardedField => names(ForwardedField::ALL.map(ForwardedField::name));
    HostName => pattern("^\\S+$");
    HostPattern => pattern("^\\S+$");
    HttpVersion => names(HttpVersion::ALL.map(HttpVersion::name));
    KeepaliveOption => pattern("^(off|\\+?[0-9]+[smh])$");
    LeastRate => pattern(&format!("^(off|{})$", rate()));
    LogLevel => names(LogLevel::names());
    LogPlace => any();
    Mode => names(["http", "tcp"]);
    NicPlace => any();
    OriginChoice => pattern("^(off|[hH][tT][tT][pP][sS]?://.+)$");
    OriginPlace => pattern("^(.+=)?[hH][tT][tT][pP][sS]?://.+$");
    PacingOption => names(PacingOption::NAMES.map(|(_, name)| name));
    Pattern => pattern("^(/[^*]*(\\*[^*]*)?|\\*[^*]*)$");
    PortRange => pattern("^[0-9]+(-[0-9]+)?$");
    Preferred => pattern("^[0-9A-Fa-f:.]+$");
    Rate => pattern(&format!("^{}$", rate()));
    ReceiveOption => names(ReceiveOption::NAMES.map(|(_, name)| name));
    RelativePath => any();
    Method => names(Method::NAMES.map(|(_, name)| name));
    Scheme => names(Scheme::ALL.map(Scheme::name));
    Size => size();
    StatusRange => pattern("^\\+?[0-9]+(-\\+?[0-9]+)?$");
    Template => pattern("^/[^*]*(\\*[^*]*)?$");
    Time => pattern(&format!("^[0-9]+({})$", time_units()));
    Protocol => names(["http/1.1", "h2c"]);
    Version => names(["v1", "v2"]);
    VersionName => names(VersionName::names());
}
