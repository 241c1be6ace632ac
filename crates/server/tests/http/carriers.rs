//! One request over each version of HTTP, with and without TLS.

use server::{HttpVersion, Scheme};

use crate::http2::client::Client;
use crate::http3::client::headers;
use crate::lab::{Lab, Response};

/// What carries a request: a version and a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carrier(pub(crate) HttpVersion, pub(crate) Scheme);

/// All carriers. HTTP/2 without TLS needs `http2_prior_knowledge`.
pub(crate) const CARRIERS: [Carrier; 5] = [
    Carrier(HttpVersion::Http1, Scheme::Http),
    Carrier(HttpVersion::Http1, Scheme::Https),
    Carrier(HttpVersion::Http2, Scheme::Http),
    Carrier(HttpVersion::Http2, Scheme::Https),
    Carrier(HttpVersion::Http3, Scheme::Https),
];

/// Sends a request for a host, on a connection of its own.
pub(crate) fn ask(
    lab: &mut Lab,
    carrier: Carrier,
    [method, host, target]: [&str; 3],
    more: &[(&str, &str)],
) -> Response {
    let Carrier(version, scheme) = carrier;
    let pseudo = [
        (":method", method),
        // It decides nothing.
        (":scheme", "https"),
        (":authority", host),
        (":path", target),
    ];
    let fields = [&pseudo, more].concat();
    match version {
        HttpVersion::Http1 => {
            let stream = match scheme {
                Scheme::Http => lab.connect(),
                Scheme::Https => lab.connect_with_alpn("http/1.1"),
            };
            let more = more.iter();
            let lines: String = more
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect();
            let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n");
            lab.ask(stream, &request)
        }
        HttpVersion::Http2 => {
            let mut client = match scheme {
                Scheme::Http => Client::open_on(lab, Client::without_tls),
                Scheme::Https => Client::open(lab),
            };
            let id = client.send_request(lab, &fields, true);
            client.response(lab, id)
        }
        HttpVersion::Http3 => {
            let connection = lab.http3();
            let stream = lab.send_all(connection, &headers(&fields));
            lab.response3(stream)
        }
    }
}
