//! One kernel launch as data.

use super::source::{Shared, Variant};
use super::stamps;

/// The kind of work of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Attends to cached keys and values: how much it reads depends on the lengths of sequences.
    Attention,
    /// Anything whose work its launch decides alone.
    Other,
}

/// What to launch: a kernel by the variant that it is compiled from, its grid and its one parameter
/// struct. Needs no compiler and no card yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub variant: Variant,
    /// The kernel's name in the source.
    pub entry: &'static str,
    pub kind: Kind,
    /// For people: kernel and what it works on.
    pub label: String,
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: u32,
    /// Blocks side by side in x that are in flight together; 1 without clusters.
    pub cluster: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The parameter struct, in whole words so that it is aligned.
    params: Vec<u64>,
    pub traffic: Traffic,
}

/// Bytes that a launch has to move between memory and the card, and what it computes of products and of
/// attention, for reports of how near it comes to what the card can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Of weights.
    pub weights: u64,
    /// Of rows, read and written.
    pub rows: u64,
    /// Of the cache, for each token that a sequence has.
    pub per_token: u64,
    /// Operations, two each of a multiplication and its addition.
    pub operations: u64,
    /// The same for each token that a row attends to.
    pub per_pair: u64,
    /// Most tokens that a row attends to.
    pub window: Option<usize>,
}

/// What the rows of a pass attend to: of each sequence so many, the first of them at this position.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    pub sequences: usize,
    pub rows: usize,
    pub position: usize,
}

impl Reach {
    /// Tokens of the cache that some row attends to.
    fn tokens(&self, window: Option<usize>) -> u64 {
        let all = self.position + self.rows;
        let seen = window.map_or(all, |most| all.min(most + self.rows - 1));
        (self.sequences * seen) as u64
    }

    /// Pairs of a row and a token that it attends to.
    fn pairs(&self, window: Option<usize>) -> u64 {
        let of_row =
            |row: usize| (self.position + row + 1).min(window.unwrap_or(usize::MAX)) as u64;
        self.sequences as u64 * (0..self.rows).map(of_row).sum::<u64>()
    }
}

impl Traffic {
    /// Of rows alone.
    pub fn rows(bytes: usize) -> Self {
        Self {
            rows: bytes as u64,
            ..Self::default()
        }
    }

    /// All bytes.
    pub fn bytes(&self, reach: &Reach) -> u64 {
        self.weights + self.rows + self.per_token * reach.tokens(self.window)
    }

    /// All operations.
    pub fn operations(&self, reach: &Reach) -> u64 {
        self.operations + self.per_pair * reach.pairs(self.window)
    }
}

impl Spec {
    /// A launch of `entry` with the parameter struct `params`.
    pub fn new<P: Shared>(
        variant: impl Into<Variant>,
        entry: &'static str,
        grid: [u32; 3],
        block: u32,
        params: &P,
    ) -> Self {
        let variant = variant.into();
        debug_assert!(
            variant.source.layouts.contains(&P::LAYOUT),
            "{} does not check {}",
            variant.source.name,
            P::LAYOUT.name
        );
        let bytes = bytemuck::bytes_of(params);
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        let label = entry.to_owned();
        Self {
            variant,
            entry,
            kind: Kind::Other,
            label,
            grid,
            block,
            cluster: 1,
            shared: 0,
            params: words,
            traffic: Traffic::default(),
        }
    }

    /// Whether a launch behind `before` others of a pass may read before its wait what the first of them
    /// wrote, and what was there before the pass. Every kernel lets its successor start only behind its own
    /// wait, so all but the preceding one have ended, and the first is no programmatic dependent launch.
    pub fn reads_before_wait(before: usize) -> bool {
        before >= 2
    }

    /// The same with stamps, which its blocks write to `address`: [`stamps::WORDS`] each.
    pub fn stamped(mut self, address: u64) -> Self {
        self.variant.stamps = true;
        self.params.push(address);
        self
    }

    /// Bytes that the stamps of its blocks take.
    pub fn stamp_bytes(&self) -> usize {
        let blocks = self.grid.iter().map(|n| *n as usize).product::<usize>();
        blocks * stamps::WORDS * size_of::<u64>()
    }

    /// The parameter struct, in whole words.
    pub(super) fn words(&self) -> &[u64] {
        &self.params
    }

    /// The parameter struct, where it is of type `P`.
    pub fn params<P: Shared>(&self) -> Option<P> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.params);
        let fits = size_of::<P>().div_ceil(8) == self.params.len();
        fits.then(|| bytemuck::pod_read_unaligned(&bytes[..size_of::<P>()]))
    }
}
