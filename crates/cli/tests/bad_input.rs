//! What a person can get wrong, and what is said about it. Every refusal has exit code 2.
#![forbid(unsafe_code)]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use support::{Outcome, PROGRAM, outcome, sh, splitway_in, splitway_without};
use testbed::namespace::{isolated, isolated_unprivileged};
use testbed::process::{install, install_script};
use testbed::site::write_secret;
use testbed::splitway::Splitway;

/// Runs it in a directory with a small site, `site`.
fn with_site(arguments: &[&str]) -> Outcome {
    let directory = directory_with_site();
    splitway_in(directory.path(), arguments)
}

fn directory_with_site() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("site")).unwrap();
    fs::write(directory.path().join("site/index.html"), "hello").unwrap();
    directory
}

/// An Ethernet interface that is up (`wire`, the kernel has 192.0.2.1 there) and one that is down.
fn interfaces() {
    sh("ip link add wire type veth peer name far");
    sh("ip link set wire up");
    sh("ip address add 192.0.2.1/24 dev wire");
}

#[test]
fn a_root_that_is_missing() {
    with_site(&["serve", "nowhere"]).refused(&["root nowhere", "no such directory"]);
    with_site(&["demo", "nowhere"]).refused(&["root nowhere", "no such directory"]);
    with_site(&["nic", "--root", "nowhere", "--dev", "lo"])
        .refused(&["root nowhere", "no such directory"]);
}

#[test]
fn an_origin_whose_cache_has_no_place() {
    let url = "http://origin.example";
    with_site(&["serve", "--origin", url]).refused(&["--origin", "--cache-dir is missing"]);
    with_site(&["serve", "site", "--origin", "origin.example"])
        .refused(&["origin.example", "neither http:// nor https://"]);
    with_site(&["serve", "site", "--origin", url, "--cache-dir", "elsewhere"]).refused(&[
        "cache directory elsewhere",
        "not below ROOT",
        ".splitway-cache",
    ]);
    with_site(&[
        "serve",
        "site",
        "--origin",
        url,
        "--cache-dir",
        "site/index.html",
    ])
    .refused(&["cache directory site/index.html"]);
    with_site(&[
        "serve",
        "site",
        "--origin",
        url,
        "--origin-cache-bytes",
        "1M",
    ])
    .refused(&["--origin-cache-bytes 1M", "too little", "16M"]);
    let secure = "https://origin.example";
    with_site(&[
        "serve",
        "site",
        "--origin",
        secure,
        "--origin-ca",
        "site/index.html",
    ])
    .refused(&["site/index.html", "no certificate"]);
    let nic = ["--nic", "x", "--dev", "lo", "--addr", "192.0.2.2/24"];
    let arguments = ["serve", "--origin", url, "--cache-dir", "site"];
    with_site(&[&arguments[..], &nic].concat())
        .refused(&["--origin with --nic", "another machine"]);
}

#[test]
fn a_key_log_without_secrets_or_that_others_could_read() {
    with_site(&["serve", "site", "--key-log", "keys"]).refused(&[
        "--key-log keys",
        "no listener of this server speaks TLS",
        "--tls-listen",
    ]);
    let tls = ["serve", "site", "--tls-listen", "443", "--tls-self-signed"];
    let refused = |path: &str, parts: &[&str]| {
        with_site(&[&tls[..], &["--key-log", path]].concat()).refused(parts);
    };
    refused(
        "nowhere/keys",
        &["--key-log nowhere/keys", "Make its directory first"],
    );
    refused("site", &["--key-log site", "Name a file in it"]);
    refused(
        "site/index.html",
        &["others than its owner", "(mode 0644)", "chmod 600"],
    );
    refused("/dev/null", &["--key-log /dev/null", "not a regular file"]);
}

#[test]
fn a_root_that_is_a_file() {
    with_site(&["serve", "site/index.html"]).refused(&["root site/index.html", "not a directory"]);
}

#[test]
fn a_root_that_may_not_be_read() {
    isolated(|site| {
        let closed = site.root().join("closed");
        fs::create_dir(&closed).unwrap();
        sh(&format!("chmod 000 {}", closed.display()));
        // Without the privileges that let root read everything.
        let outcome = splitway_without(
            &["dac_override", "dac_read_search"],
            site.root(),
            &["serve", "closed"],
        );
        outcome.refused(&["root closed", "not readable"]);
    });
}

