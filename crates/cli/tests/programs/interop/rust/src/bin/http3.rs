//! The same as http3.py for libraries of Rust.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use h3i::actions::h3::{Action, StreamEvent, StreamEventType, WaitType, send_headers_frame};
use h3i::frame::H3iFrame;
use h3i::quiche::h3::frame::Frame;
use h3i::quiche::h3::{Header, WireErrorCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const FILES: [&str; 3] = ["table.parquet", "table.csv", "image.bin"];
/// For h3i, which takes frames of at most 2,000,000 bytes.
const SMALL: [&str; 1] = ["image.bin.zsync"];
const PART: RangeInclusive<usize> = 1_000_000..=1_000_099;

/// A target's name, and the range of it, if any.
type Wish = (&'static str, Option<String>);

fn with_reqwest(host: IpAddr, trust: &[u8], wishes: &[Wish]) -> Result<Vec<Vec<u8>>> {
    let client = reqwest::blocking::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(trust)?])
        .http3_prior_knowledge()
        .build()?;
    let get = |(name, range): &Wish| {
        let mut request = client.get(format!("https://{host}/{name}"));
        request = request.version(http::Version::HTTP_3);
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let response = request.send()?.error_for_status()?;
        match response.version() {
            http::Version::HTTP_3 => Ok(response.bytes()?.to_vec()),
            other => Err(format!("over {other:?}").into()),
        }
    };
    wishes.iter().map(get).collect()
}

async fn with_quinn(host: IpAddr, trust: &[u8], wishes: &[Wish]) -> Result<Vec<Vec<u8>>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trust)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls)?;
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([0; 4], 0)))?;
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
    let connecting = endpoint.connect(SocketAddr::new(host, 443), &host.to_string())?;
    let connection = h3_quinn::Connection::new(connecting.await?);
    let (mut driver, mut client) = h3::client::new(connection).await?;
    let driving = tokio::spawn(async move { driver.wait_idle().await });
    let mut got = Vec::new();
    for (name, range) in wishes {
        let mut request = http::Request::get(format!("https://{host}/{name}"));
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let mut stream = client.send_request(request.body(())?).await?;
        stream.finish().await?;
        stream.recv_response().await?;
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await? {
            let bytes: Bytes = data.copy_to_bytes(data.remaining());
            body.extend_from_slice(&bytes);
        }
        got.push(body);
    }
    drop(client);
    endpoint.close(0x100u32.into(), b"");
    driving.await?;
    Ok(got)
}

/// Frame by frame.
fn with_h3i(host: IpAddr, wishes: &[Wish]) -> Result<Vec<Vec<u8>>> {
    let server = format!("{host}:443");
    let config = h3i::config::Config::new()
        .with_host_port(server.clone())
        .with_connect_to(server)
        .omit_sni()
        .verify_peer(false)
        .build()?;
    let mut actions = Vec::new();
    let streams = (0..).step_by(4);
    for (stream_id, (name, range)) in streams.clone().zip(wishes) {
        let path = format!("/{name}");
        let mut fields = vec![
            Header::new(b":method", b"GET"),
            Header::new(b":scheme", b"https"),
            Header::new(b":authority", host.to_string().as_bytes()),
            Header::new(b":path", path.as_bytes()),
        ];
        if let Some(range) = range {
            fields.push(Header::new(b"range", range.as_bytes()));
        }
        actions.push(send_headers_frame(stream_id, true, fields));
        let event_type = StreamEventType::Finished;
        let end = StreamEvent {
            stream_id,
            event_type,
        };
        actions.push(WaitType::StreamEvent(end).into());
    }
    let error = h3i::quiche::ConnectionError {
        is_app: true,
        error_code: WireErrorCode::NoError as u64,
        reason: Vec::new(),
    };
    actions.push(Action::ConnectionClose { error });
    let summary = h3i::client::sync_client::connect(config, actions, None)
        .map_err(|error| format!("{error:?}"))?;
    let body = |stream| {
        let data = summary.stream_map.stream(stream).into_iter();
        let data = data.filter_map(|frame| match frame {
            H3iFrame::QuicheH3(Frame::Data { payload }) => Some(payload),
            _ => None,
        });
        data.flatten().collect()
    };
    Ok(streams.map(body).take(wishes.len()).collect())
}

fn main() -> Result<()> {
    let client = std::env::args().nth(1).unwrap_or_default();
    let host: IpAddr = std::env::var("HOST")?.parse()?;
    let trust = std::fs::read(std::env::var("TRUST")?)?;
    let root = PathBuf::from(std::env::var("ROOT")?);
    let range = format!("bytes={}-{}", PART.start(), PART.end());
    let files = if client == "h3i" { &SMALL[..] } else { &FILES };
    let mut wishes: Vec<Wish> = files.iter().map(|name| (*name, None)).collect();
    wishes.push(("table.csv", Some(range)));
    let got = match &client[..] {
        "reqwest" => with_reqwest(host, &trust, &wishes)?,
        "quinn" => {
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(with_quinn(host, &trust, &wishes))?
        }
        "h3i" => with_h3i(host, &wishes)?,
        _ => return Err(format!("no library {client}").into()),
    };
    for ((name, range), got) in wishes.iter().zip(got) {
        let mut wanted = std::fs::read(root.join(name))?;
        if range.is_some() {
            wanted = wanted[PART].to_vec();
        }
        if got != wanted {
            return Err(format!("other bytes of {name}: {}", got.len()).into());
        }
    }
    Ok(())
}
