//! Addresses: an endpoint's name and key, one behind the other.

use weft::{Key, Name};

const NAME_BYTES: usize = 40;

/// Bytes of an address, all the same length.
pub const ADDRESS_BYTES: usize = NAME_BYTES + 8;

/// An address of an endpoint.
pub fn encode(name: &Name, key: Key) -> [u8; ADDRESS_BYTES] {
    let mut address = [0; ADDRESS_BYTES];
    address[..NAME_BYTES].copy_from_slice(&name.to_bytes());
    address[NAME_BYTES..].copy_from_slice(&key.0.to_le_bytes());
    address
}

/// What an address is of. None if it is none.
pub fn decode(address: &[u8; ADDRESS_BYTES]) -> Option<(Name, Key)> {
    let name = Name::from_bytes(&address[..NAME_BYTES]).ok()?;
    let key = address[NAME_BYTES..].try_into().ok()?;
    Some((name, Key(u64::from_le_bytes(key))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_nothing_else_is_one() {
        let name: Name = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA"
            .parse()
            .expect("a name, as docs/wire.md has it");
        let (again, key) = decode(&encode(&name, Key(7))).expect("an address");
        assert!(again.to_bytes() == name.to_bytes() && key.0 == 7);
        assert!(decode(&[0xff; ADDRESS_BYTES]).is_none());
    }
}