#[test]
fn benchmarks_that_are_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("splitway");
    install(PROGRAM, &copy).unwrap();
    let beside = directory.path().join("splitway-bench");
    let bench = |arguments: &[&str]| outcome(Command::new(&copy).arg("bench").args(arguments));
    bench(&["--quick"]).refused(&["splitway-bench", "No such file", "make bench"]);
    // Where it is, everything is said.
    install_script("#!/bin/sh\necho \"$@\"\n", &beside).unwrap();
    for arguments in [
        &["table1", "figure2", "--rounds", "3"][..],
        &["--quick"],
        &["disk", "--help"],
    ] {
        assert_eq!(bench(arguments).stdout.trim(), arguments.join(" "));
    }
}

#[test]
fn logs_that_cannot_be_written() {
    for option in ["--access-log", "--error-log"] {
        with_site(&["serve", "site", option, "none/log"]).refused(&[
            "log none/log",
            "No such file",
            "Make its directory first",
        ]);
        with_site(&["serve", "site", option, "site"]).refused(&["log site", "Name a file in it"]);
    }
    let format = [
        "serve",
        "site",
        "--access-log",
        "a",
        "--access-log-format",
        "clf",
    ];
    with_site(&format).refused(&["clf", "combined", "json"]);
}

#[test]
fn no_root_at_all() {
    with_site(&["serve"]).refused(&["<ROOT>"]);
}

#[test]
fn numbers_out_of_range() {
    for (option, value) in [
        ("--listen", "0"),
        ("--listen", "65536"),
        ("--listen", "-1"),
        ("--listen", "http"),
        ("--workers", "0"),
        ("--workers", "65"),
        ("--mtu", "1279"),
        ("--mtu", "65536"),
        ("--cache", "0.5G"),
        ("--cache", "1T"),
        ("--connections-per-source", "0"),
        ("--connections-per-source", "many"),
    ] {
        let argument = format!("{option}={value}");
        with_site(&["serve", "site", &argument]).refused(&["invalid value", option, value]);
    }
}

#[test]
fn a_cache_that_is_too_small_for_the_workers() {
    for (cache, workers, least) in [
        ("4M", "1", "4352K"),
        ("8M", "2", "8704K"),
        ("0", "1", "4352K"),
    ] {
        with_site(&["serve", "site", "--cache", cache, "--workers", workers]).refused(&[
            "--cache",
            "too little",
            "68 blocks of 64K",
            &format!("Give at least {least}"),
        ]);
    }
}

#[test]
fn a_congestion_control_that_does_not_exist() {
    with_site(&["serve", "site", "--congestion", "vegas"]).refused(&[
        "--congestion",
        "no congestion control `vegas`",
        "cubic, ",
        "newreno",
    ]);
    with_site(&["serve", "site", "--congestion", "CUBIC"]).refused(&["`CUBIC`"]);
}

#[test]
fn choices_about_tcp_that_there_are_not() {
    for (option, value, complaint) in [
        ("--ecn", "offer", "accept or off"),
        ("--ecn", "ACCEPT", "accept or off"),
        ("--ecn", "", "accept or off"),
        ("--keepalive", "90", "s, m or h"),
        ("--keepalive", "never", "s, m or h"),
        ("--keepalive", "1.5h", "from 1s to 168h"),
        ("--keepalive", "0s", "from 1s to 168h"),
        ("--keepalive", "169h", "from 1s to 168h"),
        ("--keepalive", "99999999999999h", "from 1s to 168h"),
        ("--keepalive", "-1s", "from 1s to 168h"),
    ] {
        let argument = format!("{option}={value}");
        with_site(&["serve", "site", &argument]).refused(&[option, value, complaint]);
    }
}

#[test]
fn tls_options_that_need_each_other_or_do_not_exist() {
    for (line, complaints) in [
        (
            "--tls-listen 443",
            &["--tls-listen 443", "no certificate", "--tls-self-signed"][..],
        ),
        ("--tls-listen 0", &["--tls-listen"]),
        (
            "--listen 80 --tls-listen 80 --tls-self-signed",
            &["--tls-listen 80", "without TLS"],
        ),
        (
            "--tls-listen 443 --tls-listen 443 --tls-self-signed",
            &["--tls-listen 443", "twice"],
        ),
        ("--tls-self-signed", &["--tls-listen"]),
        ("--tls-cert a --tls-key b", &["--tls-listen"]),
        ("--tls-listen 443 --tls-key b", &["--tls-cert"]),
        ("--tls-listen 443 --tls-ocsp c", &["--tls-cert"]),
        (
            "--tls-listen 443 --tls-cert a",
            &["--tls-cert", "1 of them, and 0 of --tls-key"],
        ),
        (
            "--tls-listen 443 --tls-cert a --tls-key b --tls-self-signed",
            &["--tls-self-signed", "--tls-cert"],
        ),
        (
            "--tls-listen 443 --tls-self-signed --tls-versions 1.1",
            &["--tls-versions", "1.2 or 1.3"],
        ),
        (
            "--tls-listen 443 --tls-self-signed --tls-ciphers rc4",
            &["--tls-ciphers", "rc4", "chacha20-poly1305"],
        ),
    ] {
        let options: Vec<&str> = line.split_whitespace().collect();
        with_site(&[&["serve", "site"][..], &options].concat()).refused(complaints);
    }
}

