//! A browser plays the example's video over HTTPS, by TCP and by QUIC, and jumps about in it.

use std::fs;

use testbed::namespace::isolated_long;
use testbed::site::Site;
use testbed::splitway::Splitway;

use crate::browser::{Page, QUIC_ORIGIN};
use crate::https::{Certificate, HTTPS, serve_tls};
use crate::players_long::copy_video;

const PAGE: &str = r#"<!doctype html><title>player</title>
<style>body { margin: 0 } video { width: 100vw }</style>
<video id="video" muted playsinline preload="metadata" src="video.mp4"></video><script>
const video = document.getElementById("video");
const failed = new Promise((_, reject) =>
  video.addEventListener("error", () => reject(new Error(video.error.message))));
const happens = (name) =>
  Promise.race([failed, new Promise((resolve) =>
    video.addEventListener(name, resolve, { once: true }))]);
// A place in the video, as a share of its length, and whether it has ended.
const place = () => `${(video.currentTime / video.duration).toFixed(2)} ${video.ended}`;
async function known() {
  if (video.readyState < 1) await happens("loadedmetadata");
}
async function jump(share) {
  await known();
  const seeked = happens("seeked");
  video.currentTime = video.duration * share;
  await seeked;
  return place();
}
// Plays so many seconds, or to the end; how many pictures were shown meanwhile.
async function play(seconds) {
  const frames = () => video.getVideoPlaybackQuality().totalVideoFrames;
  const [before, start] = [frames(), video.currentTime];
  await Promise.race([failed, video.play()]);
  while (!video.ended && video.currentTime < start + seconds) await happens("timeupdate");
  video.pause();
  return frames() - before;
}
const protocols = () =>
  performance.getEntries().filter((entry) => entry.responseStart > 0)
    .map((entry) => entry.nextHopProtocol);
</script>
"#;

const AUTOPLAY: &str = "--autoplay-policy=no-user-gesture-required";

/// Plays a page's video here and there, and sees that it does.
fn play_and_jump_about(page: &mut Page, origin: &str) {
    page.load(&format!("{origin}/play.html"));
    let mut seen = Vec::new();
    for (share, place, seconds) in [
        (0.0, "0.00 false", "0.5"),
        (0.5, "0.50 false", "0.5"),
        (1.0, "1.00 true", ""),
        (0.9, "0.90 false", "Infinity"),
    ] {
        assert_eq!(page.evaluate(&format!("jump({share})")), place, "{origin}");
        seen.push(page.screenshot());
        if seconds.is_empty() {
            continue;
        }
        let frames = page.evaluate(&format!("play({seconds})"));
        assert!(
            frames.as_u64().unwrap() >= 5,
            "{origin}, from {share}: {frames}"
        );
        if seconds != "Infinity" {
            seen.push(page.screenshot());
        }
    }
    assert_eq!(page.evaluate("place()"), "1.00 true", "{origin}");
    for (index, picture) in seen.iter().enumerate() {
        assert!(
            !seen[..index].contains(picture),
            "{origin}: picture {index} again"
        );
    }
}

/// The page, and each range of the video, came over this protocol.
fn speaks_only(page: &mut Page, protocol: &str) {
    let protocols = page.evaluate("protocols()");
    let protocols = protocols.as_array().unwrap();
    assert!(protocols.len() > 2, "{protocols:?}");
    assert!(protocols.iter().all(|it| it == protocol), "{protocols:?}");
}

/// A server of the page, slower than the video is long, so that jumps need ranges of their own.
fn serve_player(site: &Site, certificate: &Certificate, more: &[&str]) -> Splitway {
    fs::write(site.root().join("play.html"), PAGE).unwrap();
    copy_video(site);
    let options = [&["--rate-per-connection", "2mbit"], more].concat();
    serve_tls(site, &[certificate], &options)
}

#[test]
#[ignore = "needs a browser, which takes long to install"]
fn chromium_plays_a_video_and_jumps_about_in_it() {
    isolated_long(|site| {
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_player(&site, &certificate, &[]);
        for address in ["10.77.0.2", "[fd77::2]"] {
            let mut page = Page::open(&site, &certificate, AUTOPLAY);
            play_and_jump_about(&mut page, &format!("https://{address}"));
            speaks_only(&mut page, "h2");
        }
    });
}

#[test]
#[ignore = "needs a browser, which takes long to install"]
fn chromium_plays_a_video_over_quic_and_jumps_about_in_it() {
    isolated_long(|site| {
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_player(&site, &certificate, &["--http3"]);
        for server in HTTPS {
            let mut page = Page::open_over_quic(&site, &certificate, server, AUTOPLAY);
            play_and_jump_about(&mut page, QUIC_ORIGIN);
            speaks_only(&mut page, "h3");
        }
    });
}
