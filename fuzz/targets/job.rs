//! The messages between a process of a job and its launcher: encoding a decoded one gives the same bytes.
#![no_main]

use weft_wire::job::{gifts, push_gift, Head, Socket, HEAD_BYTES};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(head) = data.first_chunk::<HEAD_BYTES>() {
        assert!(Head::from_bytes(*head).is_none_or(|read| read.to_bytes() == *head));
    }
    let text = String::from_utf8_lossy(data);
    if let Ok(socket) = text.parse::<Socket>() {
        assert_eq!(socket.to_string().parse(), Ok(socket));
    }
    if let Some((size, all)) = data.split_first() {
        if let Some(found) = gifts(all, u32::from(*size)) {
            let mut again = Vec::new();
            found.iter().for_each(|gift| push_gift(&mut again, gift));
            assert_eq!((found.len(), &again[..]), (usize::from(*size), all));
        }
    }
});
