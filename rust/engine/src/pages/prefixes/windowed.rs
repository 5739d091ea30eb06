//! What the tree keeps of layers that see a window.

use super::{Found, Node, Place, Prefixes, Source, Windowed};
use crate::backend::{Kind, Storage, Windows, PAGE_TOKENS};
use crate::checksum::Sum;
use crate::error::Result;

/// Where a sequence is likely to go on though none has ended there: whenever so many pages are behind
/// it.
const CHECKPOINT_PAGES: usize = 32;

impl Prefixes {
    /// Leaves of what was found the part up to the last token whose window is kept.
    pub(super) fn cut_to_window(&self, found: &mut Found, windows: &Windows) {
        // By page how many up to there have their windows.
        let mut kept = 0;
        let kept_until = |source: &Source| {
            kept = if self.has_windowed(*source) {
                kept + 1
            } else {
                0
            };
            kept
        };
        let kept: Vec<usize> = found.whole.iter().map(kept_until).collect();
        let serves = |whole: usize, tokens: usize| {
            let seen = whole.saturating_sub(windows.first_seen(whole * PAGE_TOKENS + tokens));
            whole == 0 || kept[whole - 1] >= seen
        };
        found.part = found.part.filter(|(id, tokens)| {
            let node = self.node(*id);
            node.is_some_and(|n| n.windowed.is_some()) && serves(found.whole.len(), *tokens)
        });
        while found.part.is_none() && !serves(found.whole.len(), 0) {
            found.whole.pop();
        }
    }

    /// Whether a whole page is kept in layers that see a window too.
    fn has_windowed(&self, source: Source) -> bool {
        let stored = |key: &Sum| {
            let store = self.store.as_ref();
            store.is_some_and(|store| store.has_page(Kind::Windowed, key))
        };
        match source {
            Source::Stored(key) => stored(&key),
            Source::Node(id) => {
                let has = |n: &Node| n.windowed.is_some() || stored(&n.key);
                self.node(id).is_some_and(has)
            }
        }
    }

    /// Frees what a node had in layers that see a window.
    pub(super) fn drop_windowed(&mut self, windowed: Option<Windowed>) {
        match windowed.map(|its| its.place) {
            Some(Place::Device(page)) => self.free_windowed.push(page),
            Some(Place::Host(bytes)) => self.host.give(bytes),
            None => {}
        }
    }

    /// Keeps `page`, of layers that see a window, with a node that has `tokens` tokens and that a
    /// sequence reads where it `holds` it. Gives the page that the node has now: the one that it had
    /// serves as well, and the caller's is free then.
    pub fn keep_windowed(&mut self, id: usize, tokens: usize, page: u32, holds: bool) -> u32 {
        self.clock += 1;
        let used = self.clock;
        let stores = self.store.is_some() && tokens == PAGE_TOKENS;
        let node = self.nodes.get_mut(id).and_then(Option::as_mut);
        let Some(node) = node.filter(|n| n.tokens.len() == tokens) else {
            self.free_windowed.push(page);
            return page;
        };
        let kept = match node.windowed_page() {
            Some(theirs) => {
                self.free_windowed.push(page);
                theirs
            }
            None => page,
        };
        let users = node.windowed.as_ref().map_or(0, |its| its.users) + usize::from(holds);
        let place = Place::Device(kept);
        let before = node.windowed.replace(Windowed { place, users, used });
        if let Some(Place::Host(bytes)) = before.map(|its| its.place) {
            self.host.give(bytes);
        }
        if stores && kept == page {
            self.unstored.push_back(id);
        }
        kept
    }

    /// Says that a sequence reads a node's page of layers that see a window, where it is on the device;
    /// that one.
    pub fn hold_windowed(&mut self, id: usize) -> Option<u32> {
        self.clock += 1;
        let used = self.clock;
        let node = self.node_mut(id)?;
        let page = node.windowed_page()?;
        if let Some(its) = &mut node.windowed {
            its.users += 1;
            its.used = used;
        }
        Some(page)
    }

    /// Says that it does so no more.
    pub fn let_windowed_go(&mut self, id: usize) {
        self.clock += 1;
        let used = self.clock;
        if let Some(its) = self.node_mut(id).and_then(|n| n.windowed.as_mut()) {
            its.users = its.users.saturating_sub(1);
            its.used = used;
        }
    }

    /// A page of layers that see a window: one that is nobody's, or that of the node where a sequence is
    /// least likely to go on, of those that no sequence reads. Where one is likely to, it goes to the
    /// host's memory.
    ///
    /// # Errors
    /// What the backend says; then the page stays.
    pub fn windowed_page(&mut self, storage: Option<&mut dyn Storage>) -> Result<Option<u32>> {
        if let Some(page) = self.free_windowed.pop() {
            return Ok(Some(page));
        }
        let given = self.readable_windowed().min_by_key(|(id, its)| {
            let likely = self.is_resting(*id);
            (likely, its.used)
        });
        let Some((id, used)) = given.map(|(id, its)| (id, its.used)) else {
            return Ok(None);
        };
        if let Some(storage) = storage.filter(|_| self.is_resting(id)) {
            let page = self.node(id).and_then(Node::windowed_page).unwrap_or(0);
            let bytes = storage.page_bytes(Kind::Windowed);
            if let Some(mut piece) = self.piece(storage, bytes, used) {
                if let Err(e) = storage.read_page(Kind::Windowed, page, piece.bytes_mut()) {
                    self.host.give(piece);
                    return Err(e);
                }
                if let Some(its) = self.node_mut(id).and_then(|n| n.windowed.as_mut()) {
                    its.place = Place::Host(piece);
                }
                return Ok(Some(page));
            }
        }
        let its = self.node_mut(id).and_then(|node| node.windowed.take());
        self.drop_windowed(its);
        Ok(self.free_windowed.pop())
    }

    /// Pages of layers that see a window that [`Prefixes::windowed_page`] could take, by node.
    fn readable_windowed(&self) -> impl Iterator<Item = (usize, &Windowed)> {
        let nodes = self.nodes.iter().enumerate();
        let windowed = nodes.filter_map(|(id, node)| {
            let node = node.as_ref()?;
            node.windowed_page()
                .and(node.windowed.as_ref().map(|its| (id, its)))
        });
        windowed.filter(|(_, its)| its.users == 0)
    }

    /// How many there are.
    pub fn evictable_windowed(&self) -> usize {
        self.readable_windowed().count()
    }

    /// How many of them would go to the host's memory.
    pub(super) fn resting(&self) -> usize {
        let all = self.readable_windowed();
        all.filter(|(id, _)| self.is_resting(*id)).count()
    }

    /// Whether a node is in the window of a token where a sequence is likely to go on: in a page in which
    /// a text or its prompt has ended, behind what nothing or more than one text follows, and now and
    /// then on the way.
    pub(super) fn is_resting(&self, id: usize) -> bool {
        let (Some(windows), Some(node)) = (self.windows, self.node(id)) else {
            return false;
        };
        let mut at = node;
        while windows.first_page((at.depth + 1) * PAGE_TOKENS) <= node.depth {
            let next = match at.children[..] {
                [next] if !at.is_end && !(at.depth + 1).is_multiple_of(CHECKPOINT_PAGES) => {
                    self.node(next)
                }
                _ => return true,
            };
            match next {
                Some(next) => at = next,
                None => return true,
            }
        }
        false
    }
}
