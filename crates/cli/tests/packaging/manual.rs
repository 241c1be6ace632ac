//! Manual pages and completions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use testbed::process::{run, tool};

use crate::support::splitway_in;

/// What `splitway generate` writes to a directory.
fn generated(what: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    // Below one that is not there.
    let outcome = splitway_in(directory.path(), &["generate", what, "made/for/it"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    directory
}

/// The commands that `--help` lists below a command.
fn listed(command: &[&str]) -> Vec<String> {
    let arguments = [command, &["--help"]].concat();
    let help = splitway_in(Path::new("/"), &arguments).stdout;
    let Some((_, rest)) = help.split_once("\nCommands:\n") else {
        return Vec::new();
    };
    // What a line goes on with is further to the right.
    rest.lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.strip_prefix("  ")
                .filter(|line| !line.starts_with(' '))
        })
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The names of all commands, as manual pages have them: `splitway-ctl-reload`.
pub(crate) fn commands() -> BTreeSet<String> {
    let mut names = BTreeSet::from(["splitway".to_owned()]);
    for command in listed(&[]) {
        let below = listed(&[&command]);
        names.extend(
            below
                .iter()
                .map(|name| format!("splitway-{command}-{name}")),
        );
        names.insert(format!("splitway-{command}"));
    }
    assert!(
        names.contains("splitway-serve") && names.contains("splitway-ctl-reload"),
        "{names:?}"
    );
    names
}

#[test]
fn every_command_has_a_manual_page_without_a_mistake() {
    let directory = generated("man");
    let pages = directory.path().join("made/for/it");
    let found: BTreeSet<String> = fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected = commands().iter().map(|name| format!("{name}.1")).collect();
    assert_eq!(found, expected);
    let serve = fs::read_to_string(pages.join("splitway-serve.1")).unwrap();
    for words in [
        "tls\\-listen",
        "Directory whose files are served",
        "10.77.0.1/24",
    ] {
        assert!(serve.contains(words), "{words}: {serve}");
    }
    let headings = |page: &str| -> Vec<String> {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        let lines = text.lines().map(|line| line.replace('"', ""));
        let mut headings: Vec<String> = lines
            .filter(|line| line.starts_with(".SH") || line.starts_with(".SS"))
            .collect();
        headings.retain(|heading| heading != ".SH VERSION");
        headings
    };
    assert_eq!(
        headings("splitway-serve.1"),
        [
            ".SH NAME",
            ".SH SYNOPSIS",
            ".SH DESCRIPTION",
            ".SH OPTIONS",
            ".SH HTTP",
            ".SH ORIGINS",
            ".SH TLS",
            ".SH FIREWALL",
            ".SH LOGS AND METRICS",
            ".SH FOR MEASUREMENTS ONLY",
            ".SH FOR DEBUGGING ONLY",
            ".SH NOTES",
            ".SS Examples",
        ]
    );
    let of_nic = headings("splitway-nic.1");
    assert_eq!(of_nic.iter().filter(|it| *it == ".SS Example").count(), 2);
    for page in &found {
        let path = pages.join(page);
        // As Debian's lintian looks at them.
        let mut man =
            tool("man --warnings --encoding=UTF-8 --local-file --troff-device=utf8 --ditroff");
        man.env("LC_ALL", "C.UTF-8")
            .env("MANROFFSEQ", "")
            .env("MANWIDTH", "80");
        let output = man.arg(&path).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{page}: {output:?}"
        );
        let lint = tool("mandoc -T lint -W error").arg(&path).output().unwrap();
        assert!(lint.status.success(), "{page}: {lint:?}");
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    let directory = generated("completions");
    let place = directory.path().join("made/for/it");
    for other in ["_splitway", "splitway.fish"] {
        let text = fs::read_to_string(place.join(other)).unwrap();
        assert!(text.contains("tls-listen"), "{other}");
    }
    let completed = |words: &str| {
        let script = r#"
            source "$1"; shift
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _splitway "$1" "${@: -1}" "${@: -2:1}"
            printf '%s\n' "${COMPREPLY[@]}""#;
        let mut bash = tool("bash --norc -c");
        bash.args([script, "bash"]).arg(place.join("splitway.bash"));
        bash.args(words.split(' '));
        run(&mut bash)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(completed("splitway se"), ["serve"]);
    assert_eq!(completed("splitway ctl relo"), ["reload"]);
    assert_eq!(completed("splitway serve --tls-lis"), ["--tls-listen"]);
    assert_eq!(completed("splitway --log deb"), ["debug"]);
    for (words, values) in [
        ("--congestion b", &["bbr"][..]),
        ("--ecn ", &["accept", "off"]),
        ("--tls-ciphers aes-1", &["aes-128-gcm"]),
        ("--access-log-format combined-", &["combined-cache"]),
        // Numbers and addresses are no files.
        ("--workers ", &[""]),
        ("--gateway 192.0.2.", &["192.0.2."]),
    ] {
        assert_eq!(
            completed(&format!("splitway serve {words}")),
            values,
            "{words}"
        );
    }
    let file = place.join("splitway.ba");
    assert_eq!(
        completed(&format!("splitway serve --tls-cert {}", file.display())),
        [place.join("splitway.bash").to_str().unwrap()]
    );
    // What is for packages and for the program itself is not offered.
    for name in ["splitway.bash", "_splitway", "splitway.fish"] {
        let text = fs::read_to_string(place.join(name)).unwrap();
        for hidden in ["end-with-parent", "programs-alone", "nic-process"] {
            assert!(!text.contains(hidden), "{name}: {hidden}");
        }
    }
    let zsh = fs::read_to_string(place.join("_splitway")).unwrap();
    assert!(zsh.contains("Congestion control"), "{zsh}");
    assert!(zsh.contains(":NAME:(cubic bbr newreno)"), "{zsh}");
    assert!(
        zsh.contains(":root -- ") && zsh.contains(":_files -/"),
        "{zsh}"
    );
    let fish = fs::read_to_string(place.join("splitway.fish")).unwrap();
    let line = fish.lines().find(|line| line.contains("-l ecn ")).unwrap();
    assert!(line.contains("accept") && line.contains("off"), "{line}");
    assert!(
        !completed("splitway ")
            .iter()
            .any(|word| ["generate", "host"].contains(&word.as_str()))
    );
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let outcome = splitway_in(Path::new("/"), &["generate", "man", "/proc/nowhere"]);
    outcome.refused(&["writing to /proc/nowhere"]);
}
