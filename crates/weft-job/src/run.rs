//! A rank's side of `weft run`: the messages of `weft_wire::job`.

use crate::launcher::number;
use crate::JobError;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use weft_launch::passed;
use weft_wire::job::{gifts, Head, Socket, HEAD_BYTES, JOB, RANK, SIZE};

/// The socket, used as a file.
#[derive(Debug)]
pub struct Run {
    socket: File,
    pub rank: u32,
    pub size: u32,
    /// Whether the launcher knows that this rank misses another one.
    misses: bool,
}

impl Run {
    pub fn connect() -> Result<Run, JobError> {
        let failed =
            |why: String| JobError::NoLauncher { what: "the socket of weft run cannot be used", why, variable: JOB };
        let text = std::env::var(JOB).unwrap_or_default();
        let Socket { descriptor, inode } = text.parse().map_err(|e| failed(format!("{JOB} is {text:?}: {e}")))?;
        let copy: OwnedFd = passed::copy(descriptor).map_err(|e| failed(format!("descriptor {descriptor}: {e}")))?;
        let socket = File::from(copy);
        let is_it = socket.metadata().is_ok_and(|it| it.file_type().is_socket() && it.ino() == inode);
        if !is_it {
            return Err(failed(format!("descriptor {descriptor} is another file: a program in between opened it")));
        }
        // Programs that this one starts are not ranks.
        passed::keep(descriptor).map_err(|e| failed(format!("descriptor {descriptor}: {e}")))?;
        Ok(Run { socket, rank: number(RANK)?, size: number(SIZE)?, misses: false })
    }

    pub fn exchange(&mut self, gift: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        // In one write, because the launcher reads it in one piece.
        let mut message = Head::Give(gift.len() as u32).to_bytes().to_vec();
        message.extend_from_slice(gift);
        self.socket.write_all(&message).map_err(gone)?;
        let mut head = [0; HEAD_BYTES];
        self.socket.read_exact(&mut head).map_err(gone)?;
        let Some(Head::All(bytes)) = Head::from_bytes(head) else { return Err(strange()) };
        let mut all = vec![0; bytes as usize];
        self.socket.read_exact(&mut all).map_err(gone)?;
        let all = gifts(&all, self.size).ok_or_else(strange)?;
        Ok(all.into_iter().map(<[u8]>::to_vec).collect())
    }

    pub fn exit(&mut self, status: i32) -> Result<(), JobError> {
        ask_for_end(&self.socket, status).map_err(gone)
    }

    /// Tells the launcher that another rank does not answer: this process may end before that one, which is to blame. Tells it once,
    /// because the first loss explains all that follows.
    pub fn misses(&mut self, rank: u32) {
        if !self.misses && rank != self.rank {
            self.misses = true;
            // Without a launcher there is nobody to look for the cause.
            let _ = self.socket.write_all(&Head::Missing(rank).to_bytes());
        }
    }

    /// A second handle of the socket, to ask for the end while this is in use.
    pub fn socket(&self) -> Option<File> {
        self.socket.try_clone().ok()
    }
}

/// Asks the launcher at a socket to end the job.
pub fn ask_for_end(mut socket: &File, status: i32) -> std::io::Result<()> {
    socket.write_all(&Head::Exit(status).to_bytes())
}

fn gone(error: std::io::Error) -> JobError {
    JobError::Launcher(format!("does not answer ({error})"))
}

fn strange() -> JobError {
    JobError::Launcher("sent an invalid message (is it of another version of weft?)".to_owned())
}
