//! The data that each rank contributes for all others, and the sockets that carry it.
//!
//! A rank's messages are checked: it is a user's program, and may use another version of weft.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use weft_wire::job::{push_gift, Head, GIFT_MOST, HEAD_BYTES};

/// One rank's side of the socket.
#[derive(Debug)]
pub struct Talk {
    /// `None` once the rank has closed it, or has sent an invalid message.
    pub socket: Option<UnixStream>,
    /// An incomplete message.
    input: Vec<u8>,
    /// Its contribution, until all ranks have given theirs.
    gift: Option<Vec<u8>>,
    /// The answer to it, and how much of it was written.
    answer: Option<(Arc<[u8]>, usize)>,
}

/// The content of a rank's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// Nothing of interest to the job.
    Nothing,
    /// The rank has contributed.
    Gave,
    /// The job is to end with this status.
    Exit(i32),
    /// This rank does not answer it.
    Missing(u32),
    /// An invalid message.
    Nonsense,
}

impl Talk {
    pub fn new(socket: UnixStream) -> Talk {
        Talk { socket: Some(socket), input: Vec::new(), gift: None, answer: None }
    }

    pub fn has_given(&self) -> bool {
        self.gift.is_some()
    }

    /// Whether there is something to write.
    pub fn owes(&self) -> bool {
        self.answer.is_some()
    }

    /// Reads what is there, up to the end of one message.
    pub fn hear(&mut self) -> Said {
        let wanted = match self.head() {
            Some(Some(Head::Give(bytes))) => HEAD_BYTES + bytes as usize,
            _ => HEAD_BYTES,
        };
        if self.input.len() < wanted {
            let mut piece = [0; HEAD_BYTES + GIFT_MOST];
            let piece = &mut piece[..wanted - self.input.len()];
            let Some(socket) = &mut self.socket else { return Said::Nothing };
            match socket.read(piece) {
                Ok(0) => self.socket = None,
                Ok(bytes) => self.input.extend_from_slice(&piece[..bytes]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => self.socket = None,
            }
        }
        self.understand()
    }

    /// The head of the next message, if it has arrived: `Some(None)` if it is invalid.
    fn head(&self) -> Option<Option<Head>> {
        self.input.first_chunk().map(|head| Head::from_bytes(*head))
    }

    fn understand(&mut self) -> Said {
        match self.head() {
            None => Said::Nothing,
            Some(Some(Head::Exit(status))) => {
                self.input.clear();
                Said::Exit(status)
            }
            Some(Some(Head::Missing(rank))) => {
                self.input.clear();
                Said::Missing(rank)
            }
            Some(Some(Head::Give(bytes))) if self.input.len() - HEAD_BYTES < bytes as usize => Said::Nothing,
            Some(Some(Head::Give(_))) if !self.has_given() && !self.owes() => {
                self.gift = Some(self.input.split_off(HEAD_BYTES));
                self.input.clear();
                Said::Gave
            }
            Some(_) => {
                self.socket = None;
                Said::Nonsense
            }
        }
    }

    /// Writes as much of the answer as the socket takes.
    pub fn tell(&mut self) {
        while let (Some((answer, told)), Some(socket)) = (&mut self.answer, &mut self.socket) {
            match socket.write(&answer[*told..]) {
                Ok(bytes) => *told += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.socket = None,
            }
            if *told == answer.len() {
                self.answer = None;
            }
        }
        // A rank that has closed the socket needs no answer.
        self.answer = None;
    }
}

/// Once every rank has contributed, starts the answers: each gets all contributions.
pub fn settle<'a>(talks: impl Iterator<Item = &'a mut Talk>) {
    let mut talks: Vec<&mut Talk> = talks.collect();
    if !talks.iter().all(|talk| talk.has_given()) {
        return;
    }
    let mut gifts = Vec::new();
    talks.iter_mut().for_each(|talk| push_gift(&mut gifts, &talk.gift.take().unwrap_or_default()));
    let mut answer = Head::All(gifts.len() as u32).to_bytes().to_vec();
    answer.append(&mut gifts);
    let answer: Arc<[u8]> = answer.into();
    for talk in talks {
        talk.answer = Some((answer.clone(), 0));
        talk.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> (Talk, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        (Talk::new(ours), theirs)
    }

    #[test]
    fn contributions_that_come_byte_by_byte_go_to_all_once_all_have_given() {
        let (mut first, mut one) = talk();
        let (mut second, mut other) = talk();
        for byte in [&Head::Give(3).to_bytes()[..], b"abc"].concat() {
            assert!(!first.has_given());
            one.write_all(&[byte]).expect("it is open");
            first.hear();
        }
        settle([&mut first, &mut second].into_iter());
        assert!(first.has_given() && !first.owes(), "the other has not given");
        other.write_all(&Head::Give(0).to_bytes()).expect("it is open");
        assert_eq!(second.hear(), Said::Gave);
        settle([&mut first, &mut second].into_iter());
        for socket in [&mut one, &mut other] {
            let mut told = [0; HEAD_BYTES + 11];
            socket.read_exact(&mut told).expect("an answer");
            assert_eq!(told[..HEAD_BYTES], Head::All(11).to_bytes());
            assert_eq!(told[HEAD_BYTES..], [3, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0]);
        }
    }

    #[test]
    fn nonsense_and_a_second_gift_of_one_round_close_the_socket() {
        let (mut talk, mut theirs) = talk();
        theirs.write_all(&Head::All(0).to_bytes()).expect("it is open");
        assert_eq!((talk.hear(), talk.socket.is_none()), (Said::Nonsense, true));
        let (mut talk, mut theirs) = self::talk();
        theirs.write_all(&Head::Give(0).to_bytes().repeat(2)).expect("it is open");
        assert_eq!([talk.hear(), talk.hear()], [Said::Gave, Said::Nonsense]);
    }
}
