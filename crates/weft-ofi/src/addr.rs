//! Addresses: an endpoint's name and key, one behind the other, and the number that its memory endpoint's name has in place of its own.

use weft::{EndpointId, Key, Name};

const NAME_BYTES: usize = 40;
const KEY_BYTES: usize = 8;

/// Bytes of an address, all the same length.
pub const ADDRESS_BYTES: usize = NAME_BYTES + KEY_BYTES + 4;

/// Says that there is no memory endpoint.
const NO_MEMORY: u32 = u32::MAX;

/// A peer.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Of its endpoint for messages.
    pub name: Name,
    /// Of both endpoints.
    pub key: Key,
    /// Of its endpoint for remote memory, if it has one.
    pub memory: Option<Name>,
}

impl Peer {
    /// The address of a peer.
    pub fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let mut address = [0; ADDRESS_BYTES];
        let (name, rest) = address.split_at_mut(NAME_BYTES);
        let (key, number) = rest.split_at_mut(KEY_BYTES);
        name.copy_from_slice(&self.name.to_bytes());
        key.copy_from_slice(&self.key.0.to_le_bytes());
        number.copy_from_slice(&self.memory.map_or(NO_MEMORY, |name| name.endpoint.0).to_le_bytes());
        address
    }

    /// What an address is of. None if it is none.
    pub fn decode(address: &[u8; ADDRESS_BYTES]) -> Option<Peer> {
        let (name, rest) = address.split_at(NAME_BYTES);
        let (key, number) = rest.split_at(KEY_BYTES);
        let name = Name::from_bytes(name).ok()?;
        let memory = match u32::from_le_bytes(number.try_into().ok()?) {
            NO_MEMORY => None,
            number => Some(Name { endpoint: EndpointId(number), ..name }),
        };
        Some(Peer { name, key: Key(u64::from_le_bytes(key.try_into().ok()?)), memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_nothing_else_is_one() {
        let name: Name = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA"
            .parse()
            .expect("a name, as docs/wire.md has it");
        for memory in [None, Some(Name { endpoint: EndpointId(77), ..name })] {
            let again = Peer::decode(&Peer { name, key: Key(7), memory }.encode()).expect("an address");
            assert!(again.name.to_bytes() == name.to_bytes() && again.key.0 == 7);
            assert_eq!(again.memory.map(|name| name.to_bytes()), memory.map(|name| name.to_bytes()));
        }
        assert!(Peer::decode(&[0xff; ADDRESS_BYTES]).is_none());
    }
}
