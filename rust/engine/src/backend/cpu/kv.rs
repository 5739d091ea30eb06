//! The KV cache: pages in one pool, found through a page table that is read at every step.

use super::memory::filled;
use crate::backend::PAGE_TOKENS;
use crate::error::{Error, Result};
use crate::plan::KvShape;
use crate::quant::QuantType;

/// Where keys and values lie in the pool: `[layer][page][k|v][kv head][token][head_dim]`.
#[derive(Debug, Clone, Copy)]
struct Layout {
    n_layer: usize,
    n_pages: usize,
    n_head_kv: usize,
    /// Bytes of one head of one token.
    head_bytes: usize,
}

impl Layout {
    /// Bytes of the pool; `None` where they overflow.
    fn bytes(&self) -> Option<usize> {
        let factors = [
            self.n_layer,
            self.n_pages,
            2,
            self.n_head_kv,
            PAGE_TOKENS,
            self.head_bytes,
        ];
        factors.iter().try_fold(1usize, |a, b| a.checked_mul(*b))
    }

    /// The first byte of one head of one token. No product here exceeds [`Layout::bytes`].
    fn address(&self, layer: usize, page: usize, part: Part, head: usize, entry: usize) -> usize {
        let side = (layer * self.n_pages + page) * 2 + usize::from(part == Part::V);
        ((side * self.n_head_kv + head) * PAGE_TOKENS + entry) * self.head_bytes
    }
}

/// Keys and values of every layer, encoded in a quant type; and the page table,
/// `[slot][page of the sequence]`, where 0 means "not mapped".
#[derive(Debug)]
pub struct KvCache {
    pub shape: KvShape,
    pub ty: &'static QuantType,
    layout: Layout,
    n_ctx: usize,
    data: Vec<u8>,
    page_table: Vec<u32>,
    /// By slot: whether a key or value was beyond what the type holds.
    saturated: Vec<bool>,
}

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    K,
    V,
}

impl KvCache {
    /// A pool of `n_pages` (page 0 included) for `n_slots` sequences of up to `n_ctx` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] where heads of this width cannot be stored as `ty`, [`Error::Memory`]
    /// where the pool's size overflows or cannot be had.
    pub fn new(
        shape: KvShape,
        ty: &'static QuantType,
        n_pages: usize,
        n_slots: usize,
        n_ctx: usize,
    ) -> Result<Self> {
        let usable = ty.quantize.is_some();
        let head_bytes = ty
            .row_bytes(shape.head_dim)
            .filter(|_| usable)
            .ok_or_else(|| Error::Argument {
                name: "kv_type",
                value: ty.name.into(),
                reason: format!(
                    "heads of {} values cannot be stored in blocks of {}; use another kv_type",
                    shape.head_dim, ty.block_elems
                ),
            })?;
        let layout = Layout {
            n_layer: shape.n_layer,
            n_pages,
            n_head_kv: shape.n_head_kv,
            head_bytes,
        };
        let bytes = layout.bytes();
        let data = bytes.and_then(zeroed).ok_or_else(|| Error::Memory {
            need: format!(
                "a KV cache of {n_pages} pages of {PAGE_TOKENS} tokens needs {} bytes",
                bytes.map_or("more than 2^64".into(), |b| b.to_string())
            ),
            remedy: "use a smaller n_ctx or max_batch".into(),
        })?;
        let entries = n_slots.saturating_mul(n_ctx.div_ceil(PAGE_TOKENS));
        let page_table = filled(entries, 0, "the tables of pages")?;
        Ok(Self {
            shape,
            ty,
            layout,
            n_ctx,
            data,
            page_table,
            saturated: vec![false; n_slots],
        })
    }

    /// Whether a key or value of `slot` was no number that the type holds, since it was forgotten.
    pub fn saturated(&self, slot: usize) -> bool {
        self.saturated.get(slot).is_some_and(|s| *s)
    }

    /// Begins to look at `slot` anew.
    pub fn forget_saturated(&mut self, slot: usize) {
        if let Some(saturated) = self.saturated.get_mut(slot) {
            *saturated = false;
        }
    }

