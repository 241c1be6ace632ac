//! Tidiness, counted over the tree: long lines and functions, the language of comments, files that
//! import each other in a circle, modules that their crate's table leaves out, rows of docs/where.md
//! without a function.
//!
//! Tables permit some long functions and some markers of language in each crate. A count above its
//! number fails. So does a count well below: lower the number, so that the table stays true.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::language::{Count, NAMELESS};
use crate::tree::{files, reach, workspace};

mod language;
mod tree;

/// Columns of a line, as rustfmt.toml has it; rustfmt itself leaves comments and strings alone.
const COLUMNS_MAX: usize = 100;

/// Lines of a function, from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 80;

/// Longer functions, by crate.
const LONG_FUNCTIONS: &[(&str, usize)] = &[
    ("bench", 1),
    ("cli", 3),
    ("contract", 3),
    ("host", 3),
    ("nic", 8),
    ("origin", 1),
    ("sim", 5),
    ("tcp", 7),
];

/// Pages at the top of the tree.
const TOP_PAGES: [&str; 6] = [
    "README",
    "ARCHITECTURE",
    "SPECIFICATION",
    "CHANGELOG",
    "CONTRIBUTING",
    "SECURITY",
];

/// Markers of [`language`] per 10,000 words of comments in `src`, by crate. A number may only be
/// lowered; a crate without one has no marker in 10,000 words.
const IDIOM: &[(&str, usize)] = &[
    ("bench", 10),
    ("cli", 20),
    ("cluster", 10),
    ("config", 25),
    ("contract", 5),
    ("fakes", 5),
    ("host", 10),
    ("netem", 20),
    ("observer", 5),
    ("origin", 10),
    ("processes", 5),
    ("proxy", 5),
    ("quic", 45),
    ("relay", 5),
    ("sandbox", 15),
    ("sim", 10),
    ("socket-channel", 5),
    ("sockets", 5),
    ("tcp", 5),
    ("testbed", 5),
    ("tls", 5),
];

/// Most markers per 10,000 words of a crate.
const IDIOM_CRATE_MAX: usize = 60;

/// Most markers per 10,000 words of all crates together.
const IDIOM_MAX: usize = 50;

/// Distance below its number at which a crate's number must be lowered.
const IDIOM_SLACK: usize = 5;

/// Fewest rows of docs/where.md.
const BEHAVIOURS_MIN: usize = 40;

/// Bit rates are in `Mbit/s`, in output and in text.
const OTHER_BIT_RATES: &[&str] = &["bps", "kbps", "mbps", "gbps", "tbps"];

/// Whether a line is a row of a table or part of a drawing in a comment, which cannot be wrapped.
fn is_table_or_drawing(line: &str) -> bool {
    let line = line.trim_start();
    let text = line.trim_start_matches(['/', '!']);
    text.len() < line.len() && (text.starts_with(" |") || text.contains(['─', '│', '▶']))
}

/// Our crates by their folders.
fn crates() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(workspace().join("crates")).unwrap();
    let mut crates: Vec<(String, PathBuf)> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, path)
        })
        .collect();
    crates.sort();
    crates
}