#[test]
fn too_few_descriptors() {
    let directory = directory_with_site();
    let line = format!("ulimit -n 24 && exec {PROGRAM} serve site");
    let outcome = outcome(
        Command::new("sh")
            .args(["-c", &line])
            .current_dir(directory.path()),
    );
    outcome.refused(&[
        "descriptors",
        "may have 24 open",
        "ulimit -n",
        "LimitNOFILE=",
    ]);
}

/// `splitway check` of this text, in a directory with a site.
fn check(text: &str) -> Outcome {
    let directory = directory_with_site();
    fs::write(directory.path().join("splitway.toml"), text).unwrap();
    splitway_in(directory.path(), &["check", "splitway.toml"])
}

#[test]
fn a_configuration_that_makes_no_sense_is_shown_where_it_does_not() {
    let good = "[nic]\nroot = \"site\"\n";
    let outcome = check(good);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stdout.contains("splitway.toml: good"),
        "{outcome:?}"
    );
    for (text, complaints) in [
        (
            "[nic]\nrot = \"site\"\n",
            &[
                "splitway.toml:2:1:",
                "unknown key `rot`",
                "2 | rot = \"site\"",
                "`root`",
            ][..],
        ),
        (
            "[nic]\nroot = \"nowhere\"\n",
            &["root nowhere", "no such directory"],
        ),
        (
            "[nic]\nroot = \"site\"\nworkers = 65\n",
            &["splitway.toml:3:11:", "1 to 64"],
        ),
        ("[nic\n", &["splitway.toml:1:"]),
        ("", &["nic.root", "nothing to serve"]),
        (
            "[nic]\nroot = \"site\"\n[[listen]]\nport = 80\n[[listen]]\nport = 80\ntls = true\n",
            &[
                "splitway.toml:6:8:",
                "HTTP without TLS",
                "splitway.toml:7:7:",
                "no certificate",
            ],
        ),
        (
            "[nic]\nroot = \"site\"\n[[listen]]\nport = 443\ntls = true\n[[tls.certificate]]\n\
             chain = \"a\"\nkey = \"b\"\n",
            &["key b", "No such file"],
        ),
        (
            "[nic]\nroot = \"site\"\n[[site]]\n[[site.rule]]\npath = \"/a/*\"\nlisting = \"yes\"\n",
            &["splitway.toml:6:11:", "boolean"],
        ),
        (
            "[nic]\nroot = \"site\"\n[signing_keys]\nk = \"site/index.html\"\n",
            &["signing key \"k\"", "mode 0", "chmod 600"],
        ),
        (
            "[nic]\nroot = \"site\"\n[signing_keys]\nk = \"gone\"\n",
            &["signing key \"k\"", "there is none", "openssl rand"],
        ),
    ] {
        check(text).refused(complaints);
    }
    with_site(&["check", "nowhere"]).refused(&[
        "configuration nowhere",
        "No such file",
        "docs/config.md",
    ]);
    with_site(&["check", "site"]).refused(&["configuration site", "not a regular file"]);
    with_site(&["serve", "--config", "nowhere"]).refused(&["configuration nowhere"]);
}

#[test]
fn a_check_names_all_that_is_wrong_at_once() {
    let text = "[nic]\nroot = \"nowhere\"\nworkers = 65\n[tcp]\necn = \"maybe\"\nkeepalive = 1\n\
                [signing_keys]\nk = \"gone\"\nl = \"lost\"\n";
    let outcome = check(text);
    outcome.refused(&[
        "splitway.toml:3:11: 65 is not from 1 to 64",
        "splitway.toml:5:7: ",
        "splitway.toml:6:13: ",
        "root nowhere",
        "signing key \"k\"",
        "signing key \"l\"",
    ]);
    for once in ["65 is not", "root nowhere", "signing key \"k\""] {
        assert_eq!(outcome.stderr.matches(once).count(), 1, "{outcome:?}");
    }
}

