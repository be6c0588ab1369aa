//! Atomic operations, the types of words, and how an operation changes a word.

/// Operations on one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Atomic {
    /// Changes nothing; only the old value matters.
    Read = 0,
    /// The new value is the operand. If the old value is asked for, this is a swap.
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
    /// The product; integers wrap.
    Multiply = 10,
    /// 1 if both are not 0, otherwise 0.
    LogicalAnd = 11,
    /// 1 if at least one is not 0, otherwise 0.
    LogicalOr = 12,
    /// 1 if exactly one is not 0, otherwise 0.
    LogicalXor = 13,
    /// The operand if the second operand differs from the old value.
    SwapIfOther = 14,
    /// The operand if the second operand is at most the old value.
    SwapIfAtMost = 15,
    /// The operand if the second operand is below the old value.
    SwapIfBelow = 16,
    /// The operand if the second operand is at least the old value.
    SwapIfAtLeast = 17,
    /// The operand if the second operand is above the old value.
    SwapIfAbove = 18,
}

/// The type of a word.
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
    /// 8 bits, unsigned.
    U8 = 6,
    /// 8 bits, signed.
    I8 = 7,
    /// 16 bits, unsigned.
    U16 = 8,
    /// 16 bits, signed.
    I16 = 9,
}

impl Type {
    /// All of them, in the order of their codes.
    pub const ALL: [Type; 10] =
        [Type::U32, Type::U64, Type::I32, Type::I64, Type::F32, Type::F64, Type::U8, Type::I8, Type::U16, Type::I16];

    /// Bytes of a word.
    pub const fn bytes(self) -> usize {
        match self {
            Type::U8 | Type::I8 => 1,
            Type::U16 | Type::I16 => 2,
            Type::U32 | Type::I32 | Type::F32 => 4,
            Type::U64 | Type::I64 | Type::F64 => 8,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64)
    }

    /// A word's own bits.
    const fn narrow(self, value: u64) -> u64 {
        match self.bytes() {
            8 => value,
            bytes => value & ((1 << (8 * bytes)) - 1),
        }
    }
}

impl Atomic {
    /// All of them, in the order of their codes.
    pub const ALL: [Atomic; 19] = [
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
        Atomic::Multiply,
        Atomic::LogicalAnd,
        Atomic::LogicalOr,
        Atomic::LogicalXor,
        Atomic::SwapIfOther,
        Atomic::SwapIfAtMost,
        Atomic::SwapIfBelow,
        Atomic::SwapIfAtLeast,
        Atomic::SwapIfAbove,
    ];

    /// Whether it has a second operand.
    pub const fn has_second(self) -> bool {
        matches!(
            self,
            Atomic::CompareSwap
                | Atomic::MaskedSwap
                | Atomic::SwapIfOther
                | Atomic::SwapIfAtMost
                | Atomic::SwapIfBelow
                | Atomic::SwapIfAtLeast
                | Atomic::SwapIfAbove
        )
    }

    /// Whether it leaves the word as it is.
    pub const fn only_reads(self) -> bool {
        matches!(self, Atomic::Read)
    }

    /// Whether the operation exists for words of this type.
    pub const fn is_for(self, of: Type) -> bool {
        !(of.is_float() && matches!(self, Atomic::And | Atomic::Or | Atomic::Xor | Atomic::MaskedSwap))
    }

    /// The new value of a word, in the low bits. `None` if the word stays as it is.
    pub fn apply(self, of: Type, old: u64, operand: u64, second: u64) -> Option<u64> {
        let new = match self {
            Atomic::Read => return None,
            Atomic::Write => operand,
            Atomic::And => old & operand,
            Atomic::Or => old | operand,
            Atomic::Xor => old ^ operand,
            Atomic::CompareSwap => return (of.narrow(old) == of.narrow(second)).then_some(operand),
            Atomic::MaskedSwap => (operand & second) | (old & !second),
            Atomic::Add
            | Atomic::Multiply
            | Atomic::Min
            | Atomic::Max
            | Atomic::LogicalAnd
            | Atomic::LogicalOr
            | Atomic::LogicalXor => return Some(self.compute(of, old, operand)),
            Atomic::SwapIfOther
            | Atomic::SwapIfAtMost
            | Atomic::SwapIfBelow
            | Atomic::SwapIfAtLeast
            | Atomic::SwapIfAbove => return self.holds(of, second, old).then_some(operand),
        };
        Some(new)
    }

