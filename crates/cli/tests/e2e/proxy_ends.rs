//! Backends that die and come back, configurations that change, and the end of a proxy, while
//! clients go on.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use testbed::backend::{Backend, Speech};
use testbed::http::{Connection, be_patient};
use testbed::namespace::isolated;
use testbed::process::{run, signal, tool};
use testbed::splitway::HTTP_V4;
use testbed::wait;

use crate::deaths::host_counter;
use crate::metrics::{ADMIN, ask};
use crate::proxy::{exchange, listen, pool, started, written};
use crate::stat::json;
use crate::support::{SOON, ctl, on_threads, program, sh};

#[test]
fn a_backend_that_dies_and_comes_back_costs_no_request_that_can_be_repeated() {
    isolated(|site| {
        let steady = Backend::new(9002, Speech::Http);
        let dying = Backend::new(9001, Speech::Http);
        let checks = "check = \"http\"\ncheck_path = \"/5\"\ncheck_interval = \"200ms\"\n\
                      check_timeout = \"200ms\"";
        let text = listen(80, "web", "") + &pool("web", checks, &[9001, 9002]);
        let mut proxy = started(&written(&site, &text));
        let is_over = AtomicBool::new(false);
        let answered = AtomicUsize::new(0);
        let progress = |more: usize| {
            let target = answered.load(Ordering::Relaxed) + more;
            let is_there = || (answered.load(Ordering::Relaxed) >= target).then_some(());
            wait::until(SOON, "requests", is_there).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                on_threads(8, |_| {
                    let mut connection = Connection::open(HTTP_V4)?;
                    while !is_over.load(Ordering::Relaxed) {
                        exchange(&mut connection, "/2000")?;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                });
            });
            progress(100);
            drop(dying);
            progress(300);
            let back = Backend::new(9001, Speech::Http);
            let serves = || (back.requests() > 50).then_some(());
            wait::until(SOON, "the backend to be used again", serves).unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(steady.requests() > 100);
        proxy.end_with(Signal::TERM).unwrap();
        assert_eq!(host_counter(&mut proxy, "proxy_refused_5xx"), 0);
    });
}

#[test]
fn without_a_backend_the_answer_says_so() {
    isolated(|site| {
        let text = listen(80, "web", "")
            + &listen(81, "none", "")
            + &pool("web", "", &[9001])
            + &pool("none", "", &[]);
        let _proxy = started(&written(&site, &text));
        for (port, status) in [(80, 502), (81, 503)] {
            let server = std::net::SocketAddr::new(HTTP_V4.ip(), port);
            let mut connection = Connection::open(server).unwrap();
            connection
                .send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
                .unwrap();
            assert_eq!(connection.read_head().unwrap().status, status);
        }
    });
}

