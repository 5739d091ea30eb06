//! Pages that outlive their sequences, found by their tokens: a radix tree whose edges are pages of
//! tokens. Prefixes are compared token by token, so no hash can confuse two of them.
//!
//! A page is on the device, or evicted to host memory; the pages before a page on the device are there
//! too. If layers keep a state, some tokens of a page have a snapshot of it, always in host memory: a
//! sequence can continue only from such a token.
//!
//! A prefix cached under a salt is found only under the same salt: it is part of the first page's name,
//! and so of the names of all pages after it, in the tree and in a store.
//!
//! Sliding-window layers have pages of their own, which a node has or lacks: a sequence can continue
//! where all pages of a window are there. Such pages are evicted before others at places where no
//! sequence is likely to continue; they stay where a sequence or its prompt ended, where texts diverge,
//! and at intervals in between.

mod windowed;

use std::collections::{HashMap, VecDeque};

use sha2::{Digest, Sha256};

use super::host::{Bytes, Host};
use super::store::Store;
use super::Salt;
use crate::backend::{Kind, Storage, Windows, PAGE_TOKENS};
use crate::checksum::Sum;
use crate::error::Result;

/// The state behind a token of a page.
#[derive(Debug)]
struct Snapshot {
    /// Tokens of the page that it has read.
    tokens: usize,
    state: Bytes,
    used: u64,
}

/// Where a node's keys and values are.
#[derive(Debug)]
enum Place {
    Device(u32),
    Host(Bytes),
}

/// A node's keys and values in layers that see a window.
#[derive(Debug)]
struct Windowed {
    place: Place,
    /// Sequences whose window it is in: they read the node too.
    users: usize,
    used: u64,
}

/// Pieces of the host's memory that are ready for states: a prompt leaves two.
const STATES_AHEAD: usize = 4;

/// What a page stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// Nothing: it is the first of those that are found under this salt.
    Root(Salt),
    Node(usize),
}

impl Behind {
    /// Behind the last of several nodes, or none of them.
    pub fn last(salt: Salt, nodes: &[usize]) -> Self {
        nodes.last().map_or(Self::Root(salt), |id| Self::Node(*id))
    }

    fn node(self) -> Option<usize> {
        match self {
            Self::Root(_) => None,
            Self::Node(id) => Some(id),
        }
    }
}

/// A page in the tree.
#[derive(Debug)]
struct Node {
    parent: Behind,
    /// Pages before it.
    depth: usize,
    /// A whole page, or less: then nothing follows it, and nobody reads it but to copy it.
    tokens: Box<[u32]>,
    place: Place,
    /// Of the first tokens of the page, as many as it has.
    windowed: Option<Windowed>,
    /// Sequences that read it. Who reads a page reads those before it too.
    users: usize,
    children: Vec<usize>,
    /// When it was last used, by [`Prefixes::clock`].
    used: u64,
    /// Whether a key or value in it was beyond what the cache's type holds.
    saturated: bool,
    /// Whether a text or its prompt has ended in it: another one may go on from there.
    is_end: bool,
    snapshots: Vec<Snapshot>,
    /// What its tokens and all before them are called in a [`Store`].
    key: Sum,
}

impl Node {
    fn page(&self) -> Option<u32> {
        match self.place {
            Place::Device(page) => Some(page),
            Place::Host(_) => None,
        }
    }

    fn place(&self, kind: Kind) -> Option<&Place> {
        match kind {
            Kind::Whole => Some(&self.place),
            Kind::Windowed => self.windowed.as_ref().map(|its| &its.place),
        }
    }

    fn windowed_page(&self) -> Option<u32> {
        match self.windowed.as_ref()?.place {
            Place::Device(page) => Some(page),
            Place::Host(_) => None,
        }
    }

    fn snapshot(&self, tokens: usize) -> Option<&Snapshot> {
        self.snapshots.iter().find(|s| s.tokens == tokens)
    }
}

/// A page of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Node(usize),
    /// In the store alone.
    Stored(Sum),
}

/// What of a prompt is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Whole pages, the first page first.
    pub whole: Vec<Source>,
    /// A node whose first tokens go on from there, and how many: fewer than a page, or more than
    /// are wanted of it, so that they have to be copied.
    pub part: Option<(usize, usize)>,
}

impl Found {
    /// Tokens that need not be computed.
    pub fn tokens(&self) -> usize {
        self.whole.len() * PAGE_TOKENS + self.part.map_or(0, |(_, tokens)| tokens)
    }
}

