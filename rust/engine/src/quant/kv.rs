//! How caches keep keys and values. Those of integers have blocks of consecutive values of a head, the
//! last one maybe shorter: a scale of 16 bits, then the integers; value = integer times scale, without
//! rounding. Zero bytes are zeros.

use super::QuantType;

/// How kernels keep keys and values, as integers with scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvKernel {
    /// See [`KvBlock::KERNEL`].
    pub name: &'static str,
    /// Bytes of an integer.
    pub(super) bytes: usize,
}

impl KvKernel {
    /// Of a format.
    pub const fn of<B: KvBlock>() -> Self {
        Self {
            name: B::KERNEL,
            bytes: B::BYTES,
        }
    }
}

/// A format of keys and values as integers with a scale a block: attention over it is a stated sum.
pub trait KvBlock: 'static {
    /// Values that share a scale; those at the end of a head may be fewer.
    const GROUP: usize;
    /// Bytes of an integer, at most two.
    const BYTES: usize;
    /// The struct of `kernels/kv_fixed.cuh` that keeps them.
    const KERNEL: &'static str;

    /// The scale of these bits.
    fn scale(bits: u16) -> f32;

    /// The integer of these bytes.
    fn integer(bytes: &[u8]) -> i16;

    /// The blocks of a head.
    #[inline(always)]
    fn blocks(head: &[u8]) -> impl Iterator<Item = &[u8]> {
        head.chunks(2 + Self::BYTES * Self::GROUP)
    }

    /// A block's scale, and the bytes of its integers.
    #[inline(always)]
    fn parts(block: &[u8]) -> (f32, &[u8]) {
        match block.split_first_chunk() {
            Some((scale, rest)) => (Self::scale(u16::from_le_bytes(*scale)), rest),
            None => (0.0, &[]),
        }
    }
}

/// Something to do with a format of integers chosen at run time.
pub trait KvVisitor {
    /// What comes back.
    type Out;
    /// Called with the format.
    fn visit<B: KvBlock>(self) -> Self::Out;
}

impl QuantType {
    /// Whether a cache may hold keys and values so: they are written as well as read.
    pub fn holds_kv(&self) -> bool {
        self.quantize.is_some()
    }

    /// Bytes of a head of `dim` keys or values; `None` where a cache cannot hold them so.
    pub fn kv_head_bytes(&self, dim: usize) -> Option<usize> {
        match self.kernel.kv {
            Some(KvKernel { bytes, .. }) => {
                let scales = dim.div_ceil(self.block_elems).checked_mul(2)?;
                dim.checked_mul(bytes)?.checked_add(scales)
            }
            None => self.row_bytes(dim).filter(|_| self.holds_kv()),
        }
    }

    /// Writes a head of keys or values, [`QuantType::kv_head_bytes`] of its width.
    pub fn store_kv(&self, head: &[f32], to: &mut [u8]) {
        let Some(quantize) = self.quantize else {
            return;
        };
        let whole = head.len() / self.block_elems;
        let (values, rest) = head.split_at(whole * self.block_elems);
        let (blocks, last) = to.split_at_mut(whole * self.block_bytes);
        quantize(values, blocks);
        if !rest.is_empty() {
            // As if zeros were behind it.
            let mut values = vec![0.0; self.block_elems];
            let mut block = vec![0; self.block_bytes];
            values[..rest.len()].copy_from_slice(rest);
            quantize(&values, &mut block);
            last.copy_from_slice(&block[..last.len()]);
        }
    }

    /// Whether attention over a cache of it is the stated sum of integers; a card keeps no other.
    pub fn sums_kv_exactly(&self) -> bool {
        self.kernel.kv.is_some()
    }
}

/// Heads whose width is a multiple of this are what kernels keep.
pub const KV_HEAD_MULTIPLE: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::{by_name, dispatch_kv, kv_types};
    use super::*;

    struct Decoded<'a>(&'a [u8]);

    impl KvVisitor for Decoded<'_> {
        type Out = Vec<f32>;

        fn visit<B: KvBlock>(self) -> Vec<f32> {
            let values = B::blocks(self.0).flat_map(|block| {
                let (scale, integers) = B::parts(block);
                let integers = integers.chunks(B::BYTES).map(B::integer);
                integers.map(move |k| f32::from(k) * scale)
            });
            values.collect()
        }
    }

    #[test]
    fn heads_of_any_width_come_back_and_are_as_if_zeros_were_behind_them() {
        let exact = kv_types().filter(|t| t.sums_kv_exactly());
        let mut count = 0;
        for ty in exact {
            count += 1;
            for dim in [1, 16, 32, 80, 144, 200] {
                let head: Vec<f32> = (0..dim).map(|i| (i as f32 * 0.37).sin()).collect();
                let mut bytes = vec![0xa5; ty.kv_head_bytes(dim).unwrap()];
                ty.store_kv(&head, &mut bytes);
                let Ok(found) = dispatch_kv(ty, Decoded(&bytes)) else {
                    panic!("{ty:?} has no integers");
                };
                assert_eq!(found.len(), dim);
                for (x, y) in head.iter().zip(&found) {
                    assert!((x - y).abs() <= 1.0 / 200.0, "{ty:?} {dim}: {x} {y}");
                }
                let wider = dim.next_multiple_of(ty.block_elems);
                let padded: Vec<f32> = (0..wider).map(|i| *head.get(i).unwrap_or(&0.0)).collect();
                let mut whole = vec![0; ty.kv_head_bytes(wider).unwrap()];
                ty.store_kv(&padded, &mut whole);
                assert_eq!(whole[..bytes.len()], bytes, "{ty:?} {dim}");
            }
            assert_eq!(ty.kv_head_bytes(usize::MAX), None);
        }
        assert_eq!(count, 2);
    }

    #[test]
    fn a_type_is_decoded_by_what_it_is_and_not_by_its_size() {
        for known in kv_types().filter(|t| t.sums_kv_exactly()) {
            let other = QuantType { id: 7000, ..*known };
            assert!(dispatch_kv(&other, Decoded(&[])).is_err(), "{known:?}");
        }
    }

    #[test]
    fn other_types_hold_whole_blocks_alone() {
        let q4_0 = by_name("Q4_0").unwrap();
        assert_eq!(q4_0.kv_head_bytes(80), None);
        assert_eq!(by_name("Q8_0").unwrap().kv_head_bytes(80), Some(86));
        assert_eq!(by_name("F16").unwrap().kv_head_bytes(80), Some(160));
    }
}