    fn compute(self, of: Type, old: u64, operand: u64) -> u64 {
        match of {
            Type::U8 => self.of_two(old as u8, operand as u8).into(),
            Type::U16 => self.of_two(old as u16, operand as u16).into(),
            Type::U32 => self.of_two(old as u32, operand as u32).into(),
            Type::U64 => self.of_two(old, operand),
            Type::I8 => u64::from(self.of_two(old as i8, operand as i8) as u8),
            Type::I16 => u64::from(self.of_two(old as i16, operand as i16) as u16),
            Type::I32 => u64::from(self.of_two(old as i32, operand as i32) as u32),
            Type::I64 => self.of_two(old as i64, operand as i64) as u64,
            Type::F32 => self.of_two(f32::from_bits(old as u32), f32::from_bits(operand as u32)).to_bits().into(),
            Type::F64 => self.of_two(f64::from_bits(old), f64::from_bits(operand)).to_bits(),
        }
    }

    fn of_two<N: Number>(self, old: N, operand: N) -> N {
        let (is_old, is_operand) = (old != N::ZERO, operand != N::ZERO);
        let truth = |is_true: bool| if is_true { N::ONE } else { N::ZERO };
        match self {
            Atomic::Min if operand < old => operand,
            Atomic::Max if operand > old => operand,
            Atomic::Add => old.sum(operand),
            Atomic::Multiply => old.product(operand),
            Atomic::LogicalAnd => truth(is_old && is_operand),
            Atomic::LogicalOr => truth(is_old || is_operand),
            Atomic::LogicalXor => truth(is_old != is_operand),
            _ => old,
        }
    }

    /// Whether the comparison of a conditional swap holds.
    fn holds(self, of: Type, second: u64, old: u64) -> bool {
        match of {
            Type::U8 => self.holds_of(second as u8, old as u8),
            Type::U16 => self.holds_of(second as u16, old as u16),
            Type::U32 => self.holds_of(second as u32, old as u32),
            Type::U64 => self.holds_of(second, old),
            Type::I8 => self.holds_of(second as i8, old as i8),
            Type::I16 => self.holds_of(second as i16, old as i16),
            Type::I32 => self.holds_of(second as i32, old as i32),
            Type::I64 => self.holds_of(second as i64, old as i64),
            Type::F32 => self.holds_of(f32::from_bits(second as u32), f32::from_bits(old as u32)),
            Type::F64 => self.holds_of(f64::from_bits(second), f64::from_bits(old)),
        }
    }

    fn holds_of<N: PartialOrd>(self, second: N, old: N) -> bool {
        match self {
            Atomic::SwapIfOther => second != old,
            Atomic::SwapIfAtMost => second <= old,
            Atomic::SwapIfBelow => second < old,
            Atomic::SwapIfAtLeast => second >= old,
            Atomic::SwapIfAbove => second > old,
            _ => false,
        }
    }
}

/// Numbers as atomic operations compute with them.
trait Number: Copy + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )*};
}

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
        }
    )*};
}

