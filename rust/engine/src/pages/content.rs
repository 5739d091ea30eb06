//! What a sequence has in its pages, copied out and back.

use super::format::Content;
use super::Sequence;
use crate::backend::{pages_of, Backend, Kind, PAGE_TOKENS};
use crate::error::{Error, Result};

/// The error of a backend whose pages and states stay where they are.
pub(super) fn nothing_to_copy() -> Error {
    Error::Internal("this backend copies no pages".into())
}

impl Sequence {
    /// Copies out what the sequence has of `tokens`, which are what it has read.
    ///
    /// # Errors
    /// [`Error::Memory`], and what the backend says.
    pub fn save(&self, backend: &mut dyn Backend, tokens: &[u32]) -> Result<Content> {
        let saturated = self.saturated || backend.saturated(self.slot);
        let n_pages = pages_of(tokens.len()).min(self.pages.len());
        let storage = backend.storage().ok_or_else(nothing_to_copy)?;
        let (page, state) = (storage.page_bytes(Kind::Whole), storage.state_bytes());
        let room = |n: usize| {
            let mut bytes = Vec::new();
            let reserved = bytes.try_reserve_exact(n);
            let no_room = |_| Error::no_room("the keys and values of a prefix", n);
            reserved.map_err(no_room)?;
            bytes.resize(n, 0u8);
            Ok::<_, Error>(bytes)
        };
        let mut pages = room(n_pages.saturating_mul(page))?;
        for (number, to) in self.pages.iter().zip(pages.chunks_exact_mut(page.max(1))) {
            storage.read_page(Kind::Whole, *number, to)?;
        }
        let windows = self.window_at(tokens.len());
        let window = storage.page_bytes(Kind::Windowed);
        let mut bytes = room(windows.len().saturating_mul(window))?;
        for (number, to) in windows.iter().zip(bytes.chunks_exact_mut(window.max(1))) {
            storage.read_page(Kind::Windowed, *number, to)?;
        }
        let mut content = Content {
            saturated,
            tokens: tokens.to_vec(),
            pages,
            windows: bytes,
            ..Content::default()
        };
        if state > 0 {
            let end = tokens.len();
            let mut states = room(state)?;
            storage.read_state(self.slot, &mut states)?;
            content.state_ends.push(end as u32);
            // Who goes on from a text may find its last tokens to be others.
            let page_end = end.saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
            let free = self.pool.free.borrow();
            let own = self.states.iter().find(|(at, _)| *at == page_end);
            let own = own.map(|(_, state)| state.bytes());
            if let Some(state) =
                own.or_else(|| free.prefixes.state_of(self.salt(), &tokens[..page_end]))
            {
                content.state_ends.push(page_end as u32);
                states.extend_from_slice(state);
            }
            content.states = states;
        }
        Ok(content)
    }

    /// The reverse of [`Sequence::save`], for a sequence that has room for the tokens; what is kept of
    /// them already is not written again.
    ///
    /// # Errors
    /// What the backend says.
    pub fn load(&mut self, backend: &mut dyn Backend, content: &Content) -> Result<()> {
        let storage = backend.storage().ok_or_else(nothing_to_copy)?;
        let size = storage.page_bytes(Kind::Whole).max(1);
        let pages = self.pages.iter().zip(content.pages.chunks_exact(size));
        for (number, bytes) in pages.skip(self.shared.len()) {
            storage.write_page(Kind::Whole, *number, bytes)?;
        }
        let size = storage.page_bytes(Kind::Windowed).max(1);
        let windows: Vec<&[u8]> = content.windows.chunks_exact(size).collect();
        self.load_window(backend, content.tokens.len(), &windows)?;
        let storage = backend.storage().ok_or_else(nothing_to_copy)?;
        self.saturated |= content.saturated;
        self.position = content.tokens.len();
        let states = content.states.chunks_exact(storage.state_bytes().max(1));
        for (end, state) in content.state_ends.iter().zip(states) {
            let tokens = content.tokens.get(..*end as usize).unwrap_or_default();
            if let Some(storage) = backend.storage() {
                storage.write_state(self.slot, state)?;
            }
            self.keep_state(backend, tokens)?;
        }
        Ok(())
    }
}