#[test]
fn what_is_odd_is_a_warning() {
    let directory = directory_with_site();
    certificate_in(directory.path(), "expired", 2020);
    certificate_in(directory.path(), "other", 4096);
    let check = |text: &str| {
        fs::write(directory.path().join("splitway.toml"), text).unwrap();
        splitway_in(directory.path(), &["check", "splitway.toml"])
    };
    let site = "listen = [{ port = 443, tls = true }]\n[nic]\nroot = \"site\"\n\
                [[tls.certificate]]\nchain = \"expired.pem\"\nkey = \"expired.key\"\n\
                [[tls.certificate]]\nchain = \"other.pem\"\nkey = \"other.key\"\n\
                ocsp = \"gone\"\n[[site]]\nnames = [\"a.org\"]\n[[site.rule]]\npath = \"/a*\"\n\
                redirect.to = \"/a/b\"\n[[site.rule]]\npath = \"/ab\"\n";
    let proxy = "[[proxy.listen]]\nport = 80\npool = \"web\"\n[[proxy.pool]]\nname = \"web\"\n\
                 [[proxy.pool]]\nname = \"named\"\n[[proxy.pool.backend]]\n\
                 address = \"unknown.invalid:80\"\n";
    for (text, warnings) in [
        (
            site,
            &[
                "expired.pem expired",
                "other.pem is for localhost, and no site has such a name",
                "OCSP response gone",
                "splitway.toml:15:15: a client that requests /ax is redirected for ever",
                "splitway.toml:17:8: it never matches: rule 1",
            ][..],
        ),
        (
            proxy,
            &["the pool \"web\" has no backend", "unknown.invalid:80"],
        ),
    ] {
        let outcome = check(text);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stdout.contains("good"), "{outcome:?}");
        for warning in warnings {
            assert!(outcome.stderr.contains(warning), "{warning}: {outcome:?}");
        }
        assert!(outcome.stderr.contains("warning: "), "{outcome:?}");
    }
}

#[test]
fn roots_and_error_pages_of_sites_that_are_not_there() {
    let directory = directory_with_site();
    let site = directory.path().join("site");
    fs::create_dir(site.join("one")).unwrap();
    fs::write(site.join("one/lost.html"), "lost").unwrap();
    symlink("../index.html", site.join("one/linked.html")).unwrap();
    symlink("/etc/hostname", site.join("one/outside.html")).unwrap();
    let check = |more: &str| {
        let text = format!("[nic]\nroot = \"site\"\n{more}");
        fs::write(directory.path().join("splitway.toml"), text).unwrap();
        splitway_in(directory.path(), &["check", "splitway.toml"])
    };
    let one = "[[site]]\nroot = \"one\"\n";
    for good in [
        "[[site]]\nerror_pages = { 404 = \"one/lost.html\" }\n".to_owned(),
        format!("{one}error_pages = {{ 404 = \"lost.html\", 503 = \"linked.html\" }}\n"),
        // It may come from an origin.
        "[[site]]\nroot = \"gone\"\norigin = \"http://origin.example\"\n".to_owned(),
    ] {
        let outcome = check(&good);
        assert_eq!(outcome.code, Some(0), "{good}{outcome:?}");
    }
    for (page, why) in [
        ("gone.html", "is not below site/one"),
        ("outside.html", "leads out of"),
        ("../one", "../one"),
    ] {
        let text = format!("{one}error_pages = {{ 404 = \"{page}\" }}\n");
        check(&text).refused(&[page, why]);
    }
    check("[[site]]\nerror_pages = { 500 = \"one\" }\n")
        .refused(&["site[0].error_pages.500 \"one\"", "not a regular file"]);
    // The report names all of them.
    check("[[site]]\nroot = \"gone\"\n[[site]]\nnames = [\"b\"]\nroot = \"index.html\"\n").refused(
        &[
            "site[0].root \"gone\": it is not below site",
            "site[1].root \"index.html\": Not a directory",
        ],
    );
}

#[test]
fn signing_keys_that_are_too_short() {
    let directory = directory_with_site();
    write_secret(&directory.path().join("key"), "too short").unwrap();
    let text = "nic.root = \"site\"\nsigning_keys.k = \"key\"\n";
    fs::write(directory.path().join("splitway.toml"), text).unwrap();
    for line in [
        &["check", "splitway.toml"][..],
        &["serve", "--config", "splitway.toml"],
    ] {
        splitway_in(directory.path(), line).refused(&["\"k\"", "fewer than 16 bytes"]);
    }
}

