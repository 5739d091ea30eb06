//! The memory that a model takes on any device, each size computed in one place: the estimate before a
//! load, the load itself and `onegraph info` use the same numbers.

use std::ops::Range;

use super::{Kind, RunnerOptions, Windows, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::plan::{KvShape, Plan};
use crate::quant::QuantType;

/// Bytes that a load takes of a device, its longest prompts included. Sums end at 2^64 - 1: no
/// device has that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// As the device keeps them.
    pub weights: u64,
    /// The pools of keys and values.
    pub kv: u64,
    /// Of these, that of layers that see a window.
    pub windows: u64,
    /// The plan's buffers, and what else is as long as their rows.
    pub activations: u64,
    /// All else.
    pub scratch: u64,
}

impl Needs {
    /// Beside weights, keys and values.
    pub fn working(&self) -> u64 {
        self.activations.saturating_add(self.scratch)
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.kv)
            .saturating_add(self.working())
    }
}

/// Pages that `tokens` tokens of one sequence take.
pub fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Pages of a pool for `n_slots` sequences of `n_ctx` tokens, the reserved page included.
pub fn pool_pages(n_slots: usize, n_ctx: usize) -> usize {
    n_slots.saturating_mul(pages_of(n_ctx)).saturating_add(1)
}

/// One layer's part of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    pub shape: KvShape,
    /// Of one head of one token.
    pub head_bytes: usize,
    /// Whose pages it is in.
    pub kind: Kind,
    /// Pages of that kind.
    pub n_pages: usize,
    /// Bytes that keys take in the pools of all layers before.
    pub at: usize,
    /// Bytes that values take there.
    pub values_at: usize,
}

impl KvLayer {
    /// Bytes that keys and values take in the pools up to the end of this layer; `None` where they overflow.
    fn end(&self) -> Option<[usize; 2]> {
        let heads = self.shape.n_head_kv.checked_mul(PAGE_TOKENS)?;
        let page = heads.checked_mul(self.head_bytes)?;
        let all = page.checked_mul(self.n_pages)?;
        let values = all * (self.shape.stored() - 1);
        Some([
            self.at.checked_add(all)?,
            self.values_at.checked_add(values)?,
        ])
    }

    /// Bytes of its keys in one page.
    pub fn page_bytes(&self) -> usize {
        self.shape.n_head_kv * PAGE_TOKENS * self.head_bytes
    }

    /// Bytes of its keys and values in one page.
    pub fn stored_bytes(&self) -> usize {
        self.shape.stored() * self.page_bytes()
    }
}

/// The sizes of the pools of keys and values, a kind each, and of the tables of their pages; where in a
/// pool a token lies, each backend says for itself.
#[derive(Debug, Clone)]
pub struct KvPages {
    pub layers: Vec<KvLayer>,
    pub ty: &'static QuantType,
    /// Pages in the pool, page 0 included.
    pub n_pages: usize,
    /// The pool of layers that see a window, where they have one.
    pub windows: Option<Windows>,
    /// Sequences in the table.
    pub n_slots: usize,
    /// Tokens a sequence may have.
    pub n_ctx: usize,
}

impl KvPages {
    /// The pages of the caches of a plan.
    ///
    /// # Errors
    /// [`Error::Argument`] where heads of their width cannot be stored as the type asked for.
    pub fn new(plan: &Plan, options: &RunnerOptions) -> Result<Self> {
        let ty = options.kv_type;
        let mut layers: Vec<KvLayer> = Vec::with_capacity(plan.kv.len());
        for (shape, window) in plan.kv.iter().zip(plan.windows()) {
            let head_bytes = ty.kv_head_bytes(shape.head_dim);
            let sees = |windows: &Windows| window.is_some_and(|tokens| tokens <= windows.tokens);
            let windows = options.windows.filter(sees);
            let (kind, n_pages) = match windows {
                Some(windows) => (Kind::Windowed, windows.n_pages),
                None => (Kind::Whole, options.n_pages),
            };
            // Past the end there is no pool.
            let at = layers.last().map_or(Some([0; 2]), KvLayer::end);
            let [at, values_at] = at.unwrap_or([usize::MAX; 2]);
            layers.push(KvLayer {
                shape: *shape,
                head_bytes: head_bytes.ok_or_else(|| Error::Argument {
                    name: "kv_type",
                    value: ty.name.into(),
                    reason: format!(
                        "heads of {} values cannot be stored in blocks of {}; use another kv_type",
                        shape.head_dim, ty.block_elems
                    ),
                })?,
                kind,
                n_pages,
                at,
                values_at,
            });
        }
        Ok(Self {
            layers,
            ty,
            n_pages: options.n_pages,
            windows: options.windows,
            n_slots: options.n_slots,
            n_ctx: options.n_ctx,
        })
    }

