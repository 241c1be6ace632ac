//! The same as http2.py for reqwest: `http2 FILE...`.

use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const FIRST: usize = 100;
const LAST: usize = 199;

fn main() -> Result<()> {
    let host = std::env::var("HOST")?;
    let trust = std::fs::read(std::env::var("TRUST")?)?;
    let root = PathBuf::from(std::env::var("ROOT")?);
    let names: Vec<String> = std::env::args().skip(1).collect();
    let client = reqwest::blocking::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&trust)?])
        .http2_prior_knowledge()
        .timeout(std::time::Duration::from_secs(100))
        .build()?;
    let get = |name: &str, range: Option<String>| -> Result<Vec<u8>> {
        let mut request = client.get(format!("https://{host}/{name}"));
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let response = request.send()?.error_for_status()?;
        match response.version() {
            http::Version::HTTP_2 => Ok(response.bytes()?.to_vec()),
            other => Err(format!("over {other:?}").into()),
        }
    };
    let check = |name: &str, range: Option<String>| -> Result<()> {
        let mut wanted = std::fs::read(root.join(name))?;
        if range.is_some() {
            wanted = wanted[FIRST..=LAST].to_vec();
        }
        match get(name, range)? == wanted {
            true => Ok(()),
            false => Err(format!("other bytes of {name}").into()),
        }
    };
    let last = names.last().ok_or("no file")?;
    check(last, Some(format!("bytes={FIRST}-{LAST}")))?;
    std::thread::scope(|scope| {
        let each = names.iter().map(|name| scope.spawn(|| check(name, None)));
        let threads: Vec<_> = each.collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect::<Vec<_>>().into_iter().collect()
    })
}