#[test]
fn options_take_the_place_of_what_a_file_says() {
    let directory = directory_with_site();
    let text = "[nic]\nroot = \"elsewhere\"\nworkers = 65\n[http]\nranges_max = 5\n[[listen]]\n\
        port = 81\n";
    fs::write(directory.path().join("splitway.toml"), text).unwrap();
    let line = [
        "serve",
        "site",
        "--config",
        "splitway.toml",
        "--print-config",
    ];
    let print = |more: &[&str]| splitway_in(directory.path(), &[&line[..], more].concat());
    print(&[]).refused(&["splitway.toml:3:11:", "1 to 64"]);
    let printed = print(&["--workers", "2", "--listen", "8080"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    for said in ["workers = 2", "ranges_max = 5", "port = 8080", "/site\""] {
        assert!(printed.stdout.contains(said), "{said}: {printed:?}");
    }
    // What is printed says the same, and from anywhere.
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("printed"), &printed.stdout).unwrap();
    let again = splitway_in(
        other.path(),
        &["serve", "--config", "printed", "--print-config"],
    );
    assert_eq!(again.stdout, printed.stdout);
}

/// Makes `NAME.pem` and `NAME.key` in a directory, valid until this year.
fn certificate_in(directory: &Path, name: &str, until: i32) {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let put = |kind: &str, text: String| {
        write_secret(&directory.join(format!("{name}.{kind}")), &text).unwrap();
    };
    put("pem", certificate.pem());
    put("key", key.serialize_pem());
}

#[test]
fn memory_that_the_machine_does_not_have() {
    isolated(|site| {
        for arguments in [
            &["serve", ".", "--cache", "100000G"][..],
            &["nic", ".", "--dev", "lo", "--cache", "100000G"],
        ] {
            splitway_in(site.root(), arguments).refused(&[
                "--cache 100000G",
                "there is not so much memory",
                "Give less",
            ]);
        }
    });
}

#[test]
fn certificates_and_keys_that_are_no_good() {
    let directory = directory_with_site();
    let place = |name: &str| directory.path().join(name);
    certificate_in(directory.path(), "good", 4096);
    certificate_in(directory.path(), "other", 4096);
    fs::write(place("text"), "no PEM at all").unwrap();
    sh(&format!("chmod 600 {}", place("text").display()));
    fs::create_dir(place("directory")).unwrap();
    fs::copy(place("good.key"), place("open.key")).unwrap();
    sh(&format!("chmod 644 {}", place("open.key").display()));
    sh(&format!(
        "openssl pkey -in {} -aes256 -passout pass:secret -out {}",
        place("good.key").display(),
        place("locked.key").display()
    ));
    sh(&format!("chmod 600 {}", place("locked.key").display()));
    for (certificate, key, complaints) in [
        (
            "nowhere",
            "good.key",
            &["certificate nowhere", "No such file"][..],
        ),
        (
            "directory",
            "good.key",
            &["certificate directory", "directory"],
        ),
        ("text", "good.key", &["no certificate in text", "PEM"]),
        ("good.key", "good.key", &["no certificate in good.key"]),
        ("good.pem", "nowhere", &["key nowhere", "No such file"]),
        ("good.pem", "text", &["no private key in text", "PEM"]),
        (
            "good.pem",
            "other.key",
            &["other.key does not belong to the certificate good.pem"],
        ),
        (
            "good.pem",
            "open.key",
            &["open.key is open to every user", "644", "chmod o= open.key"],
        ),
        ("good.pem", "locked.key", &["locked.key", "not encrypted"]),
    ] {
        let options = [
            "serve",
            "site",
            "--tls-listen",
            "443",
            "--tls-cert",
            certificate,
        ];
        let options = [&options[..], &["--tls-key", key]].concat();
        splitway_in(directory.path(), &options).refused(complaints);
    }
    // All at once.
    let options = "serve site --tls-listen 443 --tls-cert good.pem --tls-key other.key --tls-cert \
                   nowhere --tls-key good.key";
    let options: Vec<&str> = options.split_whitespace().collect();
    let complaints = ["other.key does not belong", "certificate nowhere"];
    splitway_in(directory.path(), &options).refused(&complaints);
}

#[test]
fn a_key_that_may_not_be_read() {
    isolated(|site| {
        certificate_in(site.root(), "good", 4096);
        sh(&format!(
            "chmod 000 {}",
            site.root().join("good.key").display()
        ));
        let options = "serve . --tls-listen 443 --tls-cert good.pem --tls-key good.key";
        let options: Vec<&str> = options.split_whitespace().collect();
        // Without the privileges that let root read everything.
        splitway_without(&["dac_override", "dac_read_search"], site.root(), &options).refused(&[
            "key good.key",
            "Permission denied",
            "let this user read it",
        ]);
    });
}

#[test]
fn options_of_http_that_make_no_sense() {
    for (argument, complaints) in [
        ("--index=/index.html", &["/index.html", "such as"][..]),
        (
            "--index=../index.html",
            &["../index.html", "without a slash at its start"],
        ),
        ("--index=a,,b", &["a directory is no index"]),
        ("--precompressed=lzma", &["lzma", "br, zstd, gzip"]),
        ("--listing=yes", &["'yes'", "--listing"]),
        ("--precompressed=br.gz", &["br.gz", "zstd"]),
        ("--rate-per-connection=fast", &["fast", "200mbit"]),
        ("--rate-per-source=0mbit", &["0mbit", "1kbit"]),
    ] {
        with_site(&["serve", "site", argument]).refused(complaints);
    }
}

#[test]
fn an_option_that_does_not_exist() {
    with_site(&["serve", "site", "--prot", "80"]).refused(&["--prot"]);
    with_site(&["serve", "site", "--port", "80"]).refused(&["--port", "'--listen'"]);
    with_site(&["srve"]).refused(&["srve", "serve"]);
}

#[test]
fn addresses_that_are_none() {
    for (address, complaint) in [
        ("192.0.2.10", "prefix is missing"),
        ("fd00::10", "prefix is missing"),
        ("192.0.2.10/33", "from 1 to 32"),
        ("fd00::10/0", "from 1 to 128"),
        ("192.0.2.10/twenty-four", "from 1 to 32"),
        ("192.0.2.300/24", "not an IP address"),
        ("192.0.2.0/24", "address of the network itself"),
        ("192.0.2.255/24", "broadcast"),
        ("127.0.0.1/8", "not an address that a host can have"),
        ("ff02::1/64", "not an address that a host can have"),
        ("fe80::1/64", "link-local"),
    ] {
        with_site(&["serve", "site", "--dev", "lo", "--addr", address])
            .refused(&["--addr", address, complaint]);
    }
}

#[test]
fn an_interface_without_an_address_and_an_address_without_an_interface() {
    with_site(&["serve", "site", "--dev", "lo"]).refused(&["--addr"]);
    with_site(&["serve", "site", "--addr", "192.0.2.10/24"]).refused(&["--dev"]);
    with_site(&["serve", "site", "--gateway", "192.0.2.1"]).refused(&["--dev"]);
}

#[test]
fn an_interface_that_does_not_exist() {
    isolated(|site| {
        interfaces();
        for arguments in [
            &["serve", ".", "--dev", "eth7", "--addr", "192.0.2.10/24"][..],
            &["nic", "--root", ".", "--dev", "eth7", "--socket", "socket"],
        ] {
            let outcome = splitway_in(site.root(), arguments);
            outcome.refused(&["interface eth7", "no such interface", "lo", "wire", "far"]);
        }
    });
}

#[test]
fn an_interface_that_is_down() {
    isolated(|site| {
        interfaces();
        let outcome = splitway_in(
            site.root(),
            &["serve", ".", "--dev", "far", "--addr", "192.0.2.10/24"],
        );
        outcome.refused(&["interface far", "it is down", "ip link set far up"]);
    });
}

#[test]
fn an_interface_that_is_not_ethernet() {
    isolated(|site| {
        let outcome = splitway_in(
            site.root(),
            &["serve", ".", "--dev", "lo", "--addr", "192.0.2.10/24"],
        );
        outcome.refused(&["interface lo", "not an Ethernet interface"]);
    });
}

#[test]
fn an_address_that_the_kernel_has_itself() {
    isolated(|site| {
        interfaces();
        sh("ip link set far up");
        // On that interface, and on another one.
        for interface in ["wire", "far"] {
            let arguments = ["serve", ".", "--dev", interface, "--addr", "192.0.2.1/24"];
            splitway_in(site.root(), &arguments)
                .refused(&["address 192.0.2.1/24", "the kernel has it on wire"]);
        }
        let twice = [
            "serve",
            ".",
            "--dev",
            "wire",
            "--addr",
            "192.0.2.10/24",
            "192.0.2.10/16",
        ];
        splitway_in(site.root(), &twice).refused(&["address 192.0.2.10/16", "given twice"]);
    });
}

#[test]
fn a_gateway_that_is_no_neighbour() {
    isolated(|site| {
        interfaces();
        let serve = |gateway: &str| {
            let arguments = [
                "serve",
                ".",
                "--dev",
                "wire",
                "--addr",
                "192.0.2.10/24",
                "--gateway",
                gateway,
            ];
            splitway_in(site.root(), &arguments)
        };
        serve("198.51.100.1").refused(&[
            "gateway 198.51.100.1",
            "not on the link",
            "192.0.2.10/24",
        ]);
        serve("fd00::1").refused(&["gateway fd00::1", "not on the link"]);
        serve("192.0.2.10").refused(&["gateway 192.0.2.10", "own address"]);
        serve("router").refused(&["--gateway", "router"]);
        let arguments = [
            "serve",
            ".",
            "--dev",
            "wire",
            "--addr",
            "192.0.2.10/24",
            "--gateway",
            "192.0.2.1",
            "192.0.2.2",
        ];
        splitway_in(site.root(), &arguments)
            .refused(&["gateway 192.0.2.2", "one gateway for IPv4"]);
    });
}

#[test]
fn a_port_in_use() {
    isolated(|site| {
        let first = Splitway::serve(Path::new(PROGRAM), site.root(), [""; 0]).unwrap();
        let process = format!("(process {})", first.supervisor().as_raw_nonzero());
        let outcome = splitway_in(site.root(), &["serve", "."]);
        outcome.refused(&[
            "port 80 of 10.77.0.2",
            "in use by another splitway",
            &process,
            "--dev",
        ]);
    });
}

#[test]
fn a_port_in_use_on_an_interface() {
    isolated(|site| {
        interfaces();
        sh("ip link set far up");
        let device = ["--dev", "far", "--addr"];
        let mut first = Splitway::serve(
            Path::new(PROGRAM),
            site.root(),
            device.iter().chain(&["192.0.2.10/24"]),
        )
        .unwrap();
        let process = format!("(process {})", first.supervisor().as_raw_nonzero());
        let same = [
            "serve",
            ".",
            "--dev",
            "far",
            "--addr",
            "192.0.2.11/24",
            "192.0.2.10/24",
        ];
        splitway_in(site.root(), &same).refused(&[
            "port 80 of 192.0.2.10",
            "in use by another",
            &process,
        ]);
        // It would answer the other's connections on every port.
        let other_port = [
            "serve",
            ".",
            "--dev",
            "far",
            "--addr",
            "192.0.2.10/24",
            "--listen",
            "81",
        ];
        splitway_in(site.root(), &other_port).refused(&["port 81 of 192.0.2.10", &process]);

        // An address of its own is fine, and so is the first one's when that has ended, however it
        // went.
        let other_address = device.iter().chain(&["192.0.2.11/24"]);
        let second = Splitway::serve(Path::new(PROGRAM), site.root(), other_address).unwrap();
        first.end_with(Signal::KILL).unwrap();
        let third = Splitway::serve(
            Path::new(PROGRAM),
            site.root(),
            device.iter().chain(&["192.0.2.10/24"]),
        );
        drop((second, third.unwrap()));
    });
}

#[test]
fn the_link_exists_already() {
    isolated(|site| {
        sh("ip link add splitway0 type veth peer name other");
        let outcome = splitway_in(site.root(), &["serve", "."]);
        outcome.refused(&[
            "interface splitway0",
            "exists already",
            "ip link delete splitway0",
        ]);
        sh("ip link show splitway0");
    });
}

#[test]
fn the_network_of_the_link_is_in_use() {
    isolated(|site| {
        interfaces();
        sh("ip address add 10.77.5.1/16 dev wire");
        let outcome = splitway_in(site.root(), &["serve", "."]);
        outcome.refused(&[
            "10.77.0.1/24",
            "overlaps with 10.77.5.1/16 on wire",
            "--dev",
        ]);
        assert!(!sh("ip link").contains("splitway0"));
    });
}

#[test]
fn no_privileges() {
    isolated(|site| {
        interfaces();
        let without = |capabilities, arguments: &[&str]| {
            splitway_without(capabilities, site.root(), arguments)
        };
        let outcome = without(&["all"], &["serve", "."]);
        outcome.refused(&[
            "the capabilities CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN are missing",
            "sudo setcap cap_net_admin,cap_net_raw,cap_sys_admin+ep",
            PROGRAM,
            "splitway demo",
        ]);
        let outcome = without(&["net_admin"], &["serve", "."]);
        outcome.refused(&[
            "the capability CAP_NET_ADMIN is missing",
            "setcap cap_net_admin,cap_net_raw,cap_sys_admin",
        ]);

        let on_a_device = ["serve", ".", "--dev", "wire", "--addr", "192.0.2.10/24"];
        let outcome = without(&["net_raw"], &on_a_device);
        outcome.refused(&[
            "wire",
            "the capability CAP_NET_RAW is missing",
            "setcap cap_net_raw+ep",
        ]);
        let alone = ["nic", "--root", ".", "--dev", "wire", "--socket", "socket"];
        without(&["net_raw"], &alone).refused(&["the capability CAP_NET_RAW is missing"]);
    });
}

#[test]
fn a_nic_socket_without_a_listener() {
    isolated(|site| {
        interfaces();
        let attach = |path| {
            splitway_in(
                site.root(),
                &[
                    "serve",
                    "--nic",
                    path,
                    "--dev",
                    "wire",
                    "--addr",
                    "192.0.2.10/24",
                ],
            )
        };
        attach("nowhere").refused(&["NIC socket nowhere", "there is none", "splitway nic DIR"]);
        fs::write(site.root().join("file"), "").unwrap();
        attach("file").refused(&["NIC socket file", "no NIC process listens"]);
        attach(&"long".repeat(30)).refused(&["NIC socket"]);
    });
}

#[test]
fn a_nic_stack_that_is_given_twice() {
    let given = |one: &str, other: &str, complaint: &str| {
        let arguments = ["serve", "--dev", "lo", "--addr", "192.0.2.10/24"];
        let nics = ["--nic", one, "--nic", "elsewhere", "--nic", other];
        let outcome = with_site(&[&arguments[..], &nics].concat());
        outcome.refused(&["--nic", complaint, "give it once"]);
    };
    given("nowhere", "nowhere", "nowhere is given twice");
    given("site", "./site", "./site is given twice");
    let machine = "02:00:5e:10:00:01";
    given(
        &format!("eth:lo,{machine}"),
        &format!("eth:far,{machine}"),
        &format!("eth:far,{machine} is given twice"),
    );
}

#[test]
fn a_nic_socket_whose_place_is_taken() {
    isolated(|site| {
        interfaces();
        let listen = |path| {
            splitway_in(
                site.root(),
                &["nic", "--root", ".", "--dev", "wire", "--socket", path],
            )
        };
        fs::write(site.root().join("precious"), "data").unwrap();
        listen("precious").refused(&["NIC socket precious", "not a socket"]);
        assert_eq!(fs::read(site.root().join("precious")).unwrap(), b"data");
        listen("no/such/place").refused(&["NIC socket no/such/place", "directory does not exist"]);
    });
}

#[test]
fn a_demonstration_where_namespaces_are_forbidden() {
    isolated_unprivileged(|site| {
        site.file("file", 1).unwrap();
        fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
        let outcome = splitway_without(&["all"], site.root(), &["demo", "."]);
        outcome.refused(&[
            "creating a user and network namespace",
            "sudo sysctl user.max_user_namespaces=10000",
            "sudo splitway demo",
        ]);
    });
}

#[test]
fn a_demonstration_without_curl() {
    let directory = directory_with_site();
    let mut command = std::process::Command::new(PROGRAM);
    let outcome = command
        .args(["demo", "site"])
        .current_dir(&directory)
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.starts_with("splitway: curl: ") && complaint.contains("apt-get install curl"),
        "{complaint}"
    );
}

