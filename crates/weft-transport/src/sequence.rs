//! Numbers of 64 bits of which packets carry the low 32.

/// The number with these low bits that is nearest to `near`. Near zero and near the largest number the result may wrap
/// around; the caller must check it against its bounds.
#[inline]
pub fn widen(near: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(i64::from(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_less_than_2_31_away_reads_back(near in (1u64 << 32)..(1 << 62), away in -(1i64 << 31)..(1 << 31)) {
            let number = near.wrapping_add_signed(away);
            prop_assert_eq!(widen(near, number as u32), number);
        }
    }
}
