//! docs/interop.md.

use std::fmt::Write as _;

pub(super) const UPDATE: &str =
    "UPDATE_INTEROP=1 cargo test -p splitway-cli --test e2e interop_long -- --ignored";

/// A program, its version, its job, and the outcomes.
pub(crate) type Row = Vec<String>;

pub(crate) fn table(heads: &[&str], rows: &[Row]) -> String {
    let mut table = format!(
        "| {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "/")).collect();
        writeln!(table, "| {} |", cells.join(" | ")).unwrap();
    }
    table
}

/// The page.
pub(super) fn page(
    nginx: &str,
    [http1, in_front]: [&[Row]; 2],
    [http2, http3]: [&[Row]; 2],
) -> String {
    let beside = ["Client", "Version", "Job", "Splitway", "nginx"];
    let [http1, in_front] = [http1, in_front].map(|rows| table(&beside, rows));
    let [http2, http3] = [http2, http3].map(|rows| table(&beside[..4], rows));
    format!(
        "# Clients at their jobs

Downloaders, players, package managers and libraries, each at its own job with the requests that it
makes by itself. `e2e/interop_long.rs` makes the tables, in `make test-long`: it compares every
byte that a client gets, but VLC and Chromium's own HLS must show pictures.
[http-peers.md](http-peers.md) has the responses to single requests. To make the tables again:

```sh
{UPDATE}
```

Versions from PyPI, npm, Maven, crates.io and Go are pinned. Those of Debian are the release's.

## HTTP/1.1

Splitway and nginx serve the same files, with variants of texts in gzip; nginx is {nginx}.
*The range* and *the whole file* are both right where a range is requested with an
`Accept-Encoding` that a library adds: nginx ignores the range then.

{http1}
Debian's dnf is built without zchunk, which zckdl stands for.

## In front of a proxy

`splitway proxy` and nginx trust the header, and pass the client's address on to the backend.

{in_front}
## HTTP/2

`e2e/http2_clients_long.rs` has the same clients on links that lose packets and with NIC processes
that die, and more streams. [http2-peers.md](http2-peers.md) has the answers to single frames.

{http2}
## HTTP/3

[quic.md](quic.md#clients) has more cases of some of these clients: loss, migration, early data and
others.

{http3}
Jetty 12.1.5 acknowledges few of the packets behind a lost one, because it sends only when a stream
has bytes to read. Loss is then detected by probes alone, and where these carry new data, as
RFC 9002 §6.2.4 recommends, a download may stall until Jetty's idle timeout of 30 s. On a busy
machine its own socket buffer overflows and loses packets. `findings/` has a reproduction without
Splitway.
"
    )
}

/// The page without the versions that are not pinned.
pub(crate) fn without_versions(page: &str) -> String {
    let mut left = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(" (Debian") {
        let end = before.rfind(' ').map_or(0, |at| at + 1);
        left += &before[..end];
        left += "(Debian";
        rest = after;
    }
    left + rest
}

#[test]
fn versions_of_a_release_are_left_out() {
    let page = "with nginx 1.2-3 (Debian: nginx) | x | 1:2 (Debian: x) | y | 3 (npm: y) |";
    let same = "with nginx 2.0 (Debian: nginx) | x | 7 (Debian: x) | y | 3 (npm: y) |";
    assert_eq!(without_versions(page), without_versions(same));
    assert_ne!(
        without_versions(page),
        without_versions(&page.replace('3', "4"))
    );
}
