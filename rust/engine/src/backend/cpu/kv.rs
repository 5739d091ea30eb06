//! The KV cache: pages in one pool, found through a page table that is read at every step.

use crate::backend::PAGE_TOKENS;
use crate::error::{Error, Result};
use crate::plan::KvShape;
use crate::quant::QuantType;

/// Keys and values of every layer, `[layer][page][k|v][kv head][token][head_dim]`, encoded in a
/// quant type; and the page table, `[slot][page of the sequence]`, where 0 means "not mapped".
#[derive(Debug)]
pub struct KvCache {
    pub shape: KvShape,
    pub ty: &'static QuantType,
    /// Bytes of one head of one token.
    head_bytes: usize,
    n_pages: usize,
    n_ctx: usize,
    data: Vec<u8>,
    page_table: Vec<u32>,
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
        let bytes = [
            shape.n_layer,
            n_pages,
            2,
            shape.n_head_kv,
            PAGE_TOKENS,
            head_bytes,
        ]
        .iter()
        .try_fold(1usize, |a, b| a.checked_mul(*b));
        let data = bytes.and_then(zeroed).ok_or_else(|| Error::Memory {
            need: format!(
                "a KV cache of {n_pages} pages of {PAGE_TOKENS} tokens needs {} bytes",
                bytes.map_or("more than 2^64".into(), |b| b.to_string())
            ),
            remedy: "use a smaller n_ctx or max_batch".into(),
        })?;
        let page_table = vec![0; n_slots * n_ctx.div_ceil(PAGE_TOKENS)];
        Ok(Self {
            shape,
            ty,
            head_bytes,
            n_pages,
            n_ctx,
            data,
            page_table,
        })
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
        if let Some(page) = pages.iter().find(|p| **p as usize >= self.n_pages) {
            return Err(bad("page", *page as usize, self.n_pages));
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

    fn address(&self, layer: usize, page: usize, part: Part, head: usize, entry: usize) -> usize {
        let side = (layer * self.n_pages + page) * 2 + usize::from(part == Part::V);
        ((side * self.shape.n_head_kv + head) * PAGE_TOKENS + entry) * self.head_bytes
    }

    /// Stores keys and values, `[n_head_kv * head_dim]` each, of one token. Says whether the
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
        for (part, values) in [(Part::K, k), (Part::V, v)] {
            for (head, values) in values.chunks_exact(dim).enumerate() {
                let at = self.address(layer, page, part, head, position % PAGE_TOKENS);
                quantize(values, &mut self.data[at..at + self.head_bytes]);
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
        let at = self.address(layer, page, part, head, 0);
        self.data
            .get(at..at + tokens.min(PAGE_TOKENS) * self.head_bytes)
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
    // `vec![0; n]` aborts on failure: ask first.
    let mut probe: Vec<u8> = Vec::new();
    probe.try_reserve_exact(bytes).ok()?;
    drop(probe);
    Some(vec![0; bytes])
}