    /// Tokens a sequence may have.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    fn pages_per_slot(&self) -> usize {
        self.n_ctx.div_ceil(PAGE_TOKENS)
    }

    /// Writes `pages` into the page table of `slot`, from entry `first` on.
    ///
    /// # Errors
    /// [`Error::Argument`] for an entry or page that does not exist.
    pub fn map_pages(&mut self, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        let per_slot = self.pages_per_slot();
        let n_slots = self.page_table.len() / per_slot;
        let bad = |name, value: usize, most: usize| Error::Argument {
            name,
            value: value.to_string(),
            reason: format!("must be below {most}"),
        };
        if slot >= n_slots {
            return Err(bad("slot", slot, n_slots));
        }
        if first
            .checked_add(pages.len())
            .is_none_or(|end| end > per_slot)
        {
            return Err(bad(
                "page of the sequence",
                first.saturating_add(pages.len()),
                per_slot + 1,
            ));
        }
        if let Some(page) = pages.iter().find(|p| **p as usize >= self.layout.n_pages) {
            return Err(bad("page", *page as usize, self.layout.n_pages));
        }
        self.page_table[slot * per_slot + first..][..pages.len()].copy_from_slice(pages);
        Ok(())
    }

    /// The page that holds a position of a slot, or `None` past the limit or where none is mapped.
    fn page(&self, slot: usize, position: usize) -> Option<usize> {
        if position >= self.n_ctx {
            return None;
        }
        let entry = slot
            .checked_mul(self.pages_per_slot())?
            .checked_add(position / PAGE_TOKENS)?;
        self.page_table
            .get(entry)
            .map(|page| *page as usize)
            .filter(|page| *page != 0)
    }

    /// Stores keys and values, `[n_head_kv * head_dim]` each, of one token; what is beyond the
    /// type's largest magnitude becomes that, and [`KvCache::saturated`] says so. Says whether the
    /// position was inside the cache; if not, nothing was written.
    #[must_use]
    pub fn scatter(
        &mut self,
        layer: usize,
        slot: usize,
        position: usize,
        k: &[f32],
        v: &[f32],
    ) -> bool {
        let Some(page) = self.page(slot, position) else {
            return false;
        };
        let Some(quantize) = self.ty.quantize else {
            return false;
        };
        let dim = self.shape.head_dim;
        let largest = self.ty.largest;
        let mut clamped = Vec::new();
        for (part, values) in [(Part::K, k), (Part::V, v)] {
            for (head, values) in values.chunks_exact(dim).enumerate() {
                let entry = position % PAGE_TOKENS;
                let at = self.layout.address(layer, page, part, head, entry);
                let held = |x: &f32| x.abs() <= largest;
                let values = match largest.is_infinite() || values.iter().all(held) {
                    true => values,
                    false => {
                        self.saturated[slot] = true;
                        clamped.clear();
                        // NaN stays NaN: formats of lone numbers have it, and its logits are refused.
                        clamped.extend(values.iter().map(|x| x.clamp(-largest, largest)));
                        &clamped
                    }
                };
                quantize(values, &mut self.data[at..at + self.layout.head_bytes]);
            }
        }
        true
    }

    /// The stored tokens of one head in the page of position `page_index * 64`: at most `tokens`
    /// rows of bytes. `None` where the page is not mapped.
    pub fn head_page(
        &self,
        layer: usize,
        slot: usize,
        page_index: usize,
        part: Part,
        head: usize,
        tokens: usize,
    ) -> Option<&[u8]> {
        let page = self.page(slot, page_index * PAGE_TOKENS)?;
        let at = self.layout.address(layer, page, part, head, 0);
        self.data
            .get(at..at + tokens.min(PAGE_TOKENS) * self.layout.head_bytes)
    }

    /// The whole pool, for tests that look at every byte.
    pub fn raw(&self) -> &[u8] {
        &self.data
    }

    /// The whole pool, for tests that lay canaries.
    pub fn raw_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

