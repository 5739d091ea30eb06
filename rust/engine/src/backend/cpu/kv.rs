//! The KV cache: pages in one pool, found through a page table that is read at every step.

use std::ops::Range;

use super::reserve::filled;
use crate::backend::storage::check_bytes;
use crate::backend::{Kind, KvLayer, KvPages, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::quant::saturated;

/// The first byte of one head of one token in a pool of `[layer][page][k|v][kv head][token]` heads.
/// No product here exceeds [`KvPages::bytes`].
fn address(
    pages: &KvPages,
    layer: usize,
    page: usize,
    part: Part,
    head: usize,
    entry: usize,
) -> usize {
    let KvLayer {
        shape,
        head_bytes,
        at,
        values_at,
        ..
    } = pages.layers[layer];
    // Values that are in their keys are found there.
    let is_behind = part == Part::V && shape.stored() > 1;
    let side = page * shape.stored() + usize::from(is_behind);
    at + values_at + ((side * shape.n_head_kv + head) * PAGE_TOKENS + entry) * head_bytes
}

/// Keys and values of every layer, encoded in a quant type; and by kind the page table,
/// `[slot][page of the sequence]`, where 0 means "not mapped".
#[derive(Debug)]
pub struct KvCache {
    pub pages: KvPages,
    data: Vec<u8>,
    page_tables: [Vec<u32>; 2],
    /// By slot: whether a finite key or value was beyond what the type holds.
    saturated: Vec<bool>,
}

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    K,
    V,
}

impl KvCache {
    /// A cleared pool.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where its size overflows or cannot be had.
    pub fn new(pages: KvPages) -> Result<Self> {
        let data = pages.bytes().and_then(zeroed);
        let table = |is_used| {
            let entries = if is_used { pages.entries() } else { 0 };
            filled(entries, 0, "the tables of pages")
        };
        Ok(Self {
            data: data.ok_or_else(|| pages.no_room(None))?,
            page_tables: [table(true)?, table(pages.windows.is_some())?],
            saturated: vec![false; pages.n_slots],
            pages,
        })
    }

