//! Properties of an op other than its computation, defined once in
//! [`Op::signature`](super::Op::signature); plan checks, fusion, memory, traffic and listings use it.

use std::fmt;

use super::{BufferId, Groups, Plan, RopeStyle, Rows, StateId, Weight, WeightId};

/// Most experts of a layer: more than any published model has, and few enough that a warp chooses
/// among them.
pub const MOST_EXPERTS: usize = 1024;

/// Most groups of experts: a lane of a warp has one.
pub const MOST_GROUPS: usize = 32;

/// One op, for code that need not know which it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// In listings.
    pub name: &'static str,
    /// Inputs first, in the order of a listing.
    pub buffers: Vec<Operand>,
    pub weights: Vec<Used>,
    pub over: Over,
    pub parts: Parts,
    pub cache: Option<CacheUse>,
    /// What it takes on from token to token.
    pub state: Option<StateUse>,
    /// Tokens of the cache that a row sees, where these are not all.
    pub window: Option<usize>,
    /// Whether a row sees tokens behind it.
    pub looks_ahead: bool,
    /// Set where it rotates heads.
    pub rotation: Option<Rotation>,
    /// The buffer with the experts of each row, where it chooses them or goes by them.
    pub routes: Option<BufferId>,
    /// Of which experts are chosen, where these have groups.
    pub groups: Option<Groups>,
    pub constant: Option<Constant>,
}

/// A buffer of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    pub id: BufferId,
    pub access: Access,
    pub width: Width,
}

/// What an op does with a buffer, or with the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Written whole; must be none of the op's other buffers.
    Write,
    /// Written whole; may be an input, which is then replaced in place.
    Replace,
    /// Read and written in place; must be none of the op's other buffers.
    Update,
}

/// How wide a buffer must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// As wide as every other one of the op that says so.
    Row,
    /// As a matrix has rows.
    Product,
    /// All heads that the cache holds of a token.
    Cache,
    /// A value of the cache for each of [`Parts::Heads`].
    Attended,
    /// So many values.
    Of(usize),
    /// So many times [`Width::Row`].
    Times(usize),
    /// Of [`Width::Row`] a divisor: each value is for as many consecutive ones of the row.
    Share,
    /// An id and a weight for each rank of a row's experts.
    Routes,
    /// [`Width::Row`] for each rank.
    Ranks,
    /// As an expert's matrix has rows, for each rank.
    RankedProduct,
    /// [`Width::Row`] of each card.
    Cards,
}

/// A weight of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub id: WeightId,
    pub role: Role,
}

/// What a weight is used for, and so its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `[n_vocab][Width::Row]`, of which each row takes the one of its token.
    Lookup,
    /// A table of at least so many `rows` of `width` values, in each of its own rows as many as there is
    /// room for, of which each row takes some.
    Hashed { width: usize, rows: u64 },
    /// `[Width::Product][Width::Row]`, all of which multiplies each row.
    Matrix,
    /// A vector that multiplies the row, or each group of [`Parts::Groups`] alike.
    Scale,
    /// A vector added to each row of [`Width::Product`].
    Bias,
    /// A vector added to the row.
    Shift,
    /// Rows of [`Width::Row`] one after another as a vector, of which one is added to the row.
    Rows,
    /// A number that multiplies the product, or one for each expert.
    ProductScale,
    /// `[Width::Row]` of so many factors each, two or more: those of a value and of the ones before
    /// it.
    Taps(usize),
    /// A number for each of [`Parts::Heads`].
    PerHead,
    /// A vector that multiplies a head of the cache.
    OfHead,
    /// A vector that the choice of experts adds to what it compares.
    Selection,
    /// A matrix for each expert, of which each rank of a row takes the one of its id.
    Experts,
    /// A vector for each expert, added to that one's product.
    ExpertBias,
    /// A vector of a number for each of [`Parts::Heads`].
    Sink,
    /// One number that multiplies all.
    Factor,
    /// A vector of a number for each expert.
    PerExpert,
}

/// The rows that an op runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Those of its buffers, which all have the same.
    Buffers,
    /// Those of the batch: it goes by their tokens, positions or slots.
    Batch,
    /// Those whose logits are wanted, picked from the batch.
    Picked,
}

