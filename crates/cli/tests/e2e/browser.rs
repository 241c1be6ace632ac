//! Chromium without a window, driven over the pipe of its debugger (Chrome DevTools Protocol).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use testbed::process::{Process, run, tool};
use testbed::site::{KnownFile, Site};
use testbed::wait;

use crate::https::Certificate;
use crate::support::SOON;

/// What a browser of [`Page::open_over_quic`] calls the server: an address of IPv6 is no origin to
/// force.
pub(crate) const QUIC_ORIGIN: &str = "https://splitway.test";

/// A page that downloads files at once: of each the protocols, the length and the SHA-256 sum. A
/// browser may learn only with the next request that its connection is over, and then repeats it.
pub(crate) const DOWNLOADS: &str = r#"<!doctype html><title>downloads</title><script>
async function download(name, asksAgain) {
  const ask = () => fetch(name, { cache: "no-store" });
  const response = asksAgain ? await ask().catch(ask) : await ask();
  const bytes = await response.arrayBuffer();
  const sum = await crypto.subtle.digest("SHA-256", bytes);
  const hex = Array.from(new Uint8Array(sum), (byte) => byte.toString(16).padStart(2, "0"));
  const entries = performance.getEntriesByName(response.url);
  const answered = entries.filter((entry) => entry.responseStatus === 200);
  const protocols = new Set(answered.map((entry) => entry.nextHopProtocol));
  return `${[...protocols]} ${bytes.byteLength} ${hex.join("")}`;
}
performance.setResourceTimingBufferSize(2000);
const downloads = (names, asksAgain) =>
  Promise.all(names.map((name) => download(name, asksAgain)));
</script>"#;

/// The SHA-256 sum of a certificate's public key, as Chromium wants it.
fn public_key_sum(certificate: &Certificate) -> String {
    let script = "openssl x509 -in \"$1\" -pubkey -noout | openssl pkey -pubin -outform der \
                  | openssl dgst -sha256 -binary | openssl base64";
    let mut shell = tool("sh -c");
    shell.args([script, "sh"]).arg(&certificate.certificate);
    run(&mut shell).unwrap().trim().to_owned()
}

/// Chromium without a window, which believes this certificate.
pub(crate) fn chromium(site: &Site, certificate: &Certificate, options: &str) -> Command {
    // It ends connections of HTTP/2 and HTTP/3 when an address of the machine becomes usable
    // (ERR_NETWORK_CHANGED).
    wait::until(SOON, "usable addresses", || {
        let tentative = run(&mut tool("ip -o addr show tentative")).unwrap();
        tentative.is_empty().then_some(())
    })
    .unwrap();
    let mut chromium = tool(&format!(
        "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
         --disable-background-networking --disable-component-update {options}"
    ));
    let profile = site.outside().join("profile");
    chromium.arg(format!("--user-data-dir={}", profile.display()));
    chromium.arg(format!(
        "--ignore-certificate-errors-spki-list={}",
        public_key_sum(certificate)
    ));
    chromium
}

/// A page in a browser of its own.
pub(crate) struct Page {
    /// Ends with this value.
    _process: Process,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    commands_sent: u64,
}

impl Page {
    /// An empty one.
    pub(crate) fn open(site: &Site, certificate: &Certificate, options: &str) -> Page {
        Page::of(&chromium(site, certificate, options))
    }

    /// An empty one, whose browser speaks nothing but QUIC with [`QUIC_ORIGIN`], which is this
    /// server.
    pub(crate) fn open_over_quic(
        site: &Site,
        certificate: &Certificate,
        server: SocketAddr,
        options: &str,
    ) -> Page {
        let (_, name) = QUIC_ORIGIN.split_once("//").expect("a URL");
        let mut chromium = chromium(site, certificate, options);
        chromium.args([
            "--enable-quic".to_owned(),
            format!("--origin-to-force-quic-on={name}:{}", server.port()),
        ]);
        let host = match server {
            SocketAddr::V4(server) => server.ip().to_string(),
            SocketAddr::V6(server) => format!("[{}]", server.ip()),
        };
        chromium.arg(format!("--host-resolver-rules=MAP {name} {host}"));
        Page::of(&chromium)
    }

    fn of(chromium: &Command) -> Page {
        // It reads commands from descriptor 3 and writes to 4.
        let mut command = tool("sh -c");
        command.args(["exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2 2>/dev/null", "sh"]);
        command
            .arg(chromium.get_program())
            .arg("--remote-debugging-pipe")
            .args(chromium.get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command).unwrap();
        let commands = process.child().stdin.take().unwrap();
        let answers = BufReader::new(process.child().stdout.take().unwrap());
        let mut page = Page {
            _process: process,
            commands,
            answers,
            session: None,
            commands_sent: 0,
        };
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = page.call(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        page.call("Page.enable", json!({}));
        page
    }

    /// Sends a command, and waits for its result. Events are passed over.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.commands_sent += 1;
        let id = self.commands_sent;
        let mut command = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).unwrap();
        self.commands.flush().unwrap();
        loop {
            let message = self.next();
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn next(&mut self) -> Value {
        let mut message = Vec::new();
        if self.answers.buffer().is_empty() {
            let timeout = Timespec {
                tv_sec: 2 * SOON.as_secs() as i64,
                tv_nsec: 0,
            };
            let answers = self.answers.get_ref();
            let ready = poll(&mut [PollFd::new(answers, PollFlags::IN)], Some(&timeout));
            assert_eq!(ready, Ok(1), "the browser does not answer");
        }
        self.answers.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&message).unwrap()
    }

    /// Empties the browser's cache.
    pub(crate) fn clear_cache(&mut self) {
        self.call("Network.clearBrowserCache", json!({}));
    }

    /// Loads a page, and waits until it has.
    pub(crate) fn load(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
        self.evaluate(
            "new Promise((done) => document.readyState === 'complete' ? done() : \
             addEventListener('load', () => done()))",
        );
    }

    /// What an expression comes to; a promise is waited for.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Loads [`DOWNLOADS`] from this origin, and downloads files at once over this protocol.
    pub(crate) fn downloads(
        &mut self,
        site: &Site,
        (protocol, origin): (&str, &str),
        files: &[&KnownFile],
    ) {
        fs::write(site.root().join("downloads.html"), DOWNLOADS).unwrap();
        self.load(&format!("{origin}/downloads.html"));
        self.download(site, protocol, files, false);
    }

    /// Downloads files at once on the page that is loaded; `asks_again` if its connection may be
    /// over.
    pub(crate) fn download(
        &mut self,
        site: &Site,
        protocol: &str,
        files: &[&KnownFile],
        asks_again: bool,
    ) {
        let names: Vec<&str> = files.iter().map(|file| file.name()).collect();
        let call = format!("downloads({}, {asks_again})", json!(names));
        let shown = self.evaluate(&call);
        let expected = files.iter().map(|file| {
            let sum = run(tool("sha256sum").arg(site.root().join(file.name()))).unwrap();
            format!("{protocol} {} {}", file.size(), &sum[..64])
        });
        assert_eq!(shown, json!(expected.collect::<Vec<_>>()));
    }

    /// The page as a person would see it: a PNG, in base64.
    pub(crate) fn screenshot(&mut self) -> String {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        answer["data"].as_str().expect("a picture").to_owned()
    }
}
