//! The programs, where they come from, and their jobs.

use crate::interop_long::clients::Source;

use Source::{Debian, Maven, Node, Python};

/// A program and its job.
pub(super) struct Served {
    pub(super) name: &'static str,
    pub(super) source: Source,
    /// The script in `tests/programs/served`, and the style that it is given.
    pub(super) script: (&'static str, &'static str),
    pub(super) job: &'static str,
    /// Options of `splitway run`.
    pub(super) options: &'static [&'static str],
    /// Whether it loads no library.
    pub(super) is_compat: bool,
    /// Why it does not do its job on split sockets, if it does not.
    pub(super) gap: Option<&'static str>,
}

impl Served {
    const fn new(
        name: &'static str,
        source: Source,
        script: (&'static str, &'static str),
        job: &'static str,
    ) -> Served {
        Served {
            name,
            source,
            script,
            job,
            options: &[],
            is_compat: false,
            gap: None,
        }
    }

    const fn with(self, options: &'static [&'static str]) -> Served {
        Served { options, ..self }
    }

    const fn by_compat(self) -> Served {
        Served {
            is_compat: true,
            ..self
        }
    }

    const fn but(self, gap: &'static str) -> Served {
        Served {
            gap: Some(gap),
            ..self
        }
    }
}

/// For programs that connect to servers on the kernel's sockets, at its end of the link.
const CONNECTS: &[&str] = &["--connect", "10.77.0.0/24"];

const APACHE: &str =
    "files, keep-alive, half-close, slow readers, uploads; reload under load, kill of its workers";
const PYTHON: &str =
    "files, keep-alive, half-close, slow readers, uploads; reload under load, kill of its workers";
const NODE: &str = "files, keep-alive, half-close, slow readers, uploads; kill of all four workers";
const RUNTIME: &str = "files, keep-alive, half-close, slow readers, uploads";
const MARIADB: &str = "values of up to 3 MB by 12 clients, 500 statements of one client";
const NAMES: &str = "large answers over TCP to 16 clients, 90 queries by one connection";

