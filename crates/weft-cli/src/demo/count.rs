//! Counting words: what a word is, how a text is cut into chunks, and the format of counts in messages.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The longest word. Longer runs of letters are data, not words, so that a word's length fits into a byte.
const WORD_MOST: usize = 255;

/// How often each word occurs.
pub type Counts = HashMap<Vec<u8>, u64, BuildHasherDefault<Fnv>>;

/// A hash that is fast for short keys. The text is the user's own, so it need not resist chosen collisions.
#[derive(Debug)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Whether a byte belongs to a word: letters, digits, and everything beyond ASCII.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80
}

/// Counts the words of a text, ignoring the case of ASCII letters.
pub fn count(text: &[u8], counts: &mut Counts) {
    let mut lower = Vec::with_capacity(WORD_MOST);
    for word in text.split(|&byte| !is_of_word(byte)) {
        if word.is_empty() || word.len() > WORD_MOST {
            continue;
        }
        lower.clear();
        lower.extend(word.iter().map(u8::to_ascii_lowercase));
        add(counts, &lower, 1);
    }
}

/// Adds to the count of a word.
pub fn add(counts: &mut Counts, word: &[u8], more: u64) {
    match counts.get_mut(word) {
        Some(count) => *count += more,
        None => _ = counts.insert(word.to_vec(), more),
    }
}

/// Cuts a text between words, into pieces of at most `most` bytes. `most` must be larger than the longest word.
pub fn chunks(text: &[u8], most: usize) -> Vec<&[u8]> {
    let mut chunks = Vec::new();
    let mut rest = text;
    while rest.len() > most {
        let tail = rest[most - WORD_MOST - 1..most].iter().rposition(|&byte| !is_of_word(byte));
        let (end, next) = match tail {
            Some(at) => (most - WORD_MOST + at, most - WORD_MOST + at),
            None => around_long_run(rest, most),
        };
        chunks.push(&rest[..end]);
        rest = &rest[next..];
    }
    chunks.push(rest);
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

/// The begin and end of the run of letters around a place. It is too long for a word, so chunks may leave it out.
fn around_long_run(text: &[u8], at: usize) -> (usize, usize) {
    let begin = text[..at].iter().rposition(|&byte| !is_of_word(byte)).map_or(0, |at| at + 1);
    let end = text[at..].iter().position(|&byte| !is_of_word(byte)).map_or(text.len(), |after| at + after);
    (begin, end)
}

/// Writes counts into parts of at most `most` bytes. Each word has its length, its bytes, and its count (LEB128).
pub fn write(counts: &Counts, most: usize) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut entry = Vec::with_capacity(WORD_MOST + 11);
    for (word, &count) in counts {
        entry.clear();
        entry.push(word.len() as u8);
        entry.extend_from_slice(word);
        let mut left = count;
        while left >= 0x80 {
            entry.push(left as u8 | 0x80);
            left >>= 7;
        }
        entry.push(left as u8);
        match parts.last_mut() {
            Some(part) if part.len() + entry.len() <= most => part.extend_from_slice(&entry),
            _ => parts.push(entry.clone()),
        }
    }
    parts
}

/// Adds the counts of a part. Returns `None` if the part is not in the format of [`write()`].
pub fn read(part: &[u8], counts: &mut Counts) -> Option<()> {
    let mut rest = part;
    while let Some((&length, after)) = rest.split_first() {
        let (word, after) = after.split_at_checked(usize::from(length))?;
        let end = after.iter().position(|byte| byte & 0x80 == 0).filter(|&end| end < 9)?;
        let count = after[..=end].iter().rev().fold(0u64, |count, byte| count << 7 | u64::from(byte & 0x7f));
        add(counts, word, count);
        rest = &after[end + 1..];
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &[u8]) -> Counts {
        let mut counts = Counts::default();
        count(text, &mut counts);
        counts
    }

    fn sample(most_run: u64) -> Vec<u8> {
        let mut seed = 7u64;
        let mut next = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        let mut text = Vec::new();
        while text.len() < 200_000 {
            (0..next(most_run)).for_each(|_| text.push(b'a' + next(26) as u8));
            (0..=next(3)).for_each(|_| text.push(b' '));
        }
        text
    }

    #[test]
    fn chunks_have_the_words_of_the_text() {
        for most_run in [2, 12, 300, 5000] {
            let text = sample(most_run);
            for most in [300, 1000, 65536] {
                let mut together = Counts::default();
                let chunks = chunks(&text, most);
                assert!(chunks.iter().all(|chunk| chunk.len() <= most));
                chunks.iter().for_each(|chunk| count(chunk, &mut together));
                assert_eq!(together, counted(&text), "runs to {most_run}, chunks to {most}");
            }
        }
    }

    #[test]
    fn counts_survive_writing_and_reading() {
        let mut counts = counted(&sample(30));
        add(&mut counts, b"many", u64::from(u32::MAX) * 5);
        let parts = write(&counts, 4096);
        assert!(parts.len() > 1 && parts.iter().all(|part| part.len() <= 4096));
        let mut back = Counts::default();
        assert!(parts.iter().all(|part| read(part, &mut back).is_some()));
        assert_eq!(back, counts);
    }

    #[test]
    fn malformed_parts_are_refused() {
        let mut counts = Counts::default();
        for part in [
            &[5u8, b'a'][..],
            &[1, b'a'],
            &[1, b'a', 0x80],
            &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(read(part, &mut counts), None, "{part:?}");
        }
    }

    #[test]
    fn words_are_runs_of_letters_in_lower_case() {
        let counts = counted("Été, the THE the-end 42".as_bytes());
        assert_eq!(counts[&b"the"[..]], 3);
        assert_eq!(counts[&b"42"[..]], 1);
        assert_eq!(counts.len(), 4);
    }
}
