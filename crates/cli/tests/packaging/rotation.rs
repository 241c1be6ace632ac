//! Logs that logrotate renames.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::{run, tool};
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;

use crate::pod::tree;
use crate::support::PROGRAM;

/// How long it may take until a line is written.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn logrotate_has_the_logs_reopened() {
    isolated(|site| {
        let [before, after] = ["before", "after"].map(|name| site.file(name, 5000).unwrap());
        let place = site.outside();
        let logs = place.join("logs");
        // logrotate refuses to work where others may write.
        fs::DirBuilder::new().mode(0o750).create(&logs).unwrap();
        let (access, error) = (logs.join("access.log"), logs.join("error.log"));
        let socket = place.join("control.sock");
        let mut serve = Command::new(PROGRAM);
        serve.arg("serve").arg(site.root());
        serve.arg("--access-log").arg(&access);
        serve.arg("--error-log").arg(&error);
        serve.arg("--control-socket").arg(&socket);
        let _splitway = Splitway::start(&mut serve).unwrap();

        let has = |path: &Path, word: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.contains(word).then_some(())
        };
        download(HTTP_V4, &before).unwrap();
        wait::until(SOON, "a line", || has(&access, before.name())).unwrap();

        let text = fs::read_to_string(tree("deploy/logrotate.conf")).unwrap();
        let text = text
            .replace("/var/log/splitway", logs.to_str().unwrap())
            .replace("/run/splitway/control.sock", socket.to_str().unwrap())
            .replace("/usr/bin/splitway", PROGRAM);
        let rules = place.join("logrotate.conf");
        fs::write(&rules, text).unwrap();
        let mut rotate = tool("logrotate --force --state");
        run(rotate.arg(place.join("state")).arg(&rules)).unwrap();

        let past = logs.join("access.log.1");
        has(&past, before.name()).expect("what was written before");
        download(HTTP_V4, &after).unwrap();
        wait::until(SOON, "a line in the new file", || {
            has(&access, after.name())
        })
        .unwrap();
        assert_eq!(has(&past, after.name()), None);
        assert_eq!(has(&access, before.name()), None);
    });
}