#[test]
fn another_configuration_takes_over_under_load() {
    isolated(|site| {
        // Names come from a file of this test's own.
        let hosts = site.outside().join("hosts");
        fs::write(&hosts, "10.77.0.1 app.test\n").unwrap();
        run(&mut tool(&format!(
            "mount --bind {} /etc/hosts",
            hosts.display()
        )))
        .unwrap();
        let old = Backend::new(9001, Speech::Http);
        let new = Backend::new(9002, Speech::Http);
        let named = |port: u16| {
            format!(
                "[[proxy.pool]]\nname = \"web\"\n\
                 [[proxy.pool.backend]]\naddress = \"app.test:{port}\"\n"
            )
        };
        let path = written(&site, &(listen(80, "web", "") + &named(9001)));
        let _proxy = started(&path);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                on_threads(8, |_| {
                    let mut connection = Connection::open(HTTP_V4)?;
                    while !is_over.load(Ordering::Relaxed) {
                        exchange(&mut connection, "/3000")?;
                    }
                    Ok(())
                });
            });
            for (backend, port) in [(&new, 9002), (&old, 9001), (&new, 9002)] {
                let before = backend.requests();
                fs::write(&path, listen(80, "web", "") + &named(port)).unwrap();
                let (done, said) = ctl("reload", None);
                assert!(done && said.contains("configuration read again"), "{said}");
                let serves = || (backend.requests() > before + 50).then_some(());
                wait::until(SOON, "the other backend", serves).unwrap();
            }
            // What is wrong changes nothing.
            fs::write(&path, listen(80, "nowhere", "") + &named(9001)).unwrap();
            let (done, said) = ctl("reload", None);
            assert!(
                !done && said.contains("there is no pool \"nowhere\""),
                "{said}"
            );
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn draining_finishes_what_is_under_way() {
    isolated(|site| {
        for by_signal in [true, false] {
            let backend = Backend::new(9001, Speech::Http);
            let text = listen(80, "web", "") + &pool("web", "check = \"tcp\"", &[9001]);
            let mut proxy = started(&written(&site, &text));
            let mut idle = Connection::open(HTTP_V4).unwrap();
            exchange(&mut idle, "/1000").unwrap();
            let mut busy = Connection::open(HTTP_V4).unwrap();
            busy.send(b"GET /gate HTTP/1.1\r\nHost: test\r\n\r\n")
                .unwrap();
            let is_asked = || (backend.requests() == 2).then_some(());
            wait::until(SOON, "the request", is_asked).unwrap();
            if by_signal {
                signal(proxy.supervisor(), Signal::QUIT).unwrap();
            } else {
                let (done, said) = ctl("drain", None);
                assert!(done && said.contains("no new connections"), "{said}");
            }
            proxy.line(|line| line.starts_with("draining")).unwrap();
            idle.read_end().unwrap();
            wait::until(SOON, "a refusal", || Connection::open(HTTP_V4).err()).unwrap();
            backend.open_gate();
            let head = busy.read_head().unwrap();
            assert_eq!(
                (head.status, head.field("connection")),
                (200, Some("close"))
            );
            drop((idle, busy));
            assert!(proxy.wait().unwrap().success());
            proxy.line(|line| line.starts_with("drained")).unwrap();
        }
    });
}

#[test]
fn draining_resets_what_goes_on_for_too_long() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let text = listen(80, "echo", "mode = \"tcp\"")
            + &pool("echo", "", &[9001])
            + "[operation]\ndrain_timeout = \"300ms\"\n";
        let mut proxy = started(&written(&site, &text));
        let mut tunnel = TcpStream::connect(HTTP_V4).unwrap();
        be_patient(&tunnel).unwrap();
        tunnel.write_all(b"x").unwrap();
        tunnel.read_exact(&mut [0]).unwrap();
        signal(proxy.supervisor(), Signal::QUIT).unwrap();
        assert!(proxy.wait().unwrap().success());
        proxy.line(|line| line.contains("reset")).unwrap();
        let end = tunnel.read(&mut [0]).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_file_is_checked_and_refused_with_its_line() {
    isolated(|site| {
        let good = listen(80, "web", "") + &pool("web", "", &[9001]);
        let path = written(&site, &good);
        let check = |command: &[&str]| {
            let output = Command::new(program())
                .args(command)
                .arg(&path)
                .output()
                .unwrap();
            let said = [output.stdout, output.stderr].concat();
            (
                output.status.success(),
                String::from_utf8_lossy(&said).into_owned(),
            )
        };
        assert!(check(&["check"]).0);
        let (done, said) = check(&["serve", "--config"]);
        assert!(!done && said.contains("splitway proxy"), "{said}");
        fs::write(&path, good.replace("pool = \"web\"", "pool = \"wed\"")).unwrap();
        for command in [&["check"][..], &["proxy", "--config"]] {
            let (done, said) = check(command);
            assert!(!done && said.contains("proxy.toml:3:8"), "{said}");
            assert!(said.contains("there is no pool \"wed\""), "{said}");
        }
        fs::write(&path, "").unwrap();
        let (done, said) = check(&["proxy", "--config"]);
        assert!(!done && said.contains("[[proxy.listen]]"), "{said}");
    });
}

#[test]
fn what_is_forwarded_is_logged_with_its_backend() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Http);
        let log = site.outside().join("access.log");
        let logs = format!(
            "[logs]\naccess = \"{}\"\naccess_format = \"json\"\n\
             [operation]\nadmin = \"127.0.0.1:9180\"\n",
            log.display()
        );
        let text = listen(80, "web", "") + &pool("web", "", &[9001]) + &logs;
        let _proxy = started(&written(&site, &text));
        let mut connection = Connection::open(HTTP_V4).unwrap();
        exchange(&mut connection, "/1234").unwrap();
        let lines = || {
            fs::read_to_string(&log)
                .ok()
                .filter(|text| text.ends_with('\n'))
        };
        let lines = wait::until(SOON, "a line", lines).unwrap();
        let line: serde_json::Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(
            (&line["status"], &line["body_bytes"]),
            (&200.into(), &1234.into())
        );
        assert_eq!(
            (&line["site"], &line["target"]),
            (&"web".into(), &"/1234".into())
        );
        assert_eq!(line["backend"], "10.77.0.1:9001");
        let labels = "{pool=\"web\",backend=\"10.77.0.1:9001\"}";
        let metrics = || {
            let mut admin = Connection::open("127.0.0.1:9180".parse().unwrap()).ok()?;
            admin
                .send(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
                .ok()?;
            let head = admin.read_head().ok()?;
            let mut text = Vec::new();
            let length = head.content_length().ok()?;
            let read = admin.read_body(length, |_, piece| {
                text.extend_from_slice(piece);
                Ok(())
            });
            read.ok()?;
            let text = String::from_utf8(text).ok()?;
            let is_there = text.contains("splitway_proxy_responses_total 1\n")
                && text.contains(&format!(
                    "splitway_proxy_backend_connections_idle{labels} 1\n"
                ));
            is_there.then_some(text)
        };
        let text = wait::until(SOON, "the metric", metrics).unwrap();
        assert!(text.contains("splitway_proxy_backends_up 1\n"), "{text}");
        for (metric, value) in [
            ("requests_total", 1),
            ("responses_total", 1),
            ("requests_failed_total", 0),
            ("connections", 0),
            ("connections_idle", 1),
            ("up", 1),
            ("ejected", 0),
        ] {
            let sample = format!("splitway_proxy_backend_{metric}{labels} {value}\n");
            assert!(text.contains(&sample), "{sample}{text}");
        }
    });
}

