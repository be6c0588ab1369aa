//! The output of one rank, split into lines with a prefix.

use super::outlet::Outlet;

/// A longer line is printed in pieces.
const LINE_MOST: usize = 16 << 10;

/// Colours of ranks on a terminal, readable on black and on white.
const COLOURS: [u8; 6] = [36, 32, 33, 35, 34, 31];

/// One stream of a rank.
#[derive(Debug)]
pub struct Lines {
    prefix: Vec<u8>,
    /// An incomplete line.
    begun: Vec<u8>,
}

/// The prefix of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefix {
    Nothing,
    Rank,
    Coloured,
}

impl Lines {
    pub fn new(rank: u32, prefix: Prefix) -> Lines {
        let prefix = match prefix {
            Prefix::Nothing => String::new(),
            Prefix::Rank => format!("[{rank}] "),
            Prefix::Coloured => format!("\x1b[{}m[{rank}]\x1b[0m ", COLOURS[rank as usize % COLOURS.len()]),
        };
        Lines { prefix: prefix.into_bytes(), begun: Vec::new() }
    }

    /// Prints the lines that are complete now, and keeps the rest.
    pub fn take(&mut self, mut bytes: &[u8], to: &mut Outlet) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = bytes.split_at(end + 1);
            to.push(&[&self.prefix, &self.begun, line]);
            self.begun.clear();
            bytes = rest;
        }
        self.begun.extend_from_slice(bytes);
        if self.begun.len() >= LINE_MOST {
            self.end(to);
        }
    }

    /// Prints an incomplete line: its end does not come, or not soon.
    pub fn end(&mut self, to: &mut Outlet) {
        if !self.begun.is_empty() {
            to.push(&[&self.prefix, &self.begun, b"\n"]);
            self.begun.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outlet::Stream;
    use super::*;
    use std::io;

    #[test]
    fn lines_are_whole_however_they_come_and_the_last_gets_its_end() {
        let mut to = Outlet::new(Stream::Output(io::stdout()));
        let mut lines = Lines::new(3, Prefix::Rank);
        for piece in ["on", "e\ntw", "", "o\n\nthr", "ee"] {
            lines.take(piece.as_bytes(), &mut to);
        }
        assert_eq!(to.pending(), b"[3] one\n[3] two\n[3] \n");
        lines.end(&mut to);
        lines.end(&mut to);
        assert_eq!(to.pending(), b"[3] one\n[3] two\n[3] \n[3] three\n");
    }

    #[test]
    fn a_line_without_an_end_is_kept_only_so_far() {
        let mut to = Outlet::new(Stream::Output(io::stdout()));
        let mut lines = Lines::new(0, Prefix::Nothing);
        lines.take(&vec![b'x'; LINE_MOST - 1], &mut to);
        assert!(to.pending().is_empty());
        lines.take(b"x", &mut to);
        assert_eq!(to.pending().len(), LINE_MOST + 1);
    }
}
