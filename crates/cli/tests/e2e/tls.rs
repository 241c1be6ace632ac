//! HTTPS, with clients of every kind: each byte is right, whatever happens on the way.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use testbed::http::{Connection, request};
use testbed::namespace::{isolated, isolated_unprivileged};
use testbed::process::{run, signal, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;

use crate::deaths::{host_counter, lose_packets};
use crate::https::{
    Certificate, Choice, Client, HTTPS, SUITES, Suite, Tool, curl, finish, gnutls, openssl,
    serve_and_trust, serve_tls,
};
use crate::metrics::{ADMIN, ask};
use crate::restart::{restart_nic, serving};
use crate::support::{FAMILIES, Random, SOON, ctl, on_threads, serve_with, sh, started};

/// The file of a certificate made for trying out.
fn file_to_trust(splitway: &mut Splitway) -> PathBuf {
    let line = splitway
        .line(|line| line.starts_with("certificate for trying out"))
        .unwrap();
    line.split_once(": ").unwrap().1.into()
}

fn tried_out(site: &Site) {
    let file = site.file("file", 3_000_000).unwrap();
    let mut splitway = serve_with(site, &["--tls-listen", "443", "--tls-self-signed"]);
    let trusted = file_to_trust(&mut splitway);
    for server in HTTPS {
        curl(site, &trusted, server, &file, "");
    }
    // Who asks for TLS gets nothing without it.
    assert!(Connection::open(FAMILIES[0]).is_err());
    // The line that it prints works as it is.
    let line = splitway
        .line(|line| line.starts_with("Try:") && line.contains("https://"))
        .unwrap();
    let line = line.trim_start_matches("Try:").trim().to_owned();
    let directory = site.outside().display();
    run(tool("sh -c").arg(format!("cd {directory} && {line} --silent"))).unwrap();
    let bytes = fs::read(site.outside().join("file")).unwrap();
    assert_eq!(file.check(0, &bytes), Ok(()));
    // No client trusts it otherwise.
    let mut curl = tool("curl -q --silent --max-time 20 https://10.77.0.2/file");
    assert_eq!(curl.output().unwrap().status.code(), Some(60));
    splitway.end_with(Signal::TERM).unwrap();
    assert!(!trusted.exists(), "it goes with the server");
}

#[test]
fn a_certificate_for_trying_out_is_made_and_goes_again() {
    isolated(|site| tried_out(&site));
}

#[test]
fn no_privilege_over_the_machine_is_needed_in_a_user_namespace() {
    isolated_unprivileged(|site| tried_out(&site));
}

/// The certificates of both kinds of keys.
fn ec_and_rsa(site: &Site) -> [Certificate; 2] {
    ["ec", "rsa"].map(|key| Certificate::new(site.outside(), key, key, &["localhost"]))
}

/// With each version and suite that there is, over both families, and a certificate that goes with
/// the suite.
fn with_every_suite(site: &Site, download: impl Fn(Suite, SocketAddr, &Certificate)) {
    let [ec, rsa] = ec_and_rsa(site);
    let _splitway = serve_tls(site, &[&ec, &rsa], &[]);
    for suite in SUITES {
        let trusted = if suite.key == "ec" { &ec } else { &rsa };
        for server in HTTPS {
            download(suite, server, trusted);
        }
    }
}

#[test]
fn openssl_downloads_with_every_version_and_suite() {
    isolated(|site| {
        let file = site.file("file", 2_000_003).unwrap();
        with_every_suite(&site, |suite, server, trusted| {
            let options = if suite.is_13 {
                format!("-quiet -tls1_3 -ciphersuites {}", suite.openssl)
            } else {
                format!("-quiet -tls1_2 -cipher {}", suite.openssl)
            };
            let mut connection = Tool::start(&mut openssl(server, trusted, &options));
            connection.get(&file).unwrap();
            connection.get(&file).unwrap();
        });
    });
}

#[test]
fn gnutls_downloads_with_every_version_and_suite() {
    isolated(|site| {
        // It writes each byte by itself.
        let file = site.file("file", 100_003).unwrap();
        with_every_suite(&site, |suite, server, trusted| {
            let version = if suite.is_13 { "1.3" } else { "1.2" };
            let mut priority = format!(
                "NORMAL:-VERS-ALL:+VERS-TLS{version}:-CIPHER-ALL:+{}",
                suite.gnutls
            );
            if !suite.is_13 {
                let exchange = if suite.key == "ec" { "ECDSA" } else { "RSA" };
                priority.push_str(&format!(":-KX-ALL:+ECDHE-{exchange}"));
            }
            let mut connection = Tool::start(&mut gnutls(server, trusted, &priority, ""));
            connection.get(&file).unwrap();
            connection.get(&file).unwrap();
        });
    });
}

#[test]
fn curl_downloads_with_every_version_and_suite() {
    isolated(|site| {
        let file = site.file("file", 2_000_003).unwrap();
        with_every_suite(&site, |suite, server, trusted| {
            let options = if suite.is_13 {
                format!("--tlsv1.3 --tls13-ciphers {}", suite.openssl)
            } else {
                format!("--tls-max 1.2 --ciphers {}", suite.openssl)
            };
            curl(&site, &trusted.certificate, server, &file, &options);
        });
    });
}

#[test]
fn files_of_any_size_arrive_with_and_without_tls_side_by_side() {
    isolated(|site| {
        let sizes = [
            0, 1, 4095, 4096, 16_383, 16_384, 65_536, 1_000_000, 20_000_001,
        ];
        let files = sizes.map(|size| site.file(&format!("{size}"), size).unwrap());
        let (splitway, client) =
            serve_and_trust(&site, &["--tls-listen", "8443", "--listen", "80"]);
        for server in HTTPS {
            let mut connection = client.open(server).unwrap();
            for file in &files {
                connection.get(file).unwrap();
            }
            let requests: String = files
                .iter()
                .map(|file| request("GET", file.name()))
                .collect();
            connection.send(requests.as_bytes()).unwrap();
            for file in &files {
                connection.read_file(file).unwrap();
            }
            finish(connection).unwrap();
        }
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            for file in &files {
                connection.get(file).unwrap();
            }
        }
        let other = (HTTPS[0].ip(), 8443).into();
        client.download(other, &files[7]).unwrap();
        drop(splitway);
    });
}

