//! What memory is.

/// Memory that peers may be given access to. Others read and write it at any time, so it is never behind a reference.
///
/// No call panics, whatever it is asked for.
pub trait Space {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the program lent it: nobody else can map it.
    fn is_lent(&self) -> bool {
        false
    }

    /// Copies bytes out of it. False, and nothing was copied, if they are not all within it.
    fn read(&self, at: u64, to: &mut [u8]) -> bool;

    /// Copies bytes into it in ascending order. The last aligned word is stored last, with release: a reader that sees it sees all of
    /// them. False, and nothing was copied, if they are not all within it.
    fn write(&self, at: u64, bytes: &[u8]) -> bool;

    /// Whether the word of 4 or 8 bytes there is within it and aligned.
    fn is_word(&self, at: u64, bytes: usize) -> bool;

    /// Changes the word of 4 or 8 bytes there in one step, and returns the old value; `change` returns none to leave it, and may be
    /// called more than once. `None` if there is [no such word](Space::is_word).
    fn update(&self, at: u64, bytes: usize, change: impl FnMut(u64) -> Option<u64>) -> Option<u64>;
}

/// Bytes that an operation sends: they stay as they are until it has sent them.
pub trait Source {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// Room that an operation receives into: it is the operation's until it ends.
pub trait Target {
    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes to an offset, as many as there is room for.
    fn write(&mut self, at: usize, bytes: &[u8]);
}

/// The kinds of memory that an engine works with.
pub trait Platform {
    /// A region's memory.
    type Space: Space + std::fmt::Debug;
    /// What is written to others.
    type Source: Source + From<Vec<u8>> + std::fmt::Debug;
    /// What is read from others.
    type Target: Target + std::fmt::Debug;
}

impl Source for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Target for Vec<u8> {
    fn len(&self) -> usize {
        self.len()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (to, byte) in self.iter_mut().skip(at).zip(bytes) {
            *to = *byte;
        }
    }
}
