use super::*;
use crate::testing::Bytes;

const ALL: Rights = Rights::ALL;

fn key(key: u64, at: u64) -> Place {
    Place { by: Credential::Key(key), at }
}

#[test]
fn ranges_are_checked_to_the_byte_and_sums_do_not_wrap() {
    let mut table = Table::new(4, 4);
    let region = table.open(7, ALL, Bytes::new(100)).expect("room");
    assert_eq!(
        table.check(key(7, 90), 10, Rights::WRITE).map(|(grant, _)| grant),
        Ok(Grant { region, at: 90, is_counted: false })
    );
    assert_eq!(table.check(key(7, 100), 0, Rights::WRITE).map(|(grant, _)| grant.at), Ok(100));
    for (at, len) in [(90, 11), (101, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        assert_eq!(table.check(key(7, at), len, Rights::READ).err(), Some(Reason::OutsideRegion), "{at} + {len}");
    }
    assert_eq!(table.check(key(8, 0), 1, Rights::READ).err(), Some(Reason::NoRegion));
}

#[test]
fn rights_are_those_of_region_and_cookie() {
    let mut table = Table::new(4, 4);
    let region = table.open(1, Rights { atomic: false, ..ALL }, Bytes::new(64)).expect("room");
    assert_eq!(table.check(key(1, 0), 8, Rights::ATOMIC).err(), Some(Reason::NoRight));
    assert_eq!(table.cookie(region, Part { at: 0, len: 8 }, ALL, [1; 16]), Err(RegionError::NoRight));
    assert_eq!(table.cookie(region, Part { at: 60, len: 5 }, Rights::READ, [1; 16]), Err(RegionError::Outside));
    assert_eq!(table.cookie(region, Part { at: u64::MAX, len: 2 }, Rights::READ, [1; 16]), Err(RegionError::Outside));
    let cookie = table.cookie(region, Part { at: 16, len: 8 }, Rights::READ, [1; 16]).expect("within");
    let place = |at| Place { by: cookie.into(), at };
    assert_eq!(table.check(place(4), 4, Rights::READ).map(|(grant, _)| grant.at), Ok(20));
    assert_eq!(table.check(place(4), 5, Rights::READ).err(), Some(Reason::OutsideRegion));
    assert_eq!(table.check(place(0), 1, Rights::WRITE).err(), Some(Reason::NoRight));
}

#[test]
fn a_cookie_of_another_secret_is_none() {
    let mut table = Table::new(4, 4);
    let region = table.open(1, ALL, Bytes::new(64)).expect("room");
    let cookie = table.cookie(region, Part { at: 0, len: 64 }, ALL, [5; 16]).expect("room");
    for byte in 0..Cookie::BYTES {
        for bit in 0..8 {
            let mut bytes = cookie.to_bytes();
            bytes[byte] ^= 1 << bit;
            let forged = Place { by: Cookie::from_bytes(bytes).into(), at: 0 };
            assert_eq!(table.check(forged, 1, Rights::READ).err(), Some(Reason::NoRegion));
            assert!(!table.revoke_cookie(Cookie::from_bytes(bytes)));
        }
    }
}

#[test]
fn what_was_revoked_is_told_from_what_never_was() {
    let mut table = Table::new(4, 4);
    let region = table.open(1, ALL, Bytes::new(64)).expect("room");
    let part = Part { at: 0, len: 8 };
    let cookies = [1, 2].map(|n| table.cookie(region, part, ALL, [n; 16]).expect("room"));
    let place = |n: usize| Place { by: cookies[n].into(), at: 0 };
    assert!(table.revoke_cookie(cookies[0]) && !table.revoke_cookie(cookies[0]));
    assert_eq!(table.check(place(0), 1, Rights::READ).err(), Some(Reason::Revoked));
    assert!(table.check(place(1), 1, Rights::READ).is_ok());
    assert!(table.revoke(region).is_some() && table.revoke(region).is_none());
    assert_eq!(table.cookie(region, part, ALL, [3; 16]), Err(RegionError::Revoked));
    for place in [place(1), key(1, 0)] {
        assert_eq!(table.check(place, 1, Rights::READ).err(), Some(Reason::Revoked));
    }
    assert_eq!((table.cookies(), table.regions().count()), (0, 0));
    // The key is free again, and means the new region.
    let again = table.open(1, ALL, Bytes::new(8)).expect("the key is free");
    assert!(again != region && table.space(region).is_none());
    assert_eq!(table.check(key(1, 0), 8, Rights::READ).map(|(grant, _)| grant.region), Ok(again));
    assert_eq!(table.check(place(1), 1, Rights::READ).err(), Some(Reason::Revoked));
}

#[test]
fn a_handle_is_of_one_region_and_only_if_it_was_asked_for() {
    let mut table = Table::new(8, 8);
    let region = table.open(1, ALL, Bytes::new(64)).expect("room");
    let by = |handle: u32, at| Place { by: Credential::Handle(handle), at };
    let state = |table: &Table<Bytes>, place| table.check(place, 4, Rights::READ).map(|(grant, _)| grant);
    assert_eq!(state(&table, by(1, 0)), Err(Reason::NoRegion), "nobody asked for it");
    let base = 0x7f00_0000_1000;
    let handle = table.handle(region, base).expect("it is open").0;
    assert!(handle != 0);
    assert_eq!(state(&table, by(handle, base + 8)), Ok(Grant { region, at: 8, is_counted: false }));
    for at in [0, base - 1, base + 61, u64::MAX] {
        assert_eq!(state(&table, by(handle, at)), Err(Reason::OutsideRegion), "{at:x}");
    }
    assert_eq!(
        state(&table, key(1, 8)),
        Ok(Grant { region, at: 8, is_counted: false }),
        "keys count from the beginning"
    );
    assert!(table.count_from(region, base - 8));
    assert_eq!(
        state(&table, key(1, base)),
        Ok(Grant { region, at: 8, is_counted: false }),
        "keys count from where they are told"
    );
    assert_eq!(state(&table, key(1, base - 9)), Err(Reason::OutsideRegion));
    for bit in 0..32 {
        assert_eq!(state(&table, by(handle ^ 1 << bit, base)), Err(Reason::NoRegion), "bit {bit}");
    }
    assert_eq!(state(&table, by(0, base)), Err(Reason::NoRegion));
    table.revoke(region);
    assert_eq!(state(&table, by(handle, base)), Err(Reason::Revoked));
    assert!(table.handle(region, 0).is_none() && !table.count_from(region, 0));
    // Another region in the same place, after many.
    for n in 0..2 * REMEMBERED as u64 {
        let region = table.open(10 + n, ALL, Bytes::new(64)).expect("room");
        assert!(state(&table, by(handle, base)).is_err());
        let other = table.handle(region, base).expect("it is open").0;
        assert!(other != handle && state(&table, by(other, base)).is_ok());
        table.revoke(region);
    }
    assert!(table.regions.places.len() < REMEMBERED + 4, "places were used again");
}

#[test]
fn short_writes_count_from_the_same_base_as_others() {
    let mut table = Table::new(8, 8);
    let region = table.open(1, Rights::WRITE, Bytes::new(64)).expect("room");
    assert!(table.count_from(region, 1000));
    let writable = |at| table.writable(1, at, 4).map(|(_, at)| at);
    let places = [999, 1000, 1060, 1061, 8].map(writable);
    assert_eq!(places, [None, Some(0), Some(60), None, None]);
}

#[test]
fn what_has_ended_is_revoked_and_nothing_else() {
    let mut table = Table::new(8, 8);
    let regions = [1, 2, 3].map(|key| table.open(key, ALL, Bytes::new(64)).expect("room"));
    let part = Part { at: 0, len: 8 };
    let cookies = [1, 2, 3].map(|n| table.cookie(regions[0], part, ALL, [n; 16]).expect("room"));
    let time = |seconds| Some(Duration::from_secs(seconds));
    assert!(table.next_end().is_none() && !table.is_timed(Credential::Key(1)));
    assert!(table.set_end(regions[1], time(5)) && table.set_cookie_end(cookies[0], time(3)));
    assert!(table.set_cookie_end(cookies[1], time(9)) && table.set_cookie_end(cookies[1], time(4)));
    assert!(table.set_cookie_end(cookies[2], time(1)) && table.set_cookie_end(cookies[2], None));
    let timed = [Credential::Key(1), Credential::Key(2), Credential::Key(3), cookies[0].into(), cookies[2].into()];
    assert_eq!(timed.map(|by| table.is_timed(by)), [false, true, false, true, false]);
    assert_eq!((table.next_end(), table.expire(Duration::from_millis(2999))), (time(3), 0));
    assert_eq!((table.expire(Duration::from_secs(4)), table.next_end()), (2, time(5)));
    let state = |table: &Table<Bytes>, by| table.check(Place { by, at: 0 }, 1, Rights::READ).err();
    assert_eq!(state(&table, cookies[0].into()), Some(Reason::Revoked));
    assert_eq!(state(&table, cookies[2].into()), None);
    assert_eq!(state(&table, Credential::Key(2)), None);
    assert_eq!((table.expire(Duration::MAX), table.next_end()), (1, None));
    assert_eq!(state(&table, Credential::Key(2)), Some(Reason::Revoked));
    assert_eq!(state(&table, Credential::Key(1)), None);
    // A region revoked by hand no longer has an end, and neither do its cookies. A revoked region gets no end.
    assert!(table.set_end(regions[0], time(7)) && table.set_cookie_end(cookies[2], time(8)));
    assert!(table.is_timed(cookies[2].into()));
    table.revoke(regions[0]);
    assert_eq!((table.next_end(), table.expire(Duration::MAX)), (None, 0));
    assert!(!table.set_end(regions[0], time(1)) && !table.set_cookie_end(cookies[2], time(1)));
    assert_eq!(table.regions().count(), 1);
    // A region that ends takes with it cookies that would end later.
    let cookie = table.cookie(regions[2], part, ALL, [7; 16]).expect("room");
    assert!(table.set_cookie_end(cookie, time(20)) && table.set_end(regions[2], time(10)));
    assert_eq!((table.expire(Duration::from_secs(15)), table.next_end(), table.cookies()), (1, None, 0));
}

#[test]
fn bounds_hold_and_what_is_remembered_is_bounded() {
    let mut table = Table::new(2, 2);
    let first = table.open(1, ALL, Bytes::new(8)).expect("room");
    table.open(2, ALL, Bytes::new(8)).expect("room");
    assert_eq!(table.open(1, ALL, Bytes::new(8)), Err(RegionError::KeyTaken));
    assert_eq!(table.open(3, ALL, Bytes::new(8)), Err(RegionError::TooMany));
    let part = Part { at: 0, len: 8 };
    for n in 0..2 {
        table.cookie(first, part, ALL, [n; 16]).expect("room");
    }
    assert_eq!(table.cookie(first, part, ALL, [9; 16]), Err(RegionError::TooMany));
    table.revoke(first);
    for n in 10..10 + 3 * REMEMBERED as u64 {
        let region = table.open(n, ALL, Bytes::new(8)).expect("room");
        table.cookie(region, part, ALL, [n as u8; 16]).expect("room");
        table.revoke(region);
    }
    assert!(table.regions.places.len() <= REMEMBERED + 3 && table.cookies.places.len() <= REMEMBERED + 3);
    assert!(table.by_key.len() <= table.regions.places.len());
    assert_eq!(table.check(key(10, 0), 1, Rights::READ).err(), Some(Reason::NoRegion), "long ago");
    assert!(table.check(key(2, 0), 8, Rights::ALL).is_ok(), "the other one is still there");
}

#[test]
fn the_largest_regions_are_those_that_are_open() {
    let mut table = Table::new(8, 1);
    let regions: Vec<_> = [5, 90, 7, 90]
        .into_iter()
        .zip(0..)
        .map(|(len, key)| table.open(key, ALL, Bytes::new(len)).expect("room"))
        .collect();
    let largest =
        |table: &Table<Bytes>| table.largest().map(|(id, _, space)| (id.index(), space.len())).collect::<Vec<_>>();
    assert_eq!(largest(&table), [(3, 90), (1, 90), (2, 7), (0, 5)]);
    assert_eq!((table.open_regions(), table.bytes(), table.revoked()), (4, 192, 0));
    table.revoke(regions[1]);
    table.revoke(regions[1]);
    assert_eq!(largest(&table), [(3, 90), (2, 7), (0, 5)]);
    assert_eq!((table.open_regions(), table.bytes(), table.revoked()), (3, 102, 1));
    assert_eq!(table.open(1, ALL, Bytes::new(1)).map(RegionId::index), Ok(4));
    assert_eq!(table.bytes(), 103);
    assert_eq!(table.open(1, ALL, Bytes::new(1000)), Err(RegionError::KeyTaken));
    assert_eq!(table.bytes(), 103);
}

#[test]
fn cookies_print_and_read_back_and_do_not_tell_their_secret_in_passing() {
    let cookie = Cookie { index: 7, secret: std::array::from_fn(|n| n as u8 | 0x80) };
    let text = cookie.to_string();
    assert_eq!(text, "weftc1:BwAAAICBgoOEhYaHiImKi4yNjo8");
    assert_eq!(text.parse(), Ok(cookie));
    assert_eq!(format!("{cookie:?}"), "a cookie");
    for wrong in ["", "weftc1:", "weft1:BwAAAICBgoOEhYaHiImKi4yNjo8", "weftc1:BwAAAICBgoOEhYaHiImKi4yNjo", "weftc1:!"] {
        assert_eq!(wrong.parse::<Cookie>(), Err(CookieError), "{wrong}");
    }
}
