//! Work counted, so that a long text can be left in the middle.
use std::ops::ControlFlow;

/// Units of work between two looks at whether to go on: some milliseconds.
const PERIOD: usize = 1 << 16;

/// Counts units of work (a byte, a node, a merge: what takes a constant time each) and asks its
/// owner now and then whether to go on.
pub(super) struct Meter<'a> {
    go_on: &'a mut dyn FnMut() -> bool,
    left: usize,
}

impl<'a> Meter<'a> {
    pub fn new(go_on: &'a mut dyn FnMut() -> bool) -> Self {
        Self {
            go_on,
            left: PERIOD,
        }
    }

    /// Notes work that was done; breaks where the owner says so.
    pub fn spend(&mut self, units: usize) -> ControlFlow<()> {
        let mut units = units;
        while let Some(more) = units.checked_sub(self.left) {
            self.left = PERIOD;
            units = more;
            if !(self.go_on)() {
                self.left = 0;
                return ControlFlow::Break(());
            }
        }
        self.left = self.left.saturating_sub(units);
        ControlFlow::Continue(())
    }
}