/// Compares what was found, by crate, with what is written down.
#[track_caller]
fn compare(
    what: &str,
    table: &str,
    known: &[(&str, usize)],
    found: &BTreeMap<String, Vec<String>>,
) {
    let known: BTreeMap<&str, usize> = known.iter().copied().collect();
    let mut wrong = Vec::new();
    let names: BTreeSet<&str> = known
        .keys()
        .copied()
        .chain(found.keys().map(String::as_str))
        .collect();
    for name in names {
        let empty = Vec::new();
        let places = found.get(name).unwrap_or(&empty);
        let expected = known.get(name).copied().unwrap_or(0);
        if places.len() > expected {
            wrong.push(format!(
                "{name}: {} {what}, {expected} were known:\n  {}",
                places.len(),
                places.join("\n  ")
            ));
        } else if places.len() < expected {
            wrong.push(format!(
                "{name}: {} {what}, fewer than the {expected} in {table}: lower it there",
                places.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fails with the places that were found, if any.
#[track_caller]
fn nothing_is_found(what: &str, found: &BTreeMap<String, Vec<String>>) {
    compare(what, "the tree", &[], found);
}

/// By crate, what `look` finds in the text of each source file.
fn in_sources(look: impl Fn(&str) -> Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, path) in crates() {
        for file in files(&path, "rs") {
            // This file names what it looks for.
            if file.ends_with("cli/tests/tidy.rs") {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            let shown = file.strip_prefix(&path).unwrap().display().to_string();
            let places = look(&text);
            let places = places.into_iter().map(|place| format!("{shown}:{place}"));
            found.entry(name.clone()).or_default().extend(places);
        }
    }
    found
}

#[test]
fn lines_have_at_most_100_columns() {
    let found = in_sources(|text| {
        let lines = text.lines().enumerate();
        let long = lines
            .filter(|(_, line)| line.chars().count() > COLUMNS_MAX && !is_table_or_drawing(line));
        long.map(|(number, _)| (number + 1).to_string()).collect()
    });
    nothing_is_found("long lines", &found);
}

#[test]
fn functions_have_at_most_80_lines() {
    let found = in_sources(|text| {
        let lines: Vec<&str> = text.lines().collect();
        let mut long = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let words: Vec<&str> = code.split_whitespace().take(5).collect();
            let is_function = words.contains(&"fn") && !code.starts_with("//");
            if !is_function || code.ends_with(';') {
                continue;
            }
            // rustfmt puts the closing brace below the first letter.
            let indent = &line[..line.len() - code.len()];
            let end = format!("{indent}}}");
            let len = lines[number..].iter().position(|line| **line == end);
            if len.is_some_and(|len| len + 1 > FUNCTION_LINES_MAX) {
                long.push(format!("{}: {}", number + 1, code));
            }
        }
        long
    });
    compare("long functions", "LONG_FUNCTIONS", LONG_FUNCTIONS, &found);
}

/// Where these words, in lower case, stand in a text, as words.
fn places_of(banned: &[&str], text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<String> = line
            .split(|letter: char| !letter.is_alphabetic())
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect();
        for banned in banned {
            let banned: Vec<&str> = banned.split(' ').collect();
            let times = words
                .windows(banned.len())
                .filter(|window| *window == banned);
            found.extend(times.map(|_| format!("{}: {}", number + 1, banned.join(" "))));
        }
    }
    found
}

/// Counts the comments in the sources of a crate; returns the places of the markers as well.
fn language_of(path: &Path) -> (Count, Vec<String>) {
    let (mut sum, mut places) = (Count::default(), Vec::new());
    for file in files(&path.join("src"), "rs") {
        let count = Count::of_source(&fs::read_to_string(&file).unwrap());
        let shown = file.strip_prefix(path).unwrap().display().to_string();
        let markers = count.markers.iter();
        places.extend(markers.map(|(line, marker)| format!("{shown}:{line}: {marker}")));
        sum += count;
    }
    (sum, places)
}

#[test]
fn comments_name_their_subjects() {
    let known: BTreeMap<&str, usize> = IDIOM.iter().copied().collect();
    let (mut wrong, mut sum) = (Vec::new(), Count::default());
    for (name, path) in crates() {
        let (count, places) = language_of(&path);
        let expected = known.get(name.as_str()).copied().unwrap_or(0);
        let markers = count.per_10_000();
        if markers > expected {
            wrong.push(format!(
                "{name}: {markers} markers per 10,000 words, {expected} are permitted:\n  {}",
                places.join("\n  ")
            ));
        } else if markers + IDIOM_SLACK < expected {
            wrong.push(format!(
                "{name}: {markers} markers per 10,000 words, far below the {expected} in IDIOM: \
                 lower it there"
            ));
        }
        sum += count;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(sum.per_10_000() <= IDIOM_MAX, "{}", sum.per_10_000());
}

#[test]
fn no_crate_may_have_many_markers() {
    let names: BTreeSet<String> = crates().into_iter().map(|(name, _)| name).collect();
    for (name, number) in IDIOM {
        assert!(names.contains(*name), "{name} is no crate");
        assert!(*number <= IDIOM_CRATE_MAX, "{name}: {number}");
    }
}

#[test]
fn pages_name_their_subjects() {
    let mut found = BTreeMap::new();
    found.insert("docs".to_owned(), in_pages(NAMELESS));
    nothing_is_found("words without a subject", &found);
}

#[test]
fn bit_rates_have_one_unit() {
    let mut found = in_sources(|text| places_of(OTHER_BIT_RATES, text));
    found.insert("docs".to_owned(), in_pages(OTHER_BIT_RATES));
    nothing_is_found("bit rates in another unit", &found);
}

/// Where these words stand in pages.
fn in_pages(banned: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut pages = files(&workspace().join("docs"), "md");
    pages.extend(TOP_PAGES.map(|page| workspace().join(format!("{page}.md"))));
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let shown = page.file_name().unwrap().to_str().unwrap();
        let places = places_of(banned, &text).into_iter();
        found.extend(places.map(|place| format!("{shown}:{place}")));
    }
    found
}

#[test]
fn every_module_is_in_the_table_of_its_crate() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, path) in crates() {
        let root = ["src/lib.rs", "src/main.rs"].map(|file| path.join(file));
        let Some(root) = root.into_iter().find(|root| root.exists()) else {
            continue;
        };
        let text = fs::read_to_string(root).unwrap();
        let table: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("//! |"))
            .collect();
        if table.is_empty() {
            continue;
        }
        let mut check = |modules: &[String], tables: &[&str]| {
            for module in modules {
                let names = [format!("`{module}`"), format!("`{module}/`")];
                let is_named = |line: &&str| names.iter().any(|name| line.contains(name));
                if !tables.iter().any(is_named) {
                    let found = found.entry(name.clone()).or_default();
                    found.push(module.clone());
                }
            }
        };
        let own = modules(&text);
        check(&own, &table);
        // A folder has a table of its own, or lines in that of the crate.
        for folder in own {
            let Ok(text) = fs::read_to_string(path.join(format!("src/{folder}.rs"))) else {
                continue;
            };
            let lines = text.lines().filter(|line| line.starts_with("//! |"));
            let lines: Vec<&str> = lines.chain(table.iter().copied()).collect();
            let inner = modules(&text);
            let is_any_named = |module: &String| {
                let name = format!("`{module}`");
                lines.iter().any(|line| line.contains(&name))
            };
            if inner.iter().any(is_any_named) {
                check(&inner, &lines);
            }
        }
    }
    nothing_is_found("modules without a line", &found);
}

