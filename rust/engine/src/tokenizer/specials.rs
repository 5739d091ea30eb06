//! Special tokens in text: which lie where, before anything is merged.
//!
//! Found leftmost first, then longest. The longest one that starts at a place is what an automaton
//! over the *reversed* texts (Aho and Corasick 1975) says there when it walks the text backwards:
//! every special token whose start is here has just been read to its end, and the longest of them
//! is one look-up. So time is linear in the text, however the tokens nest. (Walking forwards, the
//! search starts over behind every match, which costs a token's length for every byte of text.)
//!
//! The automaton takes [`NODE_BYTES`] for each byte of special tokens, in tables that hold no more
//! than that; how much of it a file may ask for is bounded before it is built.
use std::cmp::Reverse;
use std::ops::{ControlFlow, Range};

use super::meter::Meter;
use crate::error::{Error, Result};

/// A special token that is found in text before any merge.
#[derive(Debug, Clone, Copy)]
pub(super) struct Special {
    pub id: u32,
    /// Found only in text that is trusted to spell control tokens.
    pub control: bool,
    /// Takes the white space behind it along.
    pub rstrip: bool,
    /// Bytes of its text.
    pub len: u32,
}

/// A stretch of the text.
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

/// Where every walk starts.
const ROOT: u32 = 0;
/// No special token.
const NONE: u32 = u32::MAX;
/// What one node of the automaton takes: a byte, and four indices.
const NODE_BYTES: usize = 1 + 4 * size_of::<u32>();
/// Most bytes of special tokens: fifteen times those of the vocabularies that have most (6,400 tokens
/// in Gemma 3, of 60 kB). The automaton takes 17 MiB then, which stays inside the 64 MiB that a file
/// may cost beside its length.
const MAX_BYTES: usize = 1 << 20;
/// Starts looked at in one walk. What a walk reads beyond is a token's length (4 KiB) at most.
const WINDOW: usize = 1 << 16;

/// The automaton over the reversed texts. Nodes lie level by level, so that the children of one are
/// neighbours, sorted by their byte.
#[derive(Debug, Clone, Default)]
pub(super) struct Finder {
    specials: Vec<Special>,
    /// Of the longest special token.
    longest: usize,
    /// The byte that leads to a node.
    bytes: Vec<u8>,
    /// Where the children of a node start; those of the next node are behind them.
    children: Vec<u32>,
    /// The node of the longest proper suffix that is in the trie.
    fails: Vec<u32>,
    /// The longest special token that a node's path ends with.
    hits: Vec<u32>,
    /// The longest of those that are not control tokens.
    plain_hits: Vec<u32>,
}

/// Which special tokens a walk looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    Plain,
}

/// A special token at a place of the text.
#[derive(Debug, Clone, Copy)]
struct Match {
    start: usize,
    special: Special,
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(NONE)
}

/// The byte of a reversed text at `depth`.
fn byte_at(text: &str, depth: u32) -> Option<u8> {
    let at = text.len().checked_sub(depth as usize)?.checked_sub(1)?;
    text.as_bytes().get(at).copied()
}