#[test]
fn a_backend_whose_name_is_unknown_is_down_until_it_is_known_and_others_go_on() {
    isolated(|site| {
        sh("ip link set lo up");
        let names = site.outside().join("hosts");
        fs::write(&names, "").unwrap();
        let mount = format!("mount --bind {} /etc/hosts", names.display());
        run(&mut tool(&mount)).unwrap();
        let known = Backend::new(9001, Speech::Http);
        let named = Backend::new(9002, Speech::Http);
        let text = |port: u16| {
            format!(
                "operation.admin = \"{ADMIN}\"\nproxy.resolve_interval = \"100ms\"\n{}{}{}{}",
                listen(80, "web", ""),
                listen(81, "named", ""),
                pool("web", "", &[9001]),
                pool("named", "", &[])
            ) + &format!("[[proxy.pool.backend]]\naddress = \"app.test:{port}\"\n")
        };
        let path = written(&site, &text(9002));
        let mut proxy = started(&path);
        proxy
            .line(|line| line.contains("app.test:9002") && line.contains("it is down"))
            .unwrap();
        let mut connection = Connection::open(HTTP_V4).unwrap();
        exchange(&mut connection, "/3000").unwrap();
        let other = std::net::SocketAddr::new(HTTP_V4.ip(), 81);
        let status = || {
            let mut connection = Connection::open(other).unwrap();
            connection
                .send(b"GET /3000 HTTP/1.1\r\nHost: test\r\n\r\n")
                .unwrap();
            connection.read_head().unwrap().status
        };
        assert_eq!(status(), 503);
        let await_metric = |value: u8| {
            let name = "splitway_proxy_backend_unresolved";
            let labels = "{pool=\"named\",backend=\"app.test:9002\"}";
            let sample = format!("{name}{labels} {value}\n");
            wait::until(SOON, "the metric", || {
                let (_, metrics) = ask("GET /metrics HTTP/1.1\r\n\r\n");
                metrics.contains(&sample).then_some(())
            })
            .unwrap();
        };
        await_metric(1);
        let text = run(Command::new(program()).arg("stat")).unwrap();
        let row = text.lines().find(|line| line.contains("app.test:9002"));
        let row = row.unwrap_or_else(|| panic!("{text}"));
        assert!(row.contains("unresolved"), "{row}");
        assert!(row.contains("looking up its name: "), "{row}");
        let document = json(&["--summary"]);
        let backend = &document["backends"][1];
        assert_eq!(backend["pool"], "named", "{document}");
        assert!(backend["address"].is_null(), "{backend}");
        // A reload that does not find it either is one all the same.
        let (done, said) = ctl("reload", None);
        assert!(done && said.contains("app.test:9002"), "{said}");

        fs::write(&names, "10.77.0.1 app.test\n").unwrap();
        proxy
            .line(|line| line.contains("the name of the backend is resolved"))
            .unwrap();
        await_metric(0);
        assert_eq!(status(), 200);
        assert!(named.requests() > 0);

        // One that is unknown again keeps its address.
        fs::write(&names, "").unwrap();
        let (done, said) = ctl("reload", None);
        let keeps = said.contains("the addresses from before stay in use");
        assert!(done && keeps, "{said}");
        assert_eq!(status(), 200);
        exchange(&mut connection, "/3000").unwrap();
        assert!(known.requests() >= 2);
    });
}