/// The modules that a file declares, but for those of tests.
fn modules(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| {
        let module = line.strip_suffix(';')?;
        let module = module
            .trim_start_matches("pub ")
            .trim_start_matches("pub(crate) ");
        module.strip_prefix("mod ")
    });
    let names = names.filter(|name| *name != "tests");
    names.map(str::to_owned).collect()
}

/// The modules of a crate by their paths, and which others each names. Unit tests do not count.
fn imports(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut texts = BTreeMap::new();
    for file in files(src, "rs") {
        let path = file.strip_prefix(src).unwrap().with_extension("");
        let mut parts: Vec<String> = path
            .components()
            .map(|part| part.as_os_str().to_str().unwrap().to_owned())
            .collect();
        if parts.last().is_some_and(|last| last == "mod") {
            parts.pop();
        }
        if parts == ["lib"] || parts == ["main"] || parts.last().is_some_and(|it| it == "tests") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let lines = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        texts.insert(parts.join("::"), lines.collect::<Vec<_>>().join("\n"));
    }
    let known: BTreeSet<String> = texts.keys().cloned().collect();
    let mut imports = BTreeMap::new();
    for (module, text) in &texts {
        let mut named = BTreeSet::new();
        let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        for (prefix, base) in [("crate::", ""), ("super::", parent)] {
            for (at, _) in text.match_indices(prefix) {
                let rest = &text[at + prefix.len()..];
                for path in paths(rest) {
                    let full = if base.is_empty() {
                        path
                    } else {
                        format!("{base}::{path}")
                    };
                    // The longest module that the path begins with.
                    let parts: Vec<&str> = full.split("::").collect();
                    let target = (1..=parts.len()).rev().map(|len| parts[..len].join("::"));
                    let target = target.into_iter().find(|path| known.contains(path));
                    named.extend(target.filter(|target| target != module));
                }
            }
        }
        imports.insert(module.clone(), named);
    }
    imports
}

