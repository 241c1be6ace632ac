//! The same as range.py for libraries of Rust.

use std::ops::RangeInclusive;

const PART: RangeInclusive<usize> = 1_000_000..=1_000_099;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, url, path] = &arguments[..] else {
        panic!("interop LIBRARY URL FILE");
    };
    let wanted = std::fs::read(path).unwrap();
    let range = format!("bytes={}-{}", PART.start(), PART.end());
    let got = match &library[..] {
        "reqwest" => {
            let client = reqwest::blocking::Client::new();
            let response = client.get(url).header("Range", range).send().unwrap();
            response.bytes().unwrap().to_vec()
        }
        "ureq" => {
            let mut response = ureq::get(url).header("Range", range).call().unwrap();
            response.body_mut().read_to_vec().unwrap()
        }
        _ => panic!("no library {library}"),
    };
    if got == wanted[PART] {
        println!("the range");
    } else if got == wanted {
        println!("the whole file");
    } else {
        println!("other bytes");
        std::process::exit(1);
    }
}