#[test]
fn a_demonstration_of_nothing() {
    let directory = tempfile::tempdir().unwrap();
    splitway_in(directory.path(), &["demo", "."])
        .code
        .map(|code| assert_eq!(code, 2))
        .unwrap();
}

#[test]
fn processes_that_only_the_supervisor_starts() {
    for command in [
        "host",
        "nic-process",
        "fetcher",
        "observer",
        "host-relay",
        "nic-relay",
        "node-process",
        "gate-process",
    ] {
        let outcome = with_site(&[command]);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stdout.contains("not a socket"), "{outcome:?}");
    }
}

#[test]
fn a_link_that_makes_no_sense() {
    let refused = |line: &str, complaints: &[&str]| {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        with_site(&arguments).refused(complaints);
    };
    refused("link eth1", &["<IF_B>"]);
    refused("link eth1 eth1", &["eth1 to itself", "two interfaces"]);
    refused("link eth1 eth2 --delay 20", &["--delay", "not a time"]);
    refused("link eth1 eth2 --loss 200%", &["--loss", "more than all"]);
    refused("link eth1 eth2 --ab lost=1%", &["--ab", "lost", "loss"]);
    refused("link eth1 eth2 --queue 10kb", &["a queue needs a rate"]);
    refused(
        "link eth1 eth2 --rate 1mbit --ba queue=10b",
        &["--ba", "10 bytes takes no packet"],
    );
}

#[test]
fn a_link_between_what_is_not_there_or_not_ethernet() {
    isolated(|site| {
        interfaces();
        for (line, complaints) in [
            ("link wire nowhere", &["nowhere", "wire"][..]),
            ("link wire lo", &["lo is not an Ethernet interface"]),
            ("link wire far", &["far is down", "ip link set far up"]),
        ] {
            let arguments: Vec<&str> = line.split_whitespace().collect();
            splitway_in(site.root(), &arguments).refused(complaints);
        }
        splitway_without(&["net_raw"], site.root(), &["link", "wire", "far"])
            .refused(&["CAP_NET_RAW"]);
    });
}
