//! Pages that outlive their sequences, found by the tokens that they hold: a tree whose edges are
//! pages of tokens. What is kept is compared token by token, so that no hash can mistake one for
//! another.

use crate::backend::PAGE_TOKENS;

/// A page in the tree.
#[derive(Debug)]
struct Node {
    parent: Option<usize>,
    /// A whole page, or less: then nothing follows it, and nobody reads it but to copy it.
    tokens: Box<[u32]>,
    page: u32,
    /// Sequences that read it. Who reads a page reads those before it too.
    users: usize,
    children: Vec<usize>,
    /// When it was last used, by [`Prefixes::clock`].
    used: u64,
    /// Whether a key or value in it was beyond what the cache's type holds.
    saturated: bool,
}

/// What of a prompt is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Nodes of whole pages, the first page first.
    pub whole: Vec<usize>,
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

/// The tree.
#[derive(Debug, Default)]
pub struct Prefixes {
    nodes: Vec<Option<Node>>,
    /// Numbers that no node has.
    free: Vec<usize>,
    roots: Vec<usize>,
    clock: u64,
}

impl Prefixes {
    fn node(&self, id: usize) -> Option<&Node> {
        self.nodes.get(id).and_then(Option::as_ref)
    }

    fn children(&self, of: Option<usize>) -> &[usize] {
        match of {
            None => &self.roots,
            Some(id) => self.node(id).map_or(&[], |n| &n.children),
        }
    }

    /// The child that has the most of `tokens` at its front, and how many.
    fn best(&self, of: Option<usize>, tokens: &[u32]) -> Option<(usize, usize)> {
        let common = |id: &usize| {
            let theirs = self.node(*id)?.tokens.iter();
            let n = theirs.zip(tokens).take_while(|(a, b)| a == b).count();
            Some((*id, n))
        };
        let all = self.children(of).iter().filter_map(common);
        all.max_by_key(|(_, n)| *n).filter(|(_, n)| *n > 0)
    }

    /// What is kept of `tokens`.
    pub fn find(&self, tokens: &[u32]) -> Found {
        let mut found = Found::default();
        let mut rest = tokens;
        while let Some((id, n)) = self.best(found.whole.last().copied(), rest) {
            if n < PAGE_TOKENS {
                found.part = Some((id, n));
                break;
            }
            found.whole.push(id);
            rest = &rest[n..];
        }
        found
    }

    /// The page of a node.
    pub fn page(&self, id: usize) -> u32 {
        self.node(id).map_or(0, |n| n.page)
    }

    /// Whether something in a node's page is beyond what the cache's type holds.
    pub fn saturated(&self, id: usize) -> bool {
        self.node(id).is_some_and(|n| n.saturated)
    }

    /// Says that a sequence reads these nodes: they stay.
    pub fn hold(&mut self, ids: &[usize]) {
        self.clock += 1;
        for id in ids {
            if let Some(node) = self.nodes.get_mut(*id).and_then(Option::as_mut) {
                node.users += 1;
                node.used = self.clock;
            }
        }
    }

    /// Says that it does so no more.
    pub fn let_go(&mut self, ids: &[usize]) {
        self.clock += 1;
        for id in ids {
            if let Some(node) = self.nodes.get_mut(*id).and_then(Option::as_mut) {
                node.users = node.users.saturating_sub(1);
                node.used = self.clock;
            }
        }
    }

    /// Keeps `page`, whose first entries hold `tokens`, at most a page of them, behind `parent`.
    pub fn keep(
        &mut self,
        parent: Option<usize>,
        tokens: &[u32],
        page: u32,
        saturated: bool,
    ) -> Kept {
        self.clock += 1;
        let used = self.clock;
        if let Some((id, n)) = self.best(parent, tokens) {
            if let Some(node) = self.nodes.get_mut(id).and_then(Option::as_mut) {
                if n == tokens.len() {
                    node.used = used;
                    return Kept::Known(id);
                }
                if n == node.tokens.len() {
                    node.tokens = tokens.into();
                    (node.used, node.saturated) = (used, saturated);
                    let free = std::mem::replace(&mut node.page, page);
                    return Kept::Instead { node: id, free };
                }
            }
        }
        let node = Node {
            parent,
            tokens: tokens.into(),
            page,
            users: 0,
            children: Vec::new(),
            used,
            saturated,
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
        self.siblings(parent).push(id);
        Kept::New(id)
    }

    fn siblings(&mut self, parent: Option<usize>) -> &mut Vec<usize> {
        match parent.and_then(|id| self.nodes.get_mut(id)) {
            Some(Some(node)) => &mut node.children,
            _ => &mut self.roots,
        }
    }

    /// Forgets the page that was used longest ago of those that nobody reads and nothing follows,
    /// and gives it back.
    pub fn evict(&mut self) -> Option<u32> {
        let nodes = self.nodes.iter().enumerate();
        let (id, _) = nodes
            .filter_map(|(id, node)| Some((id, node.as_ref()?)))
            .filter(|(_, node)| node.users == 0 && node.children.is_empty())
            .min_by_key(|(_, node)| node.used)?;
        let node = self.nodes[id].take()?;
        self.siblings(node.parent).retain(|child| *child != id);
        self.free.push(id);
        Some(node.page)
    }

    /// Pages that [`Prefixes::evict`] could give back.
    pub fn evictable(&self) -> usize {
        // A sequence holds every node on its way: where one has no users, none behind it has.
        let nodes = self.nodes.iter().flatten();
        nodes.filter(|node| node.users == 0).count()
    }
}
