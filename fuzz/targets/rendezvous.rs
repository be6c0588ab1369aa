//! Questions for names by host and port, and their answers: encoding a decoded one gives the same bytes, and more bytes change nothing.
#![no_main]

use weft_wire::rendezvous::{Answer, Query, ANSWER_BYTES, QUERY_MOST};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    match Query::parse(data) {
        Ok(Some(query)) => {
            let bytes = query.to_bytes().expect("it was read");
            assert!(bytes.len() <= QUERY_MOST && data.starts_with(&bytes));
        }
        Ok(None) => assert!(data.len() < QUERY_MOST),
        // Malformed data stays malformed, whatever follows.
        Err(_) => assert!(Query::parse(&[data, b"more"].concat()).is_err()),
    }
    match Answer::parse(data) {
        Ok(Some(answer)) => assert!(data.starts_with(&answer.to_bytes())),
        Ok(None) => assert!(data.len() < ANSWER_BYTES),
        Err(_) => assert!(Answer::parse(&[data, b"more"].concat()).is_err()),
    }
});
