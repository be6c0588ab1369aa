//! Names, as text and as bytes: encoding a decoded one gives the same again.
#![no_main]

use weft_wire::Name;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(name) = Name::from_bytes(data) {
        assert_eq!(name.to_bytes(), data);
        assert_eq!(name.to_string().parse().map(|name: Name| name.to_bytes()), Ok(name.to_bytes()));
        assert!(name.address.each().count() <= weft_wire::ADDRESSES_MOST);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(name) = text.parse::<Name>() {
            assert_eq!(name.to_string(), text.trim());
        }
    }
});
