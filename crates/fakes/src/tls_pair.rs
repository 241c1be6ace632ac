//! The client of rustls against a TLS connection of the host stack.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tls::Event;

use crate::content::content;
use crate::site::Site;
use crate::tls_server::TlsServer;

/// A client and a server.
pub struct Pair {
    /// Client.
    pub client: ClientConnection,
    /// Server.
    pub server: TlsServer,
    /// Data that the client has received.
    pub received: Vec<u8>,
}

impl Pair {
    /// Returns a client that connects to `localhost`, and its server.
    pub fn new(site: &Site, client: Arc<ClientConfig>) -> Self {
        Self::named(site, client, "localhost")
    }

    /// Returns a client that connects to `name`, and its server.
    pub fn named(site: &Site, client: Arc<ClientConfig>, name: &str) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self {
            client: ClientConnection::new(client, name).unwrap(),
            server: TlsServer::new(site),
            received: Vec::new(),
        }
    }

    /// Passes bytes to and fro until neither side has any to send.
    pub fn pump(&mut self) -> Result<(), rustls::Error> {
        loop {
            let mut to_server = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut to_server).unwrap();
            }
            self.server.receive(&to_server);
            let to_client = self.server.transmit();
            if to_server.is_empty() && to_client.is_empty() {
                return Ok(());
            }
            self.client_receives(&to_client)?;
        }
    }

    /// Passes bytes to the client.
    pub fn client_receives(&mut self, bytes: &[u8]) -> Result<(), rustls::Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).unwrap();
            self.client.process_new_packets()?;
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = self.client.reader().read(&mut buffer) {
                self.received.extend(&buffer[..count]);
            }
        }
        Ok(())
    }

    /// Returns the parameters that the handshake has negotiated.
    pub fn agreed(&self) -> &tls::Agreed {
        match &self.server.events[0] {
            Event::Connected(agreed) => agreed,
            event => panic!("{event:?}"),
        }
    }

    /// The client requests data, the server answers with a header and a file, and the client checks
    /// them.
    pub fn download(&mut self, object: u32, len: u64) {
        self.client
            .writer()
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .unwrap();
        self.pump().unwrap();
        assert!(self.server.received.ends_with(b"GET / HTTP/1.1\r\n\r\n"));
        let before = self.received.len();
        let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
        let connection = &mut self.server.connection;
        assert_eq!(connection.write(header.as_bytes()), header.len());
        assert!(connection.write_range(object, 0, len));
        self.pump().unwrap();
        let (got_header, body) = self.received[before..].split_at(header.len());
        assert_eq!(got_header, header.as_bytes());
        assert_eq!(body.len() as u64, len);
        let wrong = body
            .iter()
            .zip(0..)
            .find(|&(&byte, at)| byte != content(object.into(), at));
        assert_eq!(wrong, None, "the first wrong byte and where it is");
    }
}

/// The traffic secrets of TLS 1.3, by their short names in RFC 8446 §7.1.
#[derive(Debug, Default)]
pub struct Secrets(pub Mutex<HashMap<String, Vec<u8>>>);

impl rustls::KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap();
        secrets.insert(label.to_owned(), secret.to_vec());
    }
}