/// What became of a page that was offered.
#[derive(Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is the page of this node now.
    New(usize),
    /// The same tokens were there: the page is the caller's still.
    Known(usize),
    /// It took the place of a page with fewer of these tokens, which is free.
    Instead { node: usize, free: u32 },
}

impl Kept {
    /// The node that has the tokens.
    pub fn node(&self) -> usize {
        match self {
            Kept::New(node) | Kept::Known(node) | Kept::Instead { node, .. } => *node,
        }
    }
}

/// What a page of `tokens` behind `parent` is called.
pub fn key(parent: &Sum, tokens: &[u32]) -> Sum {
    let mut sum = Sha256::new();
    sum.update(parent);
    tokens.iter().for_each(|t| sum.update(t.to_le_bytes()));
    sum.finalize().into()
}

/// The tree, and the memory of the host for what is not on the device.
#[derive(Debug, Default)]
pub struct Prefixes {
    nodes: Vec<Option<Node>>,
    /// Numbers that no node has.
    free: Vec<usize>,
    /// By salt: nothing leads from one's tokens to another's.
    roots: HashMap<Salt, Vec<usize>>,
    clock: u64,
    pub host: Host,
    /// Where pages survive the process.
    pub store: Option<Store>,
    /// Nodes that may be new to the store.
    unstored: VecDeque<usize>,
    /// Whether sequences have states, so that pages serve with a snapshot alone.
    pub stateful: bool,
    /// Where layers see a window: pages serve with those of a window alone.
    pub windows: Option<Windows>,
    /// Of their pages those that are nobody's.
    pub free_windowed: Vec<u32>,
}

/// What is in the host's memory and may be evicted.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Given {
    Windowed,
    /// Behind so many tokens.
    State(usize),
    Page,
}

impl Prefixes {
    /// Nothing kept, and all pages of layers that see a window free.
    pub fn new(windows: Option<Windows>) -> Self {
        let n_pages = windows.map_or(0, |windows| windows.n_pages);
        Self {
            windows,
            free_windowed: (1..n_pages as u32).rev().collect(),
            ..Self::default()
        }
    }

    fn node(&self, id: usize) -> Option<&Node> {
        self.nodes.get(id).and_then(Option::as_ref)
    }

    fn node_mut(&mut self, id: usize) -> Option<&mut Node> {
        self.nodes.get_mut(id).and_then(Option::as_mut)
    }

    fn children(&self, of: Behind) -> &[usize] {
        match of {
            Behind::Root(salt) => self.roots.get(&salt).map_or(&[], Vec::as_slice),
            Behind::Node(id) => self.node(id).map_or(&[], |n| &n.children),
        }
    }

    /// The child that has the most of `tokens` at its front, and how many.
    fn best(&self, of: Behind, tokens: &[u32]) -> Option<(usize, usize)> {
        let common = |id: &usize| {
            let theirs = self.node(*id)?.tokens.iter();
            let n = theirs.zip(tokens).take_while(|(a, b)| a == b).count();
            Some((*id, n))
        };
        let all = self.children(of).iter().filter_map(common);
        all.max_by_key(|(_, n)| *n).filter(|(_, n)| *n > 0)
    }

    /// What a sequence without tokens is called.
    fn root(&self, salt: Salt) -> Sum {
        salt.root(self.store.as_ref().map_or([0; 32], Store::root))
    }

    /// What is kept of `tokens` under a salt, as far as a sequence could go on from it.
    pub fn find(&self, salt: Salt, tokens: &[u32]) -> Found {
        let mut found = Found::default();
        let mut rest = tokens;
        let (mut last, mut behind) = (Behind::Root(salt), self.root(salt));
        while let Some((id, n)) = self.best(last, rest) {
            if n < PAGE_TOKENS {
                found.part = Some((id, n));
                break;
            }
            found.whole.push(Source::Node(id));
            (last, rest) = (Behind::Node(id), &rest[n..]);
            behind = self.node(id).map_or(behind, |n| n.key);
        }
        if let Some(store) = &self.store {
            for page in rest.chunks_exact(PAGE_TOKENS) {
                behind = key(&behind, page);
                if !store.has_page(Kind::Whole, &behind) {
                    break;
                }
                found.whole.push(Source::Stored(behind));
                found.part = None;
            }
        }
        if self.stateful {
            self.cut(&mut found, salt, tokens);
        }
        if let Some(windows) = self.windows {
            self.cut_to_window(&mut found, &windows);
        }
        found
    }

