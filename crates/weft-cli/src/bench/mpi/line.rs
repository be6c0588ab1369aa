//! The program's lines of output.

use crate::bench::meter::Sampled;

/// One line.
#[derive(Clone, PartialEq, Debug)]
pub enum Line {
    /// The version of the MPI.
    Library(String),
    /// A measurement begins.
    Begin { name: String, size: usize },
    /// Its result.
    Result { name: String, size: usize, sampled: Sampled },
    /// All measurements are done.
    End,
}

impl Line {
    /// Parses a line. MPIs print lines of their own in between.
    pub fn read(line: &str) -> Option<Line> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let parts: Vec<&str> = rest.split_whitespace().collect();
        match (word, parts.as_slice()) {
            // MPICH says "MPICH Version:      5.0.2", Open MPI "Open MPI v5.0.11".
            ("library", parts) => {
                let words: Vec<&str> = parts.iter().copied().filter(|part| *part != "Version:").collect();
                Some(Line::Library(words.join(" ").replace(" v", " ")))
            }
            ("begin", [name, size]) => Some(Line::Begin { name: (*name).to_owned(), size: size.parse().ok()? }),
            ("result", [name, size, median, p99, mean, n]) => {
                let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
                let sampled =
                    Sampled { median: number(median)?, p99: number(p99)?, mean: number(mean)?, n: n.parse().ok()? };
                Some(Line::Result { name: (*name).to_owned(), size: size.parse().ok()?, sampled })
            }
            ("end", []) => Some(Line::End),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_program_are_read_and_others_are_not() {
        let sampled = Sampled { median: 602.25, p99: 9e4, mean: 2587.5, n: 304 };
        let read = Line::read("result put.bandwidth 65536 602.25 90000 2587.5 304");
        assert_eq!(read, Some(Line::Result { name: "put.bandwidth".to_owned(), size: 65536, sampled }));
        assert_eq!(Line::read("begin barrier 0"), Some(Line::Begin { name: "barrier".to_owned(), size: 0 }));
        assert_eq!(Line::read("library MPICH Version:      5.0.2"), Some(Line::Library("MPICH 5.0.2".to_owned())));
        assert_eq!(Line::read("library Open MPI v5.0.11"), Some(Line::Library("Open MPI 5.0.11".to_owned())));
        assert_eq!(Line::read("end"), Some(Line::End));
        for other in ["", "result rtt 8", "result rtt 8 nan 1 1 1", "begin rtt x", "end of it", "[vm:1] begin rtt 8"] {
            assert_eq!(Line::read(other), None, "{other}");
        }
    }
}
