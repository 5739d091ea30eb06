//! The search for the shape of a product's kernel.

/// Of `shapes` the first that fits a block's memory, with as few barriers as it can have, up to `most_round`
/// tiles between two; then with as many tiles in flight, up to `most_ring`. `with` gives a shape both.
pub fn fit<S: Copy>(
    shapes: impl IntoIterator<Item = S>,
    most_round: impl Fn(&S) -> usize,
    most_ring: usize,
    with: impl Fn(S, usize, usize) -> S,
    fits: impl Fn(&S) -> bool,
) -> Option<S> {
    shapes.into_iter().find_map(|shape| {
        let rounds = (1..=most_round(&shape)).rev();
        let both = rounds.flat_map(|round| (2..=most_ring).rev().map(move |ring| (round, ring)));
        both.map(|(round, ring)| with(shape, round, ring))
            .find(&fits)
    })
}
