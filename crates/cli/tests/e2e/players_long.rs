//! Players and downloaders that people use: curl that goes on with a download, ffmpeg on files and
//! on streams.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::namespace::isolated_long;
use testbed::process::{run, tool};
use testbed::site::Site;

use crate::https::{Certificate, serve_tls};
use crate::support::sh;

/// The example's video, in the site.
pub(crate) fn copy_video(site: &Site) {
    let video = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/site/video.mp4");
    fs::copy(video, site.root().join("video.mp4")).unwrap();
}

/// Runs ffmpeg, which must not complain of anything; its output.
fn ffmpeg(line: &str, directory: &Path) -> String {
    let mut command = tool("ffmpeg -nostdin -loglevel warning -xerror");
    command.args(line.split_whitespace()).current_dir(directory);
    let output = command.output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaints.is_empty(),
        "{line}: {complaints}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Sums of the pictures that ffmpeg decodes from an input, in order.
fn pictures(input: &str, directory: &Path) -> Vec<String> {
    let frames = ffmpeg(&format!("{input} -map 0:v -f framemd5 -"), directory);
    // Stream, times, size, sum; streams may count time from elsewhere.
    let lines = frames.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit(',').next().unwrap().trim().to_owned())
        .collect()
}

/// Both addresses of both protocols.
const SERVERS: [&str; 4] = [
    "http://10.77.0.2",
    "http://[fd77::2]",
    "https://10.77.0.2",
    "https://[fd77::2]",
];

#[test]
#[ignore = "needs ffmpeg, which takes long to install"]
fn curl_goes_on_with_a_download_that_was_cut() {
    isolated_long(|site| {
        let file = site.file("file", 30_000_001).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &["--listen", "80"]);
        let part = site.outside().join("part");
        for server in SERVERS {
            let curl = format!(
                "curl -q --silent --show-error --cacert {} {server}/file",
                certificate.certificate.display()
            );
            for cut in [1, 1_000_003, 29_999_999] {
                // The reader closes, and so does curl.
                let script = format!(
                    "{curl} 2>/dev/null | head --bytes={cut} >{}",
                    part.display()
                );
                run(tool("sh -c").arg(script)).unwrap();
                assert_eq!(fs::metadata(&part).unwrap().len(), cut);
                let status = sh(&format!(
                    "{curl} --fail --continue-at - --output {} --write-out %{{http_code}}",
                    part.display()
                ));
                assert_eq!(status, "206", "{server}, cut at {cut}");
                let bytes = fs::read(&part).unwrap();
                assert_eq!(bytes.len() as u64, file.size(), "{server}, cut at {cut}");
                assert_eq!(file.check(0, &bytes), Ok(()), "{server}, cut at {cut}");
            }
        }
    });
}

#[test]
#[ignore = "needs ffmpeg, which takes long to install"]
fn ffmpeg_reads_a_video_and_jumps_about_in_it() {
    isolated_long(|site| {
        let root = site.root();
        copy_video(&site);
        // Its index behind the pictures, so that a player that begins at the beginning has to jump.
        ffmpeg("-i video.mp4 -c copy index-last.mp4", root);
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &["--listen", "80"]);
        for server in SERVERS {
            let trust = if server.starts_with("https") {
                format!(
                    "-tls_verify 1 -ca_file {}",
                    certificate.certificate.display()
                )
            } else {
                String::new()
            };
            for name in ["video.mp4", "index-last.mp4"] {
                let mut probe = tool(&format!("ffprobe -loglevel warning {trust}"));
                probe.args(
                    "-show_entries format=duration,size:stream=codec_name -of json".split(' '),
                );
                let told = run(probe.arg(format!("{server}/{name}"))).unwrap();
                let told: serde_json::Value = serde_json::from_str(&told).unwrap();
                let size = fs::metadata(root.join(name)).unwrap().len();
                assert_eq!(told["format"]["size"], size.to_string(), "{told}");
                assert_eq!(told["streams"][0]["codec_name"], "h264", "{told}");
                for from in ["", "-ss 6", "-ss 11.5", "-sseof -1", "-ss 3.3 -t 0.5"] {
                    let there = pictures(&format!("{from} -i {name}"), root);
                    let input = format!("{trust} {from} -i {server}/{name}");
                    assert!(!there.is_empty());
                    assert_eq!(pictures(&input, root), there, "{input}");
                }
            }
        }
    });
}

#[test]
#[ignore = "needs ffmpeg, which takes long to install"]
fn ffmpeg_plays_hls_and_dash() {
    isolated_long(|site| {
        let root = site.root();
        copy_video(&site);
        let whole = pictures("-i video.mp4", root);
        assert_eq!(whole.len(), 360, "12 seconds of 30 pictures");
        ffmpeg(
            "-i video.mp4 -c copy -f hls -hls_time 2 -hls_playlist_type vod -hls_segment_filename \
             ts-%d.ts ts.m3u8",
            root,
        );
        ffmpeg(
            "-i video.mp4 -c copy -f hls -hls_time 2 -hls_playlist_type vod -hls_segment_type fmp4 \
             -hls_fmp4_init_filename head.mp4 -hls_segment_filename fmp4-%d.m4s fmp4.m3u8",
            root,
        );
        ffmpeg(
            "-i video.mp4 -c copy -f dash -seg_duration 2 dash.mpd",
            root,
        );
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &["--listen", "80"]);
        for server in SERVERS {
            for playlist in ["ts.m3u8", "fmp4.m3u8", "dash.mpd"] {
                let input = format!("-i {server}/{playlist}");
                assert_eq!(pictures(&input, root), whole, "{input}");
            }
        }
        for (name, media_type) in [
            ("ts.m3u8", "application/vnd.apple.mpegurl"),
            ("ts-0.ts", "video/mp2t"),
            ("head.mp4", "video/mp4"),
            ("fmp4-1.m4s", "video/iso.segment"),
            ("dash.mpd", "application/dash+xml"),
            ("chunk-stream0-00001.m4s", "video/iso.segment"),
        ] {
            let mut curl = Command::new("curl");
            curl.args(
                "-q --silent --fail --head --output /dev/null --write-out %{content_type}"
                    .split(' '),
            );
            let told = run(curl.arg(format!("http://10.77.0.2/{name}"))).unwrap();
            assert_eq!(told, media_type, "{name}");
        }
    });
}