    /// Whether the pages of all layers that see everything are not enough to go on.
    pub fn needs_more(&self) -> bool {
        self.stateful || self.windows.is_some()
    }

    /// Leaves of what was found of `tokens` the part up to the last token whose state is kept.
    fn cut(&self, found: &mut Found, salt: Salt, tokens: &[u32]) {
        found.part = None;
        loop {
            let parent = match found.whole.last() {
                None => Some(Behind::Root(salt)),
                Some(Source::Node(id)) => Some(Behind::Node(*id)),
                Some(Source::Stored(_)) => None,
            };
            let rest = &tokens[found.whole.len() * PAGE_TOKENS..];
            let children = parent.map_or(&[][..], |parent| self.children(parent));
            let parts = children.iter().filter_map(|id| {
                let node = self.node(*id)?;
                let same = node.tokens.iter().zip(rest).take_while(|(a, b)| a == b);
                let same = same.count();
                let ends = node.snapshots.iter().map(|s| s.tokens);
                Some((*id, ends.filter(|end| *end <= same).max()?))
            });
            found.part = parts.max_by_key(|(_, end)| *end);
            let Some(last) = found.whole.last() else {
                return;
            };
            if found.part.is_some() || self.state_at(*last).is_some() {
                return;
            }
            found.whole.pop();
        }
    }

    /// Where the state behind a whole page is.
    fn state_at(&self, source: Source) -> Option<Source> {
        let stored = |key: Sum| {
            let store = self.store.as_ref().filter(|store| store.has_state(&key));
            store.map(|_| Source::Stored(key))
        };
        match source {
            Source::Stored(key) => stored(key),
            Source::Node(id) => {
                let node = self.node(id)?;
                match node.snapshot(PAGE_TOKENS) {
                    Some(_) => Some(source),
                    None => stored(node.key),
                }
            }
        }
    }