    /// The layers of a kind, by their number.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (usize, &KvLayer)> {
        let layers = self.layers.iter().enumerate();
        layers.filter(move |(_, layer)| layer.kind == kind)
    }

    /// Bytes of a page in all layers of a kind, keys and values.
    pub fn page_bytes(&self, kind: Kind) -> usize {
        let bytes = |(_, layer): (usize, &KvLayer)| layer.stored_bytes();
        self.of_kind(kind).map(bytes).sum()
    }

    /// Pages of a kind, page 0 included; none where there are no such layers.
    pub fn pages_of_kind(&self, kind: Kind) -> usize {
        match kind {
            Kind::Whole => self.n_pages,
            Kind::Windowed => self.windows.map_or(0, |windows| windows.n_pages),
        }
    }

    /// Bytes of all pools; `None` where they overflow.
    pub fn bytes(&self) -> Option<usize> {
        let [keys, values] = self.pools()?;
        keys.checked_add(values)
    }

    /// Bytes of the pools of keys and of values; `None` where they overflow.
    pub fn pools(&self) -> Option<[usize; 2]> {
        self.layers.last().map_or(Some([0; 2]), KvLayer::end)
    }

    /// Bytes of the pool of a kind, where [`KvPages::bytes`] do not overflow.
    pub fn bytes_of_kind(&self, kind: Kind) -> usize {
        self.page_bytes(kind)
            .saturating_mul(self.pages_of_kind(kind))
    }

    /// Most bytes that one sequence of the longest context has in the pools.
    pub fn sequence_bytes(&self) -> u64 {
        let pages = |kind| match (kind, self.windows) {
            (Kind::Windowed, Some(windows)) => windows.per_slot(self.n_ctx),
            _ => self.per_slot(),
        };
        let bytes = |kind| (self.page_bytes(kind) as u64).saturating_mul(pages(kind) as u64);
        Kind::ALL
            .map(bytes)
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// [`KvPages::bytes`], as a part of [`Needs`].
    pub fn needed(&self) -> u64 {
        self.bytes().map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// Checks that there is a page of this number.
    ///
    /// # Errors
    /// [`Error::Internal`].
    pub fn check_page(&self, kind: Kind, page: u32) -> Result<()> {
        let n_pages = self.pages_of_kind(kind);
        match (page as usize) < n_pages {
            true => Ok(()),
            false => Err(Error::Internal(format!("page {page} of {n_pages}"))),
        }
    }

    /// Bytes of the keys and values of one token in all layers.
    pub fn token_bytes(&self) -> u64 {
        let of_layer = |layer: &KvLayer| {
            let heads = layer.shape.n_head_kv as u64;
            heads.saturating_mul((layer.shape.stored() * layer.head_bytes) as u64)
        };
        let layers = self.layers.iter().map(of_layer);
        layers.fold(0, u64::saturating_add)
    }

    /// Why there is no memory for the pool, of which `free` bytes are free where that is known.
    pub fn no_room(&self, free: Option<usize>) -> Error {
        let bytes = self.bytes();
        let bytes = bytes.map_or("more than 2^64".into(), |bytes| bytes.to_string());
        let free = free.map_or(String::new(), |free| format!(", {free} are free"));
        let windows = self.windows.map_or(String::new(), |windows| {
            let n = windows.n_pages;
            format!(", and {n} of layers that see {} tokens,", windows.tokens)
        });
        Error::Memory {
            need: format!(
                "a KV cache of {} pages of {PAGE_TOKENS} tokens{windows} needs {bytes} bytes{free}",
                self.n_pages
            ),
            remedy: "use a smaller n_ctx or max_batch".into(),
        }
    }

    /// Pages of one sequence in the table.
    pub fn per_slot(&self) -> usize {
        pages_of(self.n_ctx)
    }

    /// Entries of the table, `[n_slots][per_slot]`.
    pub fn entries(&self) -> usize {
        self.n_slots.saturating_mul(self.per_slot())
    }

    /// The entries of pages `range` of the sequence in `slot`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a slot or entry that does not exist.
    pub fn entries_of(&self, slot: usize, range: Range<usize>) -> Result<Range<usize>> {
        let per_slot = self.per_slot();
        if slot >= self.n_slots {
            return Err(not_below("slot", slot, self.n_slots));
        }
        if range.end > per_slot {
            return Err(not_below("page of the sequence", range.end, per_slot + 1));
        }
        Ok(slot * per_slot + range.start..slot * per_slot + range.end)
    }

    /// The entries that `pages` go to, as those of `slot` from its page `first` on.
    ///
    /// # Errors
    /// As [`KvPages::entries_of`], and for a page that is not in the pool.
    pub fn mapping(
        &self,
        kind: Kind,
        slot: usize,
        first: usize,
        pages: &[u32],
    ) -> Result<Range<usize>> {
        let entries = self.entries_of(slot, first..first.saturating_add(pages.len()))?;
        let n_pages = self.pages_of_kind(kind);
        match pages.iter().find(|page| **page as usize >= n_pages) {
            Some(page) => Err(not_below("page", *page as usize, n_pages)),
            None => Ok(entries),
        }
    }
}

/// Checks that `found` values are the state of a sequence.
///
/// # Errors
/// [`Error::Argument`].
pub fn check_state(found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::Argument {
        name: "state",
        value: format!("{found} numbers"),
        reason: format!("the state of a sequence has {wanted}"),
    })
}

