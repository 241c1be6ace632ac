//! A browser plays the example's video over HTTPS, and jumps about in it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

use testbed::http::be_patient;
use testbed::namespace::isolated_long;
use testbed::process::Process;
use testbed::wait;

use crate::https::{Certificate, serve_tls};
use crate::support::SOON;
use crate::tls_long::chromium;

/// A page that jumps to three places of a video, plays it to its end from the last one, and tells a listener what it has
/// seen: a line for each place with the time and a sum of the picture, then the time and the frames that were shown.
const PAGE: &str = r#"<!doctype html><title>player</title>
<video id="video" muted playsinline src="video.mp4"></video><script>
const tell = (text) => fetch("http://LISTENER/?" + encodeURIComponent(text), { mode: "no-cors" });
(async () => {
  const video = document.getElementById("video");
  const happens = (name) => new Promise((resolve) => video.addEventListener(name, resolve, { once: true }));
  const picture = async () => {
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    const context = canvas.getContext("2d");
    context.drawImage(video, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", pixels));
    return Array.from(sum.slice(0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
  };
  video.addEventListener("error", () => tell("error " + video.error.message));
  if (video.readyState < 1) await happens("loadedmetadata");
  const seen = [];
  for (const share of [0, 0.5, 0.9]) {
    const seeked = happens("seeked");
    video.currentTime = video.duration * share;
    await seeked;
    seen.push(`${(video.currentTime / video.duration).toFixed(2)} ${await picture()}`);
  }
  const ended = happens("ended");
  const frames = () => video.getVideoPlaybackQuality().totalVideoFrames;
  const before = frames();
  await video.play();
  await ended;
  seen.push(`${(video.currentTime / video.duration).toFixed(2)} ${frames() - before}`);
  await tell(seen.join("-"));
})().catch((error) => tell("error " + error));
</script>
"#;

/// What a page tells in the query of a request.
fn told(mut stream: TcpStream) -> String {
    be_patient(&stream).unwrap();
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "half a request");
        request.extend_from_slice(&buffer[..count]);
    }
    stream
        .write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        .unwrap();
    let request = String::from_utf8(request).unwrap();
    let (_, query) = request.split_once('?').unwrap();
    query.split(' ').next().unwrap().replace("%20", " ")
}

#[test]
#[ignore = "needs a browser, which takes long to install"]
fn chromium_plays_a_video_and_jumps_about_in_it() {
    isolated_long(|site| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let page = PAGE.replace("LISTENER", &listener.local_addr().unwrap().to_string());
        fs::write(site.root().join("play.html"), page).unwrap();
        let video = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/site/video.mp4");
        fs::copy(video, site.root().join("video.mp4")).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        // Slower than the video is long, so that jumps need ranges of their own.
        let options = ["--rate-per-connection", "2mbit"];
        let _splitway = serve_tls(&site, &[&certificate], &options);
        listener.set_nonblocking(true).unwrap();
        for address in ["10.77.0.2", "[fd77::2]"] {
            let mut browser = chromium(
                &site,
                &certificate,
                "--autoplay-policy=no-user-gesture-required",
            );
            browser.arg(format!("https://{address}/play.html"));
            let _browser =
                Process::spawn(browser.stdin(Stdio::null()).stderr(Stdio::null())).unwrap();
            let (stream, _) = wait::until(2 * SOON, "the page telling what it saw", || {
                listener.accept().ok()
            })
            .unwrap();
            stream.set_nonblocking(false).unwrap();
            let seen = told(stream);
            let seen: Vec<(&str, &str)> = seen
                .split('-')
                .map(|line| line.split_once(' ').expect(&seen))
                .collect();
            let places: Vec<&str> = seen.iter().map(|(place, _)| *place).collect();
            assert_eq!(places, ["0.00", "0.50", "0.90", "1.00"], "{seen:?}");
            assert!(seen[0].1 != seen[1].1 && seen[1].1 != seen[2].1, "{seen:?}");
            let frames: u32 = seen[3].1.parse().unwrap();
            assert!(frames >= 10, "{seen:?}");
        }
    });
}
