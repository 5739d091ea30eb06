//! The KV pool on the card; the layout is that of kernels/kv.cuh.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::host::HostBuffer;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::params::KvView;
use crate::backend::storage::check_bytes;
use crate::backend::{Kind, KvLayer, KvPages, RunnerOptions, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::plan::Plan;

/// Keys, values, page tables and error word.
#[derive(Debug)]
pub struct KvPool {
    pub pages: KvPages,
    k: DeviceBuffer,
    v: DeviceBuffer,
    /// By kind.
    page_tables: [DeviceBuffer; 2],
    /// What kernels tell the host of a refused token; see `kv_refuse` in kv.cuh.
    error: HostBuffer,
    /// A word a slot, not 0 where a finite key or value was beyond what the type holds; see `kv_tell`.
    saturated: HostBuffer,
    /// What the page tables on the card hold.
    mirrors: [Vec<u32>; 2],
}

impl KvPool {
    /// A cleared pool.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        plan: &Plan,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let pages = KvPages::new(plan, options)?;
        let [keys, values] = pages.pools().ok_or_else(|| pages.no_room(None))?;
        let part = |bytes| {
            DeviceBuffer::new(context, bytes).map_err(|e| match e {
                Error::Memory { .. } => pages.no_room(context.memory().ok().map(|(free, _)| free)),
                e => e,
            })
        };
        // One table where there is one kind.
        let entries = match pages.windows {
            Some(_) => [pages.entries(); 2],
            None => [pages.entries(), 0],
        };
        let table = |entries| DeviceBuffer::new(context, entries * size_of::<u32>());
        let pool = Self {
            k: part(keys)?,
            v: part(values)?,
            page_tables: [table(entries[0])?, table(entries[1])?],
            error: HostBuffer::new(context, 8)?,
            saturated: HostBuffer::new(context, 8 * pages.n_slots)?,
            mirrors: entries.map(|entries| vec![0; entries]),
            pages,
        };
        let [whole, windowed] = &pool.page_tables;
        for buffer in [&pool.k, &pool.v, whole, windowed] {
            buffer.fill(0, stream)?;
        }
        stream.synchronize()?;
        Ok(pool)
    }

    /// Tokens a sequence may have.
    pub fn n_ctx(&self) -> usize {
        self.pages.n_ctx
    }

    /// Bytes of all pools.
    pub fn bytes(&self) -> usize {
        self.k.bytes() + self.v.bytes()
    }

    /// What kernels need to find the tokens of `layer`, and to report what the op of this number stores.
    pub fn view(&self, layer: usize, number: usize, reports: u64) -> KvView {
        let layer = &self.pages.layers[layer];
        KvView {
            k: self.k.address() + layer.at as u64,
            v: self.v.address() + layer.values_at as u64,
            page_table: self.page_tables[layer.kind as usize].address(),
            error: self.error.address(),
            saturated: self.saturated.address(),
            reports,
            pages_per_slot: self.pages.per_slot() as u32,
            n_slots: self.pages.n_slots as u32,
            n_ctx: self.pages.n_ctx as u32,
            n_pages: layer.n_pages as u32,
            number: number as u32,
            unused: 0,
        }
    }

    /// Writes `pages` of a kind into the page table of `slot`, from entry `first` on, in stream order.
    ///
    /// # Errors
    /// As [`KvPages::mapping`].
    pub fn map_pages(
        &mut self,
        kind: Kind,
        slot: usize,
        first: usize,
        pages: &[u32],
        stream: &Stream,
    ) -> Result<()> {
        let entries = self.pages.mapping(kind, slot, first, pages)?;
        let at = entries.start * size_of::<u32>();
        let Some(mirror) = self.mirrors[kind as usize].get_mut(entries) else {
            return Ok(());
        };
        mirror.copy_from_slice(pages);
        self.page_tables[kind as usize].write(at, pages, stream)
    }

    /// Queues a copy of what the page `from` holds in all layers of its kind to the page `to`.
    ///
    /// # Errors
    /// As [`KvPages::check_page`].
    pub fn copy_page(&self, kind: Kind, from: u32, to: u32, stream: &Stream) -> Result<()> {
        self.pages.check_page(kind, from)?;
        self.pages.check_page(kind, to)?;
        for (_, layer) in self.pages.of_kind(kind) {
            for (buffer, start) in self.pools_of(layer) {
                let size = layer.page_bytes();
                let at = |page: u32| start + page as usize * size;
                buffer.copy_within(at(from), at(to), size, stream)?;
            }
        }
        Ok(())
    }

    /// What a page holds in all layers of its kind: each layer's keys and behind them its values.
    ///
    /// # Errors
    /// [`Error::Internal`] for a page that does not exist or another number of bytes,
    /// [`Error::Device`].
    pub fn read_page(&self, kind: Kind, page: u32, to: &mut [u8], stream: &Stream) -> Result<()> {
        check_bytes("page", to.len(), self.pages.page_bytes(kind))?;
        let mut parts = Vec::new();
        let mut rest = to;
        for (buffer, offset, size) in self.places_of(kind, page)? {
            let (part, more) = rest.split_at_mut(size);
            parts.push((buffer, offset, part));
            rest = more;
        }
        DeviceBuffer::read_parts(&mut parts, stream)
    }

    /// The reverse of [`KvPool::read_page`].
    ///
    /// # Errors
    /// As there.
    pub fn write_page(&self, kind: Kind, page: u32, from: &[u8], stream: &Stream) -> Result<()> {
        check_bytes("page", from.len(), self.pages.page_bytes(kind))?;
        let mut parts = Vec::new();
        let mut rest = from;
        for (buffer, offset, size) in self.places_of(kind, page)? {
            let (part, more) = rest.split_at(size);
            parts.push((buffer, offset, part));
            rest = more;
        }
        DeviceBuffer::write_parts(&parts, stream)
    }

    /// The pools that a layer has a part of, and where that begins: of keys, and of values.
    fn pools_of(&self, layer: &KvLayer) -> impl Iterator<Item = (&DeviceBuffer, usize)> {
        let both = [(&self.k, layer.at), (&self.v, layer.values_at)];
        both.into_iter().take(layer.shape.stored())
    }

    fn places_of(&self, kind: Kind, page: u32) -> Result<Vec<(&DeviceBuffer, usize, usize)>> {
        self.pages.check_page(kind, page)?;
        let mut places = Vec::new();
        for (_, layer) in self.pages.of_kind(kind) {
            let size = layer.page_bytes();
            let its = self.pools_of(layer);
            places.extend(its.map(|(buffer, at)| (buffer, at + page as usize * size, size)));
        }
        Ok(places)
    }

    /// The error of a token that a scatter refused, if any since the last call.
    pub fn take_error(&self) -> Option<Error> {
        let word = self.error.words().first()?.swap(0, Ordering::AcqRel);
        // Both halves plus one, so that zero is "none".
        let report = word.checked_sub(1)?;
        Some(Error::KvBounds {
            position: report >> 32,
            slot: (report & u64::from(u32::MAX)) as usize,
            limit: self.pages.n_ctx,
        })
    }

    /// Whether a finite key or value of `slot` was beyond what the type holds, of what has run so far.
    pub fn saturated(&self, slot: usize) -> bool {
        let word = self.saturated.words().get(slot);
        word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Begins to look at `slot` anew, behind everything queued: steps that were launched ahead may
    /// still store for the sequence that has ended.
    pub fn forget_saturated(&self, slot: usize, stream: &Stream) -> Result<()> {
        stream.clear_word(&self.saturated, slot)
    }

    /// Of `slot`, the bytes of its pages `first` to `end`, all layers, keys and values; in an order
    /// of their own.
    ///
    /// # Errors
    /// [`Error::Argument`] for a slot or page that does not exist.
    pub fn read_pages(
        &self,
        slot: usize,
        pages: std::ops::Range<usize>,
        stream: &Stream,
    ) -> Result<Vec<u8>> {
        let places = self.page_places(slot, pages)?;
        let mut all = vec![0u8; places.iter().map(|(_, _, size)| size).sum()];
        let mut rest = all.as_mut_slice();
        for (buffer, offset, size) in places {
            let (part, more) = rest.split_at_mut(size);
            buffer.read(offset, part, stream)?;
            rest = more;
        }
        Ok(all)
    }

    /// The reverse of [`KvPool::read_pages`].
    pub fn write_pages(
        &self,
        slot: usize,
        pages: std::ops::Range<usize>,
        bytes: &[u8],
        stream: &Stream,
    ) -> Result<()> {
        let mut rest = bytes;
        for (buffer, offset, size) in self.page_places(slot, pages)? {
            let (part, more) = rest.split_at(size.min(rest.len()));
            buffer.write(offset, part, stream)?;
            rest = more;
        }
        Ok(())
    }

    /// Where the pages of a slot lie, and how long each is.
    fn page_places(
        &self,
        slot: usize,
        pages: std::ops::Range<usize>,
    ) -> Result<Vec<(&DeviceBuffer, usize, usize)>> {
        let entries = self.pages.entries_of(slot, pages)?;
        let mut places = Vec::new();
        for layer in &self.pages.layers {
            let size = layer.page_bytes();
            for page in &self.mirrors[layer.kind as usize][entries.clone()] {
                let its = self.pools_of(layer);
                places.extend(its.map(|(buffer, at)| (buffer, at + *page as usize * size, size)));
            }
        }
        Ok(places)
    }

    /// Every byte, in the order of the interpreter's pool:
    /// `[layer][page][k|v][kv head][token][head_dim]`.
    pub fn read_all(&self, stream: &Stream) -> Result<Vec<u8>> {
        let mut k = vec![0u8; self.k.bytes()];
        let mut v = vec![0u8; self.v.bytes()];
        self.k.read(0, &mut k, stream)?;
        self.v.read(0, &mut v, stream)?;
        let mut all = vec![0u8; k.len() + v.len()];
        self.for_each_value(|canonical, is_value, own, size| {
            let from = if is_value { &v } else { &k };
            all[canonical..canonical + size].copy_from_slice(&from[own..own + size]);
        });
        Ok(all)
    }

    /// The reverse of [`KvPool::read_all`].
    pub fn write_all(&self, bytes: &[u8], stream: &Stream) -> Result<()> {
        let mut k = vec![0u8; self.k.bytes()];
        let mut v = vec![0u8; self.v.bytes()];
        if bytes.len() != k.len() + v.len() {
            return Err(Error::Argument {
                name: "kv",
                value: format!("{} bytes", bytes.len()),
                reason: format!("the pool has {} bytes", k.len() + v.len()),
            });
        }
        self.for_each_value(|canonical, is_value, own, size| {
            let to = if is_value { &mut v } else { &mut k };
            to[own..own + size].copy_from_slice(&bytes[canonical..canonical + size]);
        });
        self.k.write(0, &k, stream)?;
        self.v.write(0, &v, stream)
    }

    /// Calls `f(offset in the interpreter's order, whether a value, offset in the own buffer,
    /// size)` for every run of bytes that both orders keep together.
    fn for_each_value(&self, mut f: impl FnMut(usize, bool, usize, usize)) {
        for layer in &self.pages.layers {
            self.for_each_integer(layer, self.pages.ty.kernel.kv_bytes(), &mut f);
        }
    }

    /// [`KvPool::for_each_value`] of a layer as kv_fixed.cuh has it, integers of so many bytes.
    fn for_each_integer(
        &self,
        layer: &KvLayer,
        bytes: usize,
        f: &mut impl FnMut(usize, bool, usize, usize),
    ) {
        let KvLayer {
            shape, head_bytes, ..
        } = *layer;
        let ty = self.pages.ty;
        let starts = [layer.at, layer.values_at];
        let start = layer.at + layer.values_at;
        let (dim, group) = (shape.head_dim, ty.block_elems);
        let (page_bytes, plane) = (PAGE_TOKENS * head_bytes, PAGE_TOKENS * dim);
        for head in 0..layer.n_pages * shape.n_head_kv {
            let (page, head) = (head / shape.n_head_kv, head % shape.n_head_kv);
            for (part, is_value) in [false, true].into_iter().enumerate().take(shape.stored()) {
                let own = starts[part] + (page * shape.n_head_kv + head) * page_bytes;
                let side = page * shape.stored() + part;
                let canonical = start + (side * shape.n_head_kv + head) * page_bytes;
                for (token, d) in (0..PAGE_TOKENS).flat_map(|t| (0..dim).map(move |d| (t, d))) {
                    let block = d / group;
                    let row = canonical + token * head_bytes + block * ty.block_bytes;
                    if d % group == 0 {
                        let scale = bytes * plane + (block * PAGE_TOKENS + token) * 2;
                        f(row, is_value, own + scale, 2);
                    }
                    let place = token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
                    let at = match is_value {
                        true => (token / 16 * dim + d) * 16 + place,
                        false => (d / 16 * PAGE_TOKENS + token) * 16 + d % 16,
                    };
                    let integer = row + 2 + d % group * bytes;
                    for byte in 0..bytes {
                        // The upper one first.
                        let own = own + (bytes - 1 - byte) * plane + at;
                        f(integer + byte, is_value, own, 1);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::driver::info::DeviceInfo;
    use crate::backend::GpuOptions;
    use crate::plan::KvShape;
    use crate::quant;

    fn pool(name: &str, head_dim: usize) -> Result<KvPool> {
        let card = Context::described(DeviceInfo::of_arch("sm_90", 132)?);
        // Every layer may be another.
        let mut shapes = [(3, head_dim), (1, 96), (1, head_dim), (2, head_dim)]
            .map(|(n_head_kv, head_dim)| KvShape::new(n_head_kv, head_dim));
        shapes[2].values_in_keys = Some(head_dim / 2);
        let options = RunnerOptions {
            n_slots: 1,
            n_ctx: 100,
            n_pages: 4,
            windows: None,
            kv_type: quant::kv_by_name(name)?,
            threads: 1,
            gpu: GpuOptions::default(),
        };
        let plan = Plan {
            kv: shapes.to_vec(),
            ..Plan::default()
        };
        KvPool::new(&card, &Stream::new(&card)?, &plan, &options)
    }

    #[test]
    fn every_byte_has_one_place_in_either_order() {
        for ty in quant::kv_types().filter(|t| t.sums_kv_exactly()) {
            for head_dim in [16, 32, 64, 80, 96, 128, 144] {
                let pool = pool(ty.name, head_dim).unwrap();
                let bytes = pool.bytes();
                let (mut canonical, mut own) = (vec![0; bytes], vec![0; bytes]);
                pool.for_each_value(|to, is_value, from, size| {
                    canonical[to..to + size].iter_mut().for_each(|n| *n += 1);
                    let from = from + if is_value { pool.k.bytes() } else { 0 };
                    own[from..from + size].iter_mut().for_each(|n| *n += 1);
                });
                assert!(canonical.iter().chain(&own).all(|n| *n == 1), "{ty:?}");
            }
        }
    }
}
