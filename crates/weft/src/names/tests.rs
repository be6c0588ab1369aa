//! Texts that are places and contacts, and texts that are not.

use super::*;
use weft_wire::NameError;

const NAME: &str = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA";

#[test]
fn a_contact_reads_back_and_other_texts_say_why_not() {
    let contact: Contact = format!("{NAME}#00000000000000ff").parse().expect("a name and a key");
    assert_eq!(contact.key.0, 255);
    assert_eq!(contact.to_string(), format!("{NAME}#00000000000000ff"));
    assert_eq!(NAME.parse::<Contact>().err(), Some(ContactError::NoKey));
    assert_eq!(format!("{NAME}#key").parse::<Contact>().err(), Some(ContactError::Key));
    assert_eq!("10.0.0.1:80#1".parse::<Contact>().err(), Some(ContactError::Name(NameError::Prefix)));
}

#[test]
fn places_are_told_from_other_texts() {
    let place = |host, port, label| Some(Place { host, port, label });
    assert_eq!(Place::parse("10.0.0.1:80"), place("10.0.0.1", 80, ""));
    assert_eq!(Place::parse(" [fd00::1]:4000/log "), place("fd00::1", 4000, "log"));
    assert_eq!(Place::parse("loom.example:65535/a-b_c.d"), place("loom.example", 65535, "a-b_c.d"));
    let long = format!("host:1/{}", "x".repeat(64));
    for text in [
        "",
        ":",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:+1",
        "host:http",
        ":80",
        "[]:80",
        "[host]:80",
        "a b:80",
        "host:80/a b",
        "host:80/a/b",
        "host:80/a:b",
        "a#b:80",
        NAME,
        &long,
    ] {
        assert_eq!(Place::parse(text), None, "{text:?}");
    }
}