/// The paths that stand behind `crate::`: one, or those of a list in braces.
fn paths(text: &str) -> Vec<String> {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    if let Some(list) = text.strip_prefix('{') {
        let list = list.split('}').next().unwrap_or_default();
        let items = list.split([',', '{']).map(str::trim);
        let items = items.map(|item| item.chars().take_while(|it| is_path(*it)).collect());
        return items.filter(|item: &String| !item.is_empty()).collect();
    }
    let path: String = text.chars().take_while(|letter| is_path(*letter)).collect();
    vec![path.trim_end_matches(':').to_owned()]
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, path) in crates() {
        let imports = imports(&path.join("src"));
        // A module and those below it are one idea: what is between them is no circle.
        let is_family =
            |a: &str, b: &str| a.starts_with(&format!("{b}::")) || b.starts_with(&format!("{a}::"));
        let others: BTreeMap<String, BTreeSet<String>> = imports
            .iter()
            .map(|(module, named)| {
                let named = named.iter().filter(|named| !is_family(module, named));
                (module.clone(), named.cloned().collect())
            })
            .collect();
        let in_circles = others
            .keys()
            .filter(|module| reach(module, &others).contains(*module));
        let in_circles: Vec<String> = in_circles.cloned().collect();
        found.entry(name).or_default().extend(in_circles);
    }
    nothing_is_found("files in circles", &found);
}

#[test]
fn words_and_paths_are_found_as_they_are_written() {
    assert_eq!(places_of(NAMELESS, "Whoever is  told, renewed").len(), 2);
    assert_eq!(
        places_of(NAMELESS, "somebody's; anew"),
        ["1: somebody", "1: anew"]
    );
    assert_eq!(paths("a::b;"), ["a::b"]);
    assert_eq!(paths("{a, b::{c, d}};"), ["a", "b::", "c", "d"]);
}

/// Targets of links in a page that are paths: neither addresses nor places within the page.
fn linked(page: &str) -> Vec<String> {
    let targets = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.split('#').next().unwrap_or_default());
    let is_path = |target: &&str| !target.is_empty() && !target.contains("://");
    targets.filter(is_path).map(str::to_owned).collect()
}

#[test]
fn links_between_pages_and_code_lead_somewhere() {
    let mut pages = files(&workspace().join("docs"), "md");
    pages.extend(files(&workspace().join("deploy"), "md"));
    pages.extend(TOP_PAGES.map(|page| workspace().join(format!("{page}.md"))));
    let mut dead = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for target in linked(&text) {
            if !page.parent().unwrap().join(&target).exists() {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Returns the file and the function of a row of docs/where.md.
fn decided(row: &str) -> Option<(&str, &str)> {
    let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
    let (file, function) = (cells.nth(2)?, cells.next()?);
    Some((file, function))
}

#[test]
fn each_behaviour_is_decided_where_the_page_has_it() {
    let page = fs::read_to_string(workspace().join("docs/where.md")).unwrap();
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| Behaviour |");
    let rows: Vec<&str> = page.lines().filter(is_row).collect();
    assert!(rows.len() >= BEHAVIOURS_MIN, "{} rows", rows.len());
    let is_wrong = |row: &&str| {
        let Some((file, function)) = decided(row) else {
            return true;
        };
        let text = fs::read_to_string(workspace().join("crates").join(file)).unwrap_or_default();
        let defines = |line: &str| {
            let code = line.trim_start();
            let name = code.split_once("fn ").map(|(_, name)| name);
            let rest = name.and_then(|name| name.strip_prefix(function));
            !code.starts_with("//") && rest.is_some_and(|rest| rest.starts_with(['(', '<']))
        };
        !text.lines().any(defines)
    };
    let wrong: Vec<&str> = rows.into_iter().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "no such function:\n{}", wrong.join("\n"));
}
