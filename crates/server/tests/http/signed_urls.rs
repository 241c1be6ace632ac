//! URLs that hold until they expire.

use std::time::Duration;

use server::{Config, Redirect, Rule, SigningKeys, Site};

use crate::lab::{Lab, START, get};

fn keys(names: &[&str]) -> SigningKeys {
    let mut keys = SigningKeys::default();
    for name in names {
        keys.add(name, format!("a secret of {name}, long enough").as_bytes())
            .unwrap();
    }
    keys
}

fn lab(names: &[&str]) -> Lab {
    let mut lab = Lab::with(Config {
        sites: vec![Site {
            rules: vec![
                Rule {
                    signed: Some(keys(names)),
                    redirect: Some(Redirect::new(302, "/private/film.mp4").unwrap()),
                    ..Rule::new("/private/old/*".parse().unwrap())
                },
                Rule {
                    signed: Some(keys(names)),
                    ..Rule::new("/private/*".parse().unwrap())
                },
            ],
            ..Site::default()
        }],
        ..Config::default()
    });
    lab.file("private/film.mp4", "film");
    lab.file("private/index.html", "index");
    lab.file("public.mp4", "public");
    lab
}

fn soon() -> u64 {
    START.as_secs() + 60
}

#[test]
fn who_has_a_signed_url_gets_the_file_until_it_expires() {
    let mut lab = lab(&["old", "new"]);
    for key in ["old", "new"] {
        let target = keys(&[key]).sign("/private/film.mp4", key, soon()).unwrap();
        assert_eq!(lab.get(&target).body, b"film");
        assert_eq!(lab.get(&format!("http://any.host{target}")).body, b"film");
    }
    let target = keys(&["new"]).sign("/private/?a=1", "new", soon()).unwrap();
    assert_eq!(lab.get(&target).body, b"index");
    lab.pass(Duration::from_secs(59));
    assert_eq!(lab.get(&target).status, 200);
    lab.pass(Duration::from_secs(1));
    assert_eq!(lab.get(&target).status, 403);
    assert_eq!(lab.get("/public.mp4").status, 200);
}

#[test]
fn no_other_request_gets_anything() {
    let mut lab = lab(&["new"]);
    let good = keys(&["new"])
        .sign("/private/film.mp4", "new", soon())
        .unwrap();
    let of_other = keys(&["old"])
        .sign("/private/film.mp4", "old", soon())
        .unwrap();
    let query = good.split_once('?').unwrap().1;
    for target in [
        "/private/film.mp4",
        "/private/",
        "/private/none",
        "/private/old/x",
        // Other ways to write the same path.
        "/x/../private/film.mp4",
        "/%70rivate/film.mp4",
        "//private//film.mp4",
        &of_other,
        &good.replace("film", "fil%6d"),
        &good.replace("/private", "//private"),
        &format!("/private/index.html?{query}"),
        &format!("{good}0"),
        &good.replace("expires=", "expires=9"),
    ] {
        let client = lab.connect();
        assert_eq!(lab.ask(client, &get(target)).status, 403, "{target}");
        assert_eq!(lab.ask(client, &get("/public.mp4")).status, 200);
    }
    assert!(lab.opened_paths().iter().all(|path| path == "public.mp4"));
}

#[test]
fn the_signature_of_one_path_is_not_good_for_another() {
    let mut lab = Lab::with(Config {
        sites: vec![Site {
            rules: vec![Rule {
                signed: Some(keys(&["new"])),
                ..Rule::new("/*".parse().unwrap())
            }],
            ..Site::default()
        }],
        ..Config::default()
    });
    lab.file("index.html", "index");
    lab.file("film.mp4", "film");
    let film = keys(&["new"]).sign("/film.mp4", "new", soon()).unwrap();
    assert_eq!(lab.get(&film).body, b"film");
    // Its path is empty, which is the root's index.
    assert_eq!(lab.get(&format!("http://h?{film}")).status, 403);
}

#[test]
fn what_is_signed_may_be_anything_that_a_get_may_be() {
    let mut lab = lab(&["new"]);
    let target = keys(&["new"])
        .sign("/private/film.mp4", "new", soon())
        .unwrap();
    assert_eq!(lab.get_with(&target, &[("Range", "bytes=1-1")]).body, b"i");
    let client = lab.connect();
    let head = format!("HEAD {target} HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(lab.ask(client, &head).status, 200);
    let target = keys(&["new"])
        .sign("/private/old/x", "new", soon())
        .unwrap();
    assert_eq!(lab.ask(client, &get(&target)).status, 302);
    // A browser asks without the signature whether it may ask.
    let options = "OPTIONS /private/film.mp4 HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(lab.ask(client, options).status, 204);
}
