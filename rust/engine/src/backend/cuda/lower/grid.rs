//! Grids of kernels that go element by element.

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Blocks that keep every card busy.
const MOST_BLOCKS: u64 = 1024;

/// Blocks for `n` elements.
pub fn grid(n: u64) -> [u32; 3] {
    let blocks = n.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS);
    [blocks as u32, 1, 1]
}