#[test]
fn many_download_at_once_with_two_workers() {
    isolated(|site| {
        let files: Vec<KnownFile> = (0..8)
            .map(|i| site.file(&format!("{i}"), 500_000 + i * 4093).unwrap())
            .collect();
        let both = ["--workers", "2", "--workers-min", "2"];
        let (mut splitway, client) = serve_and_trust(&site, &both);
        on_threads(64, |index| {
            let mut connection = client.open(HTTPS[index % 2])?;
            for turn in 0..4 {
                connection.get(&files[(index + turn) % files.len()])?;
            }
            finish(connection)
        });
        splitway.end_with(Signal::TERM).unwrap();
        assert_eq!(host_counter(&mut splitway, "tls_handshakes"), 64);
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}

#[test]
fn the_name_that_a_client_asks_for_decides_about_the_certificate() {
    isolated(|site| {
        let file = site.file("file", 5000).unwrap();
        let certificate =
            |name: &str, names: &[&str]| Certificate::new(site.outside(), name, "ec", names);
        let first = certificate("first", &["localhost"]);
        let second = certificate("second", &["second.example", "*.wild.example"]);
        let _splitway = serve_tls(&site, &[&first, &second], &[]);
        for (name, trusted, other) in [
            ("localhost", &first, &second),
            ("second.example", &second, &first),
            ("a.wild.example", &second, &first),
        ] {
            let open = |trusted| Client::new(&[trusted], Choice::Any).open_named(HTTPS[0], name);
            open(trusted).unwrap().get(&file).unwrap();
            assert!(open(other).is_err(), "{name}");
        }
        // Strangers get the first.
        let shown = |name: &str| {
            // How names are printed differs between versions of OpenSSL.
            let line = format!(
                "openssl s_client -nameopt utf8,space_eq -connect {} {name}",
                HTTPS[0]
            );
            let output = tool(&line).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        for name in ["-noservername", "-servername stranger.example"] {
            assert!(shown(name).contains("subject=CN = first"), "{name}");
        }
        assert!(shown("-servername second.example").contains("subject=CN = second"));
    });
}

#[test]
fn an_ocsp_response_is_stapled() {
    isolated(|site| {
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let response = site.outside().join("ocsp.der");
        // An answer that says nothing: successful (RFC 6960 §4.2.1).
        fs::write(&response, [0x30, 0x03, 0x0a, 0x01, 0x00]).unwrap();
        let response = response.to_str().unwrap();
        let _splitway = serve_tls(&site, &[&certificate], &["--tls-ocsp", response]);
        let output = tool(&format!("openssl s_client -connect {} -status", HTTPS[0]))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("OCSP Response Status: successful"), "{said}");
    });
}

#[test]
fn sessions_are_resumed() {
    isolated(|site| {
        let file = site.file("file", 300_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let session = site.outside().join("session");
        let resumed = |download: &dyn Fn()| {
            let mut splitway = serve_tls(&site, &[&certificate], &[]);
            download();
            splitway.end_with(Signal::TERM).unwrap();
            host_counter(&mut splitway, "tls_handshakes_resumed")
        };
        for version in ["-tls1_3", "-tls1_2"] {
            let openssl = |option: &str| {
                let options = format!("-quiet {version} {option} {}", session.display());
                let mut connection = Tool::start(&mut openssl(HTTPS[0], &certificate, &options));
                connection.get(&file).unwrap();
            };
            let twice = || {
                openssl("-sess_out");
                openssl("-sess_in");
            };
            assert_eq!(resumed(&twice), 1, "{version}");
        }
        // The same session five times more.
        let reconnect = || {
            let mut command = openssl(HTTPS[1], &certificate, "-quiet -tls1_2 -reconnect");
            Tool::start(&mut command).get(&file).unwrap();
        };
        assert_eq!(resumed(&reconnect), 5);
        for version in ["1.2", "1.3"] {
            let priority = format!("NORMAL:-VERS-ALL:+VERS-TLS{version}");
            let gnutls = || {
                let mut command = gnutls(HTTPS[0], &certificate, &priority, "--resume");
                Tool::start(&mut command).get(&file).unwrap();
            };
            assert_eq!(resumed(&gnutls), 1, "{version}");
        }
        for choice in [Choice::Tls12, Choice::Tls13] {
            let client = Client::new(&[&certificate], choice);
            let rustls = || (0..4).for_each(|_| client.download(HTTPS[0], &file).unwrap());
            assert_eq!(resumed(&rustls), 3, "{choice:?}");
        }
    });
}

#[test]
fn openssl_updates_keys_in_mid_download() {
    isolated(|site| {
        let file = site.file("file", 40_000_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let mut splitway = serve_tls(&site, &[&certificate], &[]);
        let mut command = openssl(HTTPS[0], &certificate, "-brief -tls1_3");
        let mut connection = Tool::start(&mut command);
        connection.send_get(file.name()).unwrap();
        connection.read_file_head(&file).unwrap();
        let mut at = 0;
        let mut read = |connection: &mut Connection<Tool>, bytes: u64| {
            let end = file.size().min(at + bytes);
            connection.read_file_part(&file, at..end).unwrap();
            at = end;
            at < file.size()
        };
        // `k` is the client's own key, `K` the server's as well.
        for command in ["K\n", "k\n", "K\n", "K\n"] {
            read(&mut connection, 1_000_000);
            connection.send(command.as_bytes()).unwrap();
            // It takes what it reads at once for one command, and reads none while more comes than
            // it can pass on.
            while connection.stream().unread() > 0 {
                assert!(read(&mut connection, 100_000), "it took no command");
            }
        }
        while read(&mut connection, u64::MAX / 2) {}
        connection.get(&file).unwrap();
        splitway.end_with(Signal::TERM).unwrap();
        // Of our own: one may answer several.
        let updates = host_counter(&mut splitway, "tls_key_updates");
        assert!((1..=3).contains(&updates), "{updates}");
    });
}

#[test]
fn both_sides_update_keys_in_mid_download() {
    isolated(|site| {
        let file = site.file("file", 30_000_000).unwrap();
        // Every 1.6 MB or so, by the server.
        let (mut splitway, client) = serve_and_trust(&site, &["--tls-key-records", "100"]);
        lose_packets();
        on_threads(8, |index| {
            let mut connection = client.open(HTTPS[index % 2])?;
            connection.send_get(file.name())?;
            connection.read_file_head(&file)?;
            let part = file.size() / 10;
            for turn in 0..10 {
                connection.stream_mut().conn.refresh_traffic_keys().unwrap();
                connection.read_file_part(&file, turn * part..(turn + 1) * part)?;
            }
            connection.get(&file)?;
            finish(connection)
        });
        // Not before each FIN has arrived, though some were lost: SIGTERM would break those
        // connections.
        splitway.end_with(Signal::QUIT).unwrap();
        let updates = host_counter(&mut splitway, "tls_key_updates");
        // As many as the client asks for, and of the second file's 1,831 records those that are
        // due.
        assert!(updates >= 8 * (10 + 18), "{updates}");
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}

#[test]
fn tools_follow_the_servers_key_updates() {
    isolated(|site| {
        let file = site.file("file", 5_000_003).unwrap();
        // GnuTLS's writes each byte by itself.
        let small = site.file("small", 500_003).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let mut splitway = serve_tls(&site, &[&certificate], &["--tls-key-records", "16"]);
        for server in HTTPS {
            let mut command = openssl(server, &certificate, "-quiet -tls1_3");
            Tool::start(&mut command).get(&file).unwrap();
            let mut command = gnutls(server, &certificate, "NORMAL:-VERS-ALL:+VERS-TLS1.3", "");
            Tool::start(&mut command).get(&small).unwrap();
            curl(&site, &certificate.certificate, server, &file, "--tlsv1.3");
        }
        splitway.end_with(Signal::TERM).unwrap();
        let updates = host_counter(&mut splitway, "tls_key_updates");
        assert!(updates >= 2 * (18 + 2 + 18), "{updates}");
    });
}

/// Kills the NIC process and replaces it by turns, again and again, while clients download over
/// links that lose packets.
#[test]
fn downloads_outlive_nic_processes_and_lost_packets() {
    const CLIENTS: usize = 40;
    const DEATHS: u64 = 8;
    isolated(|site| {
        let mut random = Random::seeded();
        let files: Vec<KnownFile> = (0..8)
            .map(|i| site.file(&format!("{i}"), 300_000 + i * 4099).unwrap())
            .collect();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let socket = site.outside().join("control");
        let mut splitway = serve_tls(
            &site,
            &[&certificate],
            &[
                "--tls-key-records",
                "200",
                "--control-socket",
                socket.to_str().unwrap(),
            ],
        );
        let clients =
            [Choice::Tls13, Choice::Tls12].map(|choice| Client::new(&[&certificate], choice));
        lose_packets();
        let (responses, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let downloads = scope.spawn(|| {
                on_threads(CLIENTS, |index| {
                    // In TLS 1.2 a key has no successor.
                    let is_13 = index % 4 < 3;
                    let client = &clients[usize::from(!is_13)];
                    let mut connection = client.open(HTTPS[index % 2])?;
                    let mut turn = index;
                    while over.load(Ordering::Relaxed) == 0 {
                        connection.get(&files[turn % files.len()])?;
                        responses.fetch_add(1, Ordering::Relaxed);
                        turn += 1;
                        if !is_13 && turn % 4 == 0 {
                            finish(std::mem::replace(
                                &mut connection,
                                client.open(HTTPS[index % 2])?,
                            ))?;
                        }
                    }
                    finish(connection)
                });
            });
            let mut dead = Vec::new();
            let mut nic = splitway.nic();
            for number in 0..DEATHS {
                let before = responses.load(Ordering::Relaxed);
                let more = 1 + random.below(2 * CLIENTS as u64) as usize;
                wait::until(SOON, "responses", || {
                    let is_enough = responses.load(Ordering::Relaxed) >= before + more;
                    (is_enough || downloads.is_finished()).then_some(())
                })
                .unwrap();
                dead.push(nic);
                if number % 2 == 1 {
                    // It tells the tags of what it has sealed before it ends.
                    let (done, said) = restart_nic(&socket);
                    assert!(done, "{said}");
                    nic = serving(&said).unwrap();
                    continue;
                }
                signal(nic, Signal::KILL).unwrap();
                let another = |line: &str| serving(line).filter(|pid| !dead.contains(pid));
                let line = splitway.line(|line| another(line).is_some()).unwrap();
                nic = another(&line).unwrap();
            }
            over.store(1, Ordering::Relaxed);
            downloads.join().unwrap();
        });
        println!("{} responses", responses.into_inner());
        splitway.end_with(Signal::TERM).unwrap();
        // One that dies before the one before it has ended is never used.
        let restarts = host_counter(&mut splitway, "nic_restarts");
        assert!((DEATHS / 2..=DEATHS).contains(&restarts), "{restarts}");
        // A client that has heard close_notify is gone, whether or not its FIN has arrived: the end
        // may break its connection, and says nothing.
        for name in [
            "tls_failed",
            "tls_records_unproven",
            "tls_seal_mismatches",
            "reads_failed",
        ] {
            assert_eq!(host_counter(&mut splitway, name), 0, "{name}");
        }
    });
}

/// Waits until the server has printed so many lines of the kind.
fn await_lines(splitway: &mut Splitway, what: &str, count: usize) {
    wait::until(SOON, what, || {
        let lines = splitway.output().iter();
        let found = lines.filter(|line| line.contains(what)).count();
        (found >= count).then_some(())
    })
    .unwrap();
}

#[test]
fn certificates_are_reloaded_and_connections_go_on() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let small = site.file("small", 5000).unwrap();
        let used = Certificate::new(site.outside(), "used", "ec", &["localhost"]);
        let before = Client::new(&[&used], Choice::Any);
        let mut splitway = serve_tls(&site, &[&used], &[]);
        let mut connection = before.open(HTTPS[0]).unwrap();
        connection.send_get(file.name()).unwrap();
        connection.read_file_head(&file).unwrap();
        connection.read_file_part(&file, 0..5_000_000).unwrap();

        let install = |other: &Certificate| {
            fs::copy(&other.certificate, &used.certificate).unwrap();
            fs::copy(&other.key, &used.key).unwrap();
        };
        // One that is no good changes nothing.
        let [second, third] = ["second", "third"]
            .map(|name| Certificate::new(site.outside(), name, "ec", &["localhost"]));
        fs::copy(&second.certificate, &used.certificate).unwrap();
        let (done, said) = ctl("reload", None);
        assert!(!done && said.contains("does not belong"), "{said}");
        assert!(said.contains("the one in use stays"), "{said}");
        // Lines come when they come: one of each request is awaited, or the next would pass for
        // nothing.
        await_lines(&mut splitway, "does not belong", 1);
        signal(splitway.supervisor(), Signal::HUP).unwrap();
        await_lines(&mut splitway, "does not belong", 2);
        before.download(HTTPS[1], &small).unwrap();

        install(&second);
        let (done, said) = ctl("reload", None);
        assert!(done && said.contains("1 certificate read again"), "{said}");
        // A client of its own: who knows a session needs no certificate.
        let trusts = |certificate| Client::new(&[certificate], Choice::Any);
        trusts(&second).download(HTTPS[0], &small).unwrap();
        let unknown = Certificate {
            certificate: site.outside().join("first.pem"),
            key: PathBuf::new(),
        };
        fs::copy(&third.certificate, &unknown.certificate).unwrap();
        assert!(trusts(&unknown).open(HTTPS[0]).is_err());

        install(&third);
        await_lines(&mut splitway, "read again", 1);
        signal(splitway.supervisor(), Signal::HUP).unwrap();
        wait::until(SOON, "the new certificate", || {
            trusts(&third).download(HTTPS[0], &small).ok()
        })
        .unwrap();
        await_lines(&mut splitway, "read again", 2);

        connection
            .read_file_part(&file, 5_000_000..file.size())
            .unwrap();
        connection.get(&small).unwrap();
        finish(connection).unwrap();
        splitway.end_with(Signal::TERM).unwrap();
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}

#[test]
fn a_certificate_that_expired_or_cannot_be_used_keeps_no_other_from_being_renewed() {
    isolated(|site| {
        sh("ip link set lo up");
        let file = site.file("file", 5000).unwrap();
        let new = |name: &str| {
            let names = [format!("{name}.example")];
            Certificate::new(
                site.outside(),
                name,
                "ec",
                &names.each_ref().map(|it| &**it),
            )
        };
        let [first, second, renewed] = ["first", "second", "renewed"].map(new);
        let expired = Certificate::expired(site.outside(), "expired");
        let served = [&expired, &first, &second];
        let options = ["--listen", "80", "--admin", ADMIN];
        let mut splitway = serve_tls(&site, &served, &options);
        let is_warned = |line: &str| line.contains("expired.pem expired");
        splitway.line(is_warned).unwrap();
        let metrics = wait::until(SOON, "the metric", || {
            let (_, metrics) = ask("GET /metrics HTTP/1.1\r\n\r\n");
            metrics.contains("certificate_not_after").then_some(metrics)
        });
        let name = "splitway_tls_certificate_not_after_seconds";
        let path = expired.certificate.display();
        let sample = format!("{name}{{certificate=\"{path}\"}} 1577836800\n");
        let metrics = metrics.unwrap();
        assert!(metrics.contains(&sample), "{metrics}");
        testbed::http::download(HTTP_V4, &file).unwrap();
        let downloads = |name: &str, trusted: &Certificate| {
            let client = Client::new(&[trusted], Choice::Any);
            let mut connection = client.open_named(HTTPS[0], name).unwrap();
            connection.get(&file).unwrap();
            finish(connection).unwrap();
        };
        downloads("first.example", &first);
        downloads("second.example", &second);

        // One loses its key, while the other is renewed.
        let kept = site.outside().join("kept.pem");
        fs::copy(&first.certificate, &kept).unwrap();
        let kept = Certificate {
            certificate: kept,
            key: PathBuf::new(),
        };
        fs::copy(&renewed.key, &first.key).unwrap();
        let other = Certificate::new(site.outside(), "other", "ec", &["second.example"]);
        fs::copy(&other.certificate, &second.certificate).unwrap();
        fs::copy(&other.key, &second.key).unwrap();
        let (done, said) = ctl("reload", None);
        assert!(
            !done && said.contains("first.key does not belong"),
            "{said}"
        );
        assert!(said.contains("the one in use stays"), "{said}");
        assert!(said.contains("2 certificates read again"), "{said}");
        downloads("first.example", &kept);
        downloads("second.example", &other);
        testbed::http::download(HTTP_V4, &file).unwrap();
    });
}

#[test]
fn a_configuration_that_is_wrong_keeps_no_certificate_from_being_renewed() {
    isolated(|site| {
        let file = site.file("file", 5000).unwrap();
        let used = Certificate::new(site.outside(), "used", "ec", &["localhost"]);
        let tls = format!(
            "listen = [{{ port = 443, tls = true }}]\n[[tls.certificate]]\nchain = {:?}\nkey = \
             {:?}\n",
            used.certificate, used.key
        );
        let write = |first: &str| {
            let path = site.outside().join("splitway.toml");
            let text = format!("nic.root = {:?}\n{first}\n{tls}", site.root());
            fs::write(&path, text).unwrap();
            path
        };
        let _splitway = crate::config::serve_configured(&write(""));
        let other = Certificate::new(site.outside(), "other", "ec", &["localhost"]);
        fs::copy(&other.certificate, &used.certificate).unwrap();
        fs::copy(&other.key, &used.key).unwrap();
        write("http.ranges_maximum = 1");
        // A release replaces the root.
        let old = site.outside().join("old");
        fs::rename(site.root(), &old).unwrap();
        fs::create_dir(site.root()).unwrap();
        fs::copy(old.join("file"), site.root().join("file")).unwrap();
        let (done, said) = ctl("reload", None);
        assert!(!done && said.contains("1 certificate read again"), "{said}");
        assert!(!said.contains("is another directory"), "{said}");
        assert!(said.contains("unknown key `ranges_maximum`"), "{said}");
        let client = Client::new(&[&other], Choice::Any);
        client.download(HTTPS[0], &file).unwrap();
    });
}

#[test]
fn without_files_to_read_a_reload_follows_the_root_and_sighup_ends_the_server() {
    isolated(|site| {
        let file = site.file("file", 5000).unwrap();
        let mut splitway = crate::support::serve(&site);
        let (done, said) = ctl("reload", None);
        assert!(done && said == "the root is followed again\n", "{said}");
        testbed::http::download(HTTP_V4, &file).unwrap();
        assert!(splitway.end_with(Signal::HUP).unwrap().success());
    });
}

#[test]
fn a_certificate_for_trying_out_is_made_again() {
    isolated(|site| {
        let file = site.file("file", 5000).unwrap();
        let mut splitway = serve_with(&site, &["--tls-listen", "443", "--tls-self-signed"]);
        let trusted = file_to_trust(&mut splitway);
        let first = fs::read(&trusted).unwrap();
        let (done, said) = ctl("reload", None);
        assert!(done, "{said}");
        assert_ne!(fs::read(&trusted).unwrap(), first);
        curl(&site, &trusted, HTTPS[0], &file, "");
    });
}

#[test]
fn only_the_versions_and_ciphers_that_were_asked_for_are_spoken() {
    isolated(|site| {
        let file = site.file("file", 5000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        for (options, works, fails) in [
            (&["--tls-versions", "1.3"][..], Choice::Tls13, Choice::Tls12),
            (&["--tls-versions", "1.2"], Choice::Tls12, Choice::Tls13),
            (
                &["--tls-ciphers", "aes-256-gcm,chacha20-poly1305"],
                Choice::Any,
                Choice::Aes128 { is_13: true },
            ),
        ] {
            let _splitway = serve_tls(&site, &[&certificate], options);
            let client = |choice| Client::new(&[&certificate], choice);
            client(works).download(HTTPS[0], &file).unwrap();
            assert!(client(fails).open(HTTPS[0]).is_err(), "{options:?}");
        }
    });
}

#[test]
fn keys_are_in_no_core_dump_and_no_argument() {
    isolated(|site| {
        let file = site.file("file", 5000).unwrap();
        let (splitway, client) = serve_and_trust(&site, &[]);
        client.download(HTTPS[0], &file).unwrap();
        let key = fs::read_to_string(site.outside().join("server.key")).unwrap();
        let secret = key.lines().nth(1).unwrap();
        for pid in [splitway.supervisor(), splitway.host(), splitway.nic()] {
            let process = format!("/proc/{}", pid.as_raw_nonzero());
            let limits = fs::read_to_string(format!("{process}/limits")).unwrap();
            let core = limits
                .lines()
                .find_map(|line| line.strip_prefix("Max core file size"))
                .unwrap();
            let core: Vec<&str> = core.split_whitespace().collect();
            assert_eq!(core, ["0", "0", "bytes"]);
            // Who could look at any other process of the same user cannot look at this one.
            let maps = format!("cat {process}/maps");
            sh(&maps);
            let without = "setpriv --bounding-set -all --inh-caps -all";
            run(&mut tool(&format!("{without} {maps}"))).unwrap_err();
            for said in ["cmdline", "environ"] {
                let said = fs::read(format!("{process}/{said}")).unwrap();
                assert!(!String::from_utf8_lossy(&said).contains(secret));
            }
        }
    });
}

#[test]
fn no_byte_of_content_is_in_the_memory_of_the_host_process() {
    isolated(|site| {
        let file = site.file("large", 30_000).unwrap();
        let (splitway, client) = serve_and_trust(&site, &[]);
        for turn in 0..20 {
            client.download(HTTPS[turn % 2], &file).unwrap();
        }
        crate::isolation::no_content_in_the_host(&site, &splitway, &[file.name()]);
    });
}

#[test]
fn a_client_that_stops_reading_does_not_disturb_others() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let (_splitway, client) = serve_and_trust(&site, &["--listen", "80"]);
        let mut stopped = client.open(HTTPS[0]).unwrap();
        stopped.send_get(file.name()).unwrap();
        stopped.read_file_head(&file).unwrap();
        let mut plain = started(FAMILIES[0], &file);
        for server in HTTPS {
            client.download(server, &file).unwrap();
        }
        stopped.read_file_part(&file, 0..file.size()).unwrap();
        finish(stopped).unwrap();
        plain.read_file_part(&file, 0..file.size()).unwrap();
    });
}
