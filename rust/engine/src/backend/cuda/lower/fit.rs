//! The search for the shape of a product's kernel.

/// A shape of a kernel: how warps and tiles of a block are arranged.
pub trait Shape: Copy {
    /// The same with so many tiles between two barriers, and so many in flight.
    fn with(self, round: usize, ring: usize) -> Self;

    /// Dynamic shared memory of a block, as the kernel lays it out.
    fn shared_bytes(&self) -> usize;
}

/// Of `shapes` the first that fits `room` bytes of a block, with as few barriers as it can have, up to
/// `most_round` tiles between two; then with as many tiles in flight, up to `most_ring`.
pub fn fit<S: Shape>(
    shapes: impl IntoIterator<Item = S>,
    most_round: impl Fn(&S) -> usize,
    most_ring: usize,
    room: impl Fn(&S) -> usize,
) -> Option<S> {
    shapes.into_iter().find_map(|shape| {
        let rounds = (1..=most_round(&shape)).rev();
        let mut all = rounds.flat_map(|round| {
            let rings = (2..=most_ring).rev();
            rings.map(move |ring| shape.with(round, ring))
        });
        all.find(|s| s.shared_bytes() <= room(s))
    })
}