    /// Whether a finite key or value of `slot` was beyond what the type holds, since it was forgotten.
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
        self.pages.n_ctx
    }

    /// Writes `pages` of a kind into the page table of `slot`, from entry `first` on.
    ///
    /// # Errors
    /// As [`KvPages::mapping`].
    pub fn map_pages(
        &mut self,
        kind: Kind,
        slot: usize,
        first: usize,
        pages: &[u32],
    ) -> Result<()> {
        let entries = self.pages.mapping(kind, slot, first, pages)?;
        if let Some(entries) = self.page_tables[kind as usize].get_mut(entries) {
            entries.copy_from_slice(pages);
        }
        Ok(())
    }

    /// Copies what the page `from` holds in all layers of its kind to the page `to`.
    ///
    /// # Errors
    /// As [`KvPages::check_page`].
    pub fn copy_page(&mut self, kind: Kind, from: u32, to: u32) -> Result<()> {
        self.pages.check_page(kind, from)?;
        self.pages.check_page(kind, to)?;
        for (layer, of) in self.pages.of_kind(kind) {
            let at = |page: u32| address(&self.pages, layer, page as usize, Part::K, 0, 0);
            let (from, to) = (at(from), at(to));
            // Keys, and behind them values.
            self.data.copy_within(from..from + of.stored_bytes(), to);
        }
        Ok(())
    }

    /// What a page holds in all layers of its kind, each layer's keys and behind them its values.
    ///
    /// # Errors
    /// [`crate::Error::Internal`] for a page that does not exist or another number of bytes.
    pub fn read_page(&self, kind: Kind, page: u32, to: &mut [u8]) -> Result<()> {
        let mut rest = to;
        for place in self.page_places(kind, page, rest.len())? {
            let (part, more) = rest.split_at_mut(place.len());
            part.copy_from_slice(&self.data[place]);
            rest = more;
        }
        Ok(())
    }

    /// The reverse of [`KvCache::read_page`].
    ///
    /// # Errors
    /// As there.
    pub fn write_page(&mut self, kind: Kind, page: u32, from: &[u8]) -> Result<()> {
        let mut rest = from;
        for place in self.page_places(kind, page, from.len())? {
            let (part, more) = rest.split_at(place.len());
            self.data[place].copy_from_slice(part);
            rest = more;
        }
        Ok(())
    }

    fn page_places(&self, kind: Kind, page: u32, bytes: usize) -> Result<Vec<Range<usize>>> {
        self.pages.check_page(kind, page)?;
        check_bytes("page", bytes, self.pages.page_bytes(kind))?;
        let place = |(layer, of): (usize, &KvLayer)| {
            let at = address(&self.pages, layer, page as usize, Part::K, 0, 0);
            at..at + of.stored_bytes()
        };
        Ok(self.pages.of_kind(kind).map(place).collect())
    }

    /// The page of a kind that holds a position of a slot, or `None` past the limit or where none is
    /// mapped.
    fn page(&self, kind: Kind, slot: usize, position: usize) -> Option<usize> {
        if position >= self.pages.n_ctx {
            return None;
        }
        let entry = slot
            .checked_mul(self.pages.per_slot())?
            .checked_add(position / PAGE_TOKENS)?;
        self.page_tables[kind as usize]
            .get(entry)
            .map(|page| *page as usize)
            .filter(|page| *page != 0)
    }

    /// Stores keys and values, `[n_head_kv * head_dim]` each, of one token; what is finite and beyond
    /// the type's largest magnitude becomes that, and [`KvCache::saturated`] reports it.
    ///
    /// # Errors
    /// [`Error::KvBounds`] for a position outside the cache, of which nothing is written;
    /// [`Error::KvValues`] where one of them is infinite or NaN.
    pub fn scatter(
        &mut self,
        layer: usize,
        slot: usize,
        position: usize,
        k: &[f32],
        v: &[f32],
    ) -> Result<()> {
        let KvLayer {
            shape,
            head_bytes,
            kind,
            ..
        } = self.pages.layers[layer];
        let Some(page) = self.page(kind, slot, position) else {
            return Err(Error::KvBounds {
                position: position as u64,
                slot,
                limit: self.pages.n_ctx,
            });
        };
        // NaN is the largest here.
        let size = |x: &f32| x.abs().to_bits();
        let worst = k.iter().chain(v).copied().max_by_key(size).unwrap_or(0.0);
        let dim = shape.head_dim;
        let ty = self.pages.ty;
        let largest = ty.largest.min(f32::MAX);
        let mut clamped = Vec::new();
        for (part, values) in [(Part::K, k), (Part::V, v)]
            .into_iter()
            .take(shape.stored())
        {
            for (head, values) in values.chunks_exact(dim).enumerate() {
                let entry = position % PAGE_TOKENS;
                let at = address(&self.pages, layer, page, part, head, entry);
                let held = |x: &f32| x.abs() <= largest;
                let values = match values.iter().all(held) {
                    true => values,
                    false => {
                        self.saturated[slot] |= worst.is_finite();
                        clamped.clear();
                        clamped.extend(values.iter().map(|x| saturated(*x, largest)));
                        &clamped
                    }
                };
                ty.store_kv(values, &mut self.data[at..at + head_bytes]);
            }
        }
        match worst.is_finite() {
            true => Ok(()),
            false => Err(Error::KvValues {
                layer,
                slot,
                position: position as u64,
                value: worst.to_string(),
            }),
        }
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
        let of = self.pages.layers[layer];
        let page = self.page(of.kind, slot, page_index * PAGE_TOKENS)?;
        let at = address(&self.pages, layer, page, part, head, 0);
        self.data
            .get(at..at + tokens.min(PAGE_TOKENS) * of.head_bytes)
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
/// large cache costs only the part that is used.
fn zeroed(bytes: usize) -> Option<Vec<u8>> {
    bytemuck::allocation::try_zeroed_slice_box(bytes)
        .ok()
        .map(Vec::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{GpuOptions, RunnerOptions};
    use crate::plan::{KvShape, Plan};
    use crate::quant;
    use proptest::prelude::*;

    /// Where one head of one token lies: layer, page, part, head, entry.
    type Place = (usize, usize, Part, usize, usize);

    /// The pages of layers of so many heads of so many values.
    fn pages(n_pages: usize, layers: &[(usize, usize)]) -> KvPages {
        let shape = |(n_head_kv, head_dim)| KvShape::new(n_head_kv, head_dim);
        let shapes: Vec<KvShape> = layers.iter().copied().map(shape).collect();
        let options = RunnerOptions {
            n_slots: 1,
            n_ctx: PAGE_TOKENS,
            n_pages,
            windows: None,
            kv_type: quant::kv_types().next().expect("a type"),
            threads: 1,
            gpu: GpuOptions::default(),
        };
        let plan = Plan {
            kv: shapes,
            ..Plan::default()
        };
        KvPages::new(&plan, &options).expect("heads of any width")
    }

    /// Any cache whose pool a 64-bit machine could address, most of them far beyond 4 GiB; each
    /// layer of a shape of its own, and some without a cache.
    fn layouts() -> impl Strategy<Value = KvPages> {
        let layer = (0..=128usize, 1..=512usize);
        let layers = prop::collection::vec(layer, 1..=64).prop_filter("a cache", |layers| {
            layers.iter().any(|(heads, _)| *heads > 0)
        });
        let sizes = (2..=1usize << 20, layers);
        sizes.prop_map(|(n_pages, layers)| pages(n_pages, &layers))
    }

    fn place(layout: &KvPages, picks: [u64; 5]) -> Place {
        let pick = |i: usize, n: usize| (picks[i] % n as u64) as usize;
        let heads = |layer: &usize| layout.layers[*layer].shape.n_head_kv;
        let cached: Vec<usize> = (0..layout.layers.len()).filter(|l| heads(l) > 0).collect();
        let layer = cached[pick(0, cached.len())];
        (
            layer,
            pick(1, layout.n_pages),
            [Part::K, Part::V][pick(2, 2)],
            pick(3, heads(&layer)),
            pick(4, PAGE_TOKENS),
        )
    }

    fn at(layout: &KvPages, (layer, page, part, head, entry): Place) -> usize {
        address(layout, layer, page, part, head, entry)
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
            let (at_a, at_b) = (at(&layout, a), at(&layout, b));
            let bytes = |place: Place| layout.layers[place.0].head_bytes;
            let (end_a, end_b) = (at_a + bytes(a), at_b + bytes(b));
            prop_assert_eq!(a == b, at_a < end_b && at_b < end_a);
            let end = layout.bytes().expect("the pool fits 64 bits");
            prop_assert!(end_a <= end && end_b <= end);
        }

        /// The same in 128-bit integers, from the definition.
        #[test]
        fn addresses_do_not_wrap(layout in layouts(), pick in prop::array::uniform5(any::<u64>())) {
            let (layer, page, part, head, entry) = place(&layout, pick);
            let heads = |layer: usize| layout.layers[layer].shape.n_head_kv;
            let digits = [
                (page, layout.n_pages),
                (usize::from(part == Part::V), 2),
                (head, heads(layer)),
                (entry, PAGE_TOKENS),
            ];
            let index = digits.iter().fold(0u128, |sum, (digit, n)| sum * *n as u128 + *digit as u128);
            let before = (0..layer).map(|l| (heads(l) * layout.layers[l].head_bytes) as u128);
            let before = before.sum::<u128>() * (layout.n_pages * 2 * PAGE_TOKENS) as u128;
            let wanted = before + index * layout.layers[layer].head_bytes as u128;
            prop_assert_eq!(address(&layout, layer, page, part, head, entry) as u128, wanted);
        }
    }

    #[test]
    fn the_last_token_of_a_large_cache_ends_with_the_pool() {
        // 32 layers, 8 KV heads of 64 floats, 131,072 tokens: 16 GiB.
        let layout = pages(2048, &[(8, 64); 32]);
        let last = address(&layout, 31, 2047, Part::V, 7, 63);
        assert_eq!(last + 256, 16 << 30);
        assert_eq!(layout.bytes(), Some(16 << 30));
    }

    #[test]
    fn a_pool_beyond_the_address_space_is_refused_without_asking_for_it() {
        let error = KvCache::new(pages(1 << 30, &[(1 << 20, 1 << 14)])).expect_err("too much");
        let text = error.to_string();
        assert!(text.contains("1073741824 pages of 64 tokens"), "{text}");
        assert!(text.contains("more than 2^64 bytes"), "{text}");
        assert!(text.contains("use a smaller n_ctx or max_batch"), "{text}");
    }
}
