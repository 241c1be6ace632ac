//! `splitway proxy` to backends of HTTP/2: nginx takes their requests, and passes them on.

use std::fs;
use std::net::TcpStream;

use rustix::process::Signal;
use testbed::backend::{Backend, Speech};
use testbed::namespace::isolated;
use testbed::process::{Process, run, signal, tool};
use testbed::site::Site;
use testbed::wait;
use testbed::web::content;

use crate::deaths::{counted, lose_packets};
use crate::proxy::{pool, started, written};
use crate::proxy_http2::{AT_ONCE, LENGTHS, certificate, download, listen_tls, upload, urls};
use crate::support::{SOON, ctl, kill_nics_while, on_threads};

/// nginx on this port without TLS, where clients begin with HTTP/2, before a backend of HTTP/1.1.
struct H2c {
    process: Process,
    backend: Backend,
}

fn h2c(site: &Site, port: u16, more: &str) -> H2c {
    let behind = port + 100;
    let backend = Backend::new(behind, Speech::Http);
    let prefix = site.outside().join(format!("nginx{port}"));
    fs::create_dir_all(&prefix).unwrap();
    let (configuration, prefix) = (prefix.join("nginx.conf"), prefix.display());
    let text = format!(
        "daemon off; user root root; pid {prefix}/pid; worker_rlimit_nofile 4096;
        events {{ worker_connections 2000; }}
        http {{
            access_log off; client_body_temp_path {prefix}/body; proxy_temp_path {prefix}/proxy;
            fastcgi_temp_path {prefix}/fastcgi; uwsgi_temp_path {prefix}/uwsgi;
            scgi_temp_path {prefix}/scgi; client_max_body_size 0; {more}
            server {{
                listen {port} http2;
                location / {{
                    proxy_pass http://127.0.0.1:{behind};
                    proxy_http_version 1.1;
                    proxy_set_header Connection \"\";
                    proxy_buffering off;
                    proxy_request_buffering off;
                }}
            }}
        }}"
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("nginx");
    command.arg("-c").arg(&configuration);
    command.arg("-e").arg(format!("{prefix}/error.log"));
    let process = Process::spawn(&mut command).unwrap();
    let listens = || TcpStream::connect(("127.0.0.1", port)).ok();
    wait::until(SOON, "nginx", listens).unwrap();
    H2c { backend, process }
}

fn to_h2c(more: &str, ports: &[u16]) -> String {
    pool("web", &format!("protocol = \"h2c\"\n{more}"), ports)
}

/// Counters of faults.
const FAULTS: [&str; 5] = [
    "proxy_http2_stream_errors",
    "proxy_http2_connection_errors",
    "proxy_backend_http2_stream_errors",
    "proxy_backend_http2_connection_errors",
    "proxy_refused_5xx",
];

#[test]
fn every_byte_gets_through_to_backends_of_http_2() {
    isolated(|site| {
        let backends = [9001, 9002].map(|port| h2c(&site, port, ""));
        let certificate = certificate(&site, "server");
        let text = listen_tls(&certificate) + &to_h2c("", &[9001, 9002]);
        let proxy = started(&written(&site, &text));
        on_threads(8, |index| {
            let folder = site.outside().join(format!("client{index}"));
            let server = (&*urls()[index % 2], &certificate);
            for options in [AT_ONCE, "--http1.1"] {
                download(&folder, server, options, &LENGTHS)?;
                let body = content(400_000 + index, index as u64);
                upload(&folder, server, options, &body)?;
                let in_chunks = format!("{options} --header Transfer-Encoding:chunked");
                upload(&folder, server, &in_chunks, &body)?;
            }
            Ok(())
        });
        assert!(backends.iter().all(|it| it.backend.requests() > 50));
        assert_eq!(counted(proxy, FAULTS), [0; 5]);
    });
}

#[test]
fn thousands_of_requests_share_few_connections_that_nginx_ends_now_and_then() {
    isolated(|site| {
        // GOAWAY follows each hundredth request.
        let _backend = h2c(&site, 9001, "keepalive_requests 100;");
        let certificate = certificate(&site, "server");
        let text = listen_tls(&certificate) + &to_h2c("", &[9001]);
        let proxy = started(&written(&site, &text));
        let mut command = tool("h2load -n 4000 -c 10 -m 20");
        let text = run(command.arg(format!("{}/2000", urls()[0]))).unwrap();
        assert!(
            text.contains("4000 succeeded, 0 failed, 0 errored"),
            "{text}"
        );
        let names = [
            "proxy_http2_requests",
            "proxy_backend_http2_connection_errors",
            "proxy_backend_connects",
        ];
        let [requests, faults, connects] = counted(proxy, names);
        assert_eq!((requests, faults), (4000, 0));
        assert!((40..400).contains(&connects), "{connects} connections");
    });
}

#[test]
fn streams_outlive_lost_packets_and_nic_processes() {
    isolated(|site| {
        let _backends = [9001, 9002].map(|port| h2c(&site, port, ""));
        let certificate = certificate(&site, "server");
        let text = listen_tls(&certificate) + &to_h2c("", &[9001, 9002]);
        let proxy = started(&written(&site, &text));
        lose_packets();
        kill_nics_while(&proxy, || {
            on_threads(6, |index| {
                let folder = site.outside().join(format!("client{index}"));
                let server = (&*urls()[index % 2], &certificate);
                for round in 0..3 {
                    download(&folder, server, AT_ONCE, &LENGTHS)?;
                    upload(&folder, server, "--http2", &content(300_000, round))?;
                }
                Ok(())
            });
        });
        assert_eq!(counted(proxy, FAULTS), [0; 5]);
    });
}

#[test]
fn a_backend_that_is_replaced_costs_no_get_and_a_reload_changes_the_protocol() {
    isolated(|site| {
        let certificate = certificate(&site, "server");
        let mut old = h2c(&site, 9001, "");
        let more = "eject_failures = 0";
        let text = listen_tls(&certificate) + &to_h2c(more, &[9001]);
        let path = written(&site, &text);
        let proxy = started(&path);
        let server = (&*urls()[0], &certificate);
        let folder = site.outside().join("client");
        download(&folder, server, AT_ONCE, &[1000; 20]).unwrap();
        // nginx completes its responses, and ends its connections.
        signal(old.process.pid(), Signal::QUIT).unwrap();
        old.process.wait(SOON).unwrap();
        drop(old.backend);
        let _new = h2c(&site, 9001, "");
        download(&folder, server, AT_ONCE, &[1000; 20]).unwrap();
        let text = listen_tls(&certificate) + &pool("web", "", &[9101]);
        fs::write(&path, text).unwrap();
        let (is_done, said) = ctl("reload", None);
        assert!(is_done, "{said}");
        download(&folder, server, AT_ONCE, &[1000; 20]).unwrap();
        assert_eq!(counted(proxy, FAULTS), [0; 5]);
    });
}