/// Zeroed memory, or `None` where it cannot be had. The system gives pages at first touch, so a
/// large cache costs what is used of it.
fn zeroed(bytes: usize) -> Option<Vec<u8>> {
    bytemuck::allocation::try_zeroed_slice_box(bytes)
        .ok()
        .map(Vec::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where one head of one token lies: layer, page, part, head, entry.
    type Place = (usize, usize, Part, usize, usize);

    /// Any cache whose pool a 64-bit machine could address, most of them far beyond 4 GiB.
    fn layouts() -> impl Strategy<Value = Layout> {
        (1..=256usize, 2..=1usize << 20, 1..=128usize, 1..=2048usize).prop_map(
            |(n_layer, n_pages, n_head_kv, head_bytes)| Layout {
                n_layer,
                n_pages,
                n_head_kv,
                head_bytes,
            },
        )
    }

    fn place(layout: &Layout, picks: [u64; 5]) -> Place {
        let pick = |i: usize, n: usize| (picks[i] % n as u64) as usize;
        (
            pick(0, layout.n_layer),
            pick(1, layout.n_pages),
            [Part::K, Part::V][pick(2, 2)],
            pick(3, layout.n_head_kv),
            pick(4, PAGE_TOKENS),
        )
    }

    fn address(layout: &Layout, (layer, page, part, head, entry): Place) -> usize {
        layout.address(layer, page, part, head, entry)
    }

    proptest! {
        /// The address is the place read as a number in mixed radix, so two places never share a
        /// byte, in caches of any size.
        #[test]
        fn places_never_overlap(
            layout in layouts(),
            a in prop::array::uniform5(any::<u64>()),
            b in prop::array::uniform5(any::<u64>()),
        ) {
            let (a, b) = (place(&layout, a), place(&layout, b));
            let (at_a, at_b) = (address(&layout, a), address(&layout, b));
            prop_assert_eq!(a == b, at_a.abs_diff(at_b) < layout.head_bytes);
            let end = layout.bytes().expect("the pool fits 64 bits");
            prop_assert!(at_a + layout.head_bytes <= end && at_b + layout.head_bytes <= end);
        }

        /// The same in 128-bit integers, from the definition.
        #[test]
        fn addresses_do_not_wrap(layout in layouts(), pick in prop::array::uniform5(any::<u64>())) {
            let (layer, page, part, head, entry) = place(&layout, pick);
            let digits = [
                (layer, layout.n_layer),
                (page, layout.n_pages),
                (usize::from(part == Part::V), 2),
                (head, layout.n_head_kv),
                (entry, PAGE_TOKENS),
            ];
            let index = digits.iter().fold(0u128, |sum, (digit, n)| sum * *n as u128 + *digit as u128);
            let wanted = index * layout.head_bytes as u128;
            prop_assert_eq!(layout.address(layer, page, part, head, entry) as u128, wanted);
        }
    }

    #[test]
    fn the_last_token_of_a_large_cache_ends_with_the_pool() {
        // 32 layers, 8 KV heads of 128 halves, 131,072 tokens: 16 GiB.
        let layout = Layout {
            n_layer: 32,
            n_pages: 2048,
            n_head_kv: 8,
            head_bytes: 256,
        };
        let last = layout.address(31, 2047, Part::V, 7, 63);
        assert_eq!(last + 256, 16 << 30);
        assert_eq!(layout.bytes(), Some(16 << 30));
    }

    #[test]
    fn a_pool_beyond_the_address_space_is_refused_without_asking_for_it() {
        let shape = KvShape {
            n_layer: 1 << 20,
            n_head_kv: 1 << 10,
            head_dim: 1 << 10,
        };
        let ty = crate::quant::TYPES.iter().find(|t| t.quantize.is_some());
        let error = KvCache::new(shape, ty.expect("a type"), 1 << 30, 1, 64).expect_err("too much");
        let text = error.to_string();
        assert!(text.contains("1073741824 pages of 64 tokens"), "{text}");
        assert!(text.contains("more than 2^64 bytes"), "{text}");
        assert!(text.contains("use a smaller n_ctx or max_batch"), "{text}");
    }
}