impl Finder {
    /// Builds the automaton of these special tokens; `text` gives that of an id, no two the same.
    ///
    /// # Errors
    /// [`Error::Memory`] where they are more text than any vocabulary has, before anything is taken.
    pub fn new<'a>(text: &dyn Fn(u32) -> &'a str, mut specials: Vec<Special>) -> Result<Self> {
        let total = specials
            .iter()
            .fold(0, |sum: usize, s| sum.saturating_add(s.len as usize));
        if total > MAX_BYTES {
            let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
            return Err(Error::Memory {
                need: format!(
                    "{} special tokens of {:.1} MiB of text need an index of {:.1} MiB, but the \
                     limit is {:.1} MiB",
                    specials.len(),
                    mib(total),
                    mib(total.saturating_mul(NODE_BYTES)),
                    mib(MAX_BYTES.saturating_mul(NODE_BYTES)),
                ),
                remedy: "no model has this many: the vocabulary is damaged; convert the model \
                         again \
                         with its ordinary tokens as normal ones (tokenizer.ggml.token_type 1)"
                    .into(),
            });
        }
        specials.sort_unstable_by(|a, b| text(a.id).bytes().rev().cmp(text(b.id).bytes().rev()));
        let mut finder = Finder {
            longest: specials.iter().map(|s| s.len as usize).max().unwrap_or(0),
            specials,
            ..Finder::default()
        };
        if !finder.specials.is_empty() {
            finder.build(text);
        }
        Ok(finder)
    }

    /// Whether one of them takes the white space behind it along.
    pub fn strips(&self) -> bool {
        self.specials.iter().any(|special| special.rstrip)
    }

    /// Lays the trie of the sorted texts level by level, links included: what a node's links lead
    /// to is nearer to the root, and so is there already.
    fn build<'a>(&mut self, text: &dyn Fn(u32) -> &'a str) {
        self.push(0, ROOT, None);
        // The nodes of a level with the range of texts that go through them.
        let mut level = vec![(ROOT, 0..index(self.specials.len()))];
        let mut depth: u32 = 0;
        while !level.is_empty() {
            let mut next = Vec::new();
            for (node, texts) in level {
                self.children.push(index(self.bytes.len()));
                let mut at = texts.start;
                while at < texts.end {
                    let byte = |at: u32| byte_at(text(self.special(at)?.id), depth);
                    let Some(first) = byte(at) else {
                        // The text that ends here; sorted, it is the first.
                        at = at.saturating_add(1);
                        continue;
                    };
                    let same = (at..texts.end).take_while(|i| byte(*i) == Some(first));
                    let end = at.saturating_add(index(same.count()));
                    let fail = match node {
                        ROOT => ROOT,
                        _ => self.step(self.fail(node), first, &mut 0),
                    };
                    let whole = self
                        .special(at)
                        .filter(|s| s.len == depth.saturating_add(1));
                    next.push((index(self.bytes.len()), at..end));
                    self.push(first, fail, whole.map(|s| (at, s)));
                    at = end;
                }
            }
            level = next;
            depth = depth.saturating_add(1);
        }
        self.children.push(index(self.bytes.len()));
    }

    /// Appends a node; `whole` is the special token that its path spells.
    fn push(&mut self, byte: u8, fail: u32, whole: Option<(u32, Special)>) {
        let plain = whole.filter(|(_, special)| !special.control);
        let behind = |hits: &[u32]| hits.get(fail as usize).copied().unwrap_or(NONE);
        let hit = whole.map_or_else(|| behind(&self.hits), |(at, _)| at);
        let plain_hit = plain.map_or_else(|| behind(&self.plain_hits), |(at, _)| at);
        self.bytes.push(byte);
        self.fails.push(fail);
        self.hits.push(hit);
        self.plain_hits.push(plain_hit);
    }

    fn special(&self, at: u32) -> Option<Special> {
        self.specials.get(at as usize).copied()
    }

    fn fail(&self, node: u32) -> u32 {
        self.fails.get(node as usize).copied().unwrap_or(ROOT)
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let start = *self.children.get(node as usize)? as usize;
        let end = *self.children.get((node as usize).checked_add(1)?)? as usize;
        let at = self.bytes.get(start..end)?.binary_search(&byte).ok()?;
        Some(index(start.checked_add(at)?))
    }

    /// The node after one more byte. `steps` counts the nodes looked at.
    fn step(&self, mut node: u32, byte: u8, steps: &mut usize) -> u32 {
        loop {
            *steps = steps.saturating_add(1);
            match self.child(node, byte) {
                Some(child) => return child,
                None if node == ROOT => return ROOT,
                None => node = self.fail(node),
            }
        }
    }

    /// Appends the longest match at every start in `starts`, last start first. None ends behind
    /// `end`. Returns the nodes looked at.
    fn walk(
        &self,
        text: &[u8],
        starts: Range<usize>,
        end: usize,
        which: Which,
        found: &mut Vec<Match>,
    ) -> usize {
        let hits = match which {
            Which::All => &self.hits,
            Which::Plain => &self.plain_hits,
        };
        let end = end
            .min(starts.end.saturating_add(self.longest))
            .min(text.len());
        let seen = text.get(starts.start..end).unwrap_or(&[]);
        let (mut node, mut steps) = (ROOT, 0);
        for (start, byte) in (starts.start..end).zip(seen).rev() {
            node = self.step(node, *byte, &mut steps);
            let hit = hits.get(node as usize).copied().unwrap_or(NONE);
            if let Some(special) = self.special(hit).filter(|_| start < starts.end) {
                found.push(Match { start, special });
            }
        }
        steps
    }

    /// The text as fragments, in order. A control token is found only where it lies wholly in one of
    /// the `trusted` ranges, which are in order and apart; a special token that is not control, in
    /// the whole text. What is not trusted hides nothing: of the tokens that start at one place, the
    /// longest that may be there is found.
    ///
    /// Breaks where `visit` or the meter does.
    pub fn split<'a>(
        &self,
        text: &'a str,
        trusted: &[Range<usize>],
        meter: &mut Meter,
        visit: &mut dyn FnMut(Fragment<'a>, &mut Meter) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut found = Vec::new();
        // Up to here the text is visited.
        let mut done = 0;
        let mut window = 0;
        while window < text.len() && !self.specials.is_empty() {
            let end = window.saturating_add(WINDOW).min(text.len());
            self.matches(text.as_bytes(), window..end, trusted, meter, &mut found)?;
            for Match { start, special } in found.drain(..) {
                if start < done {
                    continue;
                }
                if let Some(raw) = text.get(done..start).filter(|raw| !raw.is_empty()) {
                    visit(Fragment::Text(raw), meter)?;
                }
                visit(Fragment::Token(special.id), meter)?;
                done = start.saturating_add(special.len as usize);
                if special.rstrip {
                    let rest = text.get(done..).unwrap_or("");
                    let space = rest.len().saturating_sub(rest.trim_ascii_start().len());
                    done = done.saturating_add(space);
                }
            }
            window = end;
        }
        match text.get(done..).filter(|raw| !raw.is_empty()) {
            Some(raw) => visit(Fragment::Text(raw), meter),
            None => ControlFlow::Continue(()),
        }
    }

    /// The longest match that may be at every start of a window, in order.
    fn matches(
        &self,
        text: &[u8],
        window: Range<usize>,
        trusted: &[Range<usize>],
        meter: &mut Meter,
        found: &mut Vec<Match>,
    ) -> ControlFlow<()> {
        let whole = |range: &Range<usize>| {
            let seen = window.end.saturating_add(self.longest).min(text.len());
            range.start <= window.start && range.end >= seen
        };
        let first = trusted.partition_point(|range| range.end <= window.start);
        let inside = trusted.get(first..).unwrap_or(&[]);
        // A walk of its own for what is not control, unless one walk sees all of it as trusted.
        if !inside.first().is_some_and(whole) {
            meter.spend(self.walk(text, window.clone(), text.len(), Which::Plain, found))?;
        }
        for range in inside.iter().take_while(|range| range.start < window.end) {
            let starts = range.start.max(window.start)..range.end.min(window.end);
            meter.spend(self.walk(text, starts, range.end, Which::All, found))?;
        }
        // At one start both walks may have found one: the longer comes first.
        found.sort_unstable_by_key(|m| (m.start, Reverse(m.special.len)));
        ControlFlow::Continue(())
    }
}
