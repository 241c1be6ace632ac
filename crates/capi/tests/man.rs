//! The manual pages say what there is: `man/`, against `splitway.h` and `docs/capi.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A page without what changes its fonts.
fn without_fonts(page: &str) -> String {
    let fonts = ["\\fI", "\\fB", "\\fR"].iter();
    fonts.fold(page.to_owned(), |page, font| page.replace(font, ""))
}

/// The pages by name, such as `sw_send.3`.
fn pages() -> BTreeMap<String, String> {
    let entries = fs::read_dir(here().join("man")).unwrap();
    let page = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, without_fonts(&fs::read_to_string(path).unwrap()))
    };
    entries.map(|entry| page(entry.unwrap().path())).collect()
}

/// The page of a function, and what it is called: an alias leads to another one.
fn page_of<'a>(pages: &'a BTreeMap<String, String>, function: &str) -> (String, &'a str) {
    let mut name = format!("{function}.3");
    let mut text = pages.get(&name).unwrap_or_else(|| panic!("no {name}"));
    if let Some(target) = text.strip_prefix(".so man3/") {
        target.trim_end().clone_into(&mut name);
        text = pages.get(&name).unwrap_or_else(|| panic!("no {name}"));
    }
    (name, text)
}

/// The words of a text, as C has names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(move |letter| !is_name(letter))
}

fn functions_in(text: &str) -> BTreeSet<String> {
    let is_function = |word: &&str| word.starts_with("sw_") || word.starts_with("offload_");
    words(text).filter(is_function).map(str::to_owned).collect()
}

/// The errors that a text names; what begins with E and is none is not counted.
fn errors_in(text: &str) -> BTreeSet<&str> {
    let is_error = |word: &&str| {
        let letters = word.strip_prefix('E').unwrap_or_default();
        letters.len() > 1 && letters.bytes().all(|it| it.is_ascii_uppercase())
    };
    words(text)
        .filter(is_error)
        .filter(|word| !word.starts_with("EPOLL") && *word != "ERROR")
        .collect()
}

/// Each function of the header, with the comment above it.
fn documented() -> BTreeMap<String, String> {
    let header = fs::read_to_string(here().join("include/splitway.h")).unwrap();
    let mut found = BTreeMap::new();
    let mut comment = String::new();
    for line in header.lines() {
        if let Some(text) = line.strip_prefix("//") {
            comment.push_str(text);
            comment.push('\n');
            continue;
        }
        if let Some((before, _)) = line.split_once('(')
            && let Some(name) = before.rsplit([' ', '*']).next()
            && functions_in(name).contains(name)
        {
            found.insert(name.to_owned(), comment.clone());
        }
        comment.clear();
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

/// A section of a page, from its heading to the next one.
fn section<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!(".SH {heading}\n"))?;
    Some(rest.split(".SH ").next().unwrap_or(rest))
}

#[test]
fn every_function_has_a_page_and_every_page_its_functions() {
    let pages = pages();
    let documented = documented();
    let mut aliases = BTreeSet::new();
    for function in documented.keys() {
        let (name, page) = page_of(&pages, function);
        let named = section(page, "NAME").unwrap();
        assert!(functions_in(named).contains(function), "{name}: {function}");
        let synopsis = section(page, "SYNOPSIS").unwrap();
        let declared = format!("{function}(");
        assert!(synopsis.contains(&declared), "{name}: {function}");
        for heading in ["DESCRIPTION", "RETURN VALUE", "ERRORS", "NOTES", "SEE ALSO"] {
            assert!(section(page, heading).is_some(), "{name}: {heading}");
        }
        aliases.insert(format!("{function}.3"));
    }
    for (name, page) in &pages {
        assert!(aliases.contains(name) || name == "splitway.7", "{name}");
        for function in functions_in(page) {
            let is_type =
                ["sw_options", "sw_zc_completion", "sw_splice_limits"].contains(&function.as_str());
            assert!(
                is_type || documented.contains_key(&function),
                "{name}: {function}"
            );
        }
    }
    let overview = section(&pages["splitway.7"], "SEE ALSO").unwrap();
    for function in documented.keys() {
        let (name, _) = page_of(&pages, function);
        let name = name.strip_suffix(".3").unwrap();
        assert!(functions_in(overview).contains(name), "{name}");
    }
}

#[test]
fn parameters_of_a_synopsis_are_of_the_types_of_the_header() {
    let header = fs::read_to_string(here().join("include/splitway.h")).unwrap();
    let pages = pages();
    let types = |text: &str, function: &str| -> Vec<String> {
        let at = text.find(&format!("{function}(")).unwrap();
        let (_, parameters) = text[at..].split_once('(').unwrap();
        let parameters = parameters.split(')').next().unwrap().split(',');
        let typed = parameters.map(|it| {
            let it = it.trim();
            let end = it.rfind([' ', '*']).map_or(it.len(), |at| at + 1);
            it[..end].trim().to_owned()
        });
        typed.collect()
    };
    for function in documented().keys() {
        let (name, page) = page_of(&pages, function);
        let synopsis = section(page, "SYNOPSIS").unwrap();
        let wanted = types(&header, function);
        assert_eq!(types(synopsis, function), wanted, "{name}: {function}");
    }
}

#[test]
fn every_error_that_is_documented_is_in_the_page() {
    let pages = pages();
    let common = errors_in(section(&pages["splitway.7"], "ERRORS").unwrap());
    let mut count = 0;
    // One of the pages has it: a text may be about several functions.
    let mut check = |functions: &BTreeSet<String>, text: &str, from: &str| {
        let has = |function: &String, error: &str| {
            let (_, page) = page_of(&pages, function);
            errors_in(section(page, "ERRORS").unwrap()).contains(error)
        };
        for error in errors_in(text) {
            let mut functions_of = functions.iter();
            let is_there = common.contains(error) || functions_of.any(|it| has(it, error));
            assert!(is_there, "{functions:?}: {error}, which {from} has");
            count += 1;
        }
    };
    let only = |function: &str| BTreeSet::from([function.to_owned()]);
    for (function, comment) in &documented() {
        check(&only(function), comment, "splitway.h");
    }
    let page = fs::read_to_string(here().join("../../docs/capi.md")).unwrap();
    for row in page.lines().filter(|line| line.starts_with("| `sw_")) {
        let mut columns = row.split('|').skip(1);
        let (functions, notes) = (columns.next().unwrap(), columns.next().unwrap());
        check(&functions_in(functions), notes, "docs/capi.md");
    }
    let (_, files) = page.split_once("\n## Files\n").unwrap();
    let (files, _) = files.split_once("\n## ").unwrap();
    check(&only("offload_open"), files, "docs/capi.md");
    assert!(count > 80, "{count}");
}

#[test]
fn formatters_find_nothing_wrong() {
    let man = here().join("man");
    let mut checked = 0;
    for (name, page) in pages() {
        if page.starts_with(".so ") {
            continue;
        }
        for tool in [
            &["mandoc", "-T", "lint", "-W", "warning"][..],
            &["groff", "-man", "-ww", "-z", "-T", "utf8"],
        ] {
            let mut command = Command::new(tool[0]);
            // Not every machine has both.
            let Ok(done) = command.args(&tool[1..]).arg(man.join(&name)).output() else {
                continue;
            };
            let (out, errors) = (&done.stdout, &done.stderr);
            let said = String::from_utf8_lossy(out) + String::from_utf8_lossy(errors);
            assert!(done.status.success() && said.is_empty(), "{name}: {said}");
            checked += 1;
        }
    }
    assert!(checked > 0, "neither mandoc nor groff is there");
}
