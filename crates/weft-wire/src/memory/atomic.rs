//! Atomic operations: which there are, on what, and what they do to a word.

/// Operations on one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Atomic {
    /// Changes nothing: for the old value.
    Read = 0,
    /// The new value is the operand. With the old value wanted, this is a swap.
    Write = 1,
    /// The sum; integers wrap.
    Add = 2,
    /// Bitwise and.
    And = 3,
    /// Bitwise or.
    Or = 4,
    /// Bitwise exclusive or.
    Xor = 5,
    /// The smaller one.
    Min = 6,
    /// The larger one.
    Max = 7,
    /// The operand if the old value is the second operand, bit by bit.
    CompareSwap = 8,
    /// The operand's bits where the second operand has ones.
    MaskedSwap = 9,
}

/// What a word is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Type {
    /// 32 bits, unsigned.
    U32 = 0,
    /// 64 bits, unsigned.
    U64 = 1,
    /// 32 bits, signed.
    I32 = 2,
    /// 64 bits, signed.
    I64 = 3,
    /// 32 bits, floating point. Not for bitwise operations.
    F32 = 4,
    /// 64 bits, floating point. Not for bitwise operations.
    F64 = 5,
}

impl Type {
    pub(super) const ALL: [Type; 6] = [Type::U32, Type::U64, Type::I32, Type::I64, Type::F32, Type::F64];

    /// Bytes of a word.
    pub const fn bytes(self) -> usize {
        match self {
            Type::U32 | Type::I32 | Type::F32 => 4,
            Type::U64 | Type::I64 | Type::F64 => 8,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64)
    }
}

impl Atomic {
    pub(super) const ALL: [Atomic; 10] = [
        Atomic::Read,
        Atomic::Write,
        Atomic::Add,
        Atomic::And,
        Atomic::Or,
        Atomic::Xor,
        Atomic::Min,
        Atomic::Max,
        Atomic::CompareSwap,
        Atomic::MaskedSwap,
    ];

    /// Whether it has a second operand.
    pub const fn has_second(self) -> bool {
        matches!(self, Atomic::CompareSwap | Atomic::MaskedSwap)
    }

    /// Whether it leaves the word as it is.
    pub const fn only_reads(self) -> bool {
        matches!(self, Atomic::Read)
    }

    /// Whether there is such an operation on such words.
    pub const fn is_for(self, of: Type) -> bool {
        !(of.is_float() && matches!(self, Atomic::And | Atomic::Or | Atomic::Xor | Atomic::MaskedSwap))
    }

    /// The new value of a word; words of 32 bits are the low half. `None`: the word stays as it is.
    pub fn apply(self, of: Type, old: u64, operand: u64, second: u64) -> Option<u64> {
        let new = match self {
            Atomic::Read => return None,
            Atomic::Write => operand,
            Atomic::And => old & operand,
            Atomic::Or => old | operand,
            Atomic::Xor => old ^ operand,
            Atomic::CompareSwap => return (narrow(of, old) == narrow(of, second)).then_some(operand),
            Atomic::MaskedSwap => (operand & second) | (old & !second),
            Atomic::Add | Atomic::Min | Atomic::Max => self.compute(of, old, operand),
        };
        Some(new)
    }

    fn compute(self, of: Type, old: u64, operand: u64) -> u64 {
        /// One of three, for any type.
        macro_rules! of_three {
            ($old:expr, $operand:expr, $add:expr) => {{
                let (old, operand) = ($old, $operand);
                match self {
                    Atomic::Min => match operand < old {
                        true => operand,
                        false => old,
                    },
                    Atomic::Max => match operand > old {
                        true => operand,
                        false => old,
                    },
                    _ => $add(old, operand),
                }
            }};
        }
        match of {
            Type::U32 => u64::from(of_three!(old as u32, operand as u32, u32::wrapping_add)),
            Type::U64 => of_three!(old, operand, u64::wrapping_add),
            Type::I32 => u64::from(of_three!(old as i32, operand as i32, i32::wrapping_add) as u32),
            Type::I64 => of_three!(old as i64, operand as i64, i64::wrapping_add) as u64,
            Type::F32 => {
                let (old, operand) = (f32::from_bits(old as u32), f32::from_bits(operand as u32));
                u64::from(of_three!(old, operand, |a: f32, b: f32| a + b).to_bits())
            }
            Type::F64 => {
                let (old, operand) = (f64::from_bits(old), f64::from_bits(operand));
                of_three!(old, operand, |a: f64, b: f64| a + b).to_bits()
            }
        }
    }
}

fn narrow(of: Type, value: u64) -> u64 {
    match of.bytes() {
        4 => u64::from(value as u32),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_changed_as_their_type_says() {
        let minus_one = u64::from(u32::MAX);
        let rows = [
            (Atomic::Add, Type::U32, minus_one, 1, Some(0)),
            (Atomic::Add, Type::U64, u64::MAX, 2, Some(1)),
            (Atomic::Min, Type::U32, minus_one, 1, Some(1)),
            (Atomic::Min, Type::I32, minus_one, 1, Some(minus_one)),
            (Atomic::Max, Type::I64, u64::MAX, 1, Some(1)),
            (Atomic::Max, Type::U64, u64::MAX, 1, Some(u64::MAX)),
            (Atomic::Add, Type::F64, 1.5f64.to_bits(), 2.25f64.to_bits(), Some(3.75f64.to_bits())),
            (
                Atomic::Add,
                Type::F32,
                u64::from(1.5f32.to_bits()),
                u64::from(2f32.to_bits()),
                Some(u64::from(3.5f32.to_bits())),
            ),
            (Atomic::Min, Type::F64, (-1.0f64).to_bits(), 0, Some((-1.0f64).to_bits())),
            (Atomic::And, Type::U64, 0b1100, 0b1010, Some(0b1000)),
            (Atomic::Or, Type::U64, 0b1100, 0b1010, Some(0b1110)),
            (Atomic::Xor, Type::U64, 0b1100, 0b1010, Some(0b0110)),
            (Atomic::Write, Type::U64, 1, 2, Some(2)),
            (Atomic::Read, Type::U64, 1, 2, None),
        ];
        for (atomic, of, old, operand, new) in rows {
            assert_eq!(atomic.apply(of, old, operand, 0), new, "{atomic:?} {of:?} {old:x} {operand:x}");
        }
        assert_eq!(Atomic::CompareSwap.apply(Type::U64, 5, 6, 5), Some(6));
        assert_eq!(Atomic::CompareSwap.apply(Type::U64, 5, 6, 4), None);
        assert_eq!(Atomic::CompareSwap.apply(Type::U32, 5, 6, 5 | 1 << 40), Some(6), "32 bits are compared");
        assert_eq!(Atomic::MaskedSwap.apply(Type::U64, 0xaaaa, 0x5555, 0x00ff), Some(0xaa55));
        assert!(!Atomic::Xor.is_for(Type::F32) && Atomic::CompareSwap.is_for(Type::F64));
    }
}