/// The parts of [`Width::Row`] that are computed each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// One: the row.
    Whole,
    /// Of so many values each.
    Groups(usize),
    /// So many.
    Heads(usize),
    /// So many, each the values from `first` on of `of` of the input.
    Sliced { n: usize, first: usize, of: usize },
}

/// How an op uses the cache of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheUse {
    pub layer: usize,
    pub access: Access,
}

/// How an op uses the state of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateUse {
    pub id: StateId,
    /// Numbers of the state for each value of [`Width::Row`].
    pub per_value: usize,
    /// Values of each of [`Parts::Heads`], where it has those.
    pub head_dim: Option<usize>,
}

/// How an op rotates heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// By the angles of this one of [`Plan::ropes`].
    pub table: usize,
    pub style: RopeStyle,
}

/// A number of an op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Constant {
    Epsilon(f32),
    Scale(f32),
}

impl Operand {
    /// A buffer as wide as the op's rows.
    pub fn new(id: BufferId, access: Access) -> Self {
        Self {
            id,
            access,
            width: Width::Row,
        }
    }

    /// The same, of another width.
    pub fn wide(self, width: Width) -> Self {
        Self { width, ..self }
    }
}

impl Access {
    /// Whether what was there before matters.
    pub fn reads(self) -> bool {
        matches!(self, Access::Read | Access::Update)
    }

    /// Whether it leaves something.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

impl Role {
    /// Whether it is one row, which backends keep as float32.
    pub fn is_vector(self) -> bool {
        matches!(
            self,
            Role::Scale
                | Role::Bias
                | Role::Shift
                | Role::Rows
                | Role::ProductScale
                | Role::Sink
                | Role::Selection
                | Role::ExpertBias
                | Role::Taps(_)
                | Role::PerHead
                | Role::OfHead
                | Role::Factor
                | Role::PerExpert
        )
    }
}

impl Signature {
    /// An op of these buffers, and of nothing else that the caller does not add.
    pub fn new(name: &'static str, over: Over, buffers: Vec<Operand>) -> Self {
        Self {
            name,
            buffers,
            weights: Vec::new(),
            over,
            parts: Parts::Whole,
            cache: None,
            state: None,
            window: None,
            looks_ahead: false,
            rotation: None,
            routes: None,
            groups: None,
            constant: None,
        }
    }

    /// The buffers whose values it needs.
    pub fn inputs(&self) -> impl Iterator<Item = BufferId> + '_ {
        let read = self.buffers.iter().filter(|b| b.access.reads());
        read.map(|b| b.id)
    }

