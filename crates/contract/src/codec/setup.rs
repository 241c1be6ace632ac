//! SETUP as bytes.

use zerocopy::IntoBytes;

use super::{
    SETUP, SETUP_READY, SetupReadyRecord, SetupRecord, all_zero, flag, head, split, whole,
};
use crate::event::Event;
use crate::setup::{Setup, SetupListeners, SetupOptions};

impl<'a> Setup<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let listeners = self.listeners.as_bytes();
        let options = &self.options;
        let record = SetupRecord {
            head: head(SETUP, size_of::<SetupRecord>() + listeners.len()),
            epoch: self.epoch.into(),
            issued_us: self.issued_us.into(),
            host_us: self.host_us.into(),
            valid_us: self.valid_us.into(),
            cookie_key: self.cookie_key,
            ts_offset_key: self.ts_offset_key,
            fast_open_keys: self.fast_open_keys,
            receive_buffer_bytes: options.receive_buffer_bytes.into(),
            receive_buffer_bytes_max: options.receive_buffer_bytes_max.into(),
            window_scaling: options.window_scaling.into(),
            timestamps: options.timestamps.into(),
            sack: options.sack.into(),
            ecn: options.ecn.into(),
            source_mac: self.source_mac,
            zero: [0; 6],
        };
        out.extend_from_slice(record.as_bytes());
        out.extend_from_slice(listeners);
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (record, listeners) = split::<SetupRecord>(bytes)?;
        all_zero(&record.zero)?;
        Ok(Setup {
            epoch: record.epoch.get(),
            issued_us: record.issued_us.get(),
            host_us: record.host_us.get(),
            valid_us: record.valid_us.get(),
            cookie_key: record.cookie_key,
            ts_offset_key: record.ts_offset_key,
            fast_open_keys: record.fast_open_keys,
            options: SetupOptions {
                receive_buffer_bytes: record.receive_buffer_bytes.get(),
                receive_buffer_bytes_max: record.receive_buffer_bytes_max.get(),
                window_scaling: flag(record.window_scaling)?,
                timestamps: flag(record.timestamps)?,
                sack: flag(record.sack)?,
                ecn: flag(record.ecn)?,
            },
            source_mac: record.source_mac,
            listeners: SetupListeners::parse(listeners)?,
        })
    }
}

pub(super) fn encode_ready(epoch: u64, steering: u32, out: &mut Vec<u8>) {
    let record = SetupReadyRecord {
        head: head(SETUP_READY, size_of::<SetupReadyRecord>()),
        epoch: epoch.into(),
        steering: steering.into(),
        zero: [0; 4],
    };
    out.extend_from_slice(record.as_bytes());
}

pub(super) fn parse_ready(bytes: &[u8]) -> Result<Event, &'static str> {
    let record = whole::<SetupReadyRecord>(bytes)?;
    all_zero(&record.zero)?;
    Ok(Event::SetupReady {
        epoch: record.epoch.get(),
        steering: record.steering.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{is_secret, set_source_mac, shift_times};
    use super::*;
    use crate::command::Command;
    use crate::setup::{SetupListener, SetupScope};

    #[test]
    fn another_machine_gets_its_own_clock_and_address_and_the_hosts_time() {
        let listeners = SetupListeners::to_bytes(&[SetupListener {
            scope: SetupScope::All,
            port: 80,
            mss_v4: 1460,
            mss_v6: 1440,
            fast_open: true,
        }]);
        let setup = Setup {
            epoch: 1,
            issued_us: 1_000,
            host_us: 1_000,
            valid_us: 9,
            cookie_key: [1; 16],
            ts_offset_key: [2; 16],
            fast_open_keys: [[5; 16], [6; 16]],
            options: SetupOptions {
                receive_buffer_bytes: 1,
                receive_buffer_bytes_max: 2,
                window_scaling: true,
                timestamps: true,
                sack: true,
                ecn: true,
            },
            source_mac: [3; 6],
            listeners: SetupListeners::parse(&listeners).unwrap(),
        };
        let mut bytes = Vec::new();
        Command::Setup(setup).encode(&mut bytes);
        assert!(is_secret(&bytes));
        shift_times(&mut bytes, -400);
        set_source_mac(&mut bytes, [4; 6]);
        let translated = Setup {
            issued_us: 600,
            source_mac: [4; 6],
            ..setup
        };
        assert_eq!(Command::decode(&bytes), Ok(Command::Setup(translated)));
    }
}
