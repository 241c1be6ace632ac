//! Content that does not lie on a disk of this machine.

use std::fs::{self, File};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use testbed::fuse::Fuse;
use testbed::http::{Connection, download};
use testbed::namespace::isolated;
use testbed::process::{run, tool};
use testbed::site::KnownFile;
use testbed::wait;

use crate::support::{FAMILIES, SOON, serve, started};

const FAMILY: std::net::SocketAddr = FAMILIES[0];

/// Older than what any file system takes for recent.
fn long_ago() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// A file system that answers nothing delays its own files, opens and reads, and no others: neither
/// those that are in memory nor those that must be read.
#[test]
fn a_file_system_that_hangs_delays_its_own_files_alone() {
    isolated(|site| {
        let mount = site.root().join("far");
        fs::create_dir(&mount).unwrap();
        let fuse = Fuse::mount(&mount).unwrap();
        let far: Vec<_> = (0..40)
            .map(|number| {
                let file = KnownFile::whole(&format!("far/{number}"), 3_000_000);
                fuse.put(&number.to_string(), &file, long_ago());
                file
            })
            .collect();
        let near = site.file("near", 2_000_000).unwrap();
        let others: Vec<_> = (0..20)
            .map(|number| site.file(&format!("other{number}"), 2_000_000).unwrap())
            .collect();
        let _splitway = serve(&site);
        download(FAMILY, &near).unwrap();
        download(FAMILY, &far[0]).unwrap();
        // These wait amid their reads, the rest of them at the open.
        let reading: Vec<_> = far[..20].iter().map(|file| started(FAMILY, file)).collect();
        fuse.stop();
        let opening: Vec<_> = far[20..]
            .iter()
            .map(|file| {
                let mut connection = Connection::open(FAMILY).unwrap();
                connection.send_get(file.name()).unwrap();
                connection
            })
            .collect();
        for file in &others {
            download(FAMILY, file).unwrap();
            download(FAMILY, &near).unwrap();
        }
        fuse.go_on();
        for (mut connection, file) in reading.into_iter().zip(&far) {
            connection.read_file_part(file, 0..file.size()).unwrap();
        }
        for (mut connection, file) in opening.into_iter().zip(&far[20..]) {
            connection.read_file(file).unwrap();
        }
    });
}

/// The kernel believes attributes for an hour, and the file is rewritten meanwhile: the response
/// must not be made of both versions, and the next one is of the second.
#[test]
fn what_is_rewritten_unseen_by_the_kernel_is_never_mixed() {
    isolated(|site| {
        const BYTES: u64 = 30_000_000;
        let mount = site.root().join("far");
        fs::create_dir(&mount).unwrap();
        let fuse = Fuse::mount(&mount).unwrap();
        let first = KnownFile::whole("far/f", BYTES);
        let second = KnownFile::whole("far/g", BYTES);
        fuse.put("f", &first, long_ago());
        let _splitway = serve(&site);
        let mut connection = started(FAMILY, &first);
        connection.read_file_part(&first, 0..1_000_000).unwrap();
        fuse.put("f", &second, long_ago() + Duration::from_secs(100));
        let rest = connection.read_file_part(&first, 1_000_000..BYTES);
        let error = rest.expect_err("it cannot be whole").to_string();
        assert!(!error.contains("wrong byte"), "{error}");

        let mut connection = Connection::open(FAMILY).unwrap();
        connection.send_get(first.name()).unwrap();
        connection.read_file_head(&first).unwrap();
        connection.read_file_part(&second, 0..BYTES).unwrap();
    });
}

/// A write through a mapping leaves no trace in the times of a file in memory: a tag could only be
/// weak, and clients that take it for a strong one fail.
#[test]
fn a_file_in_memory_has_a_date_and_no_tag() {
    isolated(|site| {
        let memory = site.root().join("memory");
        fs::create_dir(&memory).unwrap();
        run(&mut tool(&format!(
            "mount -t tmpfs splitway-test {}",
            memory.display()
        )))
        .unwrap();
        let known = site.file("memory/f", 1_000_000).unwrap();
        let file = File::options().write(true).open(memory.join("f")).unwrap();
        file.set_modified(long_ago()).unwrap();
        let _splitway = serve(&site);
        let ask = |fields: &str| {
            let mut connection = Connection::open(FAMILY).unwrap();
            let request = format!("GET /memory/f HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            connection.send(request.as_bytes()).unwrap();
            connection
        };
        // It has changed just now, in spite of its date.
        let date = wait::until(SOON, "times that have settled", || {
            let head = ask("").read_head().unwrap();
            assert_eq!(head.field("etag"), None);
            head.field("last-modified").map(str::to_owned)
        })
        .unwrap();
        let status = |fields: String| ask(&fields).read_head().unwrap().status;
        assert_eq!(status(format!("If-Modified-Since: {date}\r\n")), 304);
        // As VLC seeks.
        let mut connection = ask(&format!(
            "Range: bytes=5-9\r\nIf-Unmodified-Since: {date}\r\n"
        ));
        assert_eq!(connection.read_head().unwrap().status, 206);
        connection.read_file_part(&known, 5..10).unwrap();
        // The date is no reason to give a part of what may be another version.
        let mut connection = ask(&format!("Range: bytes=5-9\r\nIf-Range: {date}\r\n"));
        connection.read_file(&known).unwrap();
    });
}