/// The error of a `value` that is not below `limit`.
pub fn not_below(name: &'static str, value: usize, limit: usize) -> Error {
    Error::Argument {
        name,
        value: value.to_string(),
        reason: format!("must be below {limit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::GpuOptions;
    use crate::quant;

    fn pages(head_dim: usize, kv_type: &str, n_slots: usize, n_ctx: usize) -> Result<KvPages> {
        let shape = KvShape::new(3, head_dim);
        let options = RunnerOptions {
            n_slots,
            n_ctx,
            n_pages: pool_pages(n_slots, n_ctx),
            windows: None,
            kv_type: quant::kv_by_name(kv_type)?,
            threads: 1,
            gpu: GpuOptions::default(),
        };
        let plan = Plan {
            kv: vec![shape; 2],
            ..Plan::default()
        };
        KvPages::new(&plan, &options)
    }

    #[test]
    fn a_pool_is_its_pages_and_a_page_its_tokens() {
        // 100 tokens take two pages; page 0 is never allocated.
        let pages = pages(64, quant::DEFAULT_KV, 5, 100).unwrap();
        assert_eq!(
            (pages.n_pages, pages.per_slot(), pages.entries()),
            (11, 2, 10)
        );
        // 64 integers of 16 bits and their scale.
        let head = 64 * 2 + 2;
        assert_eq!(pages.token_bytes(), 2 * 2 * 3 * head as u64);
        assert_eq!(pages.layers[1].at, 11 * 3 * 64 * head);
        assert_eq!(pages.layers[1].page_bytes(), 3 * 64 * head);
        let of_pages = 2 * 2 * 11 * pages.layers[1].page_bytes();
        assert_eq!(pages.bytes(), Some(of_pages));
        assert_eq!(pages.needed(), 11 * 64 * pages.token_bytes());
    }

    #[test]
    fn heads_that_are_no_whole_blocks_are_refused() {
        let is_whole = |t: &&QuantType| t.block_elems == 32 && !t.sums_kv_exactly();
        let blocks = quant::kv_types().find(is_whole).unwrap();
        assert!(pages(64, blocks.name, 1, 64).is_ok());
        let text = pages(80, blocks.name, 1, 64).unwrap_err().to_string();
        let expected = format!("kv_type = {}: heads of 80 values", blocks.name);
        assert!(text.contains(&expected), "{text}");
    }

    #[test]
    fn what_is_not_in_the_table_or_the_pool_is_not_mapped() {
        let pages = pages(64, quant::DEFAULT_KV, 5, 100).unwrap();
        assert_eq!(pages.mapping(Kind::Whole, 4, 0, &[9, 10]), Ok(8..10));
        assert_eq!(pages.mapping(Kind::Whole, 4, 2, &[]), Ok(10..10));
        let refused = |slot, first, numbers: &[u32]| {
            let error = pages
                .mapping(Kind::Whole, slot, first, numbers)
                .unwrap_err();
            assert!(matches!(error, Error::Argument { .. }));
            error.to_string()
        };
        for (text, expected) in [
            (refused(5, 0, &[1]), "slot = 5: must be below 5"),
            (
                refused(0, 1, &[1, 2]),
                "page of the sequence = 3: must be below 3",
            ),
            (refused(0, usize::MAX, &[1]), "must be below 3"),
            (refused(0, 0, &[1, 11]), "page = 11: must be below 11"),
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }
}
