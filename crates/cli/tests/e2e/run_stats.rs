//! `splitway run --stats`: what a program's sockets have done.

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use testbed::namespace::isolated;

use crate::programs::{Stack, at};
use crate::run::{
    PORT, download_all, end, fetch, files, nginx_configuration, splitway_run, splitway_run_on,
    start,
};

/// The rows that a program has written to a file.
struct Rows(String);

impl Rows {
    fn of(path: &Path) -> Rows {
        Rows(std::fs::read_to_string(path).unwrap())
    }

    /// The last cell of a row.
    fn cell(&self, label: &str) -> &str {
        let mut rows = self.0.lines();
        let row = rows.find(|row| row.starts_with(label));
        let row = row.unwrap_or_else(|| panic!("no {label:?} in {}", self.0));
        row[label.len()..].trim()
    }

    fn count(&self, label: &str) -> u64 {
        self.cell(label).replace(',', "").parse().unwrap()
    }
}

#[test]
fn what_workers_have_done_is_summed_when_all_have_ended() {
    isolated(|site| {
        let site = &site;
        let sizes = [20_000, 500_000, 3_000_000];
        let files = files(site, &sizes);
        let stack = Stack::serve(site);
        let said = stack.folder.join("said");
        let configuration = nginx_configuration(site, &stack.folder, 2, "");
        let port = PORT.to_string();
        let mut command = splitway_run_on(&stack, &["--stats", "--listen", &port, "--", "nginx"]);
        command.arg("-c").arg(configuration);
        command.stderr(File::create(&said).unwrap());
        let mut nginx = start(&mut command);
        download_all(&files);
        assert!(end(&mut nginx, Signal::TERM).success());

        let rows = Rows::of(&said);
        // Eight threads have fetched each file.
        let bytes = 8 * sizes.iter().sum::<u64>();
        assert_eq!(rows.count("of these offloaded, of files"), bytes);
        assert!(rows.count("bytes sent") > bytes);
        let share = rows.cell("offloaded share");
        assert!(share.starts_with("99.9"), "{share}");
        let accepted = rows.count("connections accepted");
        assert!((24..=25).contains(&accepted), "{accepted}");
        assert!(rows.count("bytes received") > 0);
        assert_eq!(rows.count("connections begun"), 0);
        // That of the other port, which no rule names.
        assert_eq!(rows.count("listeners left to the kernel"), 1);
        assert!(rows.cell("CPU time").ends_with(" ms"));
        assert!(!rows.0.contains("host process"), "{}", rows.0);
    });
}

#[test]
fn programs_that_a_script_starts_are_counted_together() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let said = stack.folder.join("said");
        let server = TcpListener::bind("10.77.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let kernels = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = kernels.local_addr().unwrap();
        let answer = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let answers = std::thread::spawn(move || {
            for listener in [&server, &server, &kernels] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let _ = std::io::Read::read(&mut stream, &mut request).unwrap();
                stream.write_all(answer).unwrap();
            }
        });
        let script = format!(
            "curl -s http://{address}/ && env -i curl -s http://{address}/ && \
             exec curl -s http://{local}/"
        );
        let line = ["--stats", "--connect", "any", "--", "sh", "-c", &script];
        let mut command = splitway_run_on(&stack, &line);
        command.stderr(File::create(&said).unwrap());
        let output = command.stdout(Stdio::piped()).output().unwrap();
        assert_eq!(output.stdout, b"hellohellohello");
        answers.join().unwrap();

        let rows = Rows::of(&said);
        assert_eq!(rows.count("connections begun"), 2);
        assert_eq!(rows.count("bytes received"), 2 * answer.len() as u64);
        assert_eq!(rows.count("connections left to the kernel"), 1);
        assert_eq!(rows.count("connections accepted"), 0);
        assert_eq!(rows.count("of these offloaded, of files"), 0);
    });
}

#[test]
fn a_stack_of_the_programs_own_says_what_it_has_done_as_well() {
    isolated(|site| {
        let file = site.file("file", 300_000).unwrap();
        let said = site.outside().join("said");
        let port = PORT.to_string();
        let line = ["--stats", "--listen", &port, "--", "python3", "-m"];
        let mut command = splitway_run(&line);
        command
            .args(["http.server", &port])
            .current_dir(site.root());
        command.stderr(File::create(&said).unwrap());
        let mut server = start(&mut command);
        fetch(&format!("http://{}/{}", at(PORT), file.name()), &file);
        end(&mut server, Signal::INT);
        let rows = Rows::of(&said);
        assert!(rows.count("bytes sent") > 300_000);
        let titles = rows.0.lines().filter(|row| row.contains("host process"));
        assert!(titles.count() > 0, "{}", rows.0);
        let mut cpu = rows.0.lines().filter(|row| row.starts_with("CPU time"));
        let of_both = cpu.nth(1).expect("that of the stack");
        assert_eq!(of_both.matches(" ms").count(), 2, "{of_both}");
    });
}