integers!(u8, i8, u16, i16, u32, i32, u64, i64);
floats!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of a 64-bit float.
    fn bits(value: f64) -> u64 {
        value.to_bits()
    }

    /// The bits of a 32-bit float.
    fn low(value: f32) -> u64 {
        value.to_bits().into()
    }

    #[test]
    fn words_are_changed_as_their_type_says() {
        let minus_one = u64::from(u32::MAX);
        let rows = [
            (Atomic::Add, Type::U8, 0xff, 1, Some(0)),
            (Atomic::Add, Type::I16, 0x7fff, 1, Some(0x8000)),
            (Atomic::Add, Type::U32, minus_one, 1, Some(0)),
            (Atomic::Add, Type::U64, u64::MAX, 2, Some(1)),
            (Atomic::Min, Type::U8, 0xff, 1, Some(1)),
            (Atomic::Min, Type::I8, 0xff, 1, Some(0xff)),
            (Atomic::Max, Type::I16, 0xffff, 1, Some(1)),
            (Atomic::Min, Type::U32, minus_one, 1, Some(1)),
            (Atomic::Min, Type::I32, minus_one, 1, Some(minus_one)),
            (Atomic::Max, Type::I64, u64::MAX, 1, Some(1)),
            (Atomic::Max, Type::U64, u64::MAX, 1, Some(u64::MAX)),
            (Atomic::Add, Type::F64, bits(1.5), bits(2.25), Some(bits(3.75))),
            (Atomic::Add, Type::F32, low(1.5), low(2.0), Some(low(3.5))),
            (Atomic::Min, Type::F64, bits(-1.0), 0, Some(bits(-1.0))),
            (Atomic::Max, Type::F64, bits(f64::NAN), 0, Some(bits(f64::NAN))),
            (Atomic::Multiply, Type::U16, 0x8001, 2, Some(2)),
            (Atomic::Multiply, Type::I32, minus_one, 3, Some(minus_one - 2)),
            (Atomic::Multiply, Type::F32, low(1.5), low(-2.0), Some(low(-3.0))),
            (Atomic::LogicalAnd, Type::U8, 2, 4, Some(1)),
            (Atomic::LogicalAnd, Type::U8, 1 << 8, 4, Some(0)),
            (Atomic::LogicalOr, Type::I64, 0, 0, Some(0)),
            (Atomic::LogicalOr, Type::I64, 0, 7, Some(1)),
            (Atomic::LogicalXor, Type::U32, 5, 7, Some(0)),
            (Atomic::LogicalXor, Type::F64, bits(-0.0), bits(3.0), Some(bits(1.0))),
            (Atomic::And, Type::U64, 0b1100, 0b1010, Some(0b1000)),
            (Atomic::Or, Type::U64, 0b1100, 0b1010, Some(0b1110)),
            (Atomic::Xor, Type::U64, 0b1100, 0b1010, Some(0b0110)),
            (Atomic::Write, Type::U64, 1, 2, Some(2)),
            (Atomic::Read, Type::U64, 1, 2, None),
        ];
        for (atomic, of, old, operand, new) in rows {
            assert_eq!(atomic.apply(of, old, operand, 0), new, "{atomic:?} {of:?} {old:x} {operand:x}");
        }
        assert!(!Atomic::Xor.is_for(Type::F32) && Atomic::CompareSwap.is_for(Type::F64));
    }

    #[test]
    fn words_are_swapped_as_their_comparison_says() {
        assert_eq!(Atomic::CompareSwap.apply(Type::U64, 5, 6, 5), Some(6));
        assert_eq!(Atomic::CompareSwap.apply(Type::U64, 5, 6, 4), None);
        assert_eq!(Atomic::CompareSwap.apply(Type::U32, 5, 6, 5 | 1 << 40), Some(6), "32 bits are compared");
        assert_eq!(Atomic::CompareSwap.apply(Type::U8, 5 | 1 << 8, 6, 5), Some(6), "8 bits are compared");
        assert_eq!(Atomic::MaskedSwap.apply(Type::U64, 0xaaaa, 0x5555, 0x00ff), Some(0xaa55));
        let orders = [
            Atomic::SwapIfOther,
            Atomic::SwapIfAtMost,
            Atomic::SwapIfBelow,
            Atomic::SwapIfAtLeast,
            Atomic::SwapIfAbove,
        ];
        let swapped = |of, second, old| orders.map(|atomic| atomic.apply(of, old, 9, second).is_some());
        // The second operand is compared with the old value, in this order.
        let (below, same, above) =
            ([true, true, true, false, false], [false, true, false, true, false], [true, false, false, true, true]);
        assert_eq!((swapped(Type::U8, 1, 0xff), swapped(Type::I8, 1, 0xff)), (below, above));
        assert_eq!((swapped(Type::U16, 1, 0xffff), swapped(Type::I16, 1, 0xffff)), (below, above));
        assert_eq!((swapped(Type::U32, 1, 0xffff_ffff), swapped(Type::I32, 1, 0xffff_ffff)), (below, above));
        assert_eq!((swapped(Type::U64, 1, u64::MAX), swapped(Type::I64, 1, u64::MAX)), (below, above));
        assert_eq!(swapped(Type::U16, 7, 7 | 1 << 16), same);
        assert_eq!(
            (swapped(Type::F64, bits(-1.0), bits(2.0)), swapped(Type::F32, low(1.0), low(-2.0))),
            (below, above)
        );
        assert_eq!(swapped(Type::F64, bits(0.0), bits(-0.0)), same);
        assert_eq!(swapped(Type::F64, bits(f64::NAN), 0), [true, false, false, false, false]);
        assert!(orders.into_iter().all(|atomic| atomic.has_second() && atomic.is_for(Type::F32)));
    }

    #[test]
    fn codes_are_indices_of_all() {
        assert!(Atomic::ALL.into_iter().enumerate().all(|(at, atomic)| atomic as usize == at));
        assert!(Type::ALL.into_iter().enumerate().all(|(at, of)| of as usize == at));
    }
}