pub(super) const PROGRAMS: &[Served] = &[
    Served::new(
        "Apache, event",
        Debian("apache2"),
        ("apache", "event"),
        APACHE,
    ),
    Served::new(
        "Apache, prefork",
        Debian("apache2"),
        ("apache", "prefork"),
        APACHE,
    ),
    Served::new(
        "Apache, worker",
        Debian("apache2"),
        ("apache", "worker"),
        APACHE,
    ),
    Served::new(
        "Varnish",
        Debian("varnish"),
        ("varnish", "epoll"),
        "in front of a server: files, keep-alive, half-close, slow readers, uploads; kill of \
         its child",
    )
    .with(CONNECTS),
    Served::new(
        "Squid",
        Debian("squid"),
        ("squid", ""),
        "in front of a server: files, keep-alive, half-close, slow readers, uploads; reload",
    )
    .with(CONNECTS),
    Served::new(
        "Apache Traffic Server",
        Debian("trafficserver"),
        ("ats", ""),
        "in front of a server: files, keep-alive, half-close, slow readers, uploads",
    )
    .with(CONNECTS),
    Served::new(
        "memcached",
        Debian("memcached"),
        ("memcached", ""),
        "values of up to 3 MB by 16 clients, several requests at a time",
    ),
    Served::new(
        "MariaDB",
        Debian("mariadb-server"),
        ("mariadb", "one-thread-per-connection"),
        MARIADB,
    ),
    Served::new(
        "MariaDB, thread pool",
        Debian("mariadb-server"),
        ("mariadb", "pool-of-threads"),
        MARIADB,
    ),
    Served::new(
        "mosquitto",
        Debian("mosquitto"),
        ("mosquitto", ""),
        "messages of up to 3 MB to 8 subscribers, by each quality of service",
    ),
    Served::new(
        "Dovecot",
        Debian("dovecot-imapd"),
        ("dovecot", ""),
        "IMAP: messages of up to 4 MB from and to 8 clients",
    ),
    Served::new(
        "Dovecot, `--compat`",
        Debian("dovecot-imapd"),
        ("dovecot", ""),
        "IMAP: messages of up to 4 MB from and to 8 clients",
    )
    .by_compat(),
    Served::new(
        "vsftpd",
        Debian("vsftpd"),
        ("vsftpd", ""),
        "files in both directions for 6 clients, passive and active",
    )
    .with(CONNECTS)
    .but(
        "the segment that its children inherit exceeds the 200 MiB of address space to which \
         they limit themselves",
    ),
    Served::new(
        "vsftpd, `--compat`",
        Debian("vsftpd"),
        ("vsftpd", ""),
        "files in both directions for 6 clients, passive and active",
    )
    .with(CONNECTS)
    .by_compat(),
    Served::new(
        "rsync",
        Debian("rsync"),
        ("rsync", ""),
        "as a daemon: folders in both directions for 6 clients, parts of a file",
    ),
    Served::new(
        "sshd",
        Debian("openssh-server"),
        ("sshd", ""),
        "files in both directions for 6 clients, sftp; restart during a session",
    ),
    Served::new(
        "sshd, `--compat`",
        Debian("openssh-server"),
        ("sshd", ""),
        "files in both directions for 6 clients, sftp; restart during a session",
    )
    .by_compat(),
    Served::new(
        "php-fpm",
        Debian("php-fpm"),
        ("php-fpm", ""),
        "FastCGI: uploads by 8 clients; kill of its workers",
    ),
    Served::new(
        "Puma",
        Debian("puma"),
        ("puma", ""),
        "files, keep-alive, half-close, slow readers, uploads; restart and kill of its workers",
    ),
    Served::new(
        "gunicorn",
        Python("gunicorn"),
        ("python", "gunicorn"),
        PYTHON,
    ),
    Served::new(
        "uvicorn with uvloop",
        Python("uvicorn"),
        ("python", "uvicorn"),
        PYTHON,
    ),
    Served::new(
        "hypercorn",
        Python("hypercorn"),
        ("python", "hypercorn"),
        RUNTIME,
    ),
    Served::new("granian", Python("granian"), ("python", "granian"), PYTHON),
    Served::new(
        "node cluster, round-robin",
        Debian("nodejs"),
        ("node-cluster", "rr"),
        NODE,
    ),
    Served::new(
        "node cluster, shared",
        Debian("nodejs"),
        ("node-cluster", "none"),
        NODE,
    ),
    Served::new("Deno", Node("deno"), ("deno", ""), RUNTIME),
    Served::new("Bun", Node("bun"), ("bun", ""), RUNTIME)
        .but("it waits by inline system calls, which no library sees"),
    Served::new("Bun, `--compat`", Node("bun"), ("bun", ""), RUNTIME).by_compat(),
    Served::new(
        "Erlang, inets",
        Debian("erlang-inets"),
        ("erlang", ""),
        "files, keep-alive, half-close, slow readers",
    ),
    Served::new("Tomcat", Debian("tomcat10"), ("tomcat", ""), RUNTIME),
    Served::new(
        "Netty, NIO",
        Maven("netty-handler"),
        ("netty", "nio"),
        "bytes back to 16 clients that end their direction early",
    ),
    Served::new(
        "Netty, epoll",
        Maven("netty-handler"),
        ("netty", "epoll"),
        "bytes back to 16 clients that end their direction early",
    ),
    Served::new(
        "a server of Asio",
        Debian("libasio-dev"),
        ("asio", ""),
        "bytes back to 16 clients that end their direction early",
    ),
    Served::new("dnsmasq", Debian("dnsmasq-base"), ("dnsmasq", ""), NAMES)
        .but("it looks for its local address among the kernel's interfaces"),
    Served::new("unbound", Debian("unbound"), ("unbound", ""), NAMES),
    Served::new(
        "NSD",
        Debian("nsd"),
        ("nsd", ""),
        "large answers over TCP, 90 queries by one connection, transfers of a zone of 10,000 \
         names; reload",
    ),
    Served::new(
        "git daemon",
        Debian("git"),
        ("git", ""),
        "clones and pushes of 6 clients",
    ),
    Served::new(
        "NATS, `--compat`",
        Debian("nats-server"),
        ("nats", ""),
        "messages of 4 publishers to 8 subscribers; reload",
    )
    .by_compat(),
    Served::new(
        "etcd, `--compat`",
        Debian("etcd-server"),
        ("etcd", ""),
        "values of up to 700 KB of 9 clients",
    )
    .by_compat(),
];
