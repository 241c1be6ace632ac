//! Logs that logrotate renames.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testbed::http::{Connection, download};
use testbed::namespace::isolated;
use testbed::process::{run, tool};
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;

use crate::pod::tree;
use crate::support::PROGRAM;

/// How long it may take until a line is written.
const SOON: Duration = Duration::from_secs(20);

/// A path with these words.
fn has(path: &Path, word: &str) -> Option<()> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.contains(word).then_some(())
}

/// A directory for logs. logrotate refuses to work where others may write.
fn directory(place: &Path) -> PathBuf {
    let logs = place.join("logs");
    fs::DirBuilder::new().mode(0o750).create(&logs).unwrap();
    logs
}

/// Runs logrotate with the rules of the package, for a service of this name whose logs and socket
/// are in `place`.
fn rotate(place: &Path, service: &str) {
    let paths = [
        (format!("/var/log/{service}/"), place.join("logs/")),
        (
            format!("/run/{service}/control.sock"),
            place.join("control.sock"),
        ),
        ("/usr/bin/splitway".to_owned(), PROGRAM.into()),
    ];
    let mut text = fs::read_to_string(tree("deploy/logrotate.conf")).unwrap();
    for (path, here) in paths {
        assert!(text.contains(&path), "no {path}");
        text = text.replace(&path, here.to_str().unwrap());
    }
    let rules = place.join("logrotate.conf");
    fs::write(&rules, text).unwrap();
    let mut rotate = tool("logrotate --force --state");
    run(rotate.arg(place.join("state")).arg(&rules)).unwrap();
}

/// Requests before and after a rotation are in the old file and in the new one.
fn is_rotated(place: &Path, service: &str, request: impl Fn(&str)) {
    let (access, past) = (
        place.join("logs/access.log"),
        place.join("logs/access.log.1"),
    );
    request("before");
    wait::until(SOON, "a line", || has(&access, "before")).unwrap();
    rotate(place, service);
    has(&past, "before").expect("the line from before");
    request("after");
    wait::until(SOON, "a line in the new file", || has(&access, "after")).unwrap();
    assert_eq!(has(&past, "after"), None);
    assert_eq!(has(&access, "before"), None);
}

#[test]
fn logrotate_has_the_logs_reopened() {
    isolated(|site| {
        let files = ["before", "after"].map(|name| site.file(name, 5000).unwrap());
        let place = site.outside();
        let logs = directory(place);
        let mut serve = Command::new(PROGRAM);
        serve.arg("serve").arg(site.root());
        serve.arg("--access-log").arg(logs.join("access.log"));
        serve.arg("--error-log").arg(logs.join("error.log"));
        serve
            .arg("--control-socket")
            .arg(place.join("control.sock"));
        let _splitway = Splitway::start(&mut serve).unwrap();
        is_rotated(place, "splitway", |name| {
            let file = files.iter().find(|file| file.name() == name).unwrap();
            download(HTTP_V4, file).unwrap();
        });
    });
}

#[test]
fn logrotate_has_the_logs_of_a_proxy_reopened() {
    isolated(|site| {
        let place = site.outside();
        directory(place);
        let file = place.join("proxy.toml");
        let text = "logs = { access = \"logs/access.log\", error = \"logs/error.log\" }\n\
                    operation.control_socket = \"control.sock\"\n\
                    [[proxy.listen]]\nport = 80\npool = \"none\"\n\
                    [[proxy.pool]]\nname = \"none\"\n";
        fs::write(&file, text).unwrap();
        let mut proxy = Command::new(PROGRAM);
        proxy.args(["proxy", "--config"]).arg(&file);
        let _proxy = Splitway::start(&mut proxy).unwrap();
        is_rotated(place, "splitway-proxy", |name| {
            let mut connection = Connection::open(HTTP_V4).unwrap();
            connection.send_get(name).unwrap();
            assert_eq!(connection.read_head().unwrap().status, 503);
        });
    });
}
