//! Commands and events: any bytes may come. What decodes encodes to the same bytes.

#![no_main]

use contract::{Command, Event};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    decode(input);
    // The same with the right length in front, behind which everything else is.
    let mut sized = input.to_vec();
    if let Some(length) = sized.first_chunk_mut() {
        *length = (input.len() as u32).to_le_bytes();
        decode(&sized);
    }
});

fn decode(bytes: &[u8]) {
    let mut encoded = Vec::new();
    if let Ok(command) = Command::decode(bytes) {
        assert_eq!(command.check(), Ok(()));
        assert_eq!(command.encoded_bytes(), bytes.len());
        command.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{command:?}");
        assert!(Event::decode(bytes).is_err(), "{command:?}");
    } else if let Ok(event) = Event::decode(bytes) {
        assert_eq!(event.encoded_bytes(), bytes.len());
        event.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{event:?}");
    }
}