    /// The buffers that it writes.
    pub fn outputs(&self) -> impl Iterator<Item = BufferId> + '_ {
        let written = self.buffers.iter().filter(|b| b.access.writes());
        written.map(|b| b.id)
    }

    /// The buffers whose values before it are of no use to what follows.
    pub fn overwritten(&self) -> impl Iterator<Item = BufferId> + '_ {
        let whole = |b: &&Operand| b.access.writes() && !b.access.reads();
        self.buffers.iter().filter(whole).map(|b| b.id)
    }

    /// The heads of each row, where it attends to the tokens in the cache.
    pub fn attends(&self) -> Option<usize> {
        match (self.parts, self.cache) {
            (Parts::Heads(n), Some(cache)) if cache.access.reads() => Some(n),
            _ => None,
        }
    }

    /// Which rows it runs over in `plan`.
    pub fn rows(&self, plan: &Plan) -> Rows {
        match (self.over, self.buffers.first()) {
            (Over::Buffers, Some(first)) => plan.buffer(first.id).rows,
            (Over::Buffers | Over::Batch, _) => Rows::Batch,
            (Over::Picked, _) => Rows::Out,
        }
    }

    /// Whether its buffers, weights and numbers go together in `plan`, which has all of them.
    pub fn fits(&self, plan: &Plan) -> bool {
        self.widths_fit(plan)
            && self.weights_fit(plan)
            && self.parts_fit(plan)
            && self.rows_fit(plan)
            && are_apart(&self.buffers)
            && self.cache.is_none_or(|c| self.cache_fits(plan, c))
            && self.state.is_none_or(|s| self.state_fits(plan, s))
            && self.window != Some(0)
            && self
                .rotation
                .is_none_or(|rotation| rotation.table < plan.ropes.len())
            && self.routes_fit(plan)
    }

    /// Whether the layer has such a cache; values that are in its keys are not stored beside them.
    fn cache_fits(&self, plan: &Plan, of: CacheUse) -> bool {
        plan.kv.get(of.layer).is_some_and(|kv| {
            let values = kv.values_in_keys.unwrap_or(1);
            let are_one = self.buffers.windows(2).all(|two| two[0].id == two[1].id);
            let is_apart = kv.values_in_keys.is_none() || !of.access.writes();
            (1..=kv.head_dim.max(1)).contains(&values) && (is_apart || are_one)
        })
    }

    /// Experts of each row.
    pub fn ranks(&self, plan: &Plan) -> Option<usize> {
        Some(plan.buffer(self.routes?).width / 2)
    }

    fn experts<'a>(&self, plan: &'a Plan) -> Option<&'a Weight> {
        let used = self.weights.iter().find(|w| w.role == Role::Experts)?;
        Some(plan.weight(used.id))
    }

    /// The width of a row, or of each of its ranks' own.
    fn row_width(&self, plan: &Plan) -> Option<usize> {
        let own = self.experts(plan).map(|w| w.n_in);
        self.width(plan, Width::Row).or(own)
    }

    /// Whether there is a rank, and no more of them than experts to choose from.
    fn routes_fit(&self, plan: &Plan) -> bool {
        let Some(k) = self.ranks(plan) else {
            return true;
        };
        let chooses = self.overwritten().any(|out| Some(out) == self.routes);
        let most = match (chooses, self.experts(plan)) {
            (true, _) => self.width(plan, Width::Row).unwrap_or(k),
            (false, Some(experts)) => experts.n_expert,
            (false, None) => k,
        };
        let of_groups = self.groups.is_none_or(|groups| {
            let Groups { count, used } = groups;
            let is_cut = (1..=MOST_GROUPS).contains(&count) && most.is_multiple_of(count);
            is_cut && most >= 2 * count && (1..=count).contains(&used) && k <= most / count * used
        });
        (1..=most.min(MOST_EXPERTS)).contains(&k) && most <= MOST_EXPERTS && of_groups
    }

    fn width(&self, plan: &Plan, width: Width) -> Option<usize> {
        if width == Width::Cache {
            let kv = plan.kv.get(self.cache?.layer)?;
            return kv.n_head_kv.checked_mul(kv.head_dim);
        }
        if let (Width::Attended, Parts::Heads(n)) = (width, self.parts) {
            return n.checked_mul(plan.kv.get(self.cache?.layer)?.value_dim());
        }
        match width {
            Width::Routes => return self.ranks(plan)?.checked_mul(2),
            Width::Ranks => return self.row_width(plan)?.checked_mul(self.ranks(plan)?),
            Width::RankedProduct => {
                return self.experts(plan)?.n_out.checked_mul(self.ranks(plan)?)
            }
            Width::Of(n) => return Some(n),
            Width::Cards => return self.width(plan, Width::Row)?.checked_mul(plan.share?.cards),
            Width::Times(n) => return self.width(plan, Width::Row)?.checked_mul(n),
            // Any divisor: see `widths_fit`.
            Width::Share => return None,
            Width::Row | Width::Product | Width::Cache | Width::Attended => {}
        }
        let first = self.buffers.iter().find(|b| b.width == width)?;
        Some(plan.buffer(first.id).width)
    }

    fn widths_fit(&self, plan: &Plan) -> bool {
        let row = self.width(plan, Width::Row);
        let fits = |b: &Operand| match (b.width, plan.buffer(b.id).width) {
            (Width::Share, n) => n > 0 && row.is_some_and(|row| row.is_multiple_of(n)),
            (width, n) => self.width(plan, width) == Some(n),
        };
        self.buffers.iter().all(fits)
    }

    fn state_fits(&self, plan: &Plan, of: StateUse) -> bool {
        let row = self.width(plan, Width::Row);
        let width = row.and_then(|row| row.checked_mul(of.per_value));
        plan.states.get(of.id.0).map(|state| state.width) == width
    }

    fn weights_fit(&self, plan: &Plan) -> bool {
        let row = self.row_width(plan);
        let product = self.width(plan, Width::Product);
        let experts = self.experts(plan);
        self.weights.iter().all(|used| {
            let w = plan.weight(used.id);
            let (n_in, n_out) = (Some(w.n_in), Some(w.n_out));
            let is_one = w.n_expert == 1;
            let is_vector = is_one && w.n_out == 1;
            match used.role {
                Role::Lookup => is_one && n_in == row,
                Role::Hashed { width, rows } => {
                    let each = w.n_in.checked_div(width).unwrap_or(0);
                    let has = each.saturating_mul(w.n_out) as u64 >= rows;
                    is_one && each > 0 && w.n_in == each * width && has
                }
                Role::Matrix => is_one && n_in == row && n_out == product,
                Role::Scale => is_vector && self.is_scale(w.n_in, row),
                Role::Bias => is_vector && n_in == product,
                Role::Shift => is_vector && n_in == row,
                Role::Rows => {
                    let fits = |row: usize| w.n_in > 0 && w.n_in.is_multiple_of(row);
                    is_vector && row.is_some_and(fits)
                }
                Role::ProductScale => {
                    let n_expert = experts.map_or(1, |w| w.n_expert);
                    (w.n_in, w.n_out, w.n_expert) == (1, 1, n_expert)
                }
                Role::Taps(n) => {
                    n > 1 && is_vector && n_in == row.and_then(|row| row.checked_mul(n))
                }
                Role::OfHead => {
                    let kv = self.cache.and_then(|cache| plan.kv.get(cache.layer));
                    is_vector && kv.is_some_and(|kv| kv.head_dim == w.n_in)
                }
                Role::PerHead | Role::Sink => is_vector && Parts::Heads(w.n_in) == self.parts,
                Role::Selection => is_vector && n_in == row,
                Role::Factor => is_vector && w.n_in == 1,
                Role::PerExpert => {
                    let ranks = self.ranks(plan).unwrap_or(0);
                    is_vector && (ranks..=MOST_EXPERTS).contains(&w.n_in)
                }
                Role::Experts => n_in == row && w.n_out > 0,
                Role::ExpertBias => {
                    let shape = experts.map(|w| (w.n_out, 1, w.n_expert));
                    Some((w.n_in, w.n_out, w.n_expert)) == shape
                }
            }
        })
    }

    /// Whether a vector of so many numbers may be of [`Role::Scale`].
    fn is_scale(&self, n: usize, row: Option<usize>) -> bool {
        match self.parts {
            Parts::Whole => Some(n) == row,
            Parts::Groups(size) => n == size || Some(n) == row,
            Parts::Heads(_) | Parts::Sliced { .. } => false,
        }
    }

    fn parts_fit(&self, plan: &Plan) -> bool {
        let Some(row) = self.width(plan, Width::Row) else {
            return self.parts == Parts::Whole;
        };
        let cut = |n: usize| n > 0 && row.is_multiple_of(n);
        match self.parts {
            Parts::Whole => true,
            Parts::Groups(size) => cut(size),
            Parts::Sliced { n, first, of } => {
                cut(n) && first.checked_add(row / n).is_some_and(|end| end <= of)
            }
            Parts::Heads(n) if !cut(n) => false,
            Parts::Heads(n) => {
                let table = self
                    .rotation
                    .and_then(|rotation| plan.ropes.get(rotation.table));
                let rotated = table.map_or(0, |table| 2 * table.inv_freq.len());
                let shares = |cache: CacheUse| {
                    plan.kv.get(cache.layer).is_some_and(|kv| {
                        row / n == kv.head_dim && kv.n_head_kv > 0 && n.is_multiple_of(kv.n_head_kv)
                    })
                };
                let heads = |s: StateUse| s.head_dim.is_none_or(|d| row / n == d);
                row / n >= rotated && self.cache.is_none_or(shares) && self.state.is_none_or(heads)
            }
        }
    }

    fn rows_fit(&self, plan: &Plan) -> bool {
        let over = self.rows(plan);
        self.buffers.iter().all(|b| {
            let expected = match (self.over, b.access) {
                (Over::Picked, Access::Read) => Rows::Batch,
                _ => over,
            };
            plan.buffer(b.id).rows == expected
        })
    }

    /// Whether it may run before or behind `other` alike: none writes what the other one uses.
    pub fn commutes(&self, other: &Self) -> bool {
        let uses = |op: &Self, id| op.buffers.iter().any(|b| b.id == id);
        let is_free = |a: &Self, b: &Self| a.outputs().all(|id| !uses(b, id));
        let [mine, its] = [self, other].map(|op| op.cache.is_some() || op.state.is_some());
        is_free(self, other) && is_free(other, self) && !(mine && its)
    }

    /// The op as a line of a listing of `plan`.
    pub fn listed<'a>(&'a self, plan: &'a Plan) -> impl fmt::Display + 'a {
        Listed { op: self, plan }
    }
}