    /// Gives `slot` the state behind what was found. Says whether it is there still.
    ///
    /// # Errors
    /// What the backend says.
    pub fn restore(
        &mut self,
        found: &Found,
        slot: usize,
        storage: &mut dyn Storage,
    ) -> Result<bool> {
        self.clock += 1;
        let used = self.clock;
        let (source, tokens) = match (found.part, found.whole.last()) {
            (Some((id, tokens)), _) => (Some(Source::Node(id)), tokens),
            (None, Some(last)) => (self.state_at(*last), PAGE_TOKENS),
            (None, None) => return Ok(true),
        };
        match source {
            Some(Source::Node(id)) => {
                let node = self.nodes.get_mut(id).and_then(Option::as_mut);
                let snapshots = node.map(|n| n.snapshots.iter_mut());
                let snapshot = snapshots.and_then(|mut all| all.find(|s| s.tokens == tokens));
                let Some(snapshot) = snapshot else {
                    return Ok(false);
                };
                snapshot.used = used;
                storage.write_state(slot, snapshot.state.bytes())?;
                Ok(true)
            }
            Some(Source::Stored(key)) => {
                let bytes = storage.state_bytes();
                let read = self.store.as_mut().and_then(|s| s.read_state(&key, bytes));
                let Some(state) = read else {
                    return Ok(false);
                };
                storage.write_state(slot, &state)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Copies a whole page of `tokens`, or the first tokens of one, to `page` of the `kind`. Says
    /// whether it was there still, and whether something in it is beyond what the cache's type holds.
    ///
    /// # Errors
    /// What the backend says.
    pub fn fetch(
        &mut self,
        kind: Kind,
        source: Source,
        tokens: &[u32],
        page: u32,
        storage: &mut dyn Storage,
    ) -> Result<Option<bool>> {
        self.clock += 1;
        let used = self.clock;
        let size = storage.page_bytes(kind);
        let key = match source {
            Source::Stored(key) => key,
            Source::Node(id) => {
                let Some(node) = self.node_mut(id).filter(|n| n.tokens.starts_with(tokens)) else {
                    return Ok(None);
                };
                node.used = used;
                match node.place(kind) {
                    Some(Place::Host(bytes)) => {
                        storage.write_page(kind, page, bytes.bytes())?;
                        return Ok(Some(node.saturated));
                    }
                    Some(Place::Device(from)) => {
                        let mut bytes = vec![0; size];
                        storage.read_page(kind, *from, &mut bytes)?;
                        storage.write_page(kind, page, &bytes)?;
                        return Ok(Some(node.saturated));
                    }
                    // Only whole pages are in the store.
                    None if tokens.len() < PAGE_TOKENS => return Ok(None),
                    None => node.key,
                }
            }
        };
        let store = self.store.as_mut();
        let read = store.and_then(|s| s.read_page(kind, &key, tokens, size));
        let Some((saturated, read)) = read else {
            return Ok(None);
        };
        storage.write_page(kind, page, &read)?;
        Ok(Some(saturated))
    }

    /// The page of a node that is on the device.
    pub fn page(&self, id: usize) -> Option<u32> {
        self.node(id).and_then(Node::page)
    }

    /// Whether something in a node's page is beyond what the cache's type holds.
    pub fn saturated(&self, id: usize) -> bool {
        self.node(id).is_some_and(|n| n.saturated)
    }

    /// Says that a text, or its prompt, has ended in a node.
    pub fn mark_end(&mut self, id: usize) {
        if let Some(node) = self.node_mut(id) {
            node.is_end = true;
        }
    }

    /// Says that a sequence reads these nodes: they stay.
    pub fn hold(&mut self, ids: &[usize]) {
        self.clock += 1;
        let used = self.clock;
        for id in ids {
            if let Some(node) = self.node_mut(*id) {
                node.users += 1;
                node.used = used;
            }
        }
    }

    /// Says that it does so no more.
    pub fn let_go(&mut self, ids: &[usize]) {
        self.clock += 1;
        let used = self.clock;
        for id in ids {
            if let Some(node) = self.node_mut(*id) {
                node.users = node.users.saturating_sub(1);
                node.used = used;
            }
        }
    }

    /// Keeps `page`, whose first entries hold `tokens`, at most a page of them, behind `parent`.
    pub fn keep(&mut self, parent: Behind, tokens: &[u32], page: u32, saturated: bool) -> Kept {
        self.clock += 1;
        let used = self.clock;
        let before = match parent {
            Behind::Root(salt) => self.root(salt),
            // A node that is read stays; without it, nothing finds what is behind it.
            Behind::Node(id) => self.node(id).map_or([0; 32], |n| n.key),
        };
        let key = key(&before, tokens);
        if let Some((id, n)) = self.best(parent, tokens) {
            if let Some(node) = self.nodes.get_mut(id).and_then(Option::as_mut) {
                if n == tokens.len() || n == node.tokens.len() {
                    node.used = used;
                    let known = n == tokens.len();
                    if known && (node.page().is_some() || n < node.tokens.len()) {
                        return Kept::Known(id);
                    }
                    // Of fewer tokens.
                    let mut windowed = None;
                    if !known {
                        (node.tokens, node.key) = (tokens.into(), key);
                        windowed = node.windowed.take();
                    }
                    node.saturated = saturated;
                    let whole = node.tokens.len() == PAGE_TOKENS;
                    let place = std::mem::replace(&mut node.place, Place::Device(page));
                    if whole && self.store.is_some() {
                        self.unstored.push_back(id);
                    }
                    self.drop_windowed(windowed);
                    return match place {
                        Place::Device(free) => Kept::Instead { node: id, free },
                        Place::Host(bytes) => {
                            self.host.give(bytes);
                            Kept::New(id)
                        }
                    };
                }
            }
        }
        let before = parent.node().and_then(|id| self.node(id));
        let node = Node {
            parent,
            depth: before.map_or(0, |n| n.depth + 1),
            tokens: tokens.into(),
            place: Place::Device(page),
            windowed: None,
            users: 0,
            children: Vec::new(),
            used,
            saturated,
            is_end: false,
            snapshots: Vec::new(),
            key,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        if let Some(siblings) = self.siblings(parent) {
            siblings.push(id);
        }
        if tokens.len() == PAGE_TOKENS && self.store.is_some() {
            self.unstored.push_back(id);
        }
        Kept::New(id)
    }

    /// Gives a node the state behind the first `tokens` of its page.
    pub fn remember(&mut self, id: usize, tokens: usize, state: Bytes) {
        self.clock += 1;
        let used = self.clock;
        let snapshot = Snapshot {
            tokens,
            state,
            used,
        };
        match self.nodes.get_mut(id).and_then(Option::as_mut) {
            Some(node) if node.snapshot(tokens).is_none() => {
                node.snapshots.push(snapshot);
                if tokens == PAGE_TOKENS && self.store.is_some() {
                    self.unstored.push_back(id);
                }
            }
            _ => self.host.give(snapshot.state),
        }
    }

    /// The state behind `tokens` under a salt, where it is in memory.
    pub fn state_of(&self, salt: Salt, tokens: &[u32]) -> Option<&[u8]> {
        let (mut last, mut rest) = (Behind::Root(salt), tokens);
        while let Some((id, n)) = self.best(last, rest) {
            if n == rest.len() {
                return Some(self.node(id)?.snapshot(n)?.state.bytes());
            }
            if n < PAGE_TOKENS {
                return None;
            }
            (last, rest) = (Behind::Node(id), &rest[n..]);
        }
        None
    }

    fn siblings(&mut self, parent: Behind) -> Option<&mut Vec<usize>> {
        match parent {
            Behind::Root(salt) => Some(self.roots.entry(salt).or_default()),
            Behind::Node(id) => self.node_mut(id).map(|node| &mut node.children),
        }
    }

    /// Takes the page that was used longest ago off the device, of those that nobody reads and nothing
    /// on the device follows: to the host's memory, where what was used earlier is evicted, or else it
    /// is forgotten. Gives the page back.
    ///
    /// # Errors
    /// What the backend says; then the page stays.
    pub fn evict(&mut self, storage: Option<&mut dyn Storage>) -> Result<Option<u32>> {
        let on_device = |id: &usize| self.page(*id).is_some();
        let nodes = self.nodes.iter().enumerate();
        let found = nodes
            .filter_map(|(id, node)| Some((id, node.as_ref()?)))
            .filter(|(_, node)| node.page().is_some())
            .filter(|(_, node)| node.users == 0 && !node.children.iter().any(on_device))
            .min_by_key(|(_, node)| node.used)
            .and_then(|(id, node)| Some((id, node.used, node.page()?)));
        let Some((id, used, page)) = found else {
            return Ok(None);
        };
        let mut moved = false;
        if let Some(storage) = storage {
            let bytes = storage.page_bytes(Kind::Whole);
            if let Some(mut piece) = self.piece(storage, bytes, used) {
                if let Err(e) = storage.read_page(Kind::Whole, page, piece.bytes_mut()) {
                    self.host.give(piece);
                    return Err(e);
                }
                if let Some(node) = self.node_mut(id) {
                    node.place = Place::Host(piece);
                    moved = true;
                }
            }
        }
        if !moved {
            self.forget(id);
        }
        Ok(Some(page))
    }

    /// Memory of the host for what was used at `used`: only what was used earlier is evicted.
    fn piece(&mut self, storage: &dyn Storage, bytes: usize, used: u64) -> Option<Bytes> {
        if !self.host.holds(bytes) {
            return None;
        }
        while !self.host.has_room(bytes) {
            if !self.give_way(used) {
                return None;
            }
        }
        self.host.take(storage, bytes)
    }

    /// Memory of the host for a state.
    pub fn state_piece(&mut self, storage: &dyn Storage) -> Option<Bytes> {
        let (bytes, now) = (storage.state_bytes(), self.clock + 1);
        self.piece(storage, bytes, now)
    }

    /// Frees what was used longest ago of the host's memory, if that was before `used`: a page that
    /// nothing follows, one of layers that see a window, or a state.
    fn give_way(&mut self, used: u64) -> bool {
        let nodes = || {
            let nodes = self.nodes.iter().enumerate();
            nodes.filter_map(|(id, node)| Some((id, node.as_ref()?)))
        };
        let pages = nodes()
            .filter(|(_, n)| n.page().is_none() && n.children.is_empty())
            .map(|(id, n)| (n.used, id, Given::Page));
        let states = nodes().flat_map(|(id, n)| {
            let all = n.snapshots.iter();
            all.map(move |s| (s.used, id, Given::State(s.tokens)))
        });
        let windowed = nodes().filter_map(|(id, n)| {
            let its = n.windowed.as_ref()?;
            matches!(its.place, Place::Host(_)).then_some((its.used, id, Given::Windowed))
        });
        let oldest = pages.chain(states).chain(windowed).min();
        match oldest.filter(|(at, _, _)| *at < used) {
            Some((_, id, Given::Page)) => self.forget(id),
            Some((_, id, Given::Windowed)) => {
                let its = self.node_mut(id).and_then(|node| node.windowed.take());
                self.drop_windowed(its);
            }
            Some((_, id, Given::State(tokens))) => {
                let node = self.nodes.get_mut(id).and_then(Option::as_mut);
                let at = node.and_then(|node| {
                    let at = node.snapshots.iter().position(|s| s.tokens == tokens)?;
                    Some(node.snapshots.swap_remove(at))
                });
                self.host.give_all(at.map(|s| s.state));
            }
            None => return false,
        }
        true
    }

    /// Forgets a node that nobody reads and what follows it, none of which is on the device.
    fn forget(&mut self, id: usize) {
        if let Some(parent) = self.node(id).map(|n| n.parent) {
            if let Some(siblings) = self.siblings(parent) {
                siblings.retain(|child| *child != id);
                if let (true, Behind::Root(salt)) = (siblings.is_empty(), parent) {
                    self.roots.remove(&salt);
                }
            }
        }
        let mut below = vec![id];
        while let Some(id) = below.pop() {
            let Some(node) = self.nodes.get_mut(id).and_then(Option::take) else {
                continue;
            };
            self.free.push(id);
            below.extend(node.children);
            if let Place::Host(bytes) = node.place {
                self.host.give(bytes);
            }
            let states = node.snapshots.into_iter().map(|s| s.state);
            self.host.give_all(states);
            self.drop_windowed(node.windowed);
        }
    }

    /// Pages that [`Prefixes::evict`] could give back.
    pub fn evictable(&self) -> usize {
        // A sequence holds every node on its way: where one has no users, none behind it has.
        let nodes = self.nodes.iter().flatten();
        let free = nodes.filter(|node| node.users == 0 && node.page().is_some());
        free.count()
    }

    /// The size of a piece of the host's memory that will soon be wanted, where `free` pages of the device
    /// are: for prefixes that are evicted once these are taken, and for states of the next prompt.
    pub fn unprepared(&self, storage: &dyn Storage, free: usize) -> Option<usize> {
        let pages = self.evictable().saturating_sub(free);
        let states = if self.stateful { STATES_AHEAD } else { 0 };
        let windowed = self.resting().saturating_sub(self.free_windowed.len());
        let wanted = [
            (storage.state_bytes(), states),
            (storage.page_bytes(Kind::Windowed), windowed),
            (storage.page_bytes(Kind::Whole), pages),
        ];
        let mut wanted = wanted.into_iter();
        let found = wanted.find(|(bytes, most)| self.host.is_unprepared(*bytes, *most));
        found.map(|(bytes, _)| bytes)
    }

    /// Whether there are nodes that the store may not know, and it writes.
    pub fn has_unstored(&self) -> bool {
        let writes = self.store.as_ref().is_some_and(Store::writes);
        writes && !self.unstored.is_empty()
    }

    /// Hands a page or state that the store does not have to its writer, the one kept first. Says
    /// whether one went; the writer may be busy.
    ///
    /// # Errors
    /// What the backend says.
    pub fn store_one(&mut self, storage: &mut dyn Storage) -> Result<bool> {
        while let Some(id) = self.unstored.front().copied() {
            let rests = self.is_resting(id);
            let Some(store) = &mut self.store else {
                return Ok(false);
            };
            let node = self.nodes.get(id).and_then(Option::as_ref);
            if let Some(node) = node.filter(|n| n.tokens.len() == PAGE_TOKENS) {
                let state = node.snapshot(PAGE_TOKENS);
                let state = state.filter(|_| !store.knows_state(&node.key));
                let kinds = Kind::ALL.into_iter().filter(|kind| {
                    let wanted = *kind == Kind::Whole || rests;
                    wanted && !store.knows_page(*kind, &node.key)
                });
                let page = kinds
                    .filter_map(|kind| Some((kind, node.place(kind)?)))
                    .next();
                if (page.is_some() || state.is_some()) && !store.is_ready() {
                    return Ok(false);
                }
                if let Some((kind, place)) = page {
                    let mut bytes = vec![0; storage.page_bytes(kind)];
                    match place {
                        Place::Host(page) => bytes.copy_from_slice(page.bytes()),
                        Place::Device(page) => storage.read_page(kind, *page, &mut bytes)?,
                    }
                    store.write_page(kind, node.key, &node.tokens, node.saturated, bytes);
                    return Ok(true);
                }
                if let Some(snapshot) = state {
                    store.write_state(node.key, snapshot.state.bytes().to_vec());
                    return Ok(true);
                }
            }
            self.unstored.pop_front();
        }
        Ok(false)
    }
}
