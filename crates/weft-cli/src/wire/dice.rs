//! Random numbers that depend on the seed, the direction and the number of the frame: a frame has the same fate in every run,
//! whatever was drawn for other frames.

/// The random numbers of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Dice(u64);

impl Dice {
    /// For a frame of one direction. A copy of a frame has numbers of its own.
    pub fn of(seed: u64, way: usize, number: u64, copy: u64) -> Dice {
        let mut state = mixed(seed);
        for part in [way as u64, number, copy] {
            state = mixed(state ^ part);
        }
        Dice(state)
    }

    /// The next random 64-bit number.
    #[inline]
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mixed(self.0)
    }

    /// A random number below `end`, or 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        let wide = u128::from(self.roll()) * u128::from(end);
        (wide >> 64) as u64
    }
}

/// The odd number next to 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64: Steele, Lea and Flood, 2014.
#[inline]
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_makes_the_published_numbers() {
        // The first outputs of SplitMix64 from 1234567.
        let numbers = [6_457_827_717_110_365_317u64, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        let mut state = 1_234_567u64;
        for number in numbers {
            assert_eq!(mixed(state), number);
            state = state.wrapping_add(STEP);
        }
    }

    #[test]
    fn one_frame_has_the_same_numbers_again_and_others_differ() {
        let roll = |seed, way, number, copy| Dice::of(seed, way, number, copy).roll();
        let first = roll(1, 0, 5, 0);
        assert_eq!(roll(1, 0, 5, 0), first);
        for other in [roll(2, 0, 5, 0), roll(1, 1, 5, 0), roll(1, 0, 6, 0), roll(1, 0, 5, 1)] {
            assert_ne!(other, first);
        }
        let mut dice = Dice::of(1, 0, 0, 0);
        assert!((0..1000).all(|_| dice.below(7) < 7));
        assert_eq!(dice.below(0), 0);
    }
}