/// Whether none is written that is another one too, but where that may be.
pub fn are_apart(buffers: &[Operand]) -> bool {
    let may_be_input = |b: &Operand| matches!(b.access, Access::Read | Access::Replace);
    buffers.iter().all(|b| {
        let others = buffers.iter().filter(|other| other.id == b.id).count() - 1;
        may_be_input(b) || others == 0
    })
}

struct Listed<'a> {
    op: &'a Signature,
    plan: &'a Plan,
}

impl Listed<'_> {
    fn weight(&self, used: &Used) -> String {
        let w = self.plan.weight(used.id);
        let bias = match used.role {
            Role::Bias | Role::ExpertBias | Role::Shift => "bias ",
            Role::ProductScale => "scale ",
            Role::Selection => "selection ",
            Role::Sink => "sinks ",
            _ => "",
        };
        if matches!(used.role, Role::Experts | Role::ExpertBias) {
            let Weight {
                n_out,
                n_in,
                n_expert,
                ..
            } = w;
            return format!(
                "{bias}{} {}[{n_expert}, {n_out}, {n_in}]",
                w.name, w.ty.name
            );
        }
        match w.n_out {
            1 => format!("{bias}{} {}[{}]", w.name, w.ty.name, w.n_in),
            n_out => format!("{bias}{} {}[{n_out}, {}]", w.name, w.ty.name, w.n_in),
        }
    }
}

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.op;
        let name = |id| self.plan.buffer(id).name.clone();
        let (mut left, mut right) = (Vec::new(), Vec::new());
        left.extend(op.outputs().map(name));
        right.extend(op.inputs().map(name));
        if let Some(cache) = op.cache {
            let side = match cache.access.writes() {
                true => &mut left,
                false => &mut right,
            };
            side.push(format!("kv[{}]", cache.layer));
        }
        if let Some(state) = op.state {
            let name = &self.plan.states[state.id.0].name;
            left.push(name.clone());
            right.push(name.clone());
        }
        right.extend(op.weights.iter().map(|used| self.weight(used)));
        match op.parts {
            Parts::Whole => {}
            Parts::Groups(size) => right.push(format!("group {size}")),
            Parts::Heads(n) => right.push(format!("{n} heads")),
            Parts::Sliced { n, first, of } => {
                right.push(format!("{n} parts, from {first} of {of}"));
            }
        }
        right.extend(op.rotation.map(|rotation| match self.plan.ropes.len() {
            1 => rotation.style.name().to_owned(),
            _ => format!("{} by table {}", rotation.style.name(), rotation.table),
        }));
        right.extend(op.constant.map(|constant| match constant {
            Constant::Epsilon(eps) => format!("eps {eps:e}"),
            Constant::Scale(scale) => format!("scale {scale}"),
        }));
        right.extend(
            op.groups
                .map(|g| format!("{} of {} groups", g.used, g.count)),
        );
        right.extend(op.looks_ahead.then(|| "both ways".to_owned()));
        right.extend(op.window.map(|window| format!("window {window}")));
        write!(f, "{} = {}({})", left.join(", "), op.name, right.join(", "))
    }
}
