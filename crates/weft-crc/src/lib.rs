//! CRC32C (RFC 3720, section 12.1) over the bytes of packets.
//!
//! `crc-fast` folds with 512-bit multiplications where the processor has them, and with 128-bit ones elsewhere. Many processors have
//! multiplications of 256 bits only (VPCLMULQDQ without AVX-512: AMD's Zen 3, Intel's Alder Lake and later). They run `folds.rs` instead,
//! which takes less than half of the instructions. x86 processors with neither run `lanes.rs`, which uses the CRC instruction that all of
//! them have had since 2010. All other processors, and compilers before Rust 1.89, run `crc-fast`.
//!
//! ```
//! assert_eq!(weft_crc::crc32c(b"123456789"), 0xe306_9283);
//! ```

// An unsafe island, because it calls instructions that not every processor has.

#[cfg(all(target_arch = "x86_64", has_wide_multiplication))]
mod folds;
#[cfg(all(target_arch = "x86_64", has_wide_multiplication))]
mod lanes;

/// The checksum of these bytes.
///
/// ```
/// let bytes: Vec<u8> = (0..=255).cycle().take(1500).collect();
/// assert_eq!(weft_crc::crc32c(&bytes), weft_crc::crc32c_everywhere(&bytes));
/// ```
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    wide(bytes).or_else(|| narrow(bytes)).unwrap_or_else(|| crc32c_everywhere(bytes))
}

/// The same checksum as computed by `crc-fast`, on every processor. [`crc32c`] is tested and measured against it.
#[inline]
pub fn crc32c_everywhere(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Whether [`crc32c`] folds with 256 bits on this processor.
pub fn is_wide() -> bool {
    wide(&[]).is_some()
}

#[cfg(all(target_arch = "x86_64", has_wide_multiplication))]
#[inline]
fn wide(bytes: &[u8]) -> Option<u32> {
    folds::Folds::of_this_processor().map(|folds| folds.crc32c(bytes))
}

#[cfg(all(target_arch = "x86_64", has_wide_multiplication))]
#[inline]
fn narrow(bytes: &[u8]) -> Option<u32> {
    lanes::Lanes::of_this_processor().map(|lanes| lanes.crc32c(bytes))
}

/// The same checksum by the CRC instruction in three lanes, even where another way is faster. `None` where it cannot run.
#[cfg(all(target_arch = "x86_64", has_wide_multiplication))]
pub fn crc32c_in_lanes(bytes: &[u8]) -> Option<u32> {
    lanes::Lanes::wherever_they_run().map(|lanes| lanes.crc32c(bytes))
}

/// Without three lanes in this build: always `None`.
#[cfg(not(all(target_arch = "x86_64", has_wide_multiplication)))]
pub fn crc32c_in_lanes(_: &[u8]) -> Option<u32> {
    None
}

/// The checksum folded with 256 bits, even where another way is faster. `None` where the processor cannot run it.
#[cfg(all(target_arch = "x86_64", has_wide_multiplication))]
pub fn crc32c_by_folds(bytes: &[u8]) -> Option<u32> {
    folds::Folds::wherever_they_run().map(|folds| folds.crc32c(bytes))
}

/// The same function where this compiler or processor has no such instructions.
#[cfg(not(all(target_arch = "x86_64", has_wide_multiplication)))]
pub fn crc32c_by_folds(_: &[u8]) -> Option<u32> {
    None
}

#[cfg(not(all(target_arch = "x86_64", has_wide_multiplication)))]
fn narrow(_: &[u8]) -> Option<u32> {
    None
}

#[cfg(not(all(target_arch = "x86_64", has_wide_multiplication)))]
fn wide(_: &[u8]) -> Option<u32> {
    None
}
