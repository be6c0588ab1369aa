//! Cookies: how a host verifies, without state, that a caller receives what is sent to its address.
//!
//! A cookie is a keyed hash of the caller and its address. Keys derive from one secret and a number that rises with
//! time, so old keys need not be kept.

use crate::rare::{self, Point};
use crate::time::Time;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::time::Duration;
use weft_wire::frame::{Cookie, Hello};
use weft_wire::packet::ChannelId;

/// How long one key is used. A cookie is valid for at least that long, and at most twice as long.
pub const ROTATION: Duration = Duration::from_secs(15);

/// Makes and checks cookies.
#[derive(Clone)]
pub struct Baker {
    secret: [u64; 2],
}

impl Baker {
    /// `secret` is 128 random bits that nobody else knows.
    pub fn new(secret: [u64; 2]) -> Baker {
        Baker { secret }
    }

    /// The cookie for a caller at an address. The address is opaque bytes of the link.
    pub fn bake(&self, now: Time, address: &[u8], id: ChannelId, hello: &Hello) -> Cookie {
        self.bake_with(generation(now), address, id, hello)
    }

    /// Whether the cookie was baked for this caller recently.
    pub fn is_good(&self, now: Time, address: &[u8], id: ChannelId, hello: &Hello) -> bool {
        hello.cookie.is_some_and(|cookie| {
            let is_fresh = generation(now).wrapping_sub(cookie.generation) <= 1;
            let baked = self.bake_with(cookie.generation, address, id, hello);
            // One comparison, without a branch on how many bytes match.
            is_fresh && (baked.value ^ cookie.value) == 0 && !rare::fires(Point::CookieStale)
        })
    }

    fn bake_with(&self, generation: u32, address: &[u8], id: ChannelId, hello: &Hello) -> Cookie {
        let [k0, k1] = [0u8, 1].map(|half| {
            let mut key = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
            key.write(&[half]);
            key.write(&generation.to_le_bytes());
            key.finish()
        });
        let mut hash = SipHasher24::new_with_keys(k0, k1);
        hash.write(&(address.len() as u64).to_le_bytes());
        hash.write(address);
        hash.write(&id.0.to_le_bytes());
        for word in [hello.caller.0, hello.callee.0, hello.nonce] {
            hash.write(&word.to_le_bytes());
        }
        Cookie { generation, value: hash.finish() }
    }
}

impl std::fmt::Debug for Baker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Baker(..)")
    }
}

fn generation(now: Time) -> u32 {
    (now.as_nanos() / ROTATION.as_nanos() as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::frame::Terms;
    use weft_wire::Epoch;

    const ADDRESS: &[u8] = &[10, 0, 0, 1, 0x12, 0x34];
    const ID: ChannelId = ChannelId(77);

    fn hello() -> Hello {
        let terms = Terms { features: 0, window: 1, ack_delay: 1, packet_most: 1500 };
        Hello { caller: Epoch(1), callee: Epoch(2), nonce: 3, cookie: None, terms }
    }

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_cookie_is_good_for_its_caller_only() {
        let baker = Baker::new([5, 6]);
        let with = |cookie| Hello { cookie: Some(cookie), ..hello() };
        let cookie = baker.bake(at(100), ADDRESS, ID, &hello());
        assert!(baker.is_good(at(100), ADDRESS, ID, &with(cookie)));
        assert!(!baker.is_good(at(100), ADDRESS, ID, &hello()));
        assert!(!baker.is_good(at(100), &ADDRESS[1..], ID, &with(cookie)));
        assert!(!baker.is_good(at(100), ADDRESS, ChannelId(78), &with(cookie)));
        assert!(!baker.is_good(at(100), ADDRESS, ID, &Hello { caller: Epoch(9), ..with(cookie) }));
        assert!(!baker.is_good(at(100), ADDRESS, ID, &Hello { callee: Epoch(9), ..with(cookie) }));
        assert!(!baker.is_good(at(100), ADDRESS, ID, &Hello { nonce: 9, ..with(cookie) }));
        for bit in 0..64 {
            assert!(!baker.is_good(at(100), ADDRESS, ID, &with(Cookie { value: cookie.value ^ 1 << bit, ..cookie })));
        }
        assert!(!Baker::new([5, 7]).is_good(at(100), ADDRESS, ID, &with(cookie)));
    }

    #[test]
    fn a_cookie_goes_stale() {
        let baker = Baker::new([5, 6]);
        for start in 0..40 {
            let cookie = baker.bake(at(start), ADDRESS, ID, &hello());
            let is_good = |later| baker.is_good(at(later), ADDRESS, ID, &Hello { cookie: Some(cookie), ..hello() });
            assert!(is_good(start) && is_good(start + 15));
            assert!(!is_good(start + 30));
        }
    }
}
